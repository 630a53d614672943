//! Which links to look at, and when.
//!
//! * Shared memory: a look costs a load, so links that were active lately ("hot", at most [`HOT`]) are looked at in every
//!   round; the others ring the doorbell bitmap, which is looked at in every round too.
//! * TCP: a look costs a system call, so one hot socket is looked at in every round, all of them (by epoll) every
//!   [`SWEEP`] rounds; while shared memory is busy even the hot socket only then.
//! * Links that hold something to be sent are looked at until they do not.

use crate::transport::Connection;
use crate::transport::Link;
use crate::transport::any::AnyLink;

/// Links of shared memory that are looked at in every round.
pub(crate) const HOT: usize = 64;

/// Rounds between two looks at every socket.
pub(crate) const SWEEP: u32 = 16;

/// Rounds without a message after which shared memory no longer keeps sockets waiting.
const QUIET: u32 = 64;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Poller {
    /// Hot links of shared memory.
    pub(crate) hot: Vec<Connection>,
    /// Links with something to send, or sends that wait for them.
    pub(crate) busy: Vec<Connection>,
    /// How many TCP links there are.
    pub(crate) sockets: usize,
    /// The socket heard of last.
    pub(crate) hot_socket: Option<Connection>,
    /// Rounds so far.
    round: u32,
    /// Rounds since shared memory brought something.
    quiet: u32,
}

impl Poller {
    /// A link took a frame: it may hold some of it still.
    #[inline]
    pub(crate) fn sent(&mut self, slot: Connection, link: &AnyLink) {
        if !matches!(link, AnyLink::Shm(_)) || !link.is_idle() {
            self.sent_slow(slot, link);
        }
    }

    #[inline(never)]
    fn sent_slow(&mut self, slot: Connection, link: &AnyLink) {
        if matches!(link, AnyLink::Tcp(_)) {
            self.hot_socket = Some(slot);
        }
        if !link.is_idle() {
            self.waits(slot);
        }
    }

    /// Something waits for this link.
    pub(crate) fn waits(&mut self, slot: Connection) {
        if !self.busy.contains(&slot) {
            self.busy.push(slot);
        }
    }

    /// One more round begins; says whether every socket is due, and whether the hot one is.
    #[inline]
    pub(crate) fn round(&mut self) -> (bool, bool) {
        self.round = self.round.wrapping_add(1);
        self.quiet = self.quiet.saturating_add(1);
        let sweep = self.round.is_multiple_of(SWEEP);
        (sweep, sweep || self.quiet > QUIET || self.hot.is_empty())
    }

    /// Shared memory brought something in this round.
    #[inline]
    pub(crate) fn heard(&mut self) {
        self.quiet = 0;
    }

    /// A link is gone.
    pub(crate) fn forget(&mut self, slot: Connection) {
        self.hot.retain(|&hot| hot != slot);
        self.busy.retain(|&busy| busy != slot);
        if self.hot_socket == Some(slot) {
            self.hot_socket = None;
        }
    }
}
