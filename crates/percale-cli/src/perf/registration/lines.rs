//! What is measured: the lines of `--json`. Times are nanoseconds.

use serde::{Deserialize, Serialize};

use crate::statistics::Samples;

/// What many timed operations come to.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Figures {
    pub(super) p50_ns: f64,
    pub(super) p99_ns: f64,
    /// Timed operations.
    pub(super) count: u64,
}

impl Figures {
    /// `None` without samples.
    pub(super) fn of(samples: Samples) -> Option<Self> {
        let summary = samples.summary()?;
        Some(Self { p50_ns: summary.p50, p99_ns: summary.p99, count: summary.count as u64 })
    }

    /// How many times as long as `base` it takes, in the median.
    pub(super) fn ratio(&self, base: &Self) -> f64 {
        self.p50_ns / base.p50_ns
    }
}

/// Who does something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Whose {
    /// The process that has the cache.
    Client,
    /// Another process.
    Other,
}

/// What is done that has nothing to do with registrations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Work {
    /// A system call that does next to nothing (getppid).
    Call,
    /// mmap and munmap.
    Mapping,
    /// The same, and the pages are filled between.
    FilledMapping,
}

impl Work {
    pub(super) const ALL: [Self; 3] = [Self::Call, Self::Mapping, Self::FilledMapping];
}

/// How a program that unmaps registered memory has it deregistered (the paper's section VII).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Way {
    /// By itself, before it unmaps.
    Explicit,
    /// It unmaps, then asks what has changed.
    Check,
    /// It unmaps; a thread that waits for changes does it.
    Thread,
    /// Likewise, and both threads share one processor.
    ThreadOnOneProcessor,
}

impl Way {
    pub(super) const ALL: [Self; 4] = [Self::Explicit, Self::Check, Self::Thread, Self::ThreadOnOneProcessor];

    /// As in JSON.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Explicit => "explicit",
            Self::Check => "check",
            Self::Thread => "thread",
            Self::ThreadOnOneProcessor => "thread-on-one-processor",
        }
    }
}

/// One measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "kebab-case")]
pub(super) enum Line {
    /// Whether a monitor is to be had here, and if not, why.
    Monitor { monitor: String, available: bool, reason: String },
    /// One transfer into `bytes` of memory, with what it takes to have that registered: nothing; registering and
    /// deregistering; a look-up.
    Transfer {
        monitor: String,
        bytes: usize,
        in_advance: Figures,
        each_time: Figures,
        cached: Figures,
        /// Times `in_advance`.
        each_time_ratio: f64,
        cached_ratio: f64,
        /// Of the look-ups, those that made a registration.
        misses: u64,
        /// Transfers whose bytes were checked, apart from the timed ones.
        verified: u64,
    },
    /// Registering memory, plainly and through the cache.
    Registration {
        monitor: String,
        bytes: usize,
        /// The device alone.
        plain: Figures,
        /// A look-up that misses.
        missed: Figures,
        ratio: f64,
        /// Registering and deregistering by the device alone,
        plain_and_back: Figures,
        /// and by `Cache::register` and `deregister`.
        watched_and_back: Figures,
        and_back_ratio: f64,
    },
    /// What a miss costs without the registration: nothing is pinned.
    Miss {
        monitor: String,
        /// All of it. For the monitor `imported`, which asks nobody, the cache's own bookkeeping.
        ns: f64,
        /// One question to the kernel about the mapping at an address (PROCMAP_QUERY).
        query_ns: f64,
    },
    /// Look-ups that hit, by each of so many threads.
    Hit {
        monitor: String,
        entries: u32,
        threads: u32,
        ns: f64,
        /// What share of them had to take the cache's lock, because too many registrations have their place in one line.
        slow: f64,
        /// The one ioctl of a userfaultfd that such a hit makes, by itself, by as many threads in the same run.
        ioctl_ns: Option<f64>,
    },
    /// A change that covers so many registrations: dropping one of them.
    Invalidation { monitor: String, entries: u32, ns_each: f64 },
    /// What has nothing to do with registrations, without the monitor and with it.
    Other { monitor: String, process: Whose, work: Work, without: Figures, with: Figures, ratio: f64 },
    /// The same with the monitor's records alone, without its reports of when a call begins, which some kernels need besides.
    RecordsAlone { monitor: String, process: Whose, work: Work, without: Figures, with: Figures, ratio: f64 },
    /// Mapping, registering, receiving into, unmapping and deregistering fresh memory.
    Change { monitor: String, bytes: usize, way: Way, figures: Figures, ratio: f64 },
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in super::super) fn figures(p50: f64) -> Figures {
        Figures { p50_ns: p50, p99_ns: 2.0 * p50, count: 100 }
    }

    pub(in super::super) fn transfer(monitor: &str, bytes: usize, in_advance: f64, each: f64, cached: f64) -> Line {
        Line::Transfer {
            monitor: monitor.into(),
            bytes,
            in_advance: figures(in_advance),
            each_time: figures(each),
            cached: figures(cached),
            each_time_ratio: each / in_advance,
            cached_ratio: cached / in_advance,
            misses: 0,
            verified: 10,
        }
    }

    #[test]
    fn lines_survive_json_and_say_what_they_are() {
        let line = transfer("bpf", 4096, 1000.0, 1500.0, 1010.0);
        let value = serde_json::to_value(&line).unwrap();
        assert_eq!((value["is"].as_str(), value["bytes"].as_u64()), (Some("transfer"), Some(4096)));
        assert_eq!(value["cached"]["p50_ns"], 1010.0);
        assert_eq!(serde_json::from_value::<Line>(value).unwrap(), line);
        for way in Way::ALL {
            assert_eq!(serde_json::to_value(way).unwrap(), way.name());
        }
    }
}
