//! `fid_cntr`: a counter (fi_cntr(3)).

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use percale::Counter;

use crate::abi::{
    FI_CLASS_CNTR, FI_EAVAIL, FI_LOG_CNTR, FI_WAIT_FD, FI_WAIT_SET, FI_WAIT_UNSPEC, fi_cntr_attr, fi_ops, fi_ops_cntr,
    fid, fid_cntr, fid_domain,
};
use crate::domain::{self, Domain, Sleeper};
use crate::object::{self, Object};
use crate::port::Port;
use crate::wait_set::{self, Membership};
use crate::{log, waiting};

/// The part of a counter that it shares with endpoints and regions.
#[derive(Debug)]
pub(crate) struct CounterShared {
    domain: Arc<domain::DomainShared>,
    pub(crate) percale: Counter,
    /// Membership in the wait set that the client named.
    _membership: Option<Membership>,
    /// The endpoints that increment this counter. Reading the counter makes progress on them.
    ports: RwLock<Vec<Arc<Port>>>,
    /// Set if the counter counts the writes of peers to a region, through any endpoint.
    regional: AtomicBool,
    /// Set if the counter counts completions of deferred work. percale's counter drives the endpoints of that work.
    working: AtomicBool,
    wait: u32,
    /// `Some` if the client requested a descriptor or a wait set by name, so that threads may sleep on the counter.
    sleeper: Option<Arc<Sleeper>>,
}

impl CounterShared {
    pub(crate) const fn domain(&self) -> &Arc<domain::DomainShared> {
        &self.domain
    }

    /// Returns whether threads may sleep on the counter's descriptor or wait set.
    pub(crate) const fn has_sleepers(&self) -> bool {
        self.sleeper.is_some()
    }

    /// Prepares the counter for a region that increments it: from now on, every endpoint of the domain wakes up threads
    /// that sleep on this counter.
    ///
    /// # Errors
    /// Returns the positive error code if the system has no descriptors left.
    pub(crate) fn await_regions(&self) -> Result<(), i32> {
        self.sleeper.as_ref().map_or(Ok(()), |sleeper| self.domain.sleep_for_regions(sleeper))
    }

    /// Records that a region increments this counter.
    pub(crate) fn attach_region(&self) {
        self.regional.store(true, Ordering::Relaxed);
    }

    /// Records that this counter counts completions of deferred work.
    pub(crate) fn attach_work(&self) {
        self.working.store(true, Ordering::Relaxed);
    }

    /// Adds an endpoint. Reading the counter makes progress on the endpoint from now on.
    pub(crate) fn attach(&self, port: &Arc<Port>) {
        self.ports.write().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(port));
    }

    /// Removes a closed endpoint.
    pub(crate) fn detach(&self, port: &Arc<Port>) {
        self.ports.write().unwrap_or_else(PoisonError::into_inner).retain(|other| !Arc::ptr_eq(other, port));
    }

    /// Makes progress on the endpoints that increment this counter.
    pub(crate) fn progress(&self) {
        if self.working.load(Ordering::Relaxed) {
            // The read makes progress; its value is not used.
            _ = self.percale.read();
        }
        if self.regional.load(Ordering::Relaxed) {
            self.domain.progress();
        }
        for port in &*self.ports.read().unwrap_or_else(PoisonError::into_inner) {
            port.progress();
        }
    }

    /// Returns whether a thread may sleep on the counter without driving its endpoints, because other threads make
    /// progress.
    fn is_driven(&self) -> bool {
        !self.regional.load(Ordering::Relaxed)
            && self.ports.read().unwrap_or_else(PoisonError::into_inner).iter().all(|port| port.is_shared())
    }

    /// Waits until the value is at least `threshold`.
    fn wait(&self, threshold: u64, timeout: Option<Duration>) -> c_int {
        if self.is_driven() {
            return match self.percale.wait(threshold, timeout) {
                Ok(()) => 0,
                Err(error) => -error.errno(),
            };
        }
        // Endpoints without a lock make progress only in the waiting thread.
        let deadline = timeout.map(|timeout| Instant::now() + timeout);
        let errors = self.percale.read_error();
        let mut rounds = 0_u32;
        loop {
            self.progress();
            if self.percale.value() >= threshold {
                return 0;
            }
            if self.percale.read_error() != errors {
                return -FI_EAVAIL;
            }
            rounds += 1;
            if rounds.is_multiple_of(64) && deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return -libc::ETIMEDOUT;
            }
            percale::endpoint::offer_when_idle();
        }
    }
}

object::object!(pub(crate) Count: FI_CLASS_CNTR, fid_cntr, CounterShared);

static FI: fi_ops = fi_ops { close: Some(close), control: Some(control), ..fi_ops::REFUSING };
static OPS: fi_ops_cntr = fi_ops_cntr {
    size: size_of::<fi_ops_cntr>(),
    read: Some(read),
    readerr: Some(read_error),
    add: Some(add),
    set: Some(set),
    wait: Some(wait),
    adderr: Some(add_error),
    seterr: Some(set_error),
    ..fi_ops_cntr::REFUSING
};

/// Opens a counter.
pub(crate) unsafe extern "C" fn open(
    domain: *mut fid_domain,
    attr: *mut fi_cntr_attr,
    cntr: *mut *mut fid_cntr,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the pointer is a domain of this provider.
    let domain = unsafe { Domain::of(domain) }.shared();
    // SAFETY: the pointer is null or the client's attributes.
    let attr = unsafe { attr.as_ref() };
    if let Some(attr) = attr
        && attr.events != 0
    {
        log::warning!(
            FI_LOG_CNTR,
            "fi_cntr_open: only completions are counted (FI_CNTR_EVENTS_COMP), not events of kind {}",
            attr.events
        );
        return -libc::ENOSYS;
    }
    let wait = match waiting::object("fi_cntr_open", FI_LOG_CNTR, attr.map_or(FI_WAIT_UNSPEC, |attr| attr.wait_obj)) {
        Ok(wait) => wait,
        Err(code) => return code,
    };
    let slept_on = attr.is_some_and(|attr| matches!(attr.wait_obj, FI_WAIT_FD | FI_WAIT_SET));
    let percale = Counter::new();
    let set = attr.map_or(std::ptr::null_mut(), |attr| attr.wait_set);
    // SAFETY: with FI_WAIT_SET the client passes a wait set.
    let membership = match unsafe { wait_set::membership(wait, set, &percale) } {
        Ok(membership) => membership,
        Err(code) => return code,
    };
    let shared = Arc::new(CounterShared {
        domain: Arc::clone(domain),
        regional: AtomicBool::new(false),
        working: AtomicBool::new(false),
        sleeper: slept_on.then(|| Arc::new(Sleeper(percale.clone()))),
        percale,
        _membership: membership,
        ports: RwLock::default(),
        wait,
    });
    let fid = fid_cntr { fid: object::head(FI_CLASS_CNTR, context, &FI), ops: std::ptr::from_ref(&OPS).cast_mut() };
    // SAFETY: the client passed a writable location for the counter.
    unsafe { Count { fid, shared }.give(cntr) };
    0
}

/// Returns 0 if the client may sleep on the counter's descriptor (fi_trywait(3)), and -FI_EAGAIN otherwise.
pub(crate) fn try_wait(counter: &CounterShared) -> c_int {
    // If regions increment the counter, endpoints wake up only counters that were opened for sleeping (FI_WAIT_FD,
    // FI_WAIT_SET).
    if counter.regional.load(Ordering::Relaxed) && !counter.has_sleepers() {
        return -libc::EAGAIN;
    }
    match counter.percale.try_wait() {
        Ok(true) => 0,
        Ok(false) => -libc::EAGAIN,
        Err(error) => -percale::error_number(&error),
    }
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    // SAFETY: the pointer is a counter of this provider, and the client no longer uses it.
    unsafe { Count::close(fid, Count::shared) }
}

unsafe extern "C" fn control(fid: *mut fid, command: c_int, argument: *mut c_void) -> c_int {
    // SAFETY: the pointer is a counter of this provider.
    let shared = unsafe { Count::of(fid) }.shared();
    // SAFETY: the client passes the arguments that fi_control(3) requires.
    unsafe { waiting::control(shared.wait, || shared.percale.descriptor(), command, argument) }
}

unsafe extern "C" fn read(cntr: *mut fid_cntr) -> u64 {
    // SAFETY: the pointer is a counter of this provider.
    let shared = unsafe { Count::of(cntr) }.shared();
    shared.progress();
    shared.percale.value()
}

unsafe extern "C" fn read_error(cntr: *mut fid_cntr) -> u64 {
    // SAFETY: the pointer is a counter of this provider.
    let shared = unsafe { Count::of(cntr) }.shared();
    shared.progress();
    shared.percale.read_error()
}

unsafe extern "C" fn add(cntr: *mut fid_cntr, value: u64) -> c_int {
    // SAFETY: the pointer is a counter of this provider.
    unsafe { Count::of(cntr) }.shared.percale.add(value);
    0
}

unsafe extern "C" fn set(cntr: *mut fid_cntr, value: u64) -> c_int {
    // SAFETY: the pointer is a counter of this provider.
    unsafe { Count::of(cntr) }.shared.percale.set(value);
    0
}

unsafe extern "C" fn add_error(cntr: *mut fid_cntr, value: u64) -> c_int {
    // SAFETY: the pointer is a counter of this provider.
    unsafe { Count::of(cntr) }.shared.percale.add_error(value);
    0
}

unsafe extern "C" fn set_error(cntr: *mut fid_cntr, value: u64) -> c_int {
    // SAFETY: the pointer is a counter of this provider.
    unsafe { Count::of(cntr) }.shared.percale.set_error(value);
    0
}

unsafe extern "C" fn wait(cntr: *mut fid_cntr, threshold: u64, timeout: c_int) -> c_int {
    // SAFETY: the pointer is a counter of this provider.
    let shared = unsafe { Count::of(cntr) }.shared();
    shared.wait(threshold, u64::try_from(timeout).ok().map(Duration::from_millis))
}
