//! The outcome of an insertion.

use super::error::AddressError;
use crate::types::PeerAddress;

/// The outcome for each address of one insertion, in order. A run of consecutive numbers takes as much memory as one.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Inserted {
    runs: Vec<OutcomeRun>,
}

crate::short_debug!(Inserted, "Inserted");

#[derive(Clone, Debug, PartialEq, Eq)]
enum OutcomeRun {
    /// `count` peers, with consecutive numbers.
    There { first: u64, count: u64 },
    /// `count` addresses that failed for the same reason.
    Failed { count: u64, error: AddressError },
}

impl OutcomeRun {
    const fn len(&self) -> u64 {
        match self {
            Self::There { count, .. } | Self::Failed { count, .. } => *count,
        }
    }

    const fn is_there(&self) -> bool {
        matches!(self, Self::There { .. })
    }
}

impl Inserted {
    /// Returns the number of addresses that were inserted.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.runs.iter().filter(|run| run.is_there()).map(OutcomeRun::len).sum()
    }

    /// Returns the number of addresses of the insertion, including failed ones.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.runs.iter().map(OutcomeRun::len).sum()
    }

    /// Returns whether the insertion had no addresses.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Returns, in order, the number of each address or the reason why it was not inserted.
    pub fn iter(&self) -> impl Iterator<Item = Result<PeerAddress, &AddressError>> {
        self.runs.iter().flat_map(|run| {
            (0..run.len()).map(move |at| match run {
                OutcomeRun::There { first, .. } => Ok(PeerAddress(first + at)),
                OutcomeRun::Failed { error, .. } => Err(error),
            })
        })
    }

    /// Returns the addresses that failed: the index of each in the insertion, and the reason.
    pub fn failures(&self) -> impl Iterator<Item = (u64, &AddressError)> {
        self.failed_runs().flat_map(|(start, count, error)| (0..count).map(move |at| (start + at, error)))
    }

    /// Returns the failures as runs of consecutive addresses that failed for the same reason: the index of the first,
    /// the number, and the reason.
    pub(crate) fn failed_runs(&self) -> impl Iterator<Item = (u64, u64, &AddressError)> {
        let mut before = 0;
        self.runs.iter().filter_map(move |run| {
            let start = before;
            before += run.len();
            match run {
                OutcomeRun::There { .. } => None,
                OutcomeRun::Failed { count, error } => Some((start, *count, error)),
            }
        })
    }

    pub(crate) fn there(&mut self, first: PeerAddress, more: u64) {
        let first = first.0;
        match self.runs.last_mut() {
            Some(OutcomeRun::There { first: before, count }) if *before + *count == first => *count += more,
            _ => self.runs.push(OutcomeRun::There { first, count: more }),
        }
    }

    pub(crate) fn failed(&mut self, more: u64, error: AddressError) {
        match self.runs.last_mut() {
            Some(OutcomeRun::Failed { count, error: before }) if *before == error => *count += more,
            _ => self.runs.push(OutcomeRun::Failed { count: more, error }),
        }
    }

    pub(super) fn push(&mut self, outcome: Result<PeerAddress, AddressError>) {
        match outcome {
            Ok(peer) => self.there(peer, 1),
            Err(error) => self.failed(1, error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requirements: AV-025.
    #[test]
    fn outcome_of_each_address_is_at_its_index() {
        let mut inserted = Inserted::default();
        for outcome in [Ok(7), Ok(8), Err(AddressError::Full), Err(AddressError::Full), Ok(9), Ok(20)] {
            inserted.push(outcome.map(PeerAddress));
        }
        assert_eq!(inserted.runs.len(), 4);
        assert_eq!((inserted.count(), inserted.len()), (4, 6));
        let numbers: Vec<_> = inserted.iter().map(|outcome| outcome.map_or(0, |peer| peer.0)).collect();
        assert_eq!(numbers, [7, 8, 0, 0, 9, 20]);
        let failed: Vec<_> = inserted.failures().map(|(at, _)| at).collect();
        assert_eq!(failed, [2, 3]);
    }
}
