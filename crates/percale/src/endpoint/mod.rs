//! Endpoints, which send and receive messages and access the memory of peers.
//!
//! An [`Endpoint`] is a reliable-datagram endpoint (libfabric's `FI_EP_RDM`). It exchanges messages with any number of
//! peers. Each peer is identified by its [`PeerAddress`] in the endpoint's address vector, and connections are made
//! when they are first needed. An endpoint either has one owner and no lock ([`Endpoint`]), or is shared by threads
//! through one lock ([`SharedEndpoint`]).
//!
//! # Two APIs
//! Both use the same engine, and can be mixed on one endpoint.
//!
//! | | safe API ([`safe`]) | raw API ([`work`], [`remote_work`], [`window_work`], [`verbs`]) |
//! |---|---|---|
//! | calls | [`send`](Endpoint::send), [`recv`](Endpoint::recv), [`read`](Endpoint::read), [`write`](Endpoint::write), ... | [`post_send`](Endpoint::post_send), [`post_recv`](Endpoint::post_recv), [`post_read`](Endpoint::post_read), ... |
//! | memory | the operation owns its buffer, and returns it | pointers and lengths; the caller keeps the memory until the completion |
//! | result | a handle, which can be waited for, polled or awaited | an entry with the caller's context in a [completion queue](crate::CompletionQueue) |
//! | safety | safe | `unsafe`, except [`inject`](Endpoint::inject), [`poll`](Endpoint::poll) and the like |
//! | use it for | programs | libraries that have their own buffers and completion queues, such as a provider for another interface; peeking and claiming; operations on several pieces of memory |
//!
//! The [manual](crate::manual) explains both, beginning with the safe API.
//!
//! # Modules
//! * [`connection`]: endpoints of one connection each, and listeners (libfabric's `FI_EP_MSG`)
//! * [`scalable`]: several endpoints behind one address (libfabric's `FI_SCALABLE_EP`)
//! * [`shared_receive`]: receives that several endpoints share; `pool`: the waiting receives of a shared context
//! * [`work`]: the operations that can be posted; [`remote_work`]: those that access peers' memory; [`window_work`]:
//!   those on memory windows; [`verbs`]: work requests as in RDMA verbs
//! * `raw`: posting messages; `raw_remote`: posting accesses; `raw_collective`: posting collectives; `raw_triggered`:
//!   posting operations that begin when a counter reaches a threshold or a variable is written
//! * `operation`: an operation of any kind; `submissions`: operations that are due but have not reached the engine yet
//! * [`safe`]: operations that own their buffers; they can be waited for or awaited
//! * `operations`: the safe operations under way, with their buffers and wakers
//! * `reactor`: wakes tasks that await operations
//! * `builder`: opens endpoints; `refused`: results of calls in a forked child
//! * `one_thread`: the compiler's error for an endpoint of one owner that several threads would use
//! * `ownership`: one owner, or many threads that share the engine through a lock; `automatic`: the drivers of a shared
//!   engine other than its users; `sharing`: turns an endpoint of one owner into a shared one, and the
//!   errors that return an endpoint
//! * `matching`: decides which receive takes which message
//! * `engine`: the protocol

// This module is first, because rustdoc lists the methods of `Endpoint` in the order of modules, and most programs need
// the methods of this one.
pub mod safe;

mod automatic;
mod builder;
pub mod connection;
pub mod count;
pub(crate) mod counted;
pub(crate) mod engine;
pub(crate) mod matching;
mod one_thread;
pub(crate) mod operation;
pub(crate) mod operations;
mod ownership;
mod pool;
pub(crate) mod posted;
mod raw;
mod raw_collective;
mod raw_remote;
mod raw_triggered;
mod reactor;
mod refused;
pub mod remote_work;
pub mod scalable;
pub mod shared_receive;
mod sharing;
mod submissions;
pub mod verbs;
pub mod window_work;
pub mod work;

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use self::builder::{BindError, EndpointBuilder};
pub use self::ownership::{EndpointHandle, Owned, Ownership, Shared};
pub use self::sharing::{EndpointCloseError, ShareError};
use crate::completion::counter::Counter;
use crate::domain::Domain;
use crate::region::window::TypeTwo;
pub use crate::system::spin::{assume_alone, offer_when_idle};
use crate::types::PeerAddress;

/// A reliable-datagram endpoint, which exchanges messages with any number of peers and accesses their memory.
///
/// [`Domain::endpoint`] opens one. It has one owner; a [`SharedEndpoint`] is for many threads. The [module](self)
/// describes the two APIs.
///
/// # Overview
/// * Messages: [`send`](Self::send), [`recv`](Self::recv), [`tagged_send`](Self::tagged_send),
///   [`tagged_recv`](Self::tagged_recv), [`inject`](Self::inject), [`tagged_inject`](Self::tagged_inject)
/// * Remote memory: [`read`](Self::read), [`write`](Self::write), [`fetch_add`](Self::fetch_add),
///   [`compare_swap`](Self::compare_swap), [`fetch_atomic`](Self::fetch_atomic),
///   [`compare_atomic`](Self::compare_atomic)
/// * Memory windows: [`bind_window`](Self::bind_window), [`invalidate`](Self::invalidate)
/// * Collectives: [`join`](Self::join)
/// * Progress and waiting: [`progress`](Self::progress), [`wait`](Self::wait), [`try_wait`](Self::try_wait),
///   [`poll`](Self::poll), [`read_error`](Self::read_error)
/// * Peers: [`address`](Self::address), [`is_connected`](Self::is_connected), [`disconnect`](Self::disconnect),
///   [`network_address`](Self::network_address), [`describe_peers`](Self::describe_peers)
/// * Closing: [`close`](Self::close), [`shut`](Self::shut)
/// * Endpoints of one connection: [`connect`](Self::connect), [`accept`](Self::accept), [`shutdown`](Self::shutdown),
///   [`peer`](Self::peer)
/// * Raw API: [`post_send`](Self::post_send), [`post_recv`](Self::post_recv), [`post_read`](Self::post_read),
///   [`post_write`](Self::post_write), [`post_atomic`](Self::post_atomic), [`post_bind`](Self::post_bind),
///   [`post_when`](Self::post_when), [`post_collective`](Self::post_collective), [`cancel`](Self::cancel)
pub struct Endpoint<A: Ownership = Owned> {
    access: A,
    /// The endpoint's descriptor, which can be accessed without the lock.
    descriptor: Arc<std::os::fd::OwnedFd>,
    /// The domain of the endpoint. It keeps the service thread running.
    domain: Domain,
    /// The time within which a connection request has to be answered.
    answer_timeout: Duration,
    /// The address by which operations refer to the peer, if the endpoint is for one connection.
    peer: PeerAddress,
}

crate::short_debug!(for [A: Ownership] Endpoint<A>, "Endpoint");

/// An endpoint that many threads use, and the tasks of a runtime. [`EndpointBuilder::bind_shared`] opens one, and
/// [`Endpoint::share`] converts an endpoint of one owner into one. It is cheap to clone.
///
/// # Cost
/// Each call takes the endpoint's one lock, and the handle of an operation shares the ownership of the endpoint, so that
/// it borrows nothing. Without contention this takes about 20 ns for a call, and 0.2 µs for a receive and a send that
/// are started and waited for (measured between two calls of one thread). Threads that use the endpoint at the same time
/// also wait for each other. An [`Endpoint`] for each thread, or a [`ScalableEndpoint`](crate::ScalableEndpoint), has
/// no such cost.
pub type SharedEndpoint = Endpoint<Shared>;

impl Clone for SharedEndpoint {
    fn clone(&self) -> Self {
        let (access, descriptor) = (self.access.clone(), Arc::clone(&self.descriptor));
        let (answer_timeout, peer) = (self.answer_timeout, self.peer);
        Self { access, descriptor, domain: self.domain.clone(), answer_timeout, peer }
    }
}

impl<A: Ownership> Endpoint<A> {
    /// Returns the domain in which the endpoint was opened.
    #[must_use]
    pub const fn domain(&self) -> &Domain {
        &self.domain
    }

    /// Returns the address that peers insert in their vectors to reach this endpoint. Programs that exchange it as bytes
    /// use [`address::bytes`](crate::address::bytes).
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.access.with(|engine| engine.address())
    }

    /// Sets the minimum free space of multi-receive buffers, in bytes ([`EndpointBuilder::multi_receive_minimum`]). A
    /// buffer with less free space is released. For a buffer that is already posted, the new value takes effect when
    /// its next message arrives.
    pub fn set_multi_receive_minimum(&self, bytes: usize) {
        self.access.with(|engine| engine.core.messages.set_multi_minimum(bytes));
    }

    /// Returns the minimum that [`set_multi_receive_minimum`](Self::set_multi_receive_minimum) sets.
    #[must_use]
    pub fn multi_receive_minimum(&self) -> usize {
        self.access.with(|engine| engine.core.messages.multi_minimum())
    }

    /// Closes the endpoint, as dropping its last handle does. If windows of type 2A are bound through the endpoint, it
    /// is not closed: the error returns it, and it continues to work. Windows of type 2B are unbound. Dropping an endpoint
    /// unbinds all its windows.
    ///
    /// Pending data is sent first, for at most one second (two seconds if the endpoint has groups with collective
    /// operations that have not ended). Then every operation under way ends with
    /// [`ErrorCode::Canceled`](crate::ErrorCode::Canceled). The error is reported in the completion queue of the
    /// operation, and the space that the operation reserved there is released. Receives that the endpoint took from a
    /// [shared context](shared_receive) end too. When this function returns, no thread of the library uses memory of
    /// the endpoint's operations, and the endpoint's address is free. Afterwards all calls on other handles of a shared
    /// endpoint fail, but results in the endpoint's own queue can still be read.
    ///
    /// A local peer that was stopped in the middle of a copy into a buffer delays the close by at most that time. The
    /// end of the operation is then reported when the peer no longer uses the buffer or the peer process has ended. A
    /// buffer that the operation owns is kept until then. The memory of a raw operation belongs to the application,
    /// which must neither change nor free it before that report.
    ///
    /// # Errors
    /// If windows of type 2A are bound through the endpoint. The error contains the endpoint
    /// ([`EndpointCloseError::into_inner`]).
    pub fn close(self) -> Result<(), EndpointCloseError<A>> {
        let two_a = self.domain.type_two() == TypeTwo::A;
        let closed = self.access.close(|engine| !(two_a && engine.core.local.has_windows()));
        if closed { Ok(()) } else { Err(EndpointCloseError::new(self)) }
    }

    /// Returns whether windows of type 2A are bound through the endpoint, so that [`close`](Self::close) would return
    /// it.
    #[doc(hidden)] // For the crates of percale.
    #[must_use]
    pub fn is_held_by_windows(&self) -> bool {
        let two_a = self.domain.type_two() == TypeTwo::A;
        two_a && self.access.with(|engine| engine.core.local.has_windows())
    }

    /// Closes the endpoint as [`close`](Self::close) does, even if windows of type 2A are bound through it, and keeps
    /// the handle. Afterwards calls on all handles fail.
    pub fn shut(&self) {
        self.access.close(|_| true);
    }

    /// Returns whether the endpoint was closed through another handle.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.access.with(|engine| engine.is_closed())
    }

    /// Waits until there is something to read with [`poll`](Self::poll), and makes progress meanwhile. It spins
    /// briefly, then yields, then sleeps. Returns false if `timeout` expired first (`None`: no limit) or the endpoint
    /// was closed.
    pub fn wait(&self, timeout: Option<Duration>) -> bool {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        self.access.wait_until(deadline, |engine| (!engine.core.reporting.is_empty()).then_some(())).is_some()
    }

    /// Prepares for sleeping on the endpoint's descriptor ([`AsFd`]) in the caller's own event loop (fi_trywait(3)).
    /// Returns true if there is nothing to do now; the descriptor will become readable when there is. Returns false if
    /// there is something to do already.
    pub fn try_wait(&self) -> bool {
        self.access.with(|engine| engine.core.reporting.is_empty() && engine.watch_results())
    }

    /// Returns the number of bytes that this endpoint uses to find its peers by vector address and by socket address:
    /// about 16 for each vector address that it has used and 6 for each peer that it has connected to, independent of
    /// the number of entries in its vector. The memory of connections and of the vector is not included
    /// (docs/addresses.md).
    #[doc(hidden)] // For the crates of percale.
    #[must_use]
    pub fn naming_bytes(&self) -> usize {
        self.access.with(|engine| engine.core.peers.naming_bytes())
    }

    /// Returns the records that this endpoint keeps of operations, with their names, after making progress. There are
    /// none when no operation is in progress and no message waits.
    #[cfg(any(test, feature = "sim"))]
    #[doc(hidden)] // For percale's tests.
    #[must_use]
    pub fn remains(&self) -> Vec<(&'static str, usize)> {
        self.access.with(|engine| {
            engine.progress();
            engine.remains()
        })
    }

    /// Returns the network address of a peer: the address in the vector or, for the source of a message of a peer that
    /// is not in the vector, the address that the peer advertises. The endpoint has not verified that the peer can be
    /// reached at an advertised address. Inserting it in the vector makes the peer reachable after its connection has
    /// ended. Returns `None` if there is no such peer.
    #[must_use]
    pub fn network_address(&self, peer: PeerAddress) -> Option<SocketAddr> {
        self.access.with(|engine| engine.core.peers.network_address(peer))
    }

    /// Returns whether the connection to a peer is up. A peer that claims an address, but was not reached there, does
    /// not count as connected at that address.
    #[must_use]
    pub fn is_connected(&self, peer: PeerAddress) -> bool {
        self.access.with(|engine| engine.is_connected(peer))
    }

    /// Ends the connection to a peer. Operations to the peer that are under way, and receives that are directed at it,
    /// fail with [`ErrorCode::Closed`](crate::ErrorCode::Closed). Messages from it that have not arrived completely are
    /// dropped; complete messages can still be received. The peer detects that the connection ended. The next send of
    /// either side makes a new connection. Returns whether there was a connection to end. The connection of an endpoint
    /// to itself cannot be ended, and the connection of an endpoint of one connection is ended by
    /// [`shutdown`](Self::shutdown).
    pub fn disconnect(&self, peer: PeerAddress) -> bool {
        self.access.with(|engine| engine.disconnect(peer))
    }

    /// Describes how each connected peer is reached and why. The text is for people, not for parsing. The list contains
    /// the endpoint itself, with its own address and transport `loopback`.
    #[must_use]
    pub fn describe_peers(&self) -> Vec<(SocketAddr, String)> {
        self.access.with(|engine| engine.describe())
    }
}

impl SharedEndpoint {
    /// Makes reads of this counter, and waits for it, drive the endpoint from now on, even though the endpoint does not
    /// count in it. Call this for counters of regions, which count writes by peers through any endpoint. Counters of
    /// the endpoint's deferred work do not need it.
    ///
    /// # Errors
    /// If the system refuses to watch the endpoint's descriptor, or in a forked child.
    pub fn drive_for(&self, counter: &Counter) -> std::io::Result<()> {
        if !ownership::reach::EngineAccess::is_here(&self.access) {
            return Err(std::io::Error::from_raw_os_error(libc::ECHILD));
        }
        ownership::reach::EngineAccess::drive_for(&self.access, counter)
    }
}

impl<A: Ownership> AsFd for Endpoint<A> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}
