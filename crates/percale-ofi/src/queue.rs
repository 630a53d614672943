//! `fid_cq`: a completion queue (fi_cq(3)).
//!
//! Endpoints report to a queue in one of two ways. An endpoint that uses one queue for all its completions, on which no
//! thread sleeps, keeps its results itself and is read directly: no result is copied twice, and no lock is taken if the
//! client serializes its calls. All other endpoints report to a percale queue.

mod direct;
mod format;

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use percale::{CompletionQueue, Entry, ErrorEntry};

use self::direct::{BATCH, Direct};
pub(crate) use self::format::Format;
use crate::abi::{
    FI_CLASS_CQ, FI_EAVAIL, FI_GETWAIT, FI_LOG_CQ, FI_WAIT_FD, FI_WAIT_NONE, fi_addr_t, fi_cq_attr, fi_cq_err_entry,
    fi_ops, fi_ops_cq, fid, fid_cq, fid_domain,
};
use crate::domain::{self, Domain};
use crate::object::{self, Object};
use crate::port::Port;
use crate::serial::Serial;
use crate::wait_set::{self, Membership};
use crate::{errors, log, waiting};

/// The part of a completion queue that its endpoints share.
pub(crate) struct QueueShared {
    domain: Arc<domain::DomainShared>,
    /// The queue for endpoints that are not read directly.
    pub(crate) percale: CompletionQueue,
    /// Membership in the wait set that the client named.
    _membership: Option<Membership>,
    /// Set if there are endpoints that report to `percale`.
    reporting: AtomicBool,
    direct: Serial<Direct>,
    format: Format,
    wait: u32,
    signalled: AtomicBool,
}

impl std::fmt::Debug for QueueShared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("QueueShared").field("format", &self.format).field("wait", &self.wait).finish_non_exhaustive()
    }
}

impl QueueShared {
    pub(crate) const fn domain(&self) -> &Arc<domain::DomainShared> {
        &self.domain
    }

    /// Returns whether endpoints may be read directly, because no thread sleeps on the queue.
    pub(crate) const fn takes_directly(&self) -> bool {
        self.wait == FI_WAIT_NONE
    }

    /// Adds an endpoint that is read directly from now on.
    pub(crate) fn attach(&self, port: &Arc<Port>) {
        self.direct.with(|direct| direct.ports.push(Arc::clone(port)));
    }

    /// Adds an endpoint that reports to the percale queue. If it has no lock, readers of the queue drive it.
    pub(crate) fn reported_to(&self, port: &Arc<Port>) {
        if !port.is_shared() {
            self.direct.with(|direct| direct.driven.push(Arc::clone(port)));
        }
        self.reporting.store(true, Ordering::Release);
    }

    /// Removes a closed endpoint.
    pub(crate) fn detach(&self, port: &Arc<Port>) {
        self.direct.with(|direct| {
            direct.ports.retain(|other| !Arc::ptr_eq(other, port));
            direct.driven.retain(|other| !Arc::ptr_eq(other, port));
        });
    }

    /// Makes progress on the endpoints without a lock that report to the percale queue.
    pub(crate) fn drive(&self) {
        self.direct.with(|direct| {
            for port in &direct.driven {
                port.progress();
            }
        });
    }

    /// Makes progress, and returns whether an endpoint that is read directly has results.
    pub(crate) fn has_direct_results(&self) -> bool {
        self.direct.with(|direct| direct.ports.iter().any(|port| port.has_results()))
    }

    /// Reads up to `count` results into `to`, in the queue's format, and their sources into `sources`.
    ///
    /// # Safety
    /// `to` is writable for `count` entries. `sources` is null or writable for `count` addresses.
    #[inline(always)]
    unsafe fn read(&self, to: *mut c_void, count: usize, sources: *mut fi_addr_t) -> isize {
        let reports = self.reporting.load(Ordering::Acquire);
        // SAFETY: the caller upholds the same contract.
        let read = self.direct.with(|direct| unsafe { direct.read(self.format, to, count, sources, !reports) });
        if read != -(libc::EAGAIN as isize) || (count > 0 && !reports) {
            return read;
        }
        // SAFETY: the caller upholds the same contract.
        unsafe { self.read_again(to, count, sources) }
    }

    /// Continues a [`read`](Self::read) that found no results.
    ///
    /// # Safety
    /// The requirements of [`read`](Self::read) apply.
    #[inline(never)]
    unsafe fn read_again(&self, to: *mut c_void, count: usize, sources: *mut fi_addr_t) -> isize {
        let read = -(libc::EAGAIN as isize);
        if count == 0 {
            // There may be results, but the client requested only progress.
            self.direct.with(|direct| direct.ports.iter().for_each(|port| _ = port.progress()));
        }
        if !self.reporting.load(Ordering::Acquire) {
            return read;
        }
        // SAFETY: the caller upholds the same contract.
        unsafe { self.read_reported(to, count, sources) }
    }

    /// Reads the results that endpoints have reported to the percale queue.
    ///
    /// # Safety
    /// The requirements of [`read`](Self::read) apply.
    #[inline(never)]
    unsafe fn read_reported(&self, to: *mut c_void, count: usize, sources: *mut fi_addr_t) -> isize {
        self.drive();
        let mut results = [Entry::default(); BATCH];
        match self.percale.read(&mut results[..count.min(BATCH)]) {
            Ok(0) => -(libc::EAGAIN as isize),
            Ok(read) => {
                // SAFETY: at most `count` entries are written.
                unsafe { self.format.write(&results[..read], to, sources) };
                read as isize
            }
            Err(_) => -(FI_EAVAIL as isize),
        }
    }

    fn read_error(&self) -> Option<ErrorEntry> {
        let direct = self.direct.with(|direct| direct.ports.iter().find_map(|port| port.read_error()));
        direct.or_else(|| self.percale.read_error())
    }

    /// Like [`read`](Self::read), but waits for the first result.
    ///
    /// # Safety
    /// The requirements of [`read`](Self::read) apply.
    unsafe fn wait(&self, to: *mut c_void, count: usize, sources: *mut fi_addr_t, timeout: c_int) -> isize {
        if count == 0 {
            // With `count` 0 there is nothing to wait for: the call makes progress and takes no result (fi_cq(3)).
            // SAFETY: the caller upholds the same contract.
            return unsafe { self.read(to, count, sources) };
        }
        let timeout = u64::try_from(timeout).ok().map(Duration::from_millis);
        let deadline = timeout.map(|timeout| Instant::now() + timeout);
        loop {
            // SAFETY: the caller upholds the same contract.
            let read = unsafe { self.read(to, count, sources) };
            if read != -(libc::EAGAIN as isize) {
                return read;
            }
            if self.signalled.swap(false, Ordering::AcqRel)
                || deadline.is_some_and(|deadline| Instant::now() >= deadline)
            {
                return -(libc::EAGAIN as isize);
            }
            if self.takes_directly() {
                std::thread::yield_now();
                continue;
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            let mut first = [Entry::default(); 1];
            match self.percale.wait(&mut first, left) {
                Ok(_) => {
                    // SAFETY: `count` is at least one.
                    unsafe { self.format.write(&first, to, sources) };
                    return 1;
                }
                Err(percale::completion::queue::CompletionError::ErrorAvailable(_)) => return -(FI_EAVAIL as isize),
                Err(error) => return -(error.errno() as isize),
            }
        }
    }
}

object::object!(pub(crate) Queue: FI_CLASS_CQ, fid_cq, QueueShared);

static FI: fi_ops = fi_ops { close: Some(close), control: Some(control), ..fi_ops::REFUSING };
static OPS: fi_ops_cq = fi_ops_cq {
    size: size_of::<fi_ops_cq>(),
    read: Some(read),
    readfrom: Some(read_from),
    readerr: Some(read_error),
    sread: Some(wait_read),
    sreadfrom: Some(wait_read_from),
    signal: Some(signal),
    strerror: Some(error_text),
    ..fi_ops_cq::REFUSING
};

/// Opens a queue.
pub(crate) unsafe extern "C" fn open(
    domain: *mut fid_domain,
    attr: *mut fi_cq_attr,
    cq: *mut *mut fid_cq,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the pointer is a domain of this provider.
    let domain = unsafe { Domain::of(domain) }.shared();
    // SAFETY: the pointer is null or the client's attributes.
    let attr = unsafe { attr.as_ref() };
    let Some(format) = Format::of(attr.map_or(0, |attr| attr.format)) else {
        log::warning!(FI_LOG_CQ, "fi_cq_open: unknown format {}", attr.map_or(0, |attr| attr.format));
        return -libc::ENOSYS;
    };
    let wait = match waiting::object("fi_cq_open", FI_LOG_CQ, attr.map_or(FI_WAIT_NONE, |attr| attr.wait_obj)) {
        Ok(wait) => wait,
        Err(code) => return code,
    };
    let percale = CompletionQueue::default();
    let set = attr.map_or(std::ptr::null_mut(), |attr| attr.wait_set);
    // SAFETY: with FI_WAIT_SET the client passes a wait set.
    let membership = match unsafe { wait_set::membership(wait, set, &percale) } {
        Ok(membership) => membership,
        Err(code) => return code,
    };
    let shared = Arc::new(QueueShared {
        domain: Arc::clone(domain),
        percale,
        _membership: membership,
        reporting: AtomicBool::new(false),
        // SAFETY: in a serialized domain the client serializes all calls on a queue and its endpoints.
        direct: unsafe { Serial::new(Direct::new(), domain.serialized.has_completions()) },
        format,
        wait,
        signalled: AtomicBool::new(false),
    });
    let fid = fid_cq { fid: object::head(FI_CLASS_CQ, context, &FI), ops: std::ptr::from_ref(&OPS).cast_mut() };
    // SAFETY: the client passed a writable location for the queue.
    unsafe { Queue { fid, shared }.give(cq) };
    0
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    // SAFETY: the pointer is a queue of this provider, and the client no longer uses it.
    unsafe { Queue::close(fid, Queue::shared) }
}

unsafe extern "C" fn control(fid: *mut fid, command: c_int, argument: *mut c_void) -> c_int {
    // SAFETY: the pointer is a queue of this provider.
    let shared = unsafe { Queue::of(fid) }.shared();
    if command == FI_GETWAIT && shared.wait != FI_WAIT_FD {
        log::warning!(FI_LOG_CQ, "fi_control: FI_GETWAIT of a completion queue without a descriptor");
    }
    // SAFETY: the client passes the arguments that fi_control(3) requires.
    unsafe { waiting::control(shared.wait, || shared.percale.descriptor(), command, argument) }
}

/// Returns 0 if the client may sleep on the queue's descriptor (fi_trywait(3)), and -FI_EAGAIN otherwise.
pub(crate) fn try_wait(queue: &QueueShared) -> c_int {
    match queue.percale.try_wait() {
        Ok(true) => 0,
        Ok(false) => -libc::EAGAIN,
        Err(error) => -percale::error_number(&error),
    }
}

unsafe extern "C" fn read(cq: *mut fid_cq, to: *mut c_void, count: usize) -> isize {
    // SAFETY: the queue is of this provider, and the client passed a buffer for `count` entries.
    unsafe { Queue::of(cq).shared.read(to, count, std::ptr::null_mut()) }
}

unsafe extern "C" fn read_from(cq: *mut fid_cq, to: *mut c_void, count: usize, sources: *mut fi_addr_t) -> isize {
    // SAFETY: as above, and the client passed a buffer for `count` addresses.
    unsafe { Queue::of(cq).shared.read(to, count, sources) }
}

unsafe extern "C" fn wait_read(
    cq: *mut fid_cq,
    to: *mut c_void,
    count: usize,
    _: *const c_void,
    timeout: c_int,
) -> isize {
    // SAFETY: as above.
    unsafe { wait_read_from(cq, to, count, std::ptr::null_mut(), std::ptr::null(), timeout) }
}

/// Implements `sreadfrom`. The wait condition is a hint that may be ignored (fi_cq(3)).
unsafe extern "C" fn wait_read_from(
    cq: *mut fid_cq,
    to: *mut c_void,
    count: usize,
    sources: *mut fi_addr_t,
    _: *const c_void,
    timeout: c_int,
) -> isize {
    // SAFETY: the pointer is a queue of this provider, and the client passed a valid buffer.
    unsafe { Queue::of(cq).shared.wait(to, count, sources, timeout) }
}

unsafe extern "C" fn read_error(cq: *mut fid_cq, to: *mut fi_cq_err_entry, _flags: u64) -> isize {
    // SAFETY: the pointer is a queue of this provider.
    let shared = unsafe { Queue::of(cq) }.shared();
    let Some(error) = shared.read_error() else { return -(libc::EAGAIN as isize) };
    // SAFETY: the client's error entry has the size that its API version defines.
    unsafe { errors::write(&error, to, shared.domain.fabric.api_version) };
    1
}

unsafe extern "C" fn signal(cq: *mut fid_cq) -> c_int {
    // SAFETY: the pointer is a queue of this provider.
    let shared = unsafe { Queue::of(cq) }.shared();
    if shared.takes_directly() {
        shared.signalled.store(true, Ordering::Release);
    } else {
        shared.percale.signal();
    }
    0
}

unsafe extern "C" fn error_text(
    _cq: *mut fid_cq,
    provider_error: c_int,
    _data: *const c_void,
    to: *mut c_char,
    room: usize,
) -> *const c_char {
    let text: &'static CStr = errors::text(provider_error);
    // SAFETY: the client's buffer has the length that the client passed.
    unsafe { errors::copy(text, to, room) };
    text.as_ptr()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::{FI_ADDR_UNSPEC, FI_THREAD_DOMAIN};
    use crate::testing::{self, Client};

    /// The queues read an endpoint that reports to one of them, and drive one without a lock that reports to two.
    #[test]
    fn closed_endpoint_is_not_kept_by_its_queues() {
        let client = Client::open(|hints| hints.domain.threading = FI_THREAD_DOMAIN);
        let (vector, queue, other) = (client.vector(), client.queue(), client.queue());
        for receive in [queue, other] {
            let ep = client.endpoint(vector, queue, receive);
            let port = Arc::downgrade(testing::port(ep));
            assert!(!testing::port(ep).is_shared());
            assert_eq!(testing::close(ep), 0);
            assert_eq!(port.strong_count(), 0);
        }
        for queue in [queue, other] {
            assert_eq!(testing::close(queue), 0);
        }
        assert_eq!(testing::close(vector), 0);
    }

    /// Reads of no entries make progress although results wait.
    #[test]
    fn read_of_no_entries_always_makes_progress() {
        const MANY: usize = 64;
        let client = Client::open(|_| ());
        let (vector, queue, other) = (client.vector(), client.queue(), client.queue());
        let (sender, receiver) = (client.endpoint(vector, other, other), client.endpoint(vector, queue, queue));
        let peer = testing::insert(vector, receiver);
        let mut memory = [0_u8; MANY];
        let at = memory.as_mut_ptr();
        let null = std::ptr::null_mut();
        for n in 0..MANY {
            // SAFETY: the endpoint is open until it has received all messages.
            let posted =
                unsafe { (*(*receiver).msg).recv.unwrap()(receiver, at.add(n).cast(), 1, null, FI_ADDR_UNSPEC, null) };
            assert_eq!(posted, 0);
        }
        let send = || {
            // SAFETY: the endpoint is open, and the message is copied during the call.
            assert_eq!(unsafe { (*(*sender).msg).inject.unwrap()(sender, [1_u8].as_ptr().cast(), 1, peer) }, 0);
        };
        // SAFETY: the queue is open.
        let progress = |queue| assert_eq!(unsafe { read(queue, null, 0) }, -(libc::EAGAIN as isize));
        // SAFETY: the memory is that of the receives.
        let has_arrived = |n| unsafe { at.add(n).read_volatile() } == 1;
        send();
        testing::wait_until("the first message does not arrive", || {
            progress(queue);
            progress(other);
            has_arrived(0)
        });
        let mut at_once = 0;
        for n in 1..MANY {
            send();
            progress(queue);
            at_once += usize::from(has_arrived(n));
            testing::wait_until("a message does not arrive", || {
                progress(queue);
                progress(other);
                has_arrived(n)
            });
        }
        assert!(at_once > MANY / 2, "{at_once} of {MANY} messages arrived at the next read");
        for ep in [sender, receiver] {
            assert_eq!(testing::close(ep), 0);
        }
        for queue in [queue, other] {
            assert_eq!(testing::close(queue), 0);
        }
        assert_eq!(testing::close(vector), 0);
    }
}
