//! The timeouts of connection set-up.

use std::time::Duration;

/// The timeouts of the two phases of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectTimeouts {
    /// The time until the peer's host has accepted the call. A host accepts a call even if the peer's process is busy,
    /// so a longer silence means that the address cannot be reached.
    pub host: Duration,
    /// The time until the peer's process has answered, counted from the start of the attempt. A process answers late if
    /// it is stopped, or if it starts together with many others on few processors.
    pub process: Duration,
}

impl Default for ConnectTimeouts {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl ConnectTimeouts {
    /// The default timeouts: five seconds for the host, and three minutes for the process.
    pub const DEFAULT: Self = Self { host: Duration::from_secs(5), process: Duration::from_secs(180) };

    /// Creates timeouts with the same value for both phases.
    #[must_use]
    pub const fn of(timeout: Duration) -> Self {
        Self { host: timeout, process: timeout }
    }

    /// Returns the maximum duration of an attempt.
    #[must_use]
    pub fn longest(self) -> Duration {
        self.host.max(self.process)
    }
}
