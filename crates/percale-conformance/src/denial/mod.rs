//! The denial tests: the system rejects system calls and resources, one at a time, from the start or from the middle of
//! a run.
//!
//! Two processes exchange messages and access each other's memory. A system call fails in one of them. Allowed outcomes
//! are:
//! * the exchange works, perhaps over another transport, and the connection reports the reason;
//! * or the process gets an error that names the call, and both processes report an error within [`LIMIT`].
//!
//! A signal, a hang, an error that names something else, and an end by a timeout are not allowed.

mod calls;
mod filter;
pub mod space;

use std::fmt;
use std::time::{Duration, Instant};

pub use self::calls::{CALLS, DeniedCalls, EXEMPT, SystemCall};
pub use self::filter::deny;

/// The time within which both sides must have an outcome.
pub const LIMIT: Duration = Duration::from_secs(10);

/// The text that reports an error that does not name the denied call.
pub const UNNAMED: &str = "the error does not name the call";

/// The times at which the denial of a call can begin.
pub const TIMES: [&str; 2] = ["start", "middle"];

/// The transports that are allowed.
pub const TRANSPORTS: [&str; 2] = ["any", "tcp"];

/// A call that is denied.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// The call.
    pub call: &'static SystemCall,
    /// The error that it returns.
    pub error: i32,
    /// The time at which the denial begins.
    pub when: &'static str,
    /// The allowed transports: `any` or `tcp`.
    pub transport: &'static str,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} from the {} ({})", self.call.name, name_of(self.error), self.when, self.transport)
    }
}

/// Returns the name of an error number of a denied call.
#[must_use]
pub const fn name_of(error: i32) -> &'static str {
    match error {
        libc::EPERM => "EPERM",
        libc::ENOSYS => "ENOSYS",
        libc::EINTR => "EINTR",
        libc::ENOMEM => "ENOMEM",
        libc::EMFILE => "EMFILE",
        libc::ENOSPC => "ENOSPC",
        _ => "an error",
    }
}

/// Returns all cases. Without `long`, returns half of the cases with EPERM, which cover each call over each transport and
/// at each time, and some of the other cases.
#[must_use]
pub fn cases() -> Vec<Case> {
    let of = |(number, call): (usize, &'static SystemCall)| {
        let times = TRANSPORTS.into_iter().enumerate().flat_map(move |(place, transport)| {
            TIMES.into_iter().enumerate().map(move |(time, when)| (number + place + time, transport, when))
        });
        call.errors.iter().flat_map(move |&error| {
            times.clone().map(move |(number, transport, when)| (number, Case { call, error, when, transport }))
        })
    };
    let all = CALLS.iter().enumerate().flat_map(of);
    // `PERCALE_DENY` selects cases by name, to investigate one of them.
    let only = std::env::var("PERCALE_DENY").ok();
    let chosen = all.filter(|(_, case)| only.as_deref().is_none_or(|only| case.to_string().contains(only)));
    let whole = crate::long() || only.is_some();
    let is_sampled = |at: usize, number: usize, case: &Case| {
        whole || at.is_multiple_of(13) || (case.error == libc::EPERM && number.is_multiple_of(2))
    };
    let sampled = chosen.enumerate().filter(|(at, (number, case))| is_sampled(*at, *number, case));
    sampled.map(|(_, (_, case))| case).collect()
}

/// The reported outcome of one side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SideOutcome {
    /// The exchange works over this transport, for this reason.
    Works(String),
    /// The side reported this error.
    Error(String),
    /// The process ended without a report.
    Ended(String),
    /// The process reported nothing in time.
    Silent,
}

impl SideOutcome {
    /// Parses the report of a side: `works TRANSPORT: REASON` or `error TEXT`.
    #[must_use]
    pub fn of(line: &str) -> Self {
        match line.split_once(' ') {
            Some(("works", how)) => Self::Works(how.to_owned()),
            Some(("error", text)) => Self::Error(text.to_owned()),
            _ => Self::Ended(line.to_owned()),
        }
    }
}

/// Checks the outcome of the side in which the call is denied, and that of its peer (`None` if the peer never had a
/// connection). The error must contain one of `names`.
///
/// # Errors
/// Returns the reason if the outcomes are not allowed.
pub fn judge(
    names: &[&str],
    denied: &SideOutcome,
    peer: Option<&SideOutcome>,
    took: Duration,
) -> Result<&'static str, String> {
    let limit = LIMIT * crate::watchdog::timeout_scale();
    if took > limit {
        return Err(format!("the run took {} ms", took.as_millis()));
    }
    match (denied, peer) {
        (SideOutcome::Works(_), Some(SideOutcome::Works(how))) => {
            let says_why = how.starts_with("shm: ") || !how.contains("same host");
            if says_why {
                Ok(if how.starts_with("shm") { "shm" } else { "tcp" })
            } else {
                Err("tcp was chosen without a reason".into())
            }
        }
        (SideOutcome::Error(text), None | Some(SideOutcome::Error(_))) => {
            let named = names.iter().any(|name| text.contains(name));
            if named { Ok("error") } else { Err(UNNAMED.into()) }
        }
        _ => Err("one side hangs, was killed, or works without the other".into()),
    }
}

/// Runs cases, several at a time. Returns the errors found, and the number of cases for each kind of outcome.
pub fn run_all(
    cases: &[Case],
    run: impl Fn(&Case) -> (SideOutcome, Option<SideOutcome>, Duration) + Sync,
) -> (Vec<String>, std::collections::BTreeMap<&'static str, usize>) {
    const THREADS: usize = 3;
    let next = std::sync::atomic::AtomicUsize::new(0);
    let results = std::sync::Mutex::new((Vec::new(), std::collections::BTreeMap::new()));
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                while let Some(case) = cases.get(next.fetch_add(1, std::sync::atomic::Ordering::Relaxed)) {
                    let (denied, peer, took) = run(case);
                    let names = [case.call.name, alias(case.call.name)];
                    let verdict = judge(&names, &denied, peer.as_ref(), took);
                    let text = format!("{case}: {verdict:?}: {denied:?}; its peer: {peer:?}; {} ms", took.as_millis());
                    println!("{text}");
                    let mut results = results.lock().expect("no run panics");
                    match verdict {
                        Ok(way) => *results.1.entry(way).or_insert(0) += 1,
                        Err(_) => results.0.push(text),
                    }
                }
            });
        }
    });
    results.into_inner().expect("no run panics")
}

/// Returns another name that an error may use for the call.
fn alias(call: &'static str) -> &'static str {
    match call {
        "clone" | "clone3" => "thread",
        "epoll_pwait" => "epoll_pwait2",
        "ppoll" => "poll",
        "sendmsg" => "sendto",
        "recvmsg" => "recvfrom",
        other => other,
    }
}

/// Measures how long a case takes.
#[derive(Debug)]
pub struct Clock(Instant);

impl Clock {
    /// Starts the clock.
    #[must_use]
    pub fn start() -> Self {
        Self(Instant::now())
    }

    /// Returns the time until one second after the limit.
    #[must_use]
    pub fn left(&self) -> Duration {
        (LIMIT * crate::watchdog::timeout_scale() + Duration::from_secs(1)).saturating_sub(self.0.elapsed())
    }

    /// Returns the time since the start.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }
}
