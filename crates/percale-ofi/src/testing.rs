//! A client for unit tests. It opens objects and uses them through the tables of the provider, as libfabric's inline
//! functions do.
//!
//! The functions take pointers to objects that the test has opened and not yet closed.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::time::{Duration, Instant};

use crate::abi::*;
use crate::endpoint::Endpoint;
use crate::info::tests::{Answer, TestHints, made};
use crate::object::Object;
use crate::port::Port;
use crate::provider::{API, fi_prov_ini};

/// An info, and a fabric and a domain that were opened with it. A test closes the objects that it opened in them before
/// the client is dropped.
pub(crate) struct Client {
    info: *mut fi_info,
    pub(crate) fabric: *mut fid_fabric,
    pub(crate) domain: *mut fid_domain,
    /// Owns the info.
    _answer: Answer,
}

impl Client {
    /// Opens a fabric and a domain for reliable datagrams with these hints.
    pub(crate) fn open(change: impl FnOnce(&mut TestHints)) -> Self {
        Self::open_as(API, 0, change)
    }

    /// Like [`open`](Self::open), for a client of this version of the interface, which opens the domain with this
    /// `mr_mode`.
    pub(crate) fn open_as(version: u32, mr_mode: c_int, change: impl FnOnce(&mut TestHints)) -> Self {
        let mut hints = TestHints::new(|hints| {
            (hints.ep.r#type, hints.info.caps) = (FI_EP_RDM, FI_MSG | FI_RMA);
            change(hints);
        });
        let answer = hints.ask(API).expect("an endpoint that matches the hints");
        let info = answer.0;
        // SAFETY: the info is open, and getinfo filled in its attributes.
        unsafe {
            (*(*info).fabric_attr).api_version = version;
            (*(*info).domain_attr).mr_mode = mr_mode;
            let open = (*fi_prov_ini()).fabric.unwrap();
            let fabric = made(|place| open((*info).fabric_attr, place, null_mut()));
            let domain = made(|place| (*(*fabric).ops).domain.unwrap()(fabric, info, place, null_mut()));
            Self { info, fabric, domain, _answer: answer }
        }
    }

    /// Opens an event queue on which no thread sleeps.
    pub(crate) fn events(&self) -> *mut fid_eq {
        let mut attr = fi_eq_attr { wait_obj: FI_WAIT_NONE, ..fi_eq_attr::ZERO };
        // SAFETY: the fabric is open.
        made(|place| unsafe { (*(*self.fabric).ops).eq_open.unwrap()(self.fabric, &raw mut attr, place, null_mut()) })
    }

    /// Opens a wait set.
    pub(crate) fn wait_set(&self) -> *mut fid_wait {
        // SAFETY: the fabric is open.
        made(|place| unsafe { (*(*self.fabric).ops).wait_open.unwrap()(self.fabric, null_mut(), place) })
    }

    /// Opens a counter. `wait_set` is the set for FI_WAIT_SET.
    pub(crate) fn counter(&self, wait_obj: u32, wait_set: *mut fid_wait) -> *mut fid_cntr {
        let mut attr = fi_cntr_attr { wait_obj, wait_set, ..fi_cntr_attr::ZERO };
        // SAFETY: the domain is open.
        made(|place| unsafe { (*(*self.domain).ops).cntr_open.unwrap()(self.domain, &raw mut attr, place, null_mut()) })
    }

    /// Opens a completion queue of contexts on which no thread sleeps.
    pub(crate) fn queue(&self) -> *mut fid_cq {
        let mut attr = fi_cq_attr { format: FI_CQ_FORMAT_CONTEXT, wait_obj: FI_WAIT_NONE, ..fi_cq_attr::ZERO };
        // SAFETY: the domain is open.
        made(|place| unsafe { (*(*self.domain).ops).cq_open.unwrap()(self.domain, &raw mut attr, place, null_mut()) })
    }

    /// Opens an address vector.
    pub(crate) fn vector(&self) -> *mut fid_av {
        let mut attr = fi_av_attr { r#type: FI_AV_TABLE, ..fi_av_attr::ZERO };
        // SAFETY: the domain is open.
        made(|place| unsafe { (*(*self.domain).ops).av_open.unwrap()(self.domain, &raw mut attr, place, null_mut()) })
    }

    /// Opens and enables an endpoint that reports to these queues, which may be the same.
    pub(crate) fn endpoint(&self, vector: *mut fid_av, transmit: *mut fid_cq, receive: *mut fid_cq) -> *mut fid_ep {
        // SAFETY: the domain is open.
        let ep =
            made(|place| unsafe { (*(*self.domain).ops).endpoint.unwrap()(self.domain, self.info, place, null_mut()) });
        assert_eq!(bind(ep, vector, 0), 0);
        assert_eq!((bind(ep, transmit, FI_TRANSMIT), bind(ep, receive, FI_RECV)), (0, 0));
        assert_eq!(control(ep, FI_ENABLE, null_mut()), 0);
        ep
    }

    /// Registers memory. The test keeps it until the region is closed.
    pub(crate) fn region(&self, at: *mut u8, len: usize, access: u64, key: u64, flags: u64) -> *mut fid_mr {
        let (at, domain) = (at.cast_const().cast(), self.domain.cast());
        // SAFETY: the domain is open.
        made(|place| unsafe {
            (*(*self.domain).mr).reg.unwrap()(domain, at, len, access, 0, key, flags, place, null_mut())
        })
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert_eq!((close(self.domain), close(self.fabric)), (0, 0), "an object of the test is open");
        }
    }
}

/// Closes an object. Returns 0 or the negative error code.
pub(crate) fn close<T>(object: *mut T) -> c_int {
    let fid: *mut fid = object.cast();
    // SAFETY: the object is open, and every object begins with a `fid`.
    unsafe { (*(*fid).ops).close.unwrap()(fid) }
}

/// Binds an object to another one. Returns 0 or the negative error code.
pub(crate) fn bind<T, U>(object: *mut T, other: *mut U, flags: u64) -> c_int {
    let fid: *mut fid = object.cast();
    // SAFETY: both objects are open, and every object begins with a `fid`.
    unsafe { (*(*fid).ops).bind.unwrap()(fid, other.cast(), flags) }
}

/// Executes a command, whose argument is valid. Returns 0 or the negative error code.
pub(crate) fn control<T>(object: *mut T, command: c_int, argument: *mut c_void) -> c_int {
    let fid: *mut fid = object.cast();
    // SAFETY: the object is open, every object begins with a `fid`, and the argument is that of the command.
    unsafe { (*(*fid).ops).control.unwrap()(fid, command, argument) }
}

/// Inserts the address of an endpoint into a vector.
pub(crate) fn insert(vector: *mut fid_av, ep: *mut fid_ep) -> fi_addr_t {
    let (mut name, mut len, mut peer) = ([0_u8; 28], 28, FI_ADDR_NOTAVAIL);
    // SAFETY: the endpoint is enabled, and the buffer has the stated length.
    let named = unsafe { (*(*ep).cm).getname.unwrap()(ep.cast(), name.as_mut_ptr().cast(), &raw mut len) };
    assert_eq!(named, 0);
    // SAFETY: the vector is open, and the name is an address.
    let inserted =
        unsafe { (*(*vector).ops).insert.unwrap()(vector, name.as_ptr().cast(), 1, &raw mut peer, 0, null_mut()) };
    assert_eq!(inserted, 1);
    peer
}

/// Returns percale's endpoint under an enabled one.
pub(crate) fn port<'a>(ep: *mut fid_ep) -> &'a std::sync::Arc<Port> {
    // SAFETY: the endpoint is open while the test uses the result.
    unsafe { Endpoint::of(ep) }.setup().port().expect("an enabled endpoint")
}

/// Calls `done` until it returns true.
pub(crate) fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !done() {
        assert!(Instant::now() < end, "{what}");
        std::thread::yield_now();
    }
}
