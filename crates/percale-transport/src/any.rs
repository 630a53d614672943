//! A link of any transport, dispatched by a `match`: the hot path makes no virtual call.

use super::loopback::LoopbackLink;
use super::shm::ShmLink;
use super::sim::SimLink;
use super::tcp::TcpLink;
use super::verbs::VerbsLink;
use super::{Broken, ConnectionId, Link, Refused, Sink};
use crate::local_memory::volatile::{Segments, View};
use crate::region::lease::Lease;
use crate::wire::head::{Head, Offer};

/// One end of a connection over any transport. The variants are boxed, so that a table of many idle peers stays small.
#[derive(Debug)]
pub enum AnyLink {
    /// A connection of the endpoint to itself.
    Loopback(Box<LoopbackLink>),
    /// Shared memory.
    Shm(Box<ShmLink>),
    /// A TCP socket.
    Tcp(Box<TcpLink>),
    /// A queue pair.
    Verbs(Box<VerbsLink>),
    /// The simulated network.
    Sim(Box<SimLink>),
}

/// Calls the same method of the contained link.
macro_rules! each {
    ($any:expr, $link:ident => $call:expr) => {
        match $any {
            AnyLink::Loopback($link) => $call,
            AnyLink::Shm($link) => $call,
            AnyLink::Tcp($link) => $call,
            AnyLink::Verbs($link) => $call,
            AnyLink::Sim($link) => $call,
        }
    };
}

impl AnyLink {
    /// Returns the positions, counted from the first byte that was ever queued, of the bytes that the link has accepted
    /// and that need further work of this side to arrive. Returns `None` if there are no such bytes.
    #[inline]
    pub fn unsent(&self) -> Option<(u64, u64)> {
        match self {
            Self::Tcp(link) => link.unsent(),
            Self::Verbs(link) => verbs_unsent(link),
            Self::Loopback(_) | Self::Shm(_) | Self::Sim(_) => None,
        }
    }

    /// Sends the queued frames of the link now, without waiting for frames that may follow. Used for operations without
    /// a completion, after which the application may make no further call that would send the queue.
    #[inline]
    pub fn flush_queued(&mut self) {
        match self {
            Self::Tcp(link) => link.flush_queued(),
            Self::Verbs(link) => link.flush_queued(),
            Self::Loopback(_) | Self::Shm(_) | Self::Sim(_) => {}
        }
    }
}

// The methods of `VerbsLink` are not inlined, so that their code does not slow down the other links.

#[inline(never)]
fn verbs_send(link: &mut VerbsLink, head: &Head, payload: &Segments, more: bool) -> Result<(), Refused> {
    link.send(head, payload, more)
}

#[inline(never)]
fn verbs_poll(link: &mut VerbsLink, me: ConnectionId, sink: &mut impl Sink) -> Result<bool, Broken> {
    link.poll(me, sink)
}

#[inline(never)]
fn verbs_unsent(link: &VerbsLink) -> Option<(u64, u64)> {
    link.unacknowledged()
}

impl Link for AnyLink {
    #[inline]
    fn frame_limit(&self) -> usize {
        each!(self, link => link.frame_limit())
    }

    #[inline]
    fn is_stream(&self) -> bool {
        each!(self, link => link.is_stream())
    }

    // `always`: with a function call, a collective operation takes 1 % more instructions (measured).
    #[inline(always)]
    fn send(&mut self, head: &Head, payload: &Segments, more: bool) -> Result<(), Refused> {
        match self {
            Self::Loopback(link) => link.send(head, payload, more),
            Self::Shm(link) => link.send(head, payload, more),
            Self::Tcp(link) => link.send(head, payload, more),
            Self::Verbs(link) => verbs_send(link, head, payload, more),
            Self::Sim(link) => link.send(head, payload, more),
        }
    }

    #[inline]
    fn poll(&mut self, me: ConnectionId, sink: &mut impl Sink) -> Result<bool, Broken> {
        match self {
            Self::Loopback(link) => link.poll(me, sink),
            Self::Shm(link) => link.poll(me, sink),
            Self::Tcp(link) => link.poll(me, sink),
            Self::Verbs(link) => verbs_poll(link, me, sink),
            Self::Sim(link) => link.poll(me, sink),
        }
    }

    fn pull(&mut self, id: u32, offer: &Offer, into: &Lease, token: u32) -> Result<(), Refused> {
        each!(self, link => link.pull(id, offer, into, token))
    }

    fn expect(&mut self, into: &Lease, token: u32) {
        each!(self, link => link.expect(into, token));
    }

    fn push(&mut self, id: u32, token: u64, request: View<'_>, source: &Lease) -> Result<(), Refused> {
        each!(self, link => link.push(id, token, request, source))
    }

    #[inline]
    fn is_idle(&self) -> bool {
        each!(self, link => link.is_idle())
    }
}
