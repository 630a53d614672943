//! A thread that aborts the process if a test hangs, and prints which test it was.
//!
//! No test asserts how long something takes; this bound is only there so that a hang becomes a failure. On a machine that is many times
//! slower than others (an emulated one), `PERCALE_PATIENCE` sets how many times longer it is.

use std::io::Write;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// How long a test may take unless it sets another limit.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// How many times longer this machine may take.
///
/// # Panics
/// If `PERCALE_PATIENCE` is there and no number.
#[must_use]
pub fn patience() -> u32 {
    let set = std::env::var("PERCALE_PATIENCE").ok();
    set.map_or(1, |times| times.parse().expect("PERCALE_PATIENCE is a whole number"))
}

/// Watches until it is dropped.
#[derive(Debug)]
#[must_use = "it watches only while it is held"]
pub struct Watchdog {
    /// Dropping it ends the thread.
    _alive: Sender<()>,
}

impl Watchdog {
    /// Aborts the process if this is not dropped within [`PATIENCE`].
    pub fn new(what: &str) -> Self {
        Self::within(what, PATIENCE)
    }

    /// Aborts the process if this is not dropped within the given time, multiplied by the factor that [`patience`] returns.
    ///
    /// # Panics
    /// If no thread can be started.
    pub fn within(what: &str, patience: Duration) -> Self {
        let (alive, ended) = channel();
        let (what, patience) = (what.to_owned(), patience * self::patience());
        let (running, runs) = channel();
        let watch = move || {
            running.send(()).ok();
            watch(&what, patience, &ended);
        };
        std::thread::Builder::new().name("watchdog".into()).spawn(watch).expect("a thread for the watchdog");
        // Limits that the test sets afterwards must not affect the start of this thread.
        runs.recv().ok();
        Self { _alive: alive }
    }
}

fn watch(what: &str, patience: Duration, ended: &Receiver<()>) {
    if ended.recv_timeout(patience) == Err(RecvTimeoutError::Timeout) {
        // Not by eprintln, which a test's harness captures and loses with the process.
        let told = writeln!(std::io::stderr(), "HANG: {what} has not ended within {} s; giving up", patience.as_secs());
        drop(told);
        std::process::abort();
    }
}
