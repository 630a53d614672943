//! `fid_eq`: an event queue (fi_eq(3)).

use std::ffi::{c_char, c_int, c_void};
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use percale::{Event, EventQueue, GroupId};

use crate::abi::{
    FI_CLASS_EQ, FI_CONNECTED, FI_CONNREQ, FI_EAVAIL, FI_EBADFLAGS, FI_ETOOSMALL, FI_LOG_EQ, FI_PEEK, FI_SHUTDOWN,
    FI_WAIT_NONE, FI_WRITE, fi_eq_attr, fi_eq_err_entry, fi_ops, fi_ops_eq, fid, fid_eq, fid_t,
};
use crate::fabric;
use crate::info::Copied;
use crate::object::{self, Object};
use crate::wait_set::{self, Membership};
use crate::{errors, log, requests, waiting};

mod joined;
mod record;

pub(crate) use self::joined::Joined;
use self::record::{Context, Fid, Names, PendingAccepts, Record, RequestInfo};

/// The part of an event queue that other objects share.
#[derive(Debug)]
pub(crate) struct EventQueueShared {
    fabric: Arc<fabric::FabricShared>,
    pub(crate) percale: EventQueue,
    /// Membership in the wait set that the client named.
    _membership: Option<Membership>,
    wait: u32,
    /// Set if the client may write events.
    writable: bool,
    names: Mutex<Names>,
    settling: Mutex<PendingAccepts>,
    /// The oldest event, once it was loaded.
    front: Mutex<Option<Record>>,
    /// The data of the last error that was read.
    error_data: Mutex<Vec<u8>>,
}

fn lock<T>(state: &Mutex<T>) -> MutexGuard<'_, T> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

object::object!(pub(crate) Events: FI_CLASS_EQ, fid_eq, EventQueueShared);

static FI: fi_ops = fi_ops { close: Some(close), control: Some(control), ..fi_ops::REFUSING };
static OPS: fi_ops_eq = fi_ops_eq {
    size: size_of::<fi_ops_eq>(),
    read: Some(read),
    readerr: Some(read_error),
    write: Some(write),
    sread: Some(wait_read),
    strerror: Some(error_text),
};

/// Opens an event queue.
///
/// # Safety
/// `attr` is null or readable, `eq` writable.
pub(crate) unsafe fn open(
    fabric: &Arc<fabric::FabricShared>,
    attr: *const fi_eq_attr,
    eq: *mut *mut fid_eq,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the caller guarantees this.
    let attr = unsafe { attr.as_ref() };
    let wait = match waiting::object("fi_eq_open", FI_LOG_EQ, attr.map_or(FI_WAIT_NONE, |attr| attr.wait_obj)) {
        Ok(wait) => wait,
        Err(code) => return code,
    };
    let percale = EventQueue::default();
    let set = attr.map_or(std::ptr::null_mut(), |attr| attr.wait_set);
    // SAFETY: with FI_WAIT_SET the client passes a wait set.
    let membership = match unsafe { wait_set::membership(wait, set, &percale) } {
        Ok(membership) => membership,
        Err(code) => return code,
    };
    let shared = Arc::new(EventQueueShared {
        fabric: Arc::clone(fabric),
        percale,
        _membership: membership,
        wait,
        writable: attr.is_some_and(|attr| attr.flags & FI_WRITE != 0),
        names: Mutex::default(),
        settling: Mutex::default(),
        front: Mutex::default(),
        error_data: Mutex::default(),
    });
    let fid = fid_eq { fid: object::head(FI_CLASS_EQ, context, &FI), ops: std::ptr::from_ref(&OPS).cast_mut() };
    // SAFETY: the client passed a writable location for the queue.
    unsafe { Events { fid, shared }.give(eq) };
    0
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    // SAFETY: the pointer is a queue of this provider, and the client no longer uses it.
    unsafe { Events::close(fid, Events::shared) }
}

unsafe extern "C" fn control(fid: *mut fid, command: c_int, argument: *mut c_void) -> c_int {
    // SAFETY: the pointer is a queue of this provider.
    let shared = unsafe { Events::of(fid) }.shared();
    // SAFETY: the client passes the arguments that fi_control(3) requires.
    unsafe { waiting::control(shared.wait, || shared.percale.descriptor(), command, argument) }
}

/// Returns 0 if the client may sleep on the queue's descriptor (fi_trywait(3)), and -FI_EAGAIN otherwise.
pub(crate) fn try_wait(events: &EventQueueShared) -> c_int {
    // Events are held back only for a short time. No thread may sleep while one is held back.
    if lock(&events.front).is_some() || lock(&events.settling).holds_any() {
        return -libc::EAGAIN;
    }
    match events.percale.try_wait() {
        Ok(true) => 0,
        Ok(false) => -libc::EAGAIN,
        Err(error) => -percale::error_number(&error),
    }
}

impl EventQueueShared {
    /// Returns whether the queue belongs to this fabric.
    pub(crate) fn is_of(&self, fabric: &Arc<fabric::FabricShared>) -> bool {
        Arc::ptr_eq(&self.fabric, fabric)
    }

    /// Registers the client's object for the events of this endpoint.
    pub(crate) fn name_endpoint(&self, id: u64, endpoint: fid_t) {
        lock(&self.names).endpoints.insert(id, Fid(endpoint));
    }

    /// Removes a closed endpoint.
    pub(crate) fn forget_endpoint(&self, id: u64) {
        let mut names = lock(&self.names);
        names.endpoints.remove(&id);
        names.over.remove(&id);
        drop(names);
        lock(&self.settling).settled(id);
    }

    /// Records that this endpoint is accepting a connection from that address.
    pub(crate) fn accepts(&self, endpoint: u64, from: SocketAddr) {
        lock(&self.settling).accepts(endpoint, from.ip());
    }

    /// Records that this endpoint is no longer accepting a connection.
    pub(crate) fn settled(&self, endpoint: u64) {
        lock(&self.settling).settled(endpoint);
    }

    /// Returns percale's next event.
    fn next(&self) -> Option<Event> {
        requests::expire();
        let mut settling = lock(&self.settling);
        while let Some(event) = self.percale.read() {
            if let Some(event) = settling.pass(event) {
                return Some(event);
            }
        }
        settling.release()
    }

    /// Creates a queue without a fabric.
    #[cfg(test)]
    pub(crate) fn alone() -> Arc<Self> {
        Arc::new(Self {
            fabric: Arc::new(fabric::FabricShared { api_version: 0 }),
            percale: EventQueue::default(),
            _membership: None,
            wait: FI_WAIT_NONE,
            writable: false,
            names: Mutex::default(),
            settling: Mutex::default(),
            front: Mutex::default(),
            error_data: Mutex::default(),
        })
    }

    /// Returns whether an event can be read.
    #[cfg(test)]
    pub(crate) fn has_any(&self) -> bool {
        self.look().is_some()
    }

    /// Registers the client's address vector for the events of this inserter.
    pub(crate) fn name_vector(&self, inserter: u64, vector: fid_t) {
        lock(&self.names).name_vector(inserter, Fid(vector));
    }

    /// Removes a closed vector.
    pub(crate) fn forget_vector(&self, inserter: u64) {
        lock(&self.names).forget_vector(inserter);
    }

    /// Begins an insertion. Unless it is rejected, an event reports its completion.
    pub(crate) fn insert<E>(&self, inserter: u64, begin: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        lock(&self.names).begin_insertion(inserter);
        begin().inspect_err(|_| lock(&self.names).end_insertion(inserter))
    }

    /// Registers the client's object for the completion of a region's registration. Returns the number of the
    /// registration.
    pub(crate) fn name_region(&self, region: fid_t, context: *mut c_void) -> u64 {
        lock(&self.names).name_region(Fid(region), Context(context))
    }

    /// Removes a region that is closed or could not be registered.
    pub(crate) fn forget_region(&self, number: u64) {
        lock(&self.names).regions.remove(&number);
    }

    /// Registers the client's object for the events of this group.
    pub(crate) fn name_group(&self, number: u64, group: fid_t, context: *mut c_void) {
        lock(&self.names).groups.insert(number, (Fid(group), Context(context)));
    }

    /// Stores the group ID in the client's object, unless that object was closed.
    pub(crate) fn group_is(&self, number: u64, id: GroupId) {
        let names = lock(&self.names);
        if let Some((fid, _)) = names.groups.get(&number) {
            // SAFETY: closing the group first removes its entry under this lock.
            unsafe { joined::name(fid.0, id) };
        }
    }

    /// Removes a group that was left.
    pub(crate) fn forget_group(&self, number: u64) {
        lock(&self.names).groups.remove(&number);
    }

    /// Reports that the client shut down an endpoint's connection. The client's own event queue gets the same event as
    /// if the peer had ended the connection.
    pub(crate) fn ended(&self, endpoint: u64, address: SocketAddr) {
        let (error, reason) = (percale::ErrorCode::Closed, "the connection was shut down locally".to_owned());
        self.percale.push(Event::Shutdown { endpoint, address, error, reason });
    }

    /// Registers the client's object for connection requests to the listener at this address. `info` describes the
    /// endpoints that accept them.
    pub(crate) fn name_listener(&self, address: SocketAddr, passive: fid_t, info: &Arc<Copied>) {
        lock(&self.names).listeners.insert(address, (Fid(passive), Arc::clone(info)));
    }

    /// Removes a closed listener.
    pub(crate) fn forget_listener(&self, address: SocketAddr) {
        lock(&self.names).listeners.remove(&address);
    }

    /// Converts an event to libfabric's form. Returns `None` if libfabric has no such event.
    fn record(&self, event: Event) -> Option<Record> {
        let mut names = lock(&self.names);
        if let Event::Shutdown { endpoint, .. } = &event
            && !(names.endpoints.contains_key(endpoint) && names.over.insert(*endpoint))
        {
            return None; // The endpoint is closed, or the end was already reported.
        }
        let fid = |endpoint| names.endpoints.get(&endpoint).copied();
        match event {
            Event::User { code, data } => Some(Record::User { code, data }),
            Event::ConnectionRequest(request) => {
                let (passive, info) = names.listeners.get(&request.listener())?;
                let (from, data) = (request.from(), request.data().to_vec());
                let request = RequestInfo::new(request, from, info)?;
                Some(Record::Connection { code: FI_CONNREQ, fid: *passive, request: Some(request), data })
            }
            Event::Connected { endpoint, data, .. } => {
                Some(Record::Connection { code: FI_CONNECTED, fid: fid(endpoint)?, request: None, data })
            }
            Event::Shutdown { endpoint, .. } => {
                Some(Record::Connection { code: FI_SHUTDOWN, fid: fid(endpoint)?, request: None, data: Vec::new() })
            }
            Event::ConnectionRefused { endpoint, error, reason, data, .. } => {
                log::warning!(FI_LOG_EQ, "connection failed: {reason}");
                let fid = fid(endpoint)?;
                // SAFETY: the object is registered, and the lock of the names is held.
                Some(Record::Refused { fid, context: unsafe { fid.context() }, error, data })
            }
            Event::AddressesInserted { inserter, context, count } => {
                let fid = names.vectors.get(&inserter)?.fid;
                names.end_insertion(inserter);
                Some(Record::Inserted { fid, context, count })
            }
            Event::AddressFailed { inserter, context, index, error } => {
                log::warning!(FI_LOG_EQ, "address {index} of an insertion: {error}");
                let (code, reason) = (error.errno(), error.to_string().into_bytes());
                Some(Record::NotInserted { fid: names.vectors.get(&inserter)?.fid, context, index, code, reason })
            }
            // A region without an entry was closed in the meantime.
            Event::Registered { context: number } => {
                let (fid, context) = names.regions.remove(&number)?;
                Some(Record::Registered { fid, context })
            }
            Event::RegistrationFailed { context: number, errno, .. } => {
                let (fid, context) = names.regions.remove(&number)?;
                Some(Record::Unregistered { fid, context, errno })
            }
            Event::Joined { context: number, group: id } => {
                let (fid, context) = *names.groups.get(&number)?;
                // The call that joins the group may not have returned yet in another thread.
                // SAFETY: closing the group first removes its entry, under the lock of the names.
                unsafe { joined::name(fid.0, id) };
                Some(Record::Joined { fid, context })
            }
            Event::JoinFailed { context: number, error, reason, .. } => {
                log::warning!(FI_LOG_EQ, "fi_join_collective: {reason}");
                let (fid, context) = *names.groups.get(&number)?;
                Some(Record::NotJoined { fid, context, error })
            }
            // libfabric has no events for the peers of a reliable-datagram endpoint.
            other => {
                log::note!(FI_LOG_EQ, "{other:?}");
                None
            }
        }
    }

    /// Loads the oldest event without removing it.
    fn look(&self) -> MutexGuard<'_, Option<Record>> {
        let mut front = lock(&self.front);
        while front.is_none() {
            let Some(event) = self.next() else { break };
            *front = self.record(event);
        }
        front
    }

    /// Reads the next event. With FI_PEEK, the event is not removed.
    ///
    /// # Safety
    /// `event` is writable. `to` is null or writable for `room` bytes.
    unsafe fn read(&self, event: *mut u32, to: *mut c_void, room: usize, flags: u64) -> isize {
        if flags & !FI_PEEK != 0 {
            return -(FI_EBADFLAGS as isize);
        }
        let mut front = self.look();
        let (code, bytes) = match &*front {
            None => return -(libc::EAGAIN as isize),
            Some(record) if record.is_error() => return -(FI_EAVAIL as isize),
            // Without a buffer, the caller reads only the type of the event. A connection request needs a buffer,
            // because it would be lost otherwise.
            Some(record) if to.is_null() && !record.is_request() => (record.bytes(0).0, Vec::new()),
            Some(record) if to.is_null() || record.least() > room => {
                log::note!(FI_LOG_EQ, "fi_eq_read: the event has {} bytes, but the buffer only {room}", record.least());
                return -(FI_ETOOSMALL as isize);
            }
            Some(record) => record.bytes(room),
        };
        // SAFETY: the client passed a writable location for the event.
        unsafe { event.write(code) };
        // SAFETY: the bytes fit into the client's buffer.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.cast(), bytes.len()) };
        if flags & FI_PEEK == 0
            && let Some(Record::Connection { request: Some(request), .. }) = front.take()
        {
            request.hand_over();
        }
        bytes.len() as isize
    }

    /// Reads the next error.
    ///
    /// # Safety
    /// `to` is readable and writable.
    unsafe fn read_error(&self, to: *mut fi_eq_err_entry) -> isize {
        let mut front = self.look();
        if !front.as_ref().is_some_and(Record::is_error) {
            return -(libc::EAGAIN as isize);
        }
        let Some((mut entry, data)) = front.take().and_then(Record::error) else { return -(libc::EAGAIN as isize) };
        // Clients of older versions do not initialize the entry. Their error data is stored in the queue's buffer
        // (fi_eq(3) of releases before 1.5).
        let (buffer, room) = if self.fabric.api_version < errors::WITH_DATA_SIZE {
            (std::ptr::null_mut(), 0)
        } else {
            // SAFETY: the caller guarantees this.
            unsafe { ((*to).err_data, (*to).err_data_size) }
        };
        let mut kept = lock(&self.error_data);
        // If the client passes an entry again without resetting it, the entry still points to the buffer of the last
        // read.
        let before = !kept.is_empty() && std::ptr::eq(buffer.cast(), kept.as_ptr());
        *kept = data;
        (entry.err_data, entry.err_data_size) = if buffer.is_null() || room == 0 || before {
            // The queue's buffer, which is valid until the next read (fi_eq(3)).
            (kept.as_mut_ptr().cast(), kept.len())
        } else {
            let count = room.min(kept.len());
            // SAFETY: the client's buffer has at least `count` bytes.
            unsafe { std::ptr::copy_nonoverlapping(kept.as_ptr(), buffer.cast(), count) };
            (buffer, count)
        };
        // SAFETY: the caller guarantees this.
        unsafe { to.write(entry) };
        size_of::<fi_eq_err_entry>() as isize
    }
}

unsafe extern "C" fn read(eq: *mut fid_eq, event: *mut u32, to: *mut c_void, room: usize, flags: u64) -> isize {
    // SAFETY: the pointer is a queue of this provider, and the client passed a valid buffer.
    unsafe { Events::of(eq).shared.read(event, to, room, flags) }
}

unsafe extern "C" fn wait_read(
    eq: *mut fid_eq,
    event: *mut u32,
    to: *mut c_void,
    room: usize,
    timeout: c_int,
    flags: u64,
) -> isize {
    // SAFETY: the pointer is a queue of this provider.
    let shared = unsafe { Events::of(eq) }.shared();
    let deadline = u64::try_from(timeout).ok().map(|timeout| Instant::now() + Duration::from_millis(timeout));
    loop {
        // SAFETY: the client passed a valid buffer.
        let read = unsafe { shared.read(event, to, room, flags) };
        if read != -(libc::EAGAIN as isize) {
            return read;
        }
        match try_wait(shared) {
            0 => {}
            again if again == -libc::EAGAIN => {
                if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                    return -(libc::EAGAIN as isize);
                }
                // Another thread has armed the queue, or an event is held back for a short time.
                std::thread::yield_now();
                continue;
            }
            refused => return refused as isize,
        }
        match shared.percale.descriptor() {
            Ok(descriptor) if sleep(descriptor, deadline) => {}
            Ok(_) => return -(libc::EAGAIN as isize),
            Err(error) => return -(percale::error_number(&error) as isize),
        }
    }
}

/// Sleeps until a descriptor is readable. Returns false if the deadline passed first.
pub(crate) fn sleep(descriptor: BorrowedFd<'_>, deadline: Option<Instant>) -> bool {
    let left = deadline.map_or(-1, |deadline| {
        // Rounded up, so that the thread does not wake up before the deadline and sleep again.
        let left = deadline.saturating_duration_since(Instant::now()).as_micros().div_ceil(1000);
        c_int::try_from(left).unwrap_or(c_int::MAX)
    });
    let mut one = libc::pollfd { fd: descriptor.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: the array has one entry.
    let ready = unsafe { libc::poll(&raw mut one, 1, left) };
    ready != 0 || deadline.is_none_or(|deadline| Instant::now() < deadline)
}

unsafe extern "C" fn read_error(eq: *mut fid_eq, to: *mut fi_eq_err_entry, _flags: u64) -> isize {
    // SAFETY: the pointer is a queue of this provider, and the client passed an error entry.
    unsafe { Events::of(eq).shared.read_error(to) }
}

unsafe extern "C" fn write(eq: *mut fid_eq, event: u32, from: *const c_void, len: usize, flags: u64) -> isize {
    // SAFETY: the pointer is a queue of this provider.
    let shared = unsafe { Events::of(eq) }.shared();
    if !shared.writable {
        log::warning!(FI_LOG_EQ, "fi_eq_write: the queue was opened without FI_WRITE");
        return -(libc::EACCES as isize);
    }
    if flags != 0 {
        return -(FI_EBADFLAGS as isize);
    }
    // SAFETY: the client passed this number of readable bytes.
    let bytes = if len == 0 { &[] } else { unsafe { std::slice::from_raw_parts(from.cast::<u8>(), len) } };
    match shared.percale.write(event, bytes) {
        Ok(()) => len as isize,
        Err(error) => -(error.errno() as isize),
    }
}

unsafe extern "C" fn error_text(
    _eq: *mut fid_eq,
    provider_error: c_int,
    _data: *const c_void,
    to: *mut c_char,
    room: usize,
) -> *const c_char {
    let text = errors::text(provider_error);
    // SAFETY: the client's buffer has the length that the client passed.
    unsafe { errors::copy(text, to, room) };
    text.as_ptr()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reading with FI_PEEK takes an event from percale's queue and keeps it.
    #[test]
    fn client_may_not_sleep_while_it_has_only_peeked_at_an_event() {
        let events = EventQueueShared::alone();
        let (mut code, mut data) = (0, [0_u8; 4]);
        assert_eq!(try_wait(&events), 0);
        events.percale.write(7, *b"news").unwrap();
        for (flags, answer) in [(FI_PEEK, -libc::EAGAIN), (FI_PEEK, -libc::EAGAIN), (0, 0)] {
            // SAFETY: both locations are writable for the stated lengths.
            let read = unsafe { events.read(&raw mut code, data.as_mut_ptr().cast(), data.len(), flags) };
            assert_eq!((read, code, &data), (4, 7, b"news"));
            assert_eq!(try_wait(&events), answer);
        }
    }
}
