//! `fid_av`: an address vector (fi_av(3)).

use std::ffi::{CStr, c_char, c_int, c_void};
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use percale::address::Inserter;
use percale::address::name::Family;
use percale::address::vector::VectorType;
use percale::{AddressVector, PeerAddress};

use crate::abi::{
    FI_AV_MAP, FI_AV_TABLE, FI_CLASS_AV, FI_EVENT, FI_LOG_AV, FI_READ, FI_SYMMETRIC, fi_addr_t, fi_av_attr, fi_ops,
    fi_ops_av, fid, fid_av, fid_domain,
};
use crate::address::{self, SocketAddress};
use crate::domain::{self, Domain};
use crate::events::{self, Events};
use crate::log;
use crate::object::{self, Object};

mod insert;
mod set;

pub(crate) use self::set::Set;

/// The part of an address vector that its endpoints share.
#[derive(Debug)]
pub(crate) struct VectorShared {
    domain: Arc<domain::DomainShared>,
    pub(crate) percale: AddressVector,
    /// Set if insertions report their results to an event queue (FI_EVENT).
    asynchronous: bool,
    /// The event queue, once one is bound.
    reports: OnceLock<AsyncInsertion>,
}

impl VectorShared {
    pub(crate) const fn domain(&self) -> &Arc<domain::DomainShared> {
        &self.domain
    }
}

/// The inserter and the event queue of asynchronous insertions.
#[derive(Debug)]
struct AsyncInsertion {
    inserter: Inserter,
    events: Arc<events::EventQueueShared>,
}

impl Drop for AsyncInsertion {
    fn drop(&mut self) {
        self.events.forget_vector(self.inserter.id());
    }
}

object::object!(pub(crate) Vector: FI_CLASS_AV, fid_av, VectorShared);

static FI: fi_ops = fi_ops { close: Some(close), bind: Some(bind), ..fi_ops::REFUSING };
static OPS: fi_ops_av = fi_ops_av {
    insert: Some(insert::insert),
    insertsvc: Some(insert::insert_service),
    insertsym: Some(insert::insert_symmetric),
    remove: Some(remove),
    lookup: Some(lookup),
    straddr: Some(text),
    av_set: Some(set::open),
    ..fi_ops_av::REFUSING
};

/// Opens an address vector.
pub(crate) unsafe extern "C" fn open(
    domain: *mut fid_domain,
    attr: *mut fi_av_attr,
    av: *mut *mut fid_av,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the pointer is a domain of this provider.
    let domain = unsafe { Domain::of(domain) }.shared();
    // SAFETY: the pointer is null or the client's attributes.
    let Some(attr) = (unsafe { attr.as_mut() }) else { return -libc::EINVAL };
    if attr.flags & !(FI_EVENT | FI_SYMMETRIC | FI_READ) != 0 {
        log::warning!(FI_LOG_AV, "fi_av_open: flags {:#x} are not supported", attr.flags);
        return -libc::EINVAL;
    }
    // SAFETY: the pointer is null or the client's string.
    let name = match (!attr.name.is_null()).then(|| unsafe { CStr::from_ptr(attr.name) }.to_str()).transpose() {
        Ok(name) => name,
        Err(_) => return -libc::EINVAL,
    };
    let wanted = if attr.r#type == 0 { domain.av_type } else { attr.r#type };
    let kind = match wanted {
        FI_AV_MAP => VectorType::Map,
        0 | FI_AV_TABLE => VectorType::Table,
        other => {
            log::warning!(FI_LOG_AV, "fi_av_open: unknown type {other}");
            return -libc::EINVAL;
        }
    };
    let Ok(bits) = u32::try_from(attr.rx_ctx_bits) else { return -libc::EINVAL };
    let family = if domain.ipv6 { Family::V6 } else { Family::V4 };
    let mut builder =
        domain.percale.address_vector().kind(kind).family(family).receive_context_bits(bits).expected(attr.count);
    if let Some(name) = name {
        // The indices are the same in every process at any mapping address, so `map_addr` need not be honored.
        builder = builder.name(name).domain(domain.name.as_str());
    }
    if attr.flags & FI_READ != 0 {
        builder = builder.read_only();
    }
    let vector = match builder.build() {
        Ok(vector) => vector,
        Err(error) => {
            log::warning!(FI_LOG_AV, "fi_av_open: {error}");
            return -error.errno();
        }
    };
    // Sets the attributes that the client left unspecified (fi_av_open(3)).
    if let Some(numbers) = vector.numbers_in_memory().filter(|_| attr.map_addr.is_null()) {
        attr.map_addr = std::ptr::with_exposed_provenance_mut(numbers);
    }
    attr.r#type = if kind == VectorType::Map { FI_AV_MAP } else { FI_AV_TABLE };
    let fid = fid_av { fid: object::head(FI_CLASS_AV, context, &FI), ops: std::ptr::from_ref(&OPS).cast_mut() };
    let asynchronous = attr.flags & FI_EVENT != 0;
    let shared = VectorShared { domain: Arc::clone(domain), percale: vector, asynchronous, reports: OnceLock::new() };
    let shared = Arc::new(shared);
    // SAFETY: the client passed a writable location for the vector.
    unsafe { Vector { fid, shared }.give(av) };
    0
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    // SAFETY: the pointer is an address vector of this provider, and the client no longer uses it.
    unsafe { Vector::close(fid, Vector::shared) }
}

/// Binds an event queue to which insertions report their results (fi_av_bind(3)).
unsafe extern "C" fn bind(av: *mut fid, other: *mut fid, flags: u64) -> c_int {
    // SAFETY: the pointer is an address vector of this provider.
    let shared = unsafe { Vector::of(av) }.shared();
    // SAFETY: the client passed an open object.
    let Some(events) = (unsafe { Events::of_class(other) }) else {
        log::warning!(FI_LOG_AV, "fi_av_bind: only event queues can be bound to address vectors");
        return -libc::EINVAL;
    };
    if !shared.asynchronous || flags != 0 {
        log::warning!(FI_LOG_AV, "fi_av_bind: the vector was opened without FI_EVENT, or flags are not 0 ({flags:#x})");
        return -libc::EINVAL;
    }
    if !events.shared().is_of(&shared.domain.fabric) {
        log::warning!(FI_LOG_AV, "fi_av_bind: the event queue belongs to another fabric");
        return -libc::EINVAL;
    }
    if shared.reports.get().is_some() {
        log::warning!(FI_LOG_AV, "fi_av_bind: the vector already has an event queue");
        return -libc::EINVAL;
    }
    let inserter = Inserter::new(&shared.percale, &events.shared().percale);
    events.shared().name_vector(inserter.id(), av);
    // Of two concurrent calls, one fails. Dropping its inserter removes the inserter's entry.
    match shared.reports.set(AsyncInsertion { inserter, events: Arc::clone(events.shared()) }) {
        Ok(()) => 0,
        Err(_) => -libc::EINVAL,
    }
}

unsafe extern "C" fn remove(av: *mut fid_av, fi_addr: *mut fi_addr_t, count: usize, flags: u64) -> c_int {
    // SAFETY: the pointer is an address vector of this provider.
    let percale = &unsafe { Vector::of(av) }.shared().percale;
    if flags != 0 || (fi_addr.is_null() && count > 0) {
        return -libc::EINVAL;
    }
    let mut result = 0;
    for at in 0..count {
        // SAFETY: the client passed `count` addresses.
        let peer = PeerAddress(unsafe { fi_addr.add(at).read() });
        if let Err(error) = percale.remove(peer) {
            log::warning!(FI_LOG_AV, "fi_av_remove: {error}");
            result = -error.errno();
        }
    }
    result
}

unsafe extern "C" fn lookup(av: *mut fid_av, peer: fi_addr_t, to: *mut c_void, room: *mut usize) -> c_int {
    // SAFETY: the pointer is an address vector of this provider.
    let percale = &unsafe { Vector::of(av) }.shared().percale;
    let Some(address) = percale.lookup(PeerAddress(peer)) else { return -libc::EINVAL };
    // The address may be truncated. The returned length shows that (fi_av(3)).
    // SAFETY: the client's buffer has the length that the client passed.
    unsafe { SocketAddress::from(address).copy(to, room) };
    0
}

unsafe extern "C" fn text(
    _av: *mut fid_av,
    address: *const c_void,
    to: *mut c_char,
    room: *mut usize,
) -> *const c_char {
    // SAFETY: the client passed an address in the format of the vector.
    let text = match unsafe { address::read_sized(address) } {
        Some(address @ SocketAddr::V4(_)) => format!("fi_sockaddr_in://{address}\0"),
        Some(address @ SocketAddr::V6(_)) => format!("fi_sockaddr_in6://{address}\0"),
        None => return std::ptr::null(),
    };
    // SAFETY: the client's buffer has the length that the client passed.
    unsafe { copy_text(&text, to, room) };
    to
}

/// Copies a text with a terminating zero, truncated to the size of the buffer, and writes its full length.
///
/// # Safety
/// `room` is readable and writable, and `to` is writable for that many bytes.
unsafe fn copy_text(text: &str, to: *mut c_char, room: *mut usize) {
    // SAFETY: the caller guarantees this.
    let available = unsafe { room.read() };
    // SAFETY: the caller guarantees this.
    unsafe { room.write(text.len()) };
    let count = available.min(text.len());
    if count > 0 {
        // SAFETY: `count` is within both buffers.
        unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), to.cast(), count) };
        // SAFETY: this is the last byte that was copied.
        unsafe { to.add(count - 1).write(0) };
    }
}

#[cfg(test)]
mod tests {
    use percale::Event;
    use percale::address::vector::VectorOptions;

    use super::*;

    #[test]
    fn events_do_not_name_a_closed_vector() {
        for closed in [false, true] {
            let vector = AddressVector::new(VectorOptions::default()).unwrap();
            let events = events::EventQueueShared::alone();
            let reports =
                AsyncInsertion { inserter: Inserter::new(&vector, &events.percale), events: Arc::clone(&events) };
            let inserter = reports.inserter.id();
            events.name_vector(inserter, std::ptr::null_mut());
            let open = (!closed).then_some(reports);
            events.percale.push(Event::AddressesInserted { inserter, context: 0, count: 0 });
            assert_eq!(events.has_any(), open.is_some());
        }
    }
}
