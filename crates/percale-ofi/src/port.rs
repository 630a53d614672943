//! A percale endpoint, with or without a lock.

use std::cell::UnsafeCell;
use std::sync::OnceLock;

use percale::completion::ring::ErrorAvailable;
use percale::endpoint::connection::{ConnectionError, ConnectionRequest};
use percale::trigger::{RawOperation, Variable};
use percale::{
    AddressSet, AtomicWork, Bind, CollectiveWork, Counted, Counter, Endpoint, Entry, ErrorEntry, GroupId, OpFlags,
    PeerAddress, PostError, RawRegion, ReceiveWork, RemoteMemory, RmaWork, Segment, Segments, SendWork, SharedEndpoint,
    Window,
};

use crate::abi::FI_LOG_EP_CTRL;
use crate::log;

/// The default minimum: a multi-receive buffer with less free space than this is released.
pub(crate) const MULTI_MINIMUM: usize = 64;

/// The endpoint under a `fid_ep`.
#[derive(Debug)]
pub(crate) struct Port {
    /// `Some` while the endpoint has no lock, because the client promised that only one thread at a time uses it. Only
    /// [`share`](Self::share) changes it.
    owned: UnsafeCell<Option<Endpoint>>,
    /// Set if the client has not made that promise, or if other threads drive the endpoint too.
    shared: OnceLock<SharedEndpoint>,
}

// SAFETY: one thread at a time uses an owned port, which the caller of `Port::owned` guarantees.
unsafe impl Sync for Port {}

/// Calls the same method of either endpoint type.
macro_rules! either {
    ($port:expr, $endpoint:ident => $call:expr) => {
        match $port.alone() {
            Some($endpoint) => $call,
            None => {
                let $endpoint = $port.together();
                $call
            }
        }
    };
}

impl Port {
    /// Creates a port for an endpoint without a lock. The port has no lock until it is [shared](Self::share).
    ///
    /// # Safety
    /// One thread at a time uses the port.
    pub(crate) const unsafe fn owned(endpoint: Endpoint) -> Self {
        Self { owned: UnsafeCell::new(Some(endpoint)), shared: OnceLock::new() }
    }

    /// Creates a port for an endpoint that threads share.
    pub(crate) fn of_all(endpoint: SharedEndpoint) -> Self {
        Self { owned: UnsafeCell::new(None), shared: OnceLock::from(endpoint) }
    }

    /// Returns the endpoint if it has no lock.
    #[inline(always)]
    fn alone(&self) -> Option<&Endpoint> {
        // SAFETY: only `share` changes the field, and no other call runs meanwhile: the caller of `owned` guarantees
        // that one thread at a time uses the port.
        unsafe { &*self.owned.get() }.as_ref()
    }

    /// Returns the endpoint if it has a lock.
    #[inline]
    fn together(&self) -> &SharedEndpoint {
        // One of the two fields is always set.
        self.shared.get().unwrap_or_else(|| std::process::abort())
    }

    /// Adds a lock to the endpoint. From now on threads other than the client's may drive it.
    pub(crate) fn share(&self) -> Result<&SharedEndpoint, isize> {
        if let Some(shared) = self.shared.get() {
            return Ok(shared);
        }
        // SAFETY: the caller of `owned` guarantees that one thread at a time uses an endpoint without a lock, and this
        // thread is not inside another call on it.
        let owned = unsafe { &mut *self.owned.get() };
        if let Some(endpoint) = owned.take() {
            match endpoint.share() {
                Ok(shared) => drop(self.shared.set(shared)),
                Err(error) => {
                    log::warning!(FI_LOG_EP_CTRL, "{error}");
                    let code = -(error.errno() as isize);
                    *owned = Some(error.into_inner());
                    return Err(code);
                }
            }
        }
        Ok(self.together())
    }

    /// Posts a send.
    ///
    /// # Safety
    /// The requirements of [`Endpoint::post_send`] apply.
    #[inline]
    pub(crate) unsafe fn send(&self, work: &SendWork) -> Result<(), PostError> {
        // SAFETY: the caller upholds the same contract.
        either!(self, endpoint => unsafe { endpoint.post_send(work) })
    }

    /// Posts a send of one piece.
    ///
    /// # Safety
    /// The requirements of [`Endpoint::post_send_one`] apply.
    #[inline(always)]
    pub(crate) unsafe fn send_one(
        &self,
        peer: PeerAddress,
        segment: Segment,
        tag: Option<u64>,
        data: Option<u64>,
        context: u64,
        flags: OpFlags,
    ) -> Result<(), PostError> {
        match self.alone() {
            // SAFETY: the caller upholds the same contract.
            Some(endpoint) => unsafe { endpoint.post_send_one(peer, segment, tag, data, context, flags) },
            None => {
                let segments = Segments::one(segment);
                // SAFETY: the caller upholds the same contract.
                unsafe { self.together().post_send(&SendWork { peer, segments, tag, data, context, flags }) }
            }
        }
    }

    /// Posts a receive into one piece.
    ///
    /// # Safety
    /// The requirements of [`Endpoint::post_recv_one`] apply.
    #[inline(always)]
    pub(crate) unsafe fn receive_one(
        &self,
        from: PeerAddress,
        segment: Segment,
        tag: Option<(u64, u64)>,
        context: u64,
        flags: OpFlags,
    ) -> Result<(), PostError> {
        match self.alone() {
            // SAFETY: the caller upholds the same contract.
            Some(endpoint) => unsafe { endpoint.post_recv_one(from, segment, tag, context, flags) },
            None => {
                let segments = Segments::one(segment);
                // SAFETY: the caller upholds the same contract.
                unsafe { self.together().post_recv(&ReceiveWork { from, segments, tag, context, flags }) }
            }
        }
    }

    /// Posts a receive.
    ///
    /// # Safety
    /// The requirements of [`Endpoint::post_recv`] apply.
    #[inline]
    pub(crate) unsafe fn receive(&self, work: &ReceiveWork) -> Result<(), PostError> {
        // SAFETY: the caller upholds the same contract.
        either!(self, endpoint => unsafe { endpoint.post_recv(work) })
    }

    /// Posts a write if `writes` is set, and a read otherwise, of one piece.
    ///
    /// # Safety
    /// The requirements of [`Endpoint::post_write_one`] or [`Endpoint::post_read_one`] apply.
    #[inline(always)]
    pub(crate) unsafe fn access_one(
        &self,
        writes: bool,
        peer: PeerAddress,
        local: Segment,
        remote: RemoteMemory,
        context: u64,
        flags: OpFlags,
    ) -> Result<(), PostError> {
        if writes {
            // SAFETY: the caller upholds the same contract.
            either!(self, endpoint => unsafe { endpoint.post_write_one(peer, local, remote, context, flags) })
        } else {
            // SAFETY: the caller upholds the same contract.
            either!(self, endpoint => unsafe { endpoint.post_read_one(peer, local, remote, context, flags) })
        }
    }

    /// Posts a write.
    ///
    /// # Safety
    /// The requirements of [`Endpoint::post_write`] apply.
    #[inline]
    pub(crate) unsafe fn write(&self, work: &RmaWork) -> Result<(), PostError> {
        // SAFETY: the caller upholds the same contract.
        either!(self, endpoint => unsafe { endpoint.post_write(work) })
    }

    /// Posts a read.
    ///
    /// # Safety
    /// The requirements of [`Endpoint::post_read`] apply.
    #[inline]
    pub(crate) unsafe fn read(&self, work: &RmaWork) -> Result<(), PostError> {
        // SAFETY: the caller upholds the same contract.
        either!(self, endpoint => unsafe { endpoint.post_read(work) })
    }

    /// Posts an atomic operation.
    ///
    /// # Safety
    /// The requirements of [`Endpoint::post_atomic`] apply.
    #[inline]
    pub(crate) unsafe fn atomic(&self, work: &AtomicWork) -> Result<(), PostError> {
        // SAFETY: the caller upholds the same contract.
        either!(self, endpoint => unsafe { endpoint.post_atomic(work) })
    }

    /// Posts an operation that begins when a counter has reached a value.
    ///
    /// # Safety
    /// The requirements of [`Endpoint::post_when`] apply.
    pub(crate) unsafe fn when(
        &self,
        operation: &RawOperation,
        counter: &Counter,
        threshold: u64,
    ) -> Result<(), PostError> {
        // SAFETY: the caller upholds the same contract.
        either!(self, endpoint => unsafe { endpoint.post_when(operation, counter, threshold) })
    }

    /// Posts an operation that begins when a variable is written.
    ///
    /// # Safety
    /// The requirements of [`Endpoint::post_when_written`] apply.
    pub(crate) unsafe fn when_written(&self, operation: &RawOperation, variable: &Variable) -> Result<(), PostError> {
        // SAFETY: the caller upholds the same contract.
        either!(self, endpoint => unsafe { endpoint.post_when_written(operation, variable) })
    }

    /// Posts a collective.
    ///
    /// # Safety
    /// The requirements of [`Endpoint::post_collective`] apply.
    pub(crate) unsafe fn collective(&self, work: &CollectiveWork) -> Result<(), PostError> {
        // SAFETY: the caller upholds the same contract.
        either!(self, endpoint => unsafe { endpoint.post_collective(work) })
    }

    /// Joins a group.
    pub(crate) fn join_group(&self, members: &AddressSet, context: u64) -> Result<GroupId, PostError> {
        either!(self, endpoint => endpoint.join_group(members, context))
    }

    /// Leaves a group.
    pub(crate) fn leave_group(&self, group: GroupId) {
        either!(self, endpoint => endpoint.leave_group(group));
    }

    /// Returns the endpoint's rank in a group and the number of members.
    pub(crate) fn rank_in(&self, group: GroupId) -> Option<(usize, usize)> {
        either!(self, endpoint => endpoint.rank_in(group))
    }

    /// Returns the rank of a member of a group.
    pub(crate) fn rank_of(&self, group: GroupId, member: PeerAddress) -> Option<usize> {
        either!(self, endpoint => endpoint.rank_of(group, member))
    }

    /// Returns whether the endpoint has a lock, so that any waiting thread may drive it.
    pub(crate) fn is_shared(&self) -> bool {
        self.alone().is_none()
    }

    /// Counts operations of these kinds from now on.
    pub(crate) fn count(&self, what: Counted, counter: &Counter) -> Result<(), PostError> {
        either!(self, endpoint => endpoint.count(what, counter))
    }

    /// Returns whether bound windows of type 2A keep the endpoint open.
    pub(crate) fn is_held_by_windows(&self) -> bool {
        either!(self, endpoint => endpoint.is_held_by_windows())
    }

    /// Binds a window of type 2.
    pub(crate) fn post_bind(
        &self,
        peer: PeerAddress,
        window: &Window,
        region: &RawRegion,
        bind: &Bind,
        context: u64,
        flags: OpFlags,
    ) -> Result<RemoteMemory, PostError> {
        either!(self, endpoint => endpoint.post_bind(peer, window, region, bind, context, flags))
    }

    /// Invalidates a key of a window of type 2.
    pub(crate) fn post_invalidate(
        &self,
        peer: PeerAddress,
        key: u64,
        context: u64,
        flags: OpFlags,
    ) -> Result<(), PostError> {
        either!(self, endpoint => endpoint.post_invalidate(peer, key, context, flags))
    }

    /// Reads the results that the endpoint keeps itself.
    #[inline(always)]
    pub(crate) fn poll(&self, entries: &mut [Entry]) -> Result<usize, ErrorAvailable> {
        match self.alone() {
            Some(endpoint) => endpoint.poll(entries),
            None => Self::poll_shared(self.together(), entries),
        }
    }

    #[inline(never)]
    fn poll_shared(endpoint: &SharedEndpoint, entries: &mut [Entry]) -> Result<usize, ErrorAvailable> {
        endpoint.poll(entries)
    }

    /// Reads results of the endpoint like [`poll`](Self::poll). If there are none, it may poll shared memory for a
    /// short time, unless the endpoint has a lock, because other threads would wait for the lock.
    #[inline(always)]
    pub(crate) fn poll_lingering(&self, entries: &mut [Entry]) -> Result<usize, ErrorAvailable> {
        match self.alone() {
            Some(endpoint) => endpoint.poll_lingering(entries),
            None => Self::poll_shared(self.together(), entries),
        }
    }

    /// Removes and returns the next error of the results that the endpoint keeps itself.
    pub(crate) fn read_error(&self) -> Option<ErrorEntry> {
        either!(self, endpoint => endpoint.read_error())
    }

    /// Makes progress, and returns whether the endpoint keeps any results itself.
    pub(crate) fn has_results(&self) -> bool {
        either!(self, endpoint => endpoint.wait(Some(std::time::Duration::ZERO)))
    }

    /// Makes reads of a region's counter, and waits for it, drive the endpoint from now on.
    pub(crate) fn drive_for(&self, counter: &Counter) -> Result<(), i32> {
        let shared = self.share().map_err(|refused| -(refused as i32))?;
        shared.drive_for(counter).map_err(|error| {
            log::warning!(FI_LOG_EP_CTRL, "an endpoint cannot wake threads that sleep on a counter: {error}");
            percale::error_number(&error)
        })
    }

    /// Closes the endpoint and ends its operations. It is then also closed for other threads that still hold the port.
    pub(crate) fn close(&self) {
        either!(self, endpoint => endpoint.shut());
    }

    /// Makes progress.
    #[inline]
    pub(crate) fn progress(&self) -> bool {
        either!(self, endpoint => endpoint.progress())
    }

    /// Cancels the first operation that was posted with this context and can still be canceled. Returns whether there
    /// was one.
    pub(crate) fn cancel(&self, context: u64) -> bool {
        either!(self, endpoint => endpoint.cancel(context))
    }

    /// Sets the minimum free space of multi-receive buffers. A buffer with less free space is released.
    pub(crate) fn set_multi_minimum(&self, bytes: usize) {
        either!(self, endpoint => endpoint.set_multi_receive_minimum(bytes));
    }

    /// Connects an endpoint of one connection.
    pub(crate) fn connect(&self, address: &str, data: &[u8]) -> Result<(), ConnectionError> {
        either!(self, endpoint => endpoint.connect(address, data))
    }

    /// Accepts a connection.
    pub(crate) fn accept(&self, request: &ConnectionRequest, data: &[u8]) -> Result<(), ConnectionError> {
        either!(self, endpoint => endpoint.accept(request, data))
    }

    /// Ends the connection.
    pub(crate) fn shutdown(&self) -> Result<(), ConnectionError> {
        either!(self, endpoint => endpoint.shutdown())
    }

    /// Returns the peer's address of the connection.
    pub(crate) fn peer_address(&self) -> Option<std::net::SocketAddr> {
        either!(self, endpoint => endpoint.peer_address())
    }

    /// Returns the number that identifies the endpoint in events.
    pub(crate) fn id(&self) -> u64 {
        either!(self, endpoint => endpoint.id())
    }

    /// Returns the address at which peers reach the endpoint.
    pub(crate) fn address(&self) -> std::net::SocketAddr {
        either!(self, endpoint => endpoint.address())
    }
}

#[cfg(test)]
mod tests {
    use percale::TransportKind;
    use percale_memory::system::forked::in_a_child;

    use super::*;

    #[test]
    fn endpoint_is_kept_if_it_cannot_be_shared() {
        let here = percale::Info::discover().unwrap();
        let domain = here.domain().transport(TransportKind::Loopback).open().unwrap();
        let endpoint = domain.endpoint().bind("127.0.0.1:0").unwrap();
        // SAFETY: only this thread uses the port.
        let port = unsafe { Port::owned(endpoint) };
        // A thread that looks up libfabric's log at the fork would not end in the child.
        _ = crate::libfabric::libfabric();
        // A child cannot share an endpoint of its parent.
        assert!(in_a_child(|| port.share().is_err() && !port.is_shared()));
        assert!(!port.is_shared() && port.share().is_ok() && port.is_shared());
    }
}
