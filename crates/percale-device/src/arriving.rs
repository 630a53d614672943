//! Pinned memory to which a device is copying.
//!
//! The transfer of a long payload begins before all of it is on the host. All its [`STEP`]s are begun at once, and a
//! thread that reads some of the bytes waits only for these. So the device copies later steps while earlier ones are
//! being sent to the peer. The memory returns to the pool when no copy is in progress, even if the transfer fails.

#![expect(unsafe_code, reason = "the driver copies memory of operations; the block states its reason")]

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::copied::{Pieces, begin_one};
use super::driver::{Copies, CopyWay, DeviceError, Driver};
use super::pinned::{Pinned, pinned};
use crate::local_memory::volatile::{Segment, Segments, SegmentsExt as _};

/// The number of bytes of one copy.
const STEP: usize = 1 << 20;

/// Shorter payloads are copied as a whole before any part of them is sent. This is more than the longest payload that
/// any link sends without an offer.
pub const LONG: usize = 2 << 20;

/// A copy step that is in progress.
#[derive(Debug)]
struct Step {
    /// The number of leading bytes that have arrived when the step has ended.
    end: usize,
    copies: Copies,
}

/// Pinned memory to which a device is copying step by step.
#[derive(Debug)]
pub struct Arriving {
    driver: &'static dyn Driver,
    memory: Pinned,
    steps: Mutex<Steps>,
    /// The number of leading bytes that have arrived.
    ready: AtomicUsize,
}

/// The steps in progress, in order.
#[derive(Debug, Default)]
struct Steps {
    queue: VecDeque<Step>,
    /// Whether an earlier step failed, so that its bytes never arrive.
    failed: bool,
}

impl Arriving {
    /// Begins to copy all of this memory, which must remain in place until the returned value is dropped.
    pub fn start(pieces: &Pieces, memory: &Segments) -> Result<Option<Self>, DeviceError> {
        let Some(device) = pieces.first() else { return Ok(None) };
        let driver = device.driver();
        let room = pinned(driver, memory.len())?;
        let arriving = Self { driver, memory: room, steps: Mutex::default(), ready: AtomicUsize::new(0) };
        let mut failed = None;
        let mut at = 0;
        for (piece, device) in memory.as_slice().iter().zip(pieces.all_of()) {
            for offset in (0..piece.len()).step_by(STEP) {
                let part = piece.slice(offset, STEP);
                let here = arriving.segment().slice(at, part.len());
                at += part.len();
                // SAFETY: the caller keeps the memory until this object is dropped, and the destination belongs to this
                // object. Dropping it waits for each copy in the queue, and every copy is put there immediately.
                match device.map(|device| unsafe { begin_one(device, part, here, CopyWay::ToHost) }) {
                    None => {
                        Segments::one(here).copy_from(&Segments::one(part));
                    }
                    Some(Ok(copies)) => arriving.lock().queue.push_back(Step { end: at, copies }),
                    Some(Err(error)) => failed = failed.or(Some(error)),
                }
            }
        }
        failed.map_or(Ok(Some(arriving)), Err)
    }

    fn lock(&self) -> MutexGuard<'_, Steps> {
        self.steps.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns all of the memory.
    #[inline]
    pub fn segment(&self) -> Segment {
        self.memory.segment()
    }

    /// Waits until these bytes, and those before them, have arrived. Returns false if they will not arrive.
    pub fn wait_for(&self, part: &Segments) -> bool {
        let start = self.segment().as_ptr().addr();
        let ends = part.as_slice().iter().map(|piece| piece.as_ptr().addr() + piece.len() - start);
        let end = ends.max().unwrap_or(0);
        if self.ready.load(Ordering::Acquire) >= end {
            return true;
        }
        let mut steps = self.lock();
        while !steps.failed && self.ready.load(Ordering::Acquire) < end {
            // The memory after the last step belongs to the host, and is already complete.
            let Some(step) = steps.queue.pop_front() else {
                self.ready.store(self.segment().len(), Ordering::Release);
                break;
            };
            match self.driver.finish(step.copies) {
                Ok(()) => self.ready.store(step.end, Ordering::Release),
                Err(error) => {
                    crate::later::later!(warn: %error, "cannot copy device memory");
                    steps.failed = true;
                }
            }
        }
        !steps.failed
    }
}

impl Arriving {
    /// Waits until no copy is in progress. When the end of the operation is reported, the application may free the
    /// device's memory.
    pub fn end(&self) {
        let mut steps = self.lock();
        // Bytes that have not arrived by now are no longer needed.
        steps.failed |= !steps.queue.is_empty();
        for step in std::mem::take(&mut steps.queue) {
            self.driver.finish(step.copies).ok();
        }
    }
}

impl Drop for Arriving {
    fn drop(&mut self) {
        self.end();
    }
}
