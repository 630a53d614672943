//! Events in libfabric's form.

use std::collections::{HashMap, HashSet, VecDeque};
use std::ffi::c_void;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use percale::endpoint::connection::ConnectionRequest;
use percale::{ErrorCode, Event};

use crate::abi::{
    FI_AV_COMPLETE, FI_JOIN_COMPLETE, FI_MR_COMPLETE, fi_eq_cm_entry, fi_eq_entry, fi_eq_err_entry, fi_info, fid_t,
};
use crate::errors;
use crate::info::Copied;
use crate::requests::{self, Handle};

/// The address of a client's object, used as a name. An event never dereferences it, because the object may be closed
/// before the event is read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fid(pub(super) fid_t);

impl Fid {
    /// Returns the client's context of the object.
    ///
    /// # Safety
    /// The object is open: it is listed in [`Names`], the caller holds the lock of the names, and closing an object
    /// first removes its entry.
    pub(super) unsafe fn context(self) -> Context {
        // SAFETY: the caller guarantees this.
        Context(unsafe { (*self.0).context })
    }
}

/// The client's context of an object. It is only returned to the client.
#[derive(Clone, Copy, Debug)]
pub(super) struct Context(pub(super) *mut c_void);

// SAFETY: the pointer is never dereferenced.
unsafe impl Send for Context {}

// SAFETY: the pointer is only a name. Each place that dereferences it states why that is sound.
unsafe impl Send for Fid {}

/// The objects that events refer to.
#[derive(Debug, Default)]
pub(super) struct Names {
    /// Endpoints by their percale number.
    pub(super) endpoints: HashMap<u64, Fid>,
    /// Address vectors by the numbers of their inserters. Entries stay until unfinished insertions have completed, even
    /// if the vector is closed before.
    pub(super) vectors: HashMap<u64, Inserting>,
    /// Regions with an unfinished registration and their contexts, by registration number.
    pub(super) regions: HashMap<u64, (Fid, Context)>,
    /// Groups and the contexts of their joins, by group number.
    pub(super) groups: HashMap<u64, (Fid, Context)>,
    /// Endpoints for which the end of the connection was reported.
    pub(super) over: HashSet<u64>,
    /// Passive endpoints, and the attributes of the endpoints that accept their connections.
    pub(super) listeners: HashMap<SocketAddr, (Fid, Arc<Copied>)>,
}

/// An address vector that reports completed insertions as events.
#[derive(Debug)]
pub(super) struct Inserting {
    pub(super) fid: Fid,
    /// Insertions that have not completed.
    under_way: u64,
    closed: bool,
}

impl Names {
    /// Assigns a number to a region's registration.
    pub(super) fn name_region(&mut self, fid: Fid, context: Context) -> u64 {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        self.regions.insert(number, (fid, context));
        number
    }

    /// Registers the vector for the events of this inserter.
    pub(super) fn name_vector(&mut self, inserter: u64, fid: Fid) {
        self.vectors.insert(inserter, Inserting { fid, under_way: 0, closed: false });
    }

    /// Counts an insertion that begins.
    pub(super) fn begin_insertion(&mut self, inserter: u64) {
        if let Some(vector) = self.vectors.get_mut(&inserter) {
            vector.under_way += 1;
        }
    }

    /// Counts a completed insertion.
    pub(super) fn end_insertion(&mut self, inserter: u64) {
        if let Some(vector) = self.vectors.get_mut(&inserter) {
            vector.under_way = vector.under_way.saturating_sub(1);
        }
        self.forget_if_over(inserter);
    }

    /// Removes a closed vector once its insertions have completed.
    pub(super) fn forget_vector(&mut self, inserter: u64) {
        if let Some(vector) = self.vectors.get_mut(&inserter) {
            vector.closed = true;
        }
        self.forget_if_over(inserter);
    }

    fn forget_if_over(&mut self, inserter: u64) {
        if self.vectors.get(&inserter).is_some_and(|vector| vector.closed && vector.under_way == 0) {
            self.vectors.remove(&inserter);
        }
    }
}

/// The maximum time for which a connection request is held back until the connection before it is established.
const HELD_BACK: Duration = Duration::from_millis(200);

/// Connections that were accepted and are not yet established, and the requests that arrived in the meantime.
///
/// The connecting side may have its connection, and request the next one, before the accepting side has detected that
/// the first connection is established, because the two arrive over different channels. Clients read one event queue
/// for both, and expect the event of the first connection before the next request (fi_cm(3)). Therefore a request is
/// held back, for at most [`HELD_BACK`], while a connection that was accepted from the same IP address is not yet
/// established.
#[derive(Debug, Default)]
pub(super) struct PendingAccepts {
    endpoints: HashMap<u64, (IpAddr, Instant)>,
    requests: VecDeque<ConnectionRequest>,
}

impl PendingAccepts {
    /// Records that this endpoint is accepting a connection from that address.
    pub(super) fn accepts(&mut self, endpoint: u64, from: IpAddr) {
        self.endpoints.insert(endpoint, (from, Instant::now() + HELD_BACK));
    }

    /// Records that the endpoint has its connection or will not get one.
    pub(super) fn settled(&mut self, endpoint: u64) {
        self.endpoints.remove(&endpoint);
    }

    /// Returns whether requests are held back.
    pub(super) fn holds_any(&self) -> bool {
        !self.requests.is_empty()
    }

    /// Processes an event that arrived. Returns it unless it has to wait.
    pub(super) fn pass(&mut self, event: Event) -> Option<Event> {
        match event {
            Event::ConnectionRequest(request) if self.is_awaited(request.from().ip()) => {
                self.requests.push_back(request);
                None
            }
            Event::Connected { endpoint, .. }
            | Event::ConnectionRefused { endpoint, .. }
            | Event::Shutdown { endpoint, .. } => {
                self.settled(endpoint);
                Some(event)
            }
            event => Some(event),
        }
    }

    /// Returns the oldest request that need not wait any longer. Called when no other event is available.
    pub(super) fn release(&mut self) -> Option<Event> {
        let at = self.requests.iter().position(|request| !self.is_awaited(request.from().ip()))?;
        self.requests.remove(at).map(Event::ConnectionRequest)
    }

    fn is_awaited(&self, from: IpAddr) -> bool {
        let now = Instant::now();
        self.endpoints.values().any(|&(ip, until)| ip == from && now < until)
    }
}

/// The `fi_info` with which a client receives a connection request, and the handle of the request.
#[derive(Debug)]
pub(super) struct RequestInfo {
    info: *mut fi_info,
    handle: Handle,
}

// SAFETY: both belong to this object until they are passed to the client.
unsafe impl Send for RequestInfo {}

impl RequestInfo {
    /// Creates the `fi_info` for a request from this address.
    pub(super) fn new(request: ConnectionRequest, from: SocketAddr, like: &Copied) -> Option<Self> {
        let request_at = request.listener();
        // If the `fi_info` cannot be created, the request is dropped, which rejects it.
        let mut requested = Self { info: std::ptr::null_mut(), handle: requests::keep(request) };
        requested.info = like.for_request((request_at, from), requested.handle.for_client())?;
        Some(requested)
    }

    /// Transfers the ownership to the client.
    pub(super) fn hand_over(self) {
        std::mem::forget(self);
    }
}

impl Drop for RequestInfo {
    fn drop(&mut self) {
        if !self.info.is_null() {
            // SAFETY: no other pointer to the object is in use.
            drop(unsafe { Copied::adopt(self.info) });
        }
        drop(requests::take(self.handle));
    }
}

/// An event in libfabric's form.
#[derive(Debug)]
pub(super) enum Record {
    /// An event that the client wrote.
    User { code: u32, data: Vec<u8> },
    /// A connection event.
    Connection { code: u32, fid: Fid, request: Option<RequestInfo>, data: Vec<u8> },
    /// A completed registration.
    Registered { fid: Fid, context: Context },
    /// An error: the registration failed.
    Unregistered { fid: Fid, context: Context, errno: i32 },
    /// An error: the connection was rejected or failed for another reason.
    Refused { fid: Fid, context: Context, error: ErrorCode, data: Vec<u8> },
    /// A joined group.
    Joined { fid: Fid, context: Context },
    /// An error: the group was not joined.
    NotJoined { fid: Fid, context: Context, error: ErrorCode },
    /// A completed asynchronous insertion.
    Inserted { fid: Fid, context: u64, count: u64 },
    /// An error: one address was not inserted. `reason` is a text.
    NotInserted { fid: Fid, context: u64, index: u64, code: i32, reason: Vec<u8> },
}

/// The size of a connection event without its data.
pub(super) const HEAD: usize = size_of::<fi_eq_cm_entry>();

impl Record {
    /// Returns the event's number and bytes, with as much data as `room` allows.
    pub(super) fn bytes(&self, room: usize) -> (u32, Vec<u8>) {
        match self {
            Self::User { code, data } => (*code, data.clone()),
            Self::Connection { code, fid, request, data } => {
                let info = request.as_ref().map_or(std::ptr::null_mut(), |requested| requested.info);
                let mut bytes = Vec::with_capacity(HEAD + data.len());
                bytes.extend_from_slice(&fid.0.expose_provenance().to_ne_bytes());
                bytes.extend_from_slice(&info.expose_provenance().to_ne_bytes());
                bytes.extend_from_slice(data);
                bytes.truncate(room);
                (*code, bytes)
            }
            Self::Inserted { fid, context, count } => {
                let head = fid.0.expose_provenance().to_ne_bytes();
                let mut bytes = Vec::with_capacity(size_of::<fi_eq_entry>());
                bytes.extend(head.into_iter().chain(context.to_ne_bytes()).chain(count.to_ne_bytes()));
                (FI_AV_COMPLETE, bytes)
            }
            Self::Registered { fid, context } | Self::Joined { fid, context } => {
                let code = if matches!(self, Self::Joined { .. }) { FI_JOIN_COMPLETE } else { FI_MR_COMPLETE };
                let words = [fid.0.expose_provenance(), context.0.expose_provenance(), 0];
                (code, words.iter().flat_map(|word| word.to_ne_bytes()).collect())
            }
            Self::Refused { .. } | Self::NotInserted { .. } | Self::Unregistered { .. } | Self::NotJoined { .. } => {
                (0, Vec::new())
            }
        }
    }

    /// Returns whether fi_eq_readerr(3) reads this record.
    pub(super) const fn is_error(&self) -> bool {
        matches!(
            self,
            Self::Refused { .. } | Self::NotInserted { .. } | Self::Unregistered { .. } | Self::NotJoined { .. }
        )
    }

    /// Returns whether this is a connection request, which contains the handle for the client's answer.
    pub(super) const fn is_request(&self) -> bool {
        matches!(self, Self::Connection { request: Some(_), .. })
    }

    /// Returns the minimum size of the client's buffer.
    pub(super) fn least(&self) -> usize {
        match self {
            Self::User { data, .. } => data.len(),
            Self::Connection { .. } => HEAD,
            Self::Inserted { .. } | Self::Registered { .. } | Self::Joined { .. } => size_of::<fi_eq_entry>(),
            Self::Refused { .. } | Self::NotInserted { .. } | Self::Unregistered { .. } | Self::NotJoined { .. } => 0,
        }
    }

    /// Returns the error entry and the data of an error.
    pub(super) fn error(self) -> Option<(fi_eq_err_entry, Vec<u8>)> {
        let entry = |fid: Fid, context, data, err, prov_errno| fi_eq_err_entry {
            fid: fid.0,
            context,
            data,
            err,
            prov_errno,
            err_data: std::ptr::null_mut(),
            err_data_size: 0,
        };
        match self {
            Self::Refused { fid, context, error, data } => {
                Some((entry(fid, context.0, 0, error.errno(), errors::number(error)), data))
            }
            Self::NotInserted { fid, context, index, code, reason } => {
                let context = std::ptr::with_exposed_provenance_mut(context as usize);
                Some((entry(fid, context, index, code, 0), reason))
            }
            Self::Unregistered { fid, context, errno } => Some((entry(fid, context.0, 0, errno, 0), Vec::new())),
            Self::NotJoined { fid, context, error } => {
                Some((entry(fid, context.0, 0, error.errno(), errors::number(error)), Vec::new()))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vector_name_is_removed_after_close_and_last_insertion() {
        let mut names = Names::default();
        let fid = || Fid(std::ptr::null_mut());
        // A vector that is closed without unfinished insertions is removed at once.
        names.name_vector(1, fid());
        names.begin_insertion(1);
        names.end_insertion(1);
        assert!(names.vectors.contains_key(&1), "the name of an open vector is kept");
        names.forget_vector(1);
        assert!(names.vectors.is_empty());
        // A vector that is closed before its insertions have ended is removed when the last one ends.
        names.name_vector(2, fid());
        names.begin_insertion(2);
        names.begin_insertion(2);
        names.forget_vector(2);
        names.end_insertion(2);
        assert!(names.vectors.contains_key(&2), "an event is still to come");
        names.end_insertion(2);
        assert!(names.vectors.is_empty());
        // Many vectors leave no entries behind, even if an insertion ends more than once.
        for inserter in 3..1000 {
            names.name_vector(inserter, fid());
            names.begin_insertion(inserter);
            names.forget_vector(inserter);
            names.end_insertion(inserter);
            names.end_insertion(inserter);
        }
        assert!(names.vectors.is_empty());
    }

    #[test]
    fn requests_are_held_back_only_for_a_limited_time() {
        let (from, other) = (IpAddr::from([127, 0, 0, 1]), IpAddr::from([127, 0, 0, 2]));
        let mut pending = PendingAccepts::default();
        pending.endpoints.insert(1, (from, Instant::now() + Duration::from_secs(3600)));
        assert!(pending.is_awaited(from) && !pending.is_awaited(other));
        pending.endpoints.insert(1, (from, Instant::now()));
        assert!(!pending.is_awaited(from));
    }
}
