//! `fid_wait`: waiting for several queues and counters at once (fi_poll(3)).

use std::ffi::c_int;
use std::sync::Arc;

use crate::abi::{fi_wait_attr, fid, fid_fabric, fid_wait};
use crate::counter::{self, Count};
use crate::events::{self, Events};
use crate::fabric::Fabric;
use crate::object::Object;
use crate::queue::{self, Queue};

/// # Safety
/// As fi_wait_open(3) has it.
pub(crate) unsafe fn open(_fabric: &Fabric, _attr: *const fi_wait_attr, _waitset: *mut *mut fid_wait) -> c_int {
    -libc::ENOSYS
}

pub(crate) unsafe fn add_queue(_waitset: *mut fid_wait, _queue: &Arc<queue::Shared>) -> c_int {
    -libc::ENOSYS
}

pub(crate) unsafe fn add_counter(_waitset: *mut fid_wait, _counter: &Arc<counter::Shared>) -> c_int {
    -libc::ENOSYS
}

/// Whether the client may sleep on the descriptors of all of these (fi_trywait(3)).
pub(crate) unsafe extern "C" fn try_wait(_fabric: *mut fid_fabric, fids: *mut *mut fid, count: c_int) -> c_int {
    for at in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: the client gives `count` objects.
        let one = unsafe { fids.add(at).read() };
        // SAFETY: an open object of the client's.
        let answer = unsafe {
            if let Some(queue) = Queue::of_class(one) {
                queue::try_wait(queue.shared())
            } else if let Some(counter) = Count::of_class(one) {
                counter::try_wait(counter.shared())
            } else if let Some(events) = Events::of_class(one) {
                events::try_wait(events.shared())
            } else {
                -libc::EINVAL
            }
        };
        if answer != 0 {
            return answer;
        }
    }
    0
}
