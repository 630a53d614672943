//! `fid_mc`: a group that an endpoint has joined (fi_collective(3), fi_join_collective).

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use percale::GroupId;

use super::Endpoint;
use crate::abi::{
    FI_CLASS_MC, FI_COLLECTIVE, FI_EBADFLAGS, FI_ENOEQ, FI_EOPBADSTATE, FI_LOG_EP_CTRL, fi_collective_addr, fi_ops,
    fid, fid_ep, fid_mc,
};
use crate::domain;
use crate::events::{self, Joined};
use crate::log;
use crate::object::{Object, code};
use crate::port::Port;
use crate::vector::Set;

#[repr(C)]
pub(super) struct Group {
    head: Joined,
    /// The number that identifies the group in events.
    number: u64,
    port: Weak<Port>,
    events: Arc<events::EventQueueShared>,
    /// Keeps the domain open as long as the group is open, even after its endpoint is closed. `None` without an
    /// endpoint.
    _domain: Option<Arc<domain::DomainShared>>,
}

// SAFETY: the type is `repr(C)`, and its first field is the head, whose first field is `fid`.
unsafe impl Object for Group {
    const CLASS: usize = FI_CLASS_MC;
}

static FI: fi_ops = fi_ops { close: Some(close), ..fi_ops::REFUSING };

/// Joins a group. Only collective groups are supported; multicast is not.
pub(super) unsafe extern "C" fn join(
    ep: *mut fid_ep,
    address: *const c_void,
    flags: u64,
    mc: *mut *mut fid_mc,
    context: *mut c_void,
) -> c_int {
    if flags & FI_COLLECTIVE == 0 {
        log::warning!(FI_LOG_EP_CTRL, "fi_join: multicast is not supported; use fi_join_collective for groups");
        return -libc::ENOSYS;
    }
    if flags != FI_COLLECTIVE {
        return -FI_EBADFLAGS;
    }
    // SAFETY: the endpoint is of this provider; with the flag, the address is a valid group address.
    let (endpoint, address) = unsafe { (Endpoint::of(ep), address.cast::<fi_collective_addr>().as_ref()) };
    // SAFETY: the client passed a valid address set.
    let set = address.and_then(|address| unsafe { Set::of_class(address.set.cast_mut().cast()) });
    let Some(set) = set.filter(|_| !mc.is_null()) else {
        log::warning!(FI_LOG_EP_CTRL, "fi_join_collective: the members must be an address set (fi_av_set)");
        return -libc::EINVAL;
    };
    // SAFETY: the client passed a writable location for the group.
    code(unsafe { joined(endpoint, set, mc, context) })
}

/// # Safety
/// `mc` is writable.
unsafe fn joined(endpoint: &Endpoint, set: &Set, mc: *mut *mut fid_mc, context: *mut c_void) -> Result<(), i32> {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    if !endpoint.has_groups() {
        log::warning!(FI_LOG_EP_CTRL, "fi_join_collective: the endpoint was opened without FI_COLLECTIVE");
        return Err(libc::EOPNOTSUPP);
    }
    let Some(events) = endpoint.setup().events() else {
        log::warning!(FI_LOG_EP_CTRL, "fi_join_collective: the endpoint needs an event queue; bind one");
        return Err(FI_ENOEQ);
    };
    let Some(port) = endpoint.setup().port() else { return Err(FI_EOPBADSTATE) };
    if !endpoint.setup().uses(|vector| set.is_of(vector)) {
        log::warning!(FI_LOG_EP_CTRL, "fi_join_collective: the set belongs to a different address vector");
        return Err(libc::EINVAL);
    }
    let members = set.members().clone();
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let port = Arc::clone(port);
    let (weak, _domain) = (Arc::downgrade(&port), Some(Arc::clone(endpoint.setup().domain())));
    let group = Group { head: Joined::new(context, &FI), number, port: weak, events: Arc::clone(&events), _domain };
    let group = Box::into_raw(Box::new(group));
    // The client's pointer is written before any thread can read the event.
    // SAFETY: the caller guarantees this.
    unsafe { mc.write(group.cast()) };
    events.name_group(number, group.cast(), context);
    match port.join_group(&members, number) {
        Ok(id) => {
            // A thread that has read the event may have closed the group in the meantime.
            events.group_is(number, id);
            Ok(())
        }
        Err(error) => {
            log::warning!(FI_LOG_EP_CTRL, "fi_join_collective: {error}");
            events.forget_group(number);
            // SAFETY: the object was created above, and the call returns an error, so the client does not use its
            // pointer.
            drop(unsafe { Box::from_raw(group) });
            Err(error.errno())
        }
    }
}

unsafe extern "C" fn close(mc: *mut fid) -> c_int {
    // SAFETY: the pointer is a group of this provider.
    let group = unsafe { Group::of(mc) };
    // After this call, no other thread writes to the object.
    group.events.forget_group(group.number);
    // SAFETY: `joined` created the pointer from a box, and the client no longer uses it.
    let group = unsafe { Box::from_raw(mc.cast::<Group>()) };
    if let Some(port) = group.port.upgrade() {
        port.leave_group(GroupId::from_u64(group.head.group.load(Ordering::Relaxed)));
    }
    0
}

#[cfg(test)]
mod tests {
    use percale::Event;

    use super::*;

    #[test]
    fn group_address_is_set_before_its_event_is_readable() {
        let (events, number, id) = (events::EventQueueShared::alone(), 7, GroupId::from_u64(42));
        let (head, port) = (Joined::new(std::ptr::null_mut(), &FI), Weak::new());
        let group = Box::into_raw(Box::new(Group { head, number, port, events: Arc::clone(&events), _domain: None }));
        events.name_group(number, group.cast(), std::ptr::null_mut());
        // This thread reads the event while the joining call has not returned yet.
        events.percale.push(Event::Joined { group: id, context: number });
        assert!(events.has_any());
        // SAFETY: the object is alive until it is closed below.
        let (address, known) = unsafe { ((*group).head.fid.fi_addr, (*group).head.group.load(Ordering::Relaxed)) };
        assert_eq!((address, known), (id.to_u64(), id.to_u64()));
        // SAFETY: the object was created above and is not used afterwards.
        assert_eq!(unsafe { close(group.cast()) }, 0);
        // The joining call returns after that.
        events.group_is(number, id);
    }

    #[test]
    fn events_do_not_name_a_closed_group() {
        for closed in [false, true] {
            let (events, number, id) = (events::EventQueueShared::alone(), 7, GroupId::from_u64(42));
            let (head, port) = (Joined::new(std::ptr::null_mut(), &FI), Weak::new());
            let group = Group { head, number, port, events: Arc::clone(&events), _domain: None };
            let group = Box::into_raw(Box::new(group));
            events.name_group(number, group.cast(), std::ptr::null_mut());
            // SAFETY: the object was created above, and is closed once.
            let end = || assert_eq!(unsafe { close(group.cast()) }, 0);
            if closed {
                end();
            }
            events.percale.push(Event::Joined { group: id, context: number });
            assert_eq!(events.has_any(), !closed);
            if !closed {
                end();
            }
        }
    }
}
