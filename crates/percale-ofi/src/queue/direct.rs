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
