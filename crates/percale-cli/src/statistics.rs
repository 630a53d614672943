//! Summaries of samples.

/// Unordered samples in nanoseconds: one per message, per batch of accesses, or per round of a stream.
#[derive(Clone, Debug, Default)]
pub(crate) struct Samples(Vec<f64>);

/// The summary of a list of samples, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Summary {
    /// The median.
    pub(crate) p50: f64,
    /// The 99th percentile.
    pub(crate) p99: f64,
    /// The number of samples.
    pub(crate) count: usize,
}

impl Samples {
    /// Makes an empty list with room for `count` samples, so that adding them allocates nothing.
    pub(crate) fn with_room(count: usize) -> Self {
        Self(Vec::with_capacity(count))
    }

    /// Adds a sample.
    #[inline]
    pub(crate) fn push(&mut self, nanoseconds: f64) {
        self.0.push(nanoseconds);
    }

    /// Adds all samples of another list.
    pub(crate) fn append(&mut self, mut other: Self) {
        self.0.append(&mut other.0);
    }

    /// Sorts and summarizes the samples. Returns `None` if there are none.
    pub(crate) fn summary(mut self) -> Option<Summary> {
        self.0.sort_unstable_by(f64::total_cmp);
        Some(Summary { p50: percentile(&self.0, 50.0)?, p99: percentile(&self.0, 99.0)?, count: self.0.len() })
    }
}

impl FromIterator<f64> for Samples {
    fn from_iter<I: IntoIterator<Item = f64>>(samples: I) -> Self {
        Self(samples.into_iter().collect())
    }
}

/// Returns the smallest sample for which at least `percent` of all samples are not larger (nearest rank, so the result
/// is always a measured value).
fn percentile(sorted: &[f64], percent: f64) -> Option<f64> {
    let rank = (percent / 100.0 * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.max(1) - 1).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_the_nearest_rank() {
        let hundred: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!(percentile(&hundred, 50.0), Some(50.0));
        assert_eq!(percentile(&hundred, 99.0), Some(99.0));
        assert_eq!(percentile(&hundred, 100.0), Some(100.0));
        assert_eq!(percentile(&hundred, 0.0), Some(1.0));
        assert_eq!(percentile(&[7.0], 99.0), Some(7.0));
        assert_eq!(percentile(&[1.0, 2.0], 50.0), Some(1.0));
        assert_eq!(percentile(&[], 50.0), None);
    }

    #[test]
    fn summary_is_independent_of_sample_order() {
        let samples: Samples = (0..1000).map(|i| f64::from((i * 7919) % 1000)).collect();
        assert_eq!(samples.summary(), Some(Summary { p50: 499.0, p99: 989.0, count: 1000 }));
        assert_eq!(Samples::default().summary(), None);
    }
}
