//! How long a connection may take to be made.

use std::time::Duration;

/// The limits of the two parts of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectTimeouts {
    /// Until the peer's host has accepted the call. A host does that by itself, however busy the peer's process is, so a longer silence
    /// means that the address is dead.
    pub host: Duration,
    /// Until the peer's process has answered, once its host has accepted. A process answers late if it is stopped, or if it starts with
    /// many others on few processors.
    pub process: Duration,
}

impl Default for ConnectTimeouts {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl ConnectTimeouts {
    /// Five seconds, and three minutes.
    pub const DEFAULT: Self = Self { host: Duration::from_secs(5), process: Duration::from_secs(180) };

    /// One limit for both.
    #[must_use]
    pub const fn of(timeout: Duration) -> Self {
        Self { host: timeout, process: timeout }
    }

    /// The longest that an attempt may last.
    #[must_use]
    pub fn longest(self) -> Duration {
        self.host.max(self.process)
    }
}
