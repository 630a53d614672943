//! The orderly end of an endpoint, and of single connections.

use std::time::{Duration, Instant};

use super::{Connector, Engine};
use crate::completion::entry::ErrorCode;
use crate::endpoint::connection::ConnectionError;
use crate::endpoint::work::PostError;
use crate::local_memory::volatile::Segments;
use crate::system::forked::Process;
use crate::transport::any::AnyLink;
use crate::transport::connect::LocalDoorbell;
use crate::transport::{ConnectionId, Link};
use crate::wire::head::{FrameKind, Head};

/// The reason that the operations of a closed endpoint report.
const WHY: &str = "the endpoint was closed";

/// How long a closing endpoint tries to send its remaining frames. It does so once more if it has to notify members of
/// groups.
const LINGER: Duration = Duration::from_secs(1);

/// Like [`LINGER`], but over a simulated network, whose clock does not advance during that time unless another thread
/// advances it. The remaining frames then mostly wait for a peer that this thread drives, so a longer wait has no use
/// (with 2 ms, these waits took a third of the time of the search in the simulation tests).
const SIMULATED_LINGER: Duration = Duration::from_micros(500);

impl Engine {
    /// Closes the endpoint. Sends the remaining frames for a bounded time, sends a goodbye on every connection, ends
    /// all operations, and releases the address. From then on the engine refuses all calls, and touches no memory of
    /// the application.
    pub(crate) fn close(&mut self) {
        if !self.process.is_here() {
            return; // It was closed before, or this is a forked child and the connections belong to the parent.
        }
        // From now on no operation begins.
        self.core.leave_pool();
        self.core.end_waiting(WHY);
        self.stop_connecting();
        let mut until = self.flush();
        if self.give_up_groups() {
            until = self.flush();
        }
        for slot in 0..self.links.len() {
            if let Some(link) = self.links[slot].take() {
                self.part(slot as ConnectionId, link, until, ErrorCode::Canceled, WHY);
            }
        }
        self.core.end_all(until, WHY);
        self.core.local.close();
        // The operations that wait for connections have ended, too. When this returns, the address is free.
        self.attempts.clear();
        self.connector = Connector::Closed;
        (self.closed, self.process) = (true, Process::nowhere());
        self.core.operations.end_all(WHY);
        self.core.operations.add_deferred_actions(crate::endpoint::reactor::forget(self.id));
    }

    /// Returns whether the endpoint was closed.
    pub(crate) const fn is_closed(&self) -> bool {
        self.closed
    }

    /// Returns why calls are refused when the engine cannot be used.
    #[cold]
    pub(super) const fn refusal(&self) -> PostError {
        if self.closed { PostError::Closed } else { PostError::Forked }
    }

    /// Like [`refusal`](Self::refusal), but for calls that concern a connection.
    #[cold]
    pub(super) const fn refused_connection(&self) -> ConnectionError {
        if self.closed { ConnectionError::Closed } else { ConnectionError::Forked }
    }

    /// Sends the remaining frames, for a bounded time. Returns the end of that time. The time that remains may be used
    /// for goodbyes.
    pub(super) fn flush(&mut self) -> Instant {
        let is_simulated = matches!(self.connector, Connector::Sim(_));
        let until = Instant::now() + if is_simulated { SIMULATED_LINGER } else { LINGER };
        loop {
            let any = self.progress();
            let waiting = self.poller.is_working(&self.links) || self.core.peers.has_answers();
            // Messages that were injected before the connection was established were reported as sent, so they are
            // flushed too.
            let pending = (0..self.core.peers.len() as u32).any(|slot| self.core.peers.get(slot).needs_flush());
            if (!waiting && !pending && !any) || Instant::now() >= until {
                return until;
            }
            if !any {
                std::thread::yield_now();
            }
        }
    }

    /// Ends a connection in an orderly way. Operations that wait for it fail.
    pub(super) fn close_gracefully(&mut self, slot: ConnectionId, error: ErrorCode, why: &str, until: Instant) {
        if let Some(link) = self.unlink(slot) {
            self.part(slot, link, until, error, why);
        }
        self.forget_connection(slot, error, why);
    }

    /// Takes a slot's link out of use.
    pub(super) fn unlink(&mut self, slot: ConnectionId) -> Option<AnyLink> {
        let link = self.links.get_mut(slot as usize).and_then(Option::take)?;
        self.poller.forget(slot, matches!(link, AnyLink::Shm(_)));
        match &link {
            AnyLink::Tcp(_) | AnyLink::Verbs(_) => {
                if let AnyLink::Verbs(verbs) = &link {
                    self.unwatch_pair(verbs);
                }
                self.poller.sockets -= 1;
                if self.poller.sockets == 0 {
                    // The timer is no longer read. In the epoll set it would wake every sleeper at once.
                    self.ticks = None;
                }
            }
            AnyLink::Shm(_) => self.doorbell_allocator.release(self.core.peers.get(slot).bit()),
            AnyLink::Loopback(_) | AnyLink::Sim(_) => {}
        }
        Some(link)
    }

    /// Sends a goodbye on a link and closes it.
    fn part(&mut self, slot: ConnectionId, mut link: AnyLink, until: Instant, error: ErrorCode, why: &str) {
        let bye = Head { kind: FrameKind::Bye, ..Head::default() };
        if link.send(&bye, &Segments::EMPTY, false).is_err() {
            crate::later::later!(debug: "no space for the closing message; the peer will only see the connection end");
        }
        self.leave(slot, &mut link, error, why);
        let left = until.saturating_duration_since(Instant::now());
        match link {
            AnyLink::Tcp(tcp) => drop(tcp.linger(left)),
            AnyLink::Verbs(verbs) => drop(verbs.linger(left)),
            AnyLink::Loopback(_) | AnyLink::Shm(_) | AnyLink::Sim(_) => {}
        }
    }

    /// Sets aside the operations with memory to which the peer of a link may still be writing.
    pub(super) fn leave(&mut self, slot: ConnectionId, link: &mut AnyLink, error: ErrorCode, why: &str) {
        if let AnyLink::Shm(link) = link
            && let Some(draining) = link.draining()
        {
            self.core.defer_failures(slot, draining, error, why);
        }
    }

    /// Ends the operations that waited for the connection of a slot, after its link was removed, and notifies the
    /// service thread that made the connection.
    pub(super) fn forget_connection(&mut self, slot: ConnectionId, error: ErrorCode, why: &str) {
        let serial = self.core.peers.get(slot).serial();
        self.core.down(slot, error, why);
        self.close_serial(serial);
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.close();
        super::deferred_cleanup::settle();
    }
}
