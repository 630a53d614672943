//! Threads that create and connect the queue pairs of connections being made.
//!
//! A device needs milliseconds to create a queue pair. If a peer's port is not found, the kernel spends a second on the
//! search. So the service thread does not do this itself: [`Pairs`] has its own threads, which exist while there is
//! work. The result is returned as a command.

use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::commands::{Command, ServiceState};
use crate::background::{Job, WorkerPool};
use crate::later::later;
use crate::verbs::{Adapter, Wire, errno_of};
use crate::wire::queue_pair::QueuePairEnd;

/// A job that a set-up waits for.
#[derive(Debug)]
pub(super) struct Pairing {
    /// The number of the job.
    pub(super) number: u64,
    /// Whether the peer has sent its queue pair, so that the initiator's final message follows.
    pub(super) is_last: bool,
    /// The job is no longer wanted once this is dropped.
    pub(super) _alive: Arc<()>,
}

/// A job that creates a queue pair if `wire` does not contain one, and connects it if the peer's queue pair is known.
pub(super) struct QueuePairJob {
    pub(super) shared: Arc<ServiceState>,
    pub(super) setup: u64,
    /// Whether the set-up is one of an acceptor.
    pub(super) is_called: bool,
    pub(super) number: u64,
    pub(super) adapter: Arc<Adapter>,
    pub(super) wire: Option<Box<Wire>>,
    pub(super) peer: Option<QueuePairEnd>,
    /// The timeout of a round trip.
    pub(super) limit: Duration,
    /// For an acceptor: the address of the peer.
    pub(super) caller: Option<IpAddr>,
    pub(super) wanted: Weak<()>,
}

impl QueuePairJob {
    fn make(
        adapter: &Arc<Adapter>,
        wire: Option<Box<Wire>>,
        peer: Option<QueuePairEnd>,
        limit: Duration,
    ) -> io::Result<Box<Wire>> {
        let is_last = wire.is_some();
        let mut wire = match wire {
            Some(wire) => wire,
            None => Box::new(Wire::new(adapter)?),
        };
        let Some(peer) = peer else { return Ok(wire) };
        wire.connect(&peer)?;
        if is_last {
            wire.try_out(limit).inspect_err(|_| adapter.note_unreached(peer.gid))?;
        }
        Ok(wire)
    }
}

impl Job for QueuePairJob {
    fn run(self) {
        let Self { shared, setup, number, adapter, wire, peer, limit, .. } = self;
        let result = Self::make(&adapter, wire, peer, limit).map_err(|error| failed(&error));
        shared.send(Command::Paired { setup, number, result });
    }

    fn is_wanted(&self) -> bool {
        self.wanted.strong_count() > 0
    }

    fn peer(&self) -> Option<IpAddr> {
        self.caller
    }
}

/// A thread pool that creates a few queue pairs at a time. A peer with a port that is not found does not delay other
/// peers.
pub(super) type Pairs = WorkerPool<QueuePairJob>;

/// Logs the reason why there is no queue pair, and returns its error number.
pub(super) fn failed(error: &io::Error) -> u32 {
    later!(warn: %error, "no queue pair");
    errno_of(error).cast_unsigned()
}
