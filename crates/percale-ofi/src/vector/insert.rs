//! Insertion of addresses, synchronous or reported to an event queue (fi_av_insert(3)).

use std::ffi::{CStr, c_char, c_int, c_void};
use std::net::SocketAddr;

use percale::address::Inserted;
use percale::address::error::AddressError;
use percale::address::inserter::Inserter;
use percale::address::vector::VectorType;

use super::{Vector, VectorShared};
use crate::abi::{FI_ADDR_NOTAVAIL, FI_ENOEQ, FI_LOG_AV, FI_MORE, FI_SYNC_ERR, fi_addr_t, fid_av};
use crate::address;
use crate::log;
use crate::object::Object;

/// The client's arrays for the result of each address.
#[derive(Clone, Copy, Debug)]
struct ResultArrays {
    /// An array with an index for each address, or null.
    addresses: *mut fi_addr_t,
    /// An array with an error code for each address, or null.
    errors: *mut c_int,
}

// SAFETY: the client keeps the arrays valid until the insertion has ended, and does not use them before
// (fi_av_insert(3)).
unsafe impl Send for ResultArrays {}

impl ResultArrays {
    /// Writes the result of each address.
    ///
    /// # Safety
    /// Each array is null or writable for each address of the insertion.
    unsafe fn write(self, inserted: &Inserted) {
        if self.addresses.is_null() && self.errors.is_null() {
            return;
        }
        for (at, outcome) in inserted.iter().enumerate() {
            let (number, code) = match outcome {
                Ok(peer) => (peer.0, 0),
                Err(error) => (FI_ADDR_NOTAVAIL, error.errno()),
            };
            if !self.addresses.is_null() {
                // SAFETY: the caller guarantees this.
                unsafe { self.addresses.add(at).write(number) };
            }
            if !self.errors.is_null() {
                // SAFETY: the caller guarantees this.
                unsafe { self.errors.add(at).write(code) };
            }
        }
    }
}

type Done = Box<dyn FnOnce(&Inserted) + Send>;

/// The arguments of an insertion call.
struct InsertCall<'a> {
    name: &'static str,
    shared: &'a VectorShared,
    answers: ResultArrays,
    flags: u64,
    context: *mut c_void,
}

impl<'a> InsertCall<'a> {
    /// Stores the arguments of a call.
    ///
    /// # Safety
    /// The vector belongs to this provider and is open as long as the call is used.
    unsafe fn new(
        name: &'static str,
        av: *mut fid_av,
        addresses: *mut fi_addr_t,
        flags: u64,
        context: *mut c_void,
    ) -> Self {
        // SAFETY: the caller guarantees this.
        let shared: &'a VectorShared = unsafe { Vector::of(av) }.shared();
        Self { name, shared, answers: ResultArrays { addresses, errors: std::ptr::null_mut() }, flags, context }
    }

    /// Executes the call for `count` addresses.
    ///
    /// # Safety
    /// The client's arrays have this length and are valid until the insertion has ended.
    unsafe fn run(
        mut self,
        count: Option<usize>,
        now: impl FnOnce() -> Result<Inserted, AddressError>,
        later: impl FnOnce(&Inserter, u64, Done) -> Result<(), AddressError>,
    ) -> c_int {
        let name = self.name;
        let known = if self.shared.asynchronous { FI_MORE } else { FI_MORE | FI_SYNC_ERR };
        if self.flags & !known != 0 {
            log::warning!(FI_LOG_AV, "{name}: flags {:#x} are not supported", self.flags);
            return -libc::EINVAL;
        }
        let map = self.shared.percale.options().kind == VectorType::Map;
        if map && self.answers.addresses.is_null() && count != Some(0) {
            log::warning!(FI_LOG_AV, "{name}: fi_addr must not be NULL for FI_AV_MAP");
            return -libc::EINVAL;
        }
        if !self.shared.asynchronous {
            if self.flags & FI_SYNC_ERR != 0 {
                // The context is an array with an int for each address.
                self.answers.errors = self.context.cast();
            }
            return match now() {
                Ok(inserted) => {
                    for (at, error) in inserted.failures().take(16) {
                        log::warning!(FI_LOG_AV, "{name}: address {at}: {error}");
                    }
                    // SAFETY: the caller guarantees this.
                    unsafe { self.answers.write(&inserted) };
                    c_int::try_from(inserted.count()).unwrap_or(c_int::MAX)
                }
                Err(error) => refuse(name, &error),
            };
        }
        let Some(reports) = self.shared.reports.get() else {
            log::warning!(FI_LOG_AV, "{name}: the vector was opened with FI_EVENT; bind an event queue first");
            return -FI_ENOEQ;
        };
        let answers = self.answers;
        // SAFETY: the caller guarantees that the arrays are valid until the insertion has ended.
        let done: Done = Box::new(move |inserted| unsafe { { answers }.write(inserted) });
        let context = self.context.expose_provenance() as u64;
        match reports.events.insert(reports.inserter.id(), || later(&reports.inserter, context, done)) {
            Ok(()) => 0,
            Err(error) => refuse(name, &error),
        }
    }
}

fn refuse(name: &str, error: &AddressError) -> c_int {
    log::warning!(FI_LOG_AV, "{name}: {error}");
    -error.errno()
}

pub(super) unsafe extern "C" fn insert(
    av: *mut fid_av,
    addresses: *const c_void,
    count: usize,
    fi_addr: *mut fi_addr_t,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the pointer is an address vector of this provider.
    let call = unsafe { InsertCall::new("fi_av_insert", av, fi_addr, flags, context) };
    let shared = call.shared;
    if addresses.is_null() && count > 0 {
        return -libc::EINVAL;
    }
    let each = if shared.domain.ipv6 { size_of::<libc::sockaddr_in6>() } else { size_of::<libc::sockaddr_in>() };
    let given = (0..count).map(|at| -> Result<SocketAddr, AddressError> {
        // SAFETY: the client passed an array of `count` addresses in the domain's format.
        unsafe { address::read(addresses.byte_add(at * each), each) }.ok_or(AddressError::Form)
    });
    let (now, later) = (given.clone(), given);
    // SAFETY: the client's arrays have this length.
    unsafe {
        call.run(
            Some(count),
            || shared.percale.insert_outcomes(now),
            |inserter, context, done| inserter.insert_outcomes(later.collect(), context, done),
        )
    }
}

pub(super) unsafe extern "C" fn insert_service(
    av: *mut fid_av,
    node: *const c_char,
    service: *const c_char,
    fi_addr: *mut fi_addr_t,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the pointer is an address vector of this provider.
    let call = unsafe { InsertCall::new("fi_av_insertsvc", av, fi_addr, flags, context) };
    let shared = call.shared;
    // SAFETY: the client passed valid strings.
    let Some((node, service)) = (unsafe { texts(node, service) }) else { return -libc::EINVAL };
    // SAFETY: the client's arrays have one entry.
    unsafe {
        call.run(
            Some(1),
            || {
                let outcome = percale::address::name::resolve_service(node, service, shared.percale.options().family);
                shared.percale.insert_outcomes([outcome])
            },
            |inserter, context, done| inserter.start_service(node, service, context, done),
        )
    }
}

pub(super) unsafe extern "C" fn insert_symmetric(
    av: *mut fid_av,
    node: *const c_char,
    nodes: usize,
    service: *const c_char,
    services: usize,
    fi_addr: *mut fi_addr_t,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the pointer is an address vector of this provider.
    let call = unsafe { InsertCall::new("fi_av_insertsym", av, fi_addr, flags, context) };
    let shared = call.shared;
    // SAFETY: the client passed valid strings.
    let Some((node, service)) = (unsafe { texts(node, service) }) else { return -libc::EINVAL };
    // SAFETY: the client's arrays have the lengths of the two counts.
    unsafe {
        call.run(
            nodes.checked_mul(services),
            || shared.percale.insert_symmetric(node, nodes, service, services),
            |inserter, context, done| inserter.start_symmetric((node, nodes), (service, services), context, done),
        )
    }
}

/// Reads the names of a node and a service. Returns `None` if either is invalid.
///
/// # Safety
/// The requirements of [`text`] apply.
unsafe fn texts<'a>(node: *const c_char, service: *const c_char) -> Option<(&'a str, &'a str)> {
    // SAFETY: the caller upholds the same contract.
    unsafe { Some((text(node)?, text(service)?)) }
}

/// Reads a client's text. Returns `None` if it is invalid.
///
/// # Safety
/// `text` is null, or ends with a zero byte and is valid while the result is used.
unsafe fn text<'a>(text: *const c_char) -> Option<&'a str> {
    // SAFETY: the caller guarantees this.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_str().ok()).flatten()
}
