//! The results: the lines of `--json`. Times are nanoseconds.

use serde::{Deserialize, Serialize};

use crate::statistics::Samples;

/// The summary of many timed operations.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Figures {
    pub(super) p50_ns: f64,
    pub(super) p99_ns: f64,
    /// The number of timed operations.
    pub(super) count: u64,
}

impl Figures {
    /// `None` without samples.
    pub(super) fn of(samples: Samples) -> Option<Self> {
        let summary = samples.summary()?;
        Some(Self { p50_ns: summary.p50, p99_ns: summary.p99, count: summary.count as u64 })
    }

    /// Returns the median divided by that of `base`.
    pub(super) fn ratio(&self, base: &Self) -> f64 {
        self.p50_ns / base.p50_ns
    }
}

/// The process that does the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum WorkingProcess {
    /// The process that has the cache.
    Client,
    /// Another process.
    Other,
}

/// Work that does not involve registrations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Work {
    /// A system call that does almost no work (getppid).
    Call,
    /// mmap and munmap.
    Mapping,
    /// mmap and munmap, with the pages filled in between.
    FilledMapping,
}

impl Work {
    pub(super) const ALL: [Self; 3] = [Self::Call, Self::Mapping, Self::FilledMapping];
}

/// How registered memory is deregistered when a program unmaps it (section VII of the paper).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum DeregistrationMethod {
    /// The program deregisters it before it unmaps.
    Explicit,
    /// The program unmaps, and then checks the cache for changes.
    Check,
    /// The program unmaps. A thread that waits for changes deregisters.
    Thread,
    /// Like `Thread`, with both threads on one processor.
    ThreadOnOneProcessor,
}

impl DeregistrationMethod {
    pub(super) const ALL: [Self; 4] = [Self::Explicit, Self::Check, Self::Thread, Self::ThreadOnOneProcessor];

    /// Returns the name in JSON.
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
pub(super) enum RegistrationLine {
    /// Whether a monitor is available here. If not, `reason` contains the reason.
    Monitor { monitor: String, available: bool, reason: String },
    /// One transfer into `bytes` of memory, with the cost of its registration: none, registering and deregistering, or
    /// a lookup.
    Transfer {
        monitor: String,
        bytes: usize,
        in_advance: Figures,
        each_time: Figures,
        cached: Figures,
        /// The time divided by that of `in_advance`.
        each_time_ratio: f64,
        cached_ratio: f64,
        /// The number of lookups that made a registration.
        misses: u64,
        /// The number of checked transfers. They are not timed.
        verified: u64,
    },
    /// Registering memory: directly with the device and through the cache.
    Registration {
        monitor: String,
        bytes: usize,
        /// Directly with the device.
        plain: Figures,
        /// By a lookup that misses.
        missed: Figures,
        ratio: f64,
        /// Registering and deregistering directly with the device.
        plain_and_back: Figures,
        /// Registering and deregistering with `Cache::register` and `deregister`.
        watched_and_back: Figures,
        and_back_ratio: f64,
    },
    /// The cost of a miss without the registration: no memory is pinned.
    Miss {
        monitor: String,
        /// The whole miss. For the monitor `imported`, which makes no kernel queries, it is only the work of the cache.
        ns: f64,
        /// One query to the kernel about the mapping at an address (PROCMAP_QUERY).
        query_ns: f64,
    },
    /// Lookups that hit, by each of a number of threads.
    Hit {
        monitor: String,
        entries: u32,
        threads: u32,
        ns: f64,
        /// The fraction of lookups that had to take the cache's lock, because too many registrations belong to one
        /// line.
        slow: f64,
        /// The ioctl that such a hit makes with userfaultfd, measured alone by the same number of threads in the same
        /// run.
        ioctl_ns: Option<f64>,
    },
    /// A change that covers a number of registrations. The result is the cost of dropping one registration.
    Invalidation { monitor: String, entries: u32, ns_each: f64 },
    /// Work that does not involve registrations, without the monitor and with it.
    Other { monitor: String, process: WorkingProcess, work: Work, without: Figures, with: Figures, ratio: f64 },
    /// Like `Other`, with only the monitor's records. Its reports at the beginning of calls, which are also needed on
    /// some kernels, are left out.
    RecordsAlone { monitor: String, process: WorkingProcess, work: Work, without: Figures, with: Figures, ratio: f64 },
    /// Mapping, registering, receiving into, unmapping and deregistering new memory.
    Change { monitor: String, bytes: usize, way: DeregistrationMethod, figures: Figures, ratio: f64 },
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in super::super) fn figures(p50: f64) -> Figures {
        Figures { p50_ns: p50, p99_ns: 2.0 * p50, count: 100 }
    }

    pub(in super::super) fn transfer(
        monitor: &str,
        bytes: usize,
        in_advance: f64,
        each: f64,
        cached: f64,
    ) -> RegistrationLine {
        RegistrationLine::Transfer {
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
    fn lines_round_trip_through_json_with_their_kind() {
        let line = transfer("bpf", 4096, 1000.0, 1500.0, 1010.0);
        let value = serde_json::to_value(&line).unwrap();
        assert_eq!((value["is"].as_str(), value["bytes"].as_u64()), (Some("transfer"), Some(4096)));
        assert_eq!(value["cached"]["p50_ns"], 1010.0);
        assert_eq!(serde_json::from_value::<RegistrationLine>(value).unwrap(), line);
        for way in DeregistrationMethod::ALL {
            assert_eq!(serde_json::to_value(way).unwrap(), way.name());
        }
    }
}
