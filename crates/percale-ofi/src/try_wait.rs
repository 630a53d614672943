//! Checks whether the client may sleep on descriptors (fi_trywait(3)).

use std::ffi::c_int;

use crate::abi::{fid, fid_fabric};
use crate::counter::{self, Count};
use crate::events::{self, Events};
use crate::object::Object;
use crate::queue::{self, Queue};
use crate::wait_set::{self, Set};

/// Returns 0 if the client may sleep on the descriptors of all these objects (fi_trywait(3)), and -FI_EAGAIN otherwise.
pub(crate) unsafe extern "C" fn try_wait(_fabric: *mut fid_fabric, fids: *mut *mut fid, count: c_int) -> c_int {
    for at in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: the client passed `count` objects.
        let one = unsafe { fids.add(at).read() };
        // SAFETY: the client passed open objects.
        let answer = unsafe {
            if let Some(queue) = Queue::of_class(one) {
                queue::try_wait(queue.shared())
            } else if let Some(counter) = Count::of_class(one) {
                counter::try_wait(counter.shared())
            } else if let Some(events) = Events::of_class(one) {
                events::try_wait(events.shared())
            } else if let Some(set) = Set::of_class(one) {
                wait_set::try_wait(set.shared())
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{self, Client};

    #[test]
    fn client_may_sleep_only_if_no_object_has_an_event() {
        let client = Client::open(|_| ());
        let queues = [client.events(), client.events(), client.events()];
        let mut fids: [*mut fid; 3] = queues.map(|queue| queue.cast());
        // SAFETY: the objects are open.
        let mut asked = || unsafe { try_wait(client.fabric, fids.as_mut_ptr(), 3) };
        assert_eq!(asked(), 0);
        for queue in queues {
            // SAFETY: the queue is open.
            let events = &unsafe { Events::of(queue) }.shared().percale;
            events.write(7, *b"news").unwrap();
            assert_eq!(asked(), -libc::EAGAIN);
            assert!(events.read().is_some());
            assert_eq!(asked(), 0);
        }
        for queue in queues {
            assert_eq!(testing::close(queue), 0);
        }
    }
}
