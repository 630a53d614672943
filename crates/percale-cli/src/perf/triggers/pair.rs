//! Two endpoints over shared memory for two threads on separate processors. A wait of one thread ends if the other has
//! failed.
//!
//! A message has 8 bytes and contains its number, which the receiver checks.

#![expect(
    unsafe_code,
    reason = "posts raw operations on memory that this object owns; each block states why it is sound"
)]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use percale::trigger::{RawOperation, Variable};
use percale::{
    AddressVector, Allocation, Counter, Domain, Entry, OpFlags, PeerAddress, Progress, Segment, Segments, SendWork,
    SharedEndpoint,
};

use super::super::processors;
use super::super::team::{JOB_TIMEOUT, domain};
use crate::failure::{Failure, Result, percale};

/// The number of messages that may be posted in advance, each in its own memory.
pub(super) const AHEAD: u64 = 128;

/// The number of message slots. Earlier messages may still be in transfer.
const PLACES: u64 = 2 * AHEAD;

/// The number of turns of a wait between two readings of the clock.
const CLOCK_INTERVAL: u32 = 1024;

/// The context of a receive.
const RECEIVED: u64 = 1;

/// One of the two endpoints. Operations use its memory until its endpoint closes.
// The order of the fields matters: the endpoint closes and ends all operations before the memory is freed.
pub(super) struct PairEndpoint {
    endpoint: SharedEndpoint,
    pub(super) domain: Domain,
    peer: PeerAddress,
    out: Allocation,
    into: Allocation,
    vector: AddressVector,
}

/// Makes the two endpoints and exchanges their addresses.
pub(super) fn pair() -> Result<[PairEndpoint; 2]> {
    let mut sides = [PairEndpoint::open()?, PairEndpoint::open()?];
    let there = [1, 0].map(|other: usize| sides[other].endpoint.address());
    for (side, there) in sides.iter_mut().zip(there) {
        side.peer = side.vector.insert(there).map_err(percale("inserting an address"))?;
    }
    Ok(sides)
}

impl PairEndpoint {
    fn open() -> Result<Self> {
        let domain = domain(Progress::Manual)?;
        let vector = domain.address_vector().build().map_err(percale("creating an address vector"))?;
        let endpoint = domain.endpoint().vector(&vector).bind_shared(crate::loopback::here().to_string());
        let endpoint = endpoint.map_err(percale("opening an endpoint"))?;
        let memory = |bytes| domain.allocate(bytes).map_err(percale("allocating memory"));
        let (out, into) = (memory(PLACES as usize * 64)?, memory(8)?);
        Ok(Self { endpoint, peer: PeerAddress::UNSPECIFIED, out, into, vector, domain })
    }

    /// Makes the send of a number. Numbers increase by one. When a send is posted, all messages with numbers lower by
    /// more than [`AHEAD`] must have arrived.
    pub(super) fn send(&mut self, number: u64) -> SendWork {
        let at = (number % PLACES) as usize * 64;
        self.out.write(at, &number.to_ne_bytes());
        // SAFETY: the segment is within this object's memory, and is not written until the message has arrived.
        let segment = unsafe { Segment::new(self.out.as_ptr().wrapping_add(at), 8) };
        let (segments, flags) = (Segments::one(segment), OpFlags::empty());
        SendWork { peer: self.peer, segments, tag: Some(0), data: None, context: 0, flags }
    }

    /// Posts a send that starts immediately.
    #[inline]
    pub(super) fn post(&self, send: &SendWork) -> Result<()> {
        // SAFETY: the memory exists as long as the endpoint.
        unsafe { self.endpoint.post_send(send) }.map_err(percale("posting a send"))
    }

    /// Posts a send that waits for a counter.
    pub(super) fn send_when(&mut self, number: u64, counter: &Counter, threshold: u64) -> Result<()> {
        let send = RawOperation::Send(self.send(number));
        // SAFETY: the memory exists as long as the endpoint.
        unsafe { self.endpoint.post_when(&send, counter, threshold) }.map_err(percale("posting a deferred send"))
    }

    /// Posts a send that waits for a variable.
    pub(super) fn send_when_written(&mut self, number: u64, variable: &Variable) -> Result<()> {
        let send = RawOperation::Send(self.send(number));
        // SAFETY: the memory exists as long as the endpoint.
        unsafe { self.endpoint.post_when_written(&send, variable) }.map_err(percale("posting a deferred send"))
    }

    /// Posts a receive.
    pub(super) fn expect(&self) -> Result<()> {
        // SAFETY: the memory belongs to this object as long as the endpoint, and is read only after the message has
        // arrived.
        let segment = unsafe { Segment::new(self.into.as_ptr(), 8) };
        let (from, flags) = (PeerAddress::UNSPECIFIED, OpFlags::COMPLETION);
        // SAFETY: as above.
        unsafe { self.endpoint.post_recv_one(from, segment, Some((0, 0)), RECEIVED, flags) }
            .map_err(percale("receiving"))
    }

    /// Waits for a message.
    #[inline]
    pub(super) fn receive(&self, waits: &Waits) -> Result<()> {
        waits.until(|| self.poll())
    }

    /// Makes progress. Returns whether a message has arrived.
    #[inline]
    pub(super) fn poll(&self) -> Result<bool> {
        let mut entries = [Entry::default()];
        match self.endpoint.poll(&mut entries) {
            Ok(count) => Ok(count > 0 && entries[0].context == RECEIVED),
            Err(error) => {
                let why = self.endpoint.read_error().map_or_else(|| error.to_string(), |entry| entry.to_string());
                Err(Failure::Percale { what: "polling the endpoint", why })
            }
        }
    }

    /// Checks the message that has arrived.
    pub(super) fn check(&self, number: u64) -> Result<()> {
        let there = self.into.to_vec();
        let right = there == number.to_ne_bytes();
        if right { Ok(()) } else { Err(Failure::Data(format!("message {number} holds {there:?}"))) }
    }
}

/// The state with which the two threads wait for each other and coordinate batches of messages.
pub(super) struct Waits {
    /// Whether one of the threads has failed.
    failed: AtomicBool,
    /// The number of batches that the near side has started, or [`OVER`] after the last.
    begun: AtomicU64,
    /// The number of batches that the far side is ready for.
    ready: AtomicU64,
    /// Whether the threads share a processor.
    yielding: bool,
}

/// The value of [`Waits::begun`] after the last batch.
const OVER: u64 = u64::MAX;

impl Waits {
    /// For the near side: starts another batch, and waits until the far side is ready for it.
    pub(super) fn begin(&self) -> Result<()> {
        let batch = self.begun.load(Ordering::Relaxed) + 1;
        self.begun.store(batch, Ordering::Release);
        self.until(|| Ok(self.ready.load(Ordering::Acquire) == batch))
    }

    /// For the near side: announces that there are no more batches.
    pub(super) fn end(&self) {
        self.begun.store(OVER, Ordering::Release);
    }

    /// For the far side: waits until batch number `before`, counted from 0, has started, and calls `progress`
    /// meanwhile. Returns false if there is no such batch.
    pub(super) fn another(&self, before: u64, mut progress: impl FnMut() -> Result<()>) -> Result<bool> {
        self.until(|| progress().map(|()| self.begun.load(Ordering::Acquire) > before))?;
        Ok(self.begun.load(Ordering::Acquire) != OVER)
    }

    /// For the far side: announces that it is ready for the next batch.
    pub(super) fn ready(&self) {
        self.ready.fetch_add(1, Ordering::Release);
    }

    /// Waits until a condition holds.
    #[inline]
    pub(super) fn until(&self, mut holds: impl FnMut() -> Result<bool>) -> Result<()> {
        let (mut turns, mut since) = (0_u32, None);
        while !holds()? {
            turns = turns.wrapping_add(1);
            if self.yielding {
                thread::yield_now();
            }
            if turns.is_multiple_of(CLOCK_INTERVAL) {
                self.check_progress(since.get_or_insert_with(Instant::now))?;
            }
        }
        Ok(())
    }

    #[cold]
    fn check_progress(&self, since: &Instant) -> Result<()> {
        if self.failed.load(Ordering::Relaxed) {
            return Err(Failure::PeerEnded);
        }
        if since.elapsed() > JOB_TIMEOUT { Err(Failure::Stalled(JOB_TIMEOUT.as_secs())) } else { Ok(()) }
    }
}

/// Runs both closures, the first in this thread, each on its own processor if there are two. If both fail, returns the
/// failure that caused the other.
pub(super) fn both<T>(
    near: impl FnOnce(&Waits) -> Result<T>,
    far: impl FnOnce(&Waits) -> Result<()> + Send,
) -> Result<T> {
    let here = processors::allowed()?;
    let (failed, begun, ready) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let waits = Waits { failed, begun, ready, yielding: here.len() < 2 };
    let failing = |failed: bool| waits.failed.fetch_or(failed, Ordering::Relaxed);
    let (near, far) = thread::scope(|scope| {
        let far = scope.spawn(|| {
            let done = here.last().map_or(Ok(()), |last| processors::pin(*last)).and_then(|()| far(&waits));
            failing(done.is_err());
            done
        });
        let done = here.first().map_or(Ok(()), |first| processors::pin(*first)).and_then(|()| near(&waits));
        failing(done.is_err());
        (done, far.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    });
    processors::allow(&here)?;
    match (near, far) {
        (Err(Failure::PeerEnded), Err(error)) | (Err(error), _) | (Ok(_), Err(error)) => Err(error),
        (Ok(value), Ok(())) => Ok(value),
    }
}
