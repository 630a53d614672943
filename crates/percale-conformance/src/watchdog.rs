//! A thread that aborts the process if a test hangs, and prints the name of the test.
//!
//! A watchdog does not check the duration of an operation. The limit only turns a hang into a failure. On a machine
//! that is many times slower than others (for example an emulated one), `PERCALE_TIMEOUT_SCALE` is a factor by which
//! the limit is multiplied.

use std::io::Write;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// The default time limit of a test.
pub const TEST_TIMEOUT: Duration = Duration::from_secs(120);

/// Returns the factor by which time limits are multiplied on this machine.
///
/// # Panics
/// Panics if `PERCALE_TIMEOUT_SCALE` is set and is not a number.
#[must_use]
pub fn timeout_scale() -> u32 {
    let set = std::env::var("PERCALE_TIMEOUT_SCALE").ok();
    set.map_or(1, |times| times.parse().expect("PERCALE_TIMEOUT_SCALE is a whole number"))
}

/// A watchdog, which is active until it is dropped.
#[derive(Debug)]
#[must_use = "the watchdog ends when it is dropped"]
pub struct Watchdog {
    /// Dropping the sender ends the thread.
    _alive: Sender<()>,
}

impl Watchdog {
    /// Aborts the process if this is not dropped within [`TEST_TIMEOUT`].
    pub fn new(what: &str) -> Self {
        Self::within(what, TEST_TIMEOUT)
    }

    /// Aborts the process if this is not dropped within the given time, multiplied by the factor that [`timeout_scale`]
    /// returns.
    ///
    /// # Panics
    /// Panics if no thread can be started.
    pub fn within(what: &str, timeout: Duration) -> Self {
        let (alive, ended) = channel();
        let (what, timeout) = (what.to_owned(), timeout * self::timeout_scale());
        let (running, runs) = channel();
        let watch = move || {
            running.send(()).ok();
            watch(&what, timeout, &ended);
        };
        std::thread::Builder::new().name("watchdog".into()).spawn(watch).expect("a thread for the watchdog");
        // The thread runs before this function returns, so that limits set by the test afterwards do not affect its
        // start.
        runs.recv().ok();
        Self { _alive: alive }
    }
}

fn watch(what: &str, timeout: Duration, ended: &Receiver<()>) {
    if ended.recv_timeout(timeout) == Err(RecvTimeoutError::Timeout) {
        // `eprintln` is not used, because the test harness captures its output and loses it when the process aborts.
        let reported =
            writeln!(std::io::stderr(), "HANG: {what} has not ended within {} s; giving up", timeout.as_secs());
        drop(reported);
        std::process::abort();
    }
}
