//! The endpoints of a queue that keep their results themselves and are read directly.

use std::ffi::c_void;
use std::sync::Arc;

use percale::Entry;

use super::Format;
use crate::abi::{FI_EAVAIL, fi_addr_t};
use crate::port::Port;

/// The maximum number of results that one read returns.
pub(super) const BATCH: usize = 32;

/// The endpoints that are read directly.
pub(super) struct Direct {
    pub(super) ports: Vec<Arc<Port>>,
    /// Endpoints without a lock that report to the percale queue.
    pub(super) driven: Vec<Arc<Port>>,
    /// The endpoint that is polled first. It changes, so that no endpoint starves the others.
    first: usize,
    results: [Entry; BATCH],
}

impl Direct {
    pub(super) fn new() -> Self {
        Self { ports: Vec::new(), driven: Vec::new(), first: 0, results: [Entry::default(); BATCH] }
    }

    /// Makes the next read begin after this endpoint.
    #[inline]
    fn found(&mut self, at: usize) {
        self.first = if at + 1 < self.ports.len() { at + 1 } else { 0 };
    }

    /// Reads results. With `may_linger`, the call may wait for a short time if there are none, because the caller has
    /// nothing else to read.
    ///
    /// # Safety
    /// The requirements of [`QueueShared::read`](super::QueueShared::read) apply.
    #[inline(always)]
    pub(super) unsafe fn read(
        &mut self,
        format: Format,
        to: *mut c_void,
        count: usize,
        sources: *mut fi_addr_t,
        may_linger: bool,
    ) -> isize {
        let Self { ports, results, .. } = self;
        // Most clients have one endpoint here.
        let [port] = ports.as_slice() else {
            // SAFETY: the caller upholds the same contract.
            return unsafe { self.read_any(format, to, count, sources) };
        };
        let results = &mut results[..count.min(BATCH)];
        let read = match if may_linger { port.poll_lingering(results) } else { port.poll(results) } {
            Ok(0) => return -(libc::EAGAIN as isize),
            Ok(read) => read,
            Err(_) => return -(FI_EAVAIL as isize),
        };
        // SAFETY: at most `count` entries are written.
        unsafe { format.write(&results[..read], to, sources) };
        read as isize
    }

    /// Reads results from the next endpoint that has any.
    ///
    /// # Safety
    /// The requirements of [`QueueShared::read`](super::QueueShared::read) apply.
    #[inline(never)]
    unsafe fn read_any(&mut self, format: Format, to: *mut c_void, count: usize, sources: *mut fi_addr_t) -> isize {
        let ports = self.ports.len();
        for step in 0..ports {
            let at = if self.first + step < ports { self.first + step } else { self.first + step - ports };
            match self.ports[at].poll(&mut self.results[..count.min(BATCH)]) {
                Ok(0) => {}
                Ok(read) => {
                    self.found(at);
                    // SAFETY: at most `count` entries are written.
                    unsafe { format.write(&self.results[..read], to, sources) };
                    return read as isize;
                }
                Err(_) => return -(FI_EAVAIL as isize),
            }
        }
        -(libc::EAGAIN as isize)
    }
}

#[cfg(test)]
mod tests {
    use std::ptr::{null_mut, without_provenance_mut};

    use crate::abi::{FI_ADDR_UNSPEC, fi_cq_entry};
    use crate::testing::{self, Client};

    #[test]
    fn endpoints_of_one_queue_are_read_in_turn() {
        const MESSAGES: usize = 8;
        let client = Client::open(|_| ());
        let (vector, queue) = (client.vector(), client.queue());
        let endpoints = [(); 2].map(|()| client.endpoint(vector, queue, queue));
        let (message, mut memory, mut seen) = ([1_u8], [0_u8], Vec::new());
        let at = memory.as_mut_ptr().cast();
        // Each endpoint sends to itself, and its operations have the same context.
        for (ep, context) in endpoints.into_iter().zip([8, 16]) {
            let (peer, context) = (testing::insert(vector, ep), without_provenance_mut(context));
            for _ in 0..MESSAGES {
                // SAFETY: the endpoint is open until it has received all messages.
                let posted = unsafe {
                    let msg = &*(*ep).msg;
                    let received = msg.recv.unwrap()(ep, at, 1, null_mut(), FI_ADDR_UNSPEC, context);
                    (received, msg.send.unwrap()(ep, message.as_ptr().cast(), 1, null_mut(), peer, context))
                };
                assert_eq!(posted, (0, 0));
            }
        }
        testing::wait_until("operations do not complete", || {
            let mut entry = fi_cq_entry::ZERO;
            // SAFETY: the queue is open and has entries of this format.
            if unsafe { (*(*queue).ops).read.unwrap()(queue, (&raw mut entry).cast(), 1) } == 1 {
                seen.push(entry.op_context.addr());
            }
            seen.len() == 4 * MESSAGES
        });
        let early = |context| seen[..2 * MESSAGES].iter().filter(|other| **other == context).count();
        assert!(early(8) >= MESSAGES / 2 && early(16) >= MESSAGES / 2, "one endpoint waits for the other: {seen:?}");
        for ep in endpoints {
            assert_eq!(testing::close(ep), 0);
        }
        assert_eq!((testing::close(queue), testing::close(vector)), (0, 0));
    }
}
