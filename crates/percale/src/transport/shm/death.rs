//! How whoever watches the peer's process tells a link that it is gone.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use rustix::event::{PollFd, PollFlags, Timespec};

use super::Bell;

/// Set once, by any thread; the link reports it after everything that the peer sent before.
#[derive(Debug)]
pub struct Death {
    dead: AtomicBool,
    reason: OnceLock<String>,
    bell: Arc<Bell>,
    bit: u32,
}

impl Death {
    pub(super) fn new(bell: Arc<Bell>, bit: u32) -> Self {
        Self { dead: AtomicBool::new(false), reason: OnceLock::new(), bell, bit }
    }

    /// The peer is gone, and why one thinks so. The link's endpoint is rung and woken, as a frame would do it.
    pub fn set_dead(&self, reason: impl Into<String>) {
        // The first reason stands.
        self.reason.set(reason.into()).ok();
        self.dead.store(true, Ordering::Release);
        self.bell.ring(self.bit);
    }

    /// Whether the peer is gone. What it wrote before is visible to who reads true.
    #[must_use]
    #[inline]
    pub fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Acquire)
    }

    /// Why, once it is.
    #[must_use]
    pub fn reason(&self) -> &str {
        self.reason.get().map_or("", String::as_str)
    }
}

/// Whether the process of this pidfd has ended; a system call.
pub(super) fn has_ended(pidfd: Option<&Arc<OwnedFd>>) -> bool {
    let Some(pidfd) = pidfd else { return false };
    let mut fds = [PollFd::new(pidfd, PollFlags::IN)];
    rustix::event::poll(&mut fds, Some(&Timespec::default())).is_ok() && !fds[0].revents().is_empty()
}
