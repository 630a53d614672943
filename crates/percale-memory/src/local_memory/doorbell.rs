//! The doorbell. It notifies an endpoint of frames in rings that the endpoint does not poll, and wakes up a sleeping
//! endpoint.
//!
//! An endpoint has one [`Doorbell`]: a page that its peers map, and an event descriptor that its peers hold. The page
//! contains
//! * `asleep`, which is not 0 while the endpoint sleeps or is about to sleep. Its bits give the [wake-up
//!   method](WakeMethod): the event descriptor, or a futex(2) on `asleep` itself. The sender that swaps it to 0
//!   performs the wake-up, so that only one of many senders pays for it.
//! * a bitmap with one bit for each inbound ring, and a summary of the bitmap. A sender that finds its ring marked
//!   *cold* (in the pair memory) sets the bit of its ring. Bit `n` of the summary is set if word `n` of the bitmap has
//!   bits set.
//!
//! # Why no wake-up is lost
//! Both checks ("is the ring cold?", "is the endpoint asleep?") use Dekker's pattern. The sender writes its mark,
//! fences, and then reads `cold` and `asleep`. The receiver writes `cold` (or `asleep`), fences, and then reads the
//! ring (all its rings, and the summary). One of the two fences comes first, and the write before it is visible to the
//! reads after the other fence. So either the sender finds that it must ring the doorbell, or the receiver finds the
//! frame and does not sleep. A sender that rings for a cold ring sets the bit, then the summary's bit, then fences,
//! then reads `asleep`. This is the same pattern again. The receiver takes a word's bits only after it has cleared the
//! summary's bit.
//!
//! A sender that streams omits its fence: it registers for `membarrier`, writes `unfenced`, fences once, and from then
//! on uses only compiler fences. A receiver that finds `unfenced` set after it wrote `cold` or `asleep` fences for both
//! sides ([`Doorbell::barrier`]). The receiver's check then sees everything that the sender published before that
//! barrier, and every later check by the sender sees `cold` or `asleep`. A receiver that does not find `unfenced` set
//! executed its fence before the fence of the sender's announcement, so the sender's later checks see the receiver's
//! mark. To return to fences, the sender fences, then clears `unfenced` (Release). A receiver that reads the cleared
//! value sees everything that was published before. Loom does not support membarrier, so the loom model covers only the
//! variant with fences.
//!
//! # Going to sleep
//! ```text
//! doorbell.arm(WakeMethod::Word);
//! let barrier = links.fold(false, |any, link| link.prepare_sleep() | any);
//! if barrier && !Doorbell::barrier() { doorbell.disarm(); return }  // continue to spin
//! if poll_hot_links() || doorbell.take_rung(poll_that_link) > 0 { doorbell.disarm(); return }
//! doorbell.sleep(WakeMethod::Word, timeout); doorbell.disarm();
//! ```
//! [`WakeMethod::Event`] is for endpoints that also wait for other descriptors, or that pass the descriptor to other
//! code. The descriptor is passed to poll(2), and [drained](Doorbell::drain) before the doorbell is armed. A sleep on
//! the word ([`WakeMethod::Word`]) saves that read, and the cost of epoll in the wake-up.
//!
//! # Wake-ups do not depend on one peer
//! All peers can write to the page. A peer that exits or misbehaves after it cleared `asleep` and before it wrote the
//! event would suppress the wake-ups by all other peers. Therefore
//! 1. the page determines only whether a *peer* can omit a system call. Threads of the endpoint's own process use a
//!    mark that peers cannot reach (`Asleep`), and always wake up a sleeping endpoint;
//! 2. every sleep ends after a bounded time. Then all links are checked, even if their bits are not set.

#![expect(unsafe_code, reason = "a view of a shared page; the block states its reason")]

use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use rustix::io::{Errno, ReadWriteFlags};
use rustix::thread::futex;
use rustix::time::Timespec;

use crate::local_memory::barrier;
use crate::local_memory::mapping::{Mapping, sealed_memfd};
use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};
use crate::system::call::call;
use crate::system::event::EventDescriptor;

/// The number of rings that one doorbell can serve.
pub const DOORBELL_BITS: u32 = 4096;
/// The size of a doorbell's page in bytes.
pub const DOORBELL_BYTES: usize = 4096;
const WORDS: usize = DOORBELL_BITS as usize / 64;

/// The longest duration of a sleep if the system refuses to wait on the word.
const REFUSED_SLEEP: Duration = Duration::from_millis(1);

/// The wake-up method of a sleeping endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WakeMethod {
    /// Through the event descriptor.
    Event = 1,
    /// Through the `asleep` word, as a futex.
    Word = 2,
    /// Some sleepers through the event descriptor, others through the futex.
    Both = 3,
}

impl WakeMethod {
    /// Returns the representation in the page.
    const fn bits(self) -> u32 {
        self as u32
    }

    /// Decodes the word in the page. Any bit other than that of `Word` requests the event.
    const fn of(bits: u32) -> Option<Self> {
        match (bits & !Self::Word.bits(), bits & Self::Word.bits()) {
            (0, 0) => None,
            (0, _) => Some(Self::Word),
            (_, 0) => Some(Self::Event),
            _ => Some(Self::Both),
        }
    }
}

/// The layout of the page. It contains only atomics, because peers write to it. Cache lines are separated by alignment,
/// because padding fields would be plain memory.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Page {
    sleeper: Sleeper,
    summary: Summary,
    words: [AtomicU64; WORDS],
}

#[derive(Debug)]
#[repr(C, align(64))]
struct Sleeper {
    asleep: AtomicU32,
    /// The processor on which the endpoint was running at its last report, plus one, or 0 before the first report.
    processor: AtomicU32,
}

#[derive(Debug)]
#[repr(C, align(64))]
struct Summary(AtomicU64);

// Peers map the page with this layout.
#[cfg(not(loom))]
const _: () = {
    use std::mem::offset_of;
    assert!(offset_of!(Page, sleeper.asleep) == 0 && offset_of!(Page, sleeper.processor) == 4);
    assert!(offset_of!(Page, summary) == 64 && offset_of!(Page, words) == 128);
    assert!(size_of::<Page>() == 128 + WORDS * 8 && size_of::<Page>() <= DOORBELL_BYTES);
};

impl Page {
    /// Creates a page in private memory, for models.
    #[cfg(loom)]
    pub(super) fn for_model() -> Self {
        Self {
            sleeper: Sleeper { asleep: AtomicU32::new(0), processor: AtomicU32::new(0) },
            summary: Summary(AtomicU64::new(0)),
            words: std::array::from_fn(|_| AtomicU64::new(0)),
        }
    }

    #[inline]
    pub(super) fn is_asleep(&self) -> bool {
        self.sleeper.asleep.load(Ordering::SeqCst) != 0
    }

    /// Marks the endpoint as about to sleep. The caller's later reads happen after the mark is visible to all threads.
    pub(super) fn arm(&self, wake_method: WakeMethod) {
        self.sleeper.asleep.store(wake_method.bits(), Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    pub(super) fn disarm(&self) {
        self.sleeper.asleep.store(0, Ordering::Relaxed);
    }

    /// Sets the bit of a ring. The caller's later reads happen after the bit is visible to all threads.
    pub(super) fn ring(&self, bit: u32) {
        let word = (bit / 64) as usize % WORDS;
        self.words[word].fetch_or(1 << (bit % 64), Ordering::SeqCst);
        self.summary.0.fetch_or(1 << word, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Takes the mark of a sleeping endpoint. Returns the wake-up method if the caller has to wake up the endpoint.
    pub(super) fn must_wake(&self) -> Option<WakeMethod> {
        if self.is_asleep() { WakeMethod::of(self.sleeper.asleep.swap(0, Ordering::SeqCst)) } else { None }
    }

    pub(super) fn take_rung(&self, mut rung: impl FnMut(u32)) -> usize {
        if self.summary.0.load(Ordering::Relaxed) == 0 {
            return 0;
        }
        let mut summary = self.summary.0.swap(0, Ordering::SeqCst);
        let mut count = 0;
        while summary != 0 {
            let word = summary.trailing_zeros();
            summary &= summary - 1;
            let mut bits = self.words[word as usize].swap(0, Ordering::SeqCst);
            while bits != 0 {
                rung(word * 64 + bits.trailing_zeros());
                bits &= bits - 1;
                count += 1;
            }
        }
        count
    }
}

/// Whether the endpoint sleeps, as recorded in a word of its own process that peers cannot reach. It is armed before
/// the page's word, and taken only by threads of this process, so none of their wake-ups depends on the content of the
/// page.
#[derive(Debug)]
pub(super) struct Asleep(AtomicU32);

impl Asleep {
    pub(super) fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Marks the endpoint as about to sleep. Must precede [`Page::arm`]. The fence in that function covers both.
    pub(super) fn arm(&self, wake_method: WakeMethod) {
        self.0.store(wake_method.bits(), Ordering::SeqCst);
    }

    pub(super) fn disarm(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// Takes the mark. Called by a thread of this process that has published something and fenced. Returns the wake-up
    /// method if the thread has to wake up the endpoint.
    pub(super) fn must_wake(&self) -> Option<WakeMethod> {
        if self.0.load(Ordering::SeqCst) == 0 { None } else { WakeMethod::of(self.0.swap(0, Ordering::SeqCst)) }
    }
}

/// A mapped page and the event descriptor that belongs to it.
#[derive(Debug)]
struct Mapped {
    mapping: Mapping,
    event: EventDescriptor,
}

impl Mapped {
    #[inline]
    fn page(&self) -> &Page {
        // SAFETY: the mapping has BELL_BYTES bytes, is page-aligned and lives as long as this reference. The page
        // consists of atomics, and the bytes between them are never read.
        unsafe { &*self.mapping.as_ptr().cast::<Page>() }
    }

    /// Returns the page's first word, for futex(2).
    fn word(&self) -> &std::sync::atomic::AtomicU32 {
        const { assert!(std::mem::offset_of!(Page, sleeper.asleep) == 0, "the word is the first one") };
        // SAFETY: as in `page`. On systems where pages are mapped, both atomic types have the representation of the
        // word that they contain.
        unsafe { &*self.mapping.as_ptr().cast() }
    }

    #[cold]
    fn wake(&self) {
        if !self.mapping.is_here() {
            return; // A forked child does not wake up peers, because the page is not mapped in it.
        }
        if let Some(wake_method) = self.page().must_wake() {
            self.wake_with(wake_method);
        }
    }

    /// Wakes up sleepers with this method, regardless of the content of the page.
    fn wake_with(&self, wake_method: WakeMethod) {
        if wake_method != WakeMethod::Event
            && let Err(error) = futex::wake(self.word(), futex::Flags::empty(), i32::MAX as u32)
        {
            crate::later::later!(warn: %error, "cannot wake the peer");
        }
        if wake_method != WakeMethod::Word {
            self.write_event();
        }
    }

    fn write_event(&self) {
        // A full counter (EAGAIN) wakes up the endpoint as well. Whether a write to a full counter blocks depends on a
        // flag that any holder of the descriptor can clear, so check first whether the counter is full.
        let mut room = [PollFd::new(self.event.writer(), PollFlags::OUT)];
        let known = rustix::event::poll(&mut room, Some(&Timespec::default())).is_ok();
        if known && !room[0].revents().contains(PollFlags::OUT) {
            return;
        }
        if let Err(error) = self.event.signal() {
            crate::later::later!(warn: %error, "cannot wake the peer");
        }
    }
}

/// The doorbell of an endpoint in this process.
#[derive(Debug)]
pub struct Doorbell {
    mapped: Mapped,
    asleep: Asleep,
    /// The memfd that peers map, or `None` if the doorbell is only for threads of this process.
    memory: Option<OwnedFd>,
}

impl Doorbell {
    /// Creates a doorbell that peers can ring.
    ///
    /// # Errors
    /// If the memfd or the eventfd cannot be created, or the memfd cannot be mapped.
    pub fn new() -> io::Result<Self> {
        let memory = sealed_memfd("percale-bell", DOORBELL_BYTES, DOORBELL_BYTES)?;
        let mapping = Mapping::of(memory.as_fd(), DOORBELL_BYTES)?;
        let event = EventDescriptor::eventfd()?;
        Ok(Self { mapped: Mapped { mapping, event }, asleep: Asleep::new(), memory: Some(memory) })
    }

    /// Creates a doorbell for threads of this process, which peers cannot ring. It does not use system features that
    /// only shared memory needs.
    ///
    /// # Errors
    /// If memory cannot be mapped, or the descriptor cannot be created.
    pub fn private() -> io::Result<Self> {
        let (mapping, event) = (Mapping::private(DOORBELL_BYTES)?, EventDescriptor::new()?);
        Ok(Self { mapped: Mapped { mapping, event }, asleep: Asleep::new(), memory: None })
    }

    /// Returns the page and the event descriptor, which are passed to peers. The descriptor becomes readable when a
    /// peer wakes up the endpoint. Returns `None` if peers cannot ring this doorbell.
    #[must_use]
    #[inline]
    pub fn descriptors(&self) -> Option<[BorrowedFd<'_>; 2]> {
        Some([self.memory.as_ref()?.as_fd(), self.mapped.event.as_fd()])
    }

    /// Returns the descriptor that becomes readable when the endpoint is woken up.
    #[must_use]
    #[inline]
    pub fn event_fd(&self) -> BorrowedFd<'_> {
        self.mapped.event.as_fd()
    }

    /// Marks the endpoint as about to sleep. The endpoint has to check for work once more before it sleeps.
    #[inline]
    pub fn arm(&self, wake_method: WakeMethod) {
        self.asleep.arm(wake_method);
        self.mapped.page().arm(wake_method);
    }

    /// Sleeps until a wake-up through the word, but at most for the given time. The doorbell must be [armed](Self::arm)
    /// with the same method. Returns at once if the wake-up has already happened. May also return spuriously.
    pub fn sleep(&self, wake_method: WakeMethod, timeout: Duration) {
        let timeout_left = timeout;
        let timeout = Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: timeout.subsec_nanos().into() };
        match futex::wait(self.mapped.word(), futex::Flags::empty(), wake_method.bits(), Some(&timeout)) {
            Ok(()) | Err(Errno::AGAIN | Errno::INTR | Errno::TIMEDOUT) => {}
            Err(error) => {
                // The system refused to wait. Sleep briefly instead, because the caller checks again.
                crate::later::later!(debug: %error, "cannot sleep on the doorbell");
                crate::system::thread::pause(timeout_left.min(REFUSED_SLEEP));
            }
        }
    }

    /// Marks the endpoint as awake.
    #[inline]
    pub fn disarm(&self) {
        self.asleep.disarm();
        self.mapped.page().disarm();
    }

    /// Publishes the processor on which the endpoint runs, for its peers, and returns it.
    #[inline]
    pub fn publish_processor(&self) -> u32 {
        let here = rustix::thread::sched_getcpu() as u32;
        let processor = &self.mapped.page().sleeper.processor;
        if processor.load(Ordering::Relaxed) != here + 1 {
            processor.store(here + 1, Ordering::Relaxed);
        }
        here
    }

    /// Resets the event descriptor, so that it is no longer readable. This is one system call.
    pub fn drain(&self) {
        if !self.mapped.event.is_eventfd() {
            self.mapped.event.clear().ok();
            return;
        }
        let mut count = [0; 8];
        // EAGAIN means that there is nothing to drain. The call itself requests not to block, because peers can clear
        // the descriptor's own flag. Offset -1 means the current position, as needed for a file without offsets.
        let read = rustix::io::preadv2(
            &self.mapped.event,
            &mut [IoSliceMut::new(&mut count)],
            u64::MAX,
            ReadWriteFlags::NOWAIT,
        );
        if !matches!(read, Ok(_) | Err(Errno::AGAIN)) {
            // Some sandboxes do not support preadv2.
            rustix::io::read(&self.mapped.event, &mut count).ok();
        }
    }

    /// Returns whether the bit of a cold ring is set. This takes one load.
    #[must_use]
    #[inline]
    pub fn is_rung(&self) -> bool {
        self.mapped.page().summary.0.load(Ordering::Relaxed) != 0
    }

    /// Calls `rung` with the number of each ring that was marked since the last call, and returns how many there were.
    /// Peers wrote the numbers, so the caller must check them.
    #[inline]
    pub fn take_rung(&self, rung: impl FnMut(u32)) -> usize {
        self.mapped.page().take_rung(rung)
    }

    /// Rings as a peer would: sets the bit of the ring `bit` and wakes up the endpoint if it sleeps. For other threads
    /// of this process.
    #[inline]
    pub fn ring(&self, bit: u32) {
        if !self.mapped.mapping.is_here() {
            return;
        }
        self.mapped.page().ring(bit);
        self.wake_own();
    }

    /// Wakes up the endpoint if it sleeps, regardless of the content of the page. For other threads of this process.
    #[inline]
    pub fn wake(&self) {
        fence(Ordering::SeqCst);
        self.wake_own();
    }

    fn wake_own(&self) {
        if !self.mapped.mapping.is_here() {
            return;
        }
        if let Some(wake_method) = self.asleep.must_wake() {
            // Prevents an endpoint that is about to sleep on the word from sleeping. The call that follows orders the
            // store: FUTEX_WAKE executes a full fence before it looks for sleepers.
            self.mapped.page().disarm();
            self.mapped.wake_with(wake_method);
        }
    }

    /// Executes a fence on behalf of senders that do not fence (`ShmLink::prepare_sleep` returns whether there are
    /// any). Returns false if the system refuses. In this case the endpoint must not sleep.
    #[must_use]
    #[inline]
    pub fn barrier() -> bool {
        barrier::everywhere()
    }
}

/// Checks of a [`Doorbell`]. This is for the crates of percale, not for programs.
#[doc(hidden)]
pub trait DoorbellExt: Sized {
    /// Checks that threads can sleep on the doorbell's word.
    ///
    /// # Errors
    /// The error of the system call.
    fn try_futex(&self) -> io::Result<()>;

    /// Takes the sleeping mark from the page without waking up the endpoint, like a peer process that exits at that
    /// moment.
    #[cfg(all(any(test, feature = "testing"), not(loom)))]
    fn steal(&self) -> bool;
}

impl DoorbellExt for Doorbell {
    #[inline]
    fn try_futex(&self) -> io::Result<()> {
        call("futex", || futex::wake(self.mapped.word(), futex::Flags::empty(), 1)).map(drop)
    }

    #[cfg(all(any(test, feature = "testing"), not(loom)))]
    #[inline]
    fn steal(&self) -> bool {
        self.mapped.page().must_wake().is_some()
    }
}

/// A peer's doorbell, and the bit in it that belongs to this link.
#[derive(Debug)]
pub struct PeerDoorbell {
    mapped: Mapped,
    bit: u32,
}

impl PeerDoorbell {
    /// Creates the doorbell from its mapped page. The bit is less than [`DOORBELL_BITS`].
    #[inline]
    pub fn of(mapping: Mapping, event: OwnedFd, bit: u32) -> Self {
        debug_assert!(bit < DOORBELL_BITS, "the doorbell has no such bit");
        Self { mapped: Mapped { mapping, event: EventDescriptor::of_peer(event) }, bit }
    }

    /// Maps the page of a doorbell.
    pub fn map(memory: BorrowedFd<'_>) -> io::Result<Mapping> {
        Mapping::of(memory, DOORBELL_BYTES)
    }

    /// Returns the processor on which the peer was running at its last report.
    #[inline]
    pub fn processor(&self) -> Option<u32> {
        self.mapped.page().sleeper.processor.load(Ordering::Relaxed).checked_sub(1)
    }

    /// Returns whether the peer sleeps, according to its page.
    #[inline]
    pub fn is_asleep(&self) -> bool {
        self.mapped.page().is_asleep()
    }

    /// Sets this ring's bit (if the peer does not poll the ring) and wakes up the peer (if it sleeps).
    #[cold]
    pub fn notify(&self, cold: bool) {
        if cold {
            self.mapped.page().ring(self.bit);
        }
        self.mapped.wake();
    }
}

/// Changes that a misbehaving peer makes.
#[cfg(all(any(test, feature = "testing"), not(loom)))]
impl PeerDoorbell {
    /// Writes to the word at this offset of the page.
    ///
    /// # Panics
    /// If there is no such word.
    pub fn overwrite(&self, offset: usize, value: u32) {
        assert!(offset.is_multiple_of(4) && offset < DOORBELL_BYTES, "the page has no such word");
        let word = self.mapped.mapping.as_ptr().wrapping_add(offset).cast::<AtomicU32>();
        // SAFETY: the word lies in the mapping, which lives as long as `self`, and is aligned. All processes access the
        // page as atomics.
        unsafe { &*word }.store(value, Ordering::SeqCst);
    }

    /// Returns the event descriptor.
    pub fn event(&self) -> BorrowedFd<'_> {
        self.mapped.event.as_fd()
    }
}

#[cfg(all(test, not(loom)))]
#[path = "doorbell_tests.rs"]
mod tests;

#[cfg(all(test, loom))]
#[path = "doorbell_model.rs"]
mod model;
