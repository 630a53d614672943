//! The doorbell: how an endpoint learns that a ring which it does not watch has something, or that it should wake.
//!
//! An endpoint has one [`Bell`]: a page that its peers map, and an event descriptor that they hold. In the page are
//! * `asleep`: not 0 while the endpoint sleeps (or is about to); its bits say [how it is woken](Rouse): by its event
//!   descriptor, or by `asleep` itself, as a futex(2). Who swaps it to 0 wakes, so that only one of many senders pays;
//! * a bitmap, one bit for each inbound ring, set by the sender that finds its ring's *cold* mark (in the pair memory),
//!   and over it a summary: bit `n` says that word `n` of the bitmap has bits.
//!
//! # Why nothing is lost
//! Both questions ("is the ring cold?", "is the endpoint asleep?") are Dekker's pattern. The sender writes its mark,
//! fences, and then looks at `cold` and `asleep`. The receiver writes `cold` (or `asleep`), fences, and then looks at
//! the ring (at all its rings, and at the summary). Of two fences one comes first, and its side's write is seen by the
//! other side's look: so either the sender sees that it must ring, or the receiver sees the frame and does not sleep.
//! A sender that rings a cold ring sets the bit, then the summary's, then fences, then looks at `asleep`: the same
//! pattern once more. The receiver takes a word's bits only after it has cleared the summary's bit.
//!
//! A sender that streams does without its fence: it registers for `membarrier`, writes `unfenced`, fences once, and from
//! then on orders only its compiler. A receiver that finds `unfenced` set after it wrote `cold` or `asleep` fences for
//! both ([`Bell::barrier`]): what the sender published before that moment is seen by the receiver's look, and whatever it
//! looks at later it sees `cold` or `asleep`. A receiver that does not find `unfenced` fenced before the sender's
//! announcement did, so the sender's later looks see its mark. Back to fences: the sender fences, then clears
//! `unfenced` (Release); who reads that sees all that was published before. Loom knows no membarrier, so its model has
//! only the fenced form.
//!
//! # Going to sleep
//! ```text
//! bell.arm(Rouse::Word);
//! let barrier = links.fold(false, |any, link| link.prepare_sleep() | any);
//! if barrier && !Bell::barrier() { bell.disarm(); return }          // spin on
//! if poll_hot_links() || bell.take_rung(poll_that_link) > 0 { bell.disarm(); return }
//! bell.sleep(Rouse::Word, timeout); bell.disarm();
//! ```
//! The descriptor ([`Rouse::Event`]) is for who waits for others, too, or lets somebody else wait: to be looked at with poll(2), and
//! [drained](Bell::drain) before the bell is armed. A sleep on the word spares that read, and an epoll's share of the wake-up.
//!
//! # Wake-ups do not depend on one peer
//! All peers can write the page, and one that dies or misbehaves after it cleared `asleep`, and before it wrote the event, takes the
//! wake-up of all others along. So
//! 1. the page decides only whether a *peer* saves a system call. Threads of the endpoint's own process look at a mark that
//!    peers cannot reach ([`Asleep`]), and always ring a sleeper;
//! 2. every sleep ends after a bounded time and looks at all links, rung or not.

#![expect(unsafe_code, reason = "a view of a shared page; the block states its reason")]

use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use rustix::io::{Errno, ReadWriteFlags};
use rustix::thread::futex;
use rustix::time::Timespec;

use super::sync::{AtomicU32, AtomicU64, Ordering, fence};
use crate::memory::barrier;
use crate::memory::call::call;
use crate::memory::event::EventDescriptor;
use crate::memory::mapping::{Mapping, sealed_memfd};

/// Rings that one bell can serve.
pub const BELL_BITS: u32 = 4096;
/// Bytes of a bell's page.
pub const BELL_BYTES: usize = 4096;
const WORDS: usize = BELL_BITS as usize / 64;

/// How long a sleep lasts where the system refuses to wait on the word.
const REFUSED_SLEEP: Duration = Duration::from_millis(1);

/// How sleepers are to be woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rouse {
    /// By the event descriptor.
    Event = 1,
    /// By the word that says so, as a futex.
    Word = 2,
    /// Some by one, some by the other.
    Both = 3,
}

impl Rouse {
    /// As it stands in the page.
    const fn bits(self) -> u32 {
        self as u32
    }

    /// What the page says: whatever is not the word's bit asks for the event.
    const fn of(bits: u32) -> Option<Self> {
        match (bits & !Self::Word.bits(), bits & Self::Word.bits()) {
            (0, 0) => None,
            (0, _) => Some(Self::Word),
            (_, 0) => Some(Self::Event),
            _ => Some(Self::Both),
        }
    }
}

/// What lies in the page: atomics only, since peers write it. Lines are kept apart by alignment; fields that fill them up would be plain
/// memory.
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
    /// Where the endpoint runs, and one: what it told last, or 0.
    processor: AtomicU32,
}

#[derive(Debug)]
#[repr(C, align(64))]
struct Summary(AtomicU64);

// Peers have mapped it thus.
#[cfg(not(loom))]
const _: () = {
    use std::mem::offset_of;
    assert!(offset_of!(Page, sleeper.asleep) == 0 && offset_of!(Page, sleeper.processor) == 4);
    assert!(offset_of!(Page, summary) == 64 && offset_of!(Page, words) == 128);
    assert!(size_of::<Page>() == 128 + WORDS * 8 && size_of::<Page>() <= BELL_BYTES);
};

impl Page {
    /// A page of memory that nobody else has, for models.
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

    /// The receiver is about to sleep; its next looks come after everyone can see that.
    pub(super) fn arm(&self, rouse: Rouse) {
        self.sleeper.asleep.store(rouse.bits(), Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    pub(super) fn disarm(&self) {
        self.sleeper.asleep.store(0, Ordering::Relaxed);
    }

    /// Sets a ring's bit. What follows comes after everyone can see that.
    pub(super) fn ring(&self, bit: u32) {
        let word = (bit / 64) as usize % WORDS;
        self.words[word].fetch_or(1 << (bit % 64), Ordering::SeqCst);
        self.summary.0.fetch_or(1 << word, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// For the one that has to wake the endpoint: how.
    pub(super) fn must_wake(&self) -> Option<Rouse> {
        if self.is_asleep() { Rouse::of(self.sleeper.asleep.swap(0, Ordering::SeqCst)) } else { None }
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

/// Whether the endpoint sleeps, as its own process knows: a word that peers cannot reach. It is armed before the page's word, and taken
/// by threads of this process alone, so none of their wake-ups depends on what peers did with the page.
#[derive(Debug)]
pub(super) struct Asleep(AtomicU32);

impl Asleep {
    pub(super) fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Comes before [`Page::arm`], whose fence covers both.
    pub(super) fn arm(&self, rouse: Rouse) {
        self.0.store(rouse.bits(), Ordering::SeqCst);
    }

    pub(super) fn disarm(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// For a thread of this process that published something and fenced: whether it has to wake the endpoint, and how.
    pub(super) fn must_wake(&self) -> Option<Rouse> {
        if self.0.load(Ordering::SeqCst) == 0 { None } else { Rouse::of(self.0.swap(0, Ordering::SeqCst)) }
    }
}

/// A mapped page and the descriptor that goes with it.
#[derive(Debug)]
struct Mapped {
    mapping: Mapping,
    event: EventDescriptor,
}

impl Mapped {
    #[inline]
    fn page(&self) -> &Page {
        // SAFETY: the mapping has BELL_BYTES, is page-aligned and lives as long as this reference; a page is atomics, and what
        // lies between them nobody reads.
        unsafe { &*self.mapping.as_ptr().cast::<Page>() }
    }

    /// The page's first word, for the kernel.
    fn word(&self) -> &std::sync::atomic::AtomicU32 {
        const { assert!(std::mem::offset_of!(Page, sleeper.asleep) == 0, "the word is the first one") };
        // SAFETY: as in `page`; both kinds of atomics are the word that they hold, wherever pages are mapped.
        unsafe { &*self.mapping.as_ptr().cast() }
    }

    #[cold]
    fn wake(&self) {
        if !self.mapping.is_here() {
            return; // A forked child wakes nobody, and the page is not mapped in it.
        }
        if let Some(rouse) = self.page().must_wake() {
            self.rouse(rouse);
        }
    }

    /// Wakes sleepers, whatever the page says.
    fn rouse(&self, rouse: Rouse) {
        if rouse != Rouse::Event
            && let Err(error) = futex::wake(self.word(), futex::Flags::empty(), i32::MAX as u32)
        {
            crate::later::later!(warn: %error, "cannot wake the peer");
        }
        if rouse != Rouse::Word {
            self.write_event();
        }
    }

    fn write_event(&self) {
        // A full counter (EAGAIN) wakes as well as one more would. Whether a write to one waits is said by a flag that whoever else has the
        // descriptor can clear: so it is looked whether it is full.
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

/// An endpoint's own doorbell.
#[derive(Debug)]
pub struct Bell {
    mapped: Mapped,
    asleep: Asleep,
    /// What peers map; `None` if it is for threads of this process only.
    memory: Option<OwnedFd>,
}

impl Bell {
    /// Makes a bell that peers can ring.
    ///
    /// # Errors
    /// What making a memfd, mapping it or making an eventfd says.
    pub fn new() -> io::Result<Self> {
        let memory = sealed_memfd("percale-bell", BELL_BYTES, BELL_BYTES)?;
        let mapping = Mapping::of(memory.as_fd(), BELL_BYTES)?;
        let event = EventDescriptor::eventfd()?;
        Ok(Self { mapped: Mapped { mapping, event }, asleep: Asleep::new(), memory: Some(memory) })
    }

    /// Makes a bell for threads of this process, which peers cannot ring. It needs nothing that only shared memory needs.
    ///
    /// # Errors
    /// What mapping memory or making a descriptor says.
    pub fn private() -> io::Result<Self> {
        let (mapping, event) = (Mapping::private(BELL_BYTES)?, EventDescriptor::new()?);
        Ok(Self { mapped: Mapped { mapping, event }, asleep: Asleep::new(), memory: None })
    }

    /// The page and what becomes readable when a peer wakes the endpoint, to be passed to peers; `None` if peers cannot ring it.
    #[must_use]
    pub fn descriptors(&self) -> Option<[BorrowedFd<'_>; 2]> {
        Some([self.memory.as_ref()?.as_fd(), self.mapped.event.as_fd()])
    }

    /// What becomes readable when the endpoint is woken.
    #[must_use]
    pub fn event_fd(&self) -> BorrowedFd<'_> {
        self.mapped.event.as_fd()
    }

    /// Says that the endpoint is about to sleep. It has to look at everything once more before it does.
    pub fn arm(&self, rouse: Rouse) {
        self.asleep.arm(rouse);
        self.mapped.page().arm(rouse);
    }

    /// Sleeps until somebody wakes who was [armed](Self::arm) thus, for as long as this at most. Returns at once if that
    /// happened already, and also without any reason.
    pub fn sleep(&self, rouse: Rouse, patience: Duration) {
        let patience_left = patience;
        let patience = Timespec { tv_sec: patience.as_secs() as i64, tv_nsec: patience.subsec_nanos().into() };
        match futex::wait(self.mapped.word(), futex::Flags::empty(), rouse.bits(), Some(&patience)) {
            Ok(()) | Err(Errno::AGAIN | Errno::INTR | Errno::TIMEDOUT) => {}
            Err(error) => {
                // Refused: whoever waits looks again soon.
                crate::later::later!(debug: %error, "cannot sleep on the bell");
                std::thread::sleep(patience_left.min(REFUSED_SLEEP));
            }
        }
    }

    /// Whether threads can sleep on the bell's word.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn try_futex(&self) -> io::Result<()> {
        call("futex", || futex::wake(self.mapped.word(), futex::Flags::empty(), 1)).map(drop)
    }

    /// Says that the endpoint is awake.
    pub fn disarm(&self) {
        self.asleep.disarm();
        self.mapped.page().disarm();
    }

    /// Tells peers on which processor the endpoint runs, and returns it.
    pub fn tell_processor(&self) -> u32 {
        let here = rustix::thread::sched_getcpu() as u32;
        let told = &self.mapped.page().sleeper.processor;
        if told.load(Ordering::Relaxed) != here + 1 {
            told.store(here + 1, Ordering::Relaxed);
        }
        here
    }

    /// Makes the event descriptor unreadable again. One system call.
    pub fn drain(&self) {
        if !self.mapped.event.is_eventfd() {
            self.mapped.event.clear().ok();
            return;
        }
        let mut count = [0; 8];
        // Nothing to read (EAGAIN) is what this is for. That this call does not wait is said here, for peers can clear the descriptor's own
        // flag; the offset is that of a file without one.
        let read = rustix::io::preadv2(
            &self.mapped.event,
            &mut [IoSliceMut::new(&mut count)],
            u64::MAX,
            ReadWriteFlags::NOWAIT,
        );
        if !matches!(read, Ok(_) | Err(Errno::AGAIN)) {
            // Sandboxes know no such call.
            rustix::io::read(&self.mapped.event, &mut count).ok();
        }
    }

    /// Whether a cold ring was rung. One load.
    #[must_use]
    #[inline]
    pub fn is_rung(&self) -> bool {
        self.mapped.page().summary.0.load(Ordering::Relaxed) != 0
    }

    /// Calls `rung` with the number of each ring that was rung since the last call; returns how many there were.
    /// Numbers are what peers wrote: check them.
    pub fn take_rung(&self, rung: impl FnMut(u32)) -> usize {
        self.mapped.page().take_rung(rung)
    }

    /// Rings as a peer would: the ring `bit` is to be looked at, and the endpoint woken. For other threads of this
    /// process.
    pub fn ring(&self, bit: u32) {
        if !self.mapped.mapping.is_here() {
            return;
        }
        self.mapped.page().ring(bit);
        self.wake_own();
    }

    /// Wakes the endpoint if it sleeps, whatever peers did with the page. For other threads of this process.
    pub fn wake(&self) {
        fence(Ordering::SeqCst);
        self.wake_own();
    }

    /// Takes a sleeper's mark from the page and rings nothing, as a peer does that dies then.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn steal(&self) -> bool {
        self.mapped.page().must_wake().is_some()
    }

    fn wake_own(&self) {
        if !self.mapped.mapping.is_here() {
            return;
        }
        if let Some(rouse) = self.asleep.must_wake() {
            self.mapped.page().disarm(); // Who is about to sleep on the word does not.
            self.mapped.rouse(rouse);
        }
    }

    /// Fences for senders that do not ([`prepare_sleep`](super::ShmLink::prepare_sleep) says whether any is there).
    /// False if the system refuses: then do not sleep.
    #[must_use]
    pub fn barrier() -> bool {
        barrier::everywhere()
    }
}

/// A peer's doorbell, and which of its bits is ours.
#[derive(Debug)]
pub(super) struct PeerBell {
    mapped: Mapped,
    bit: u32,
}

impl PeerBell {
    /// The bell whose page is mapped so. The bit is less than [`BELL_BITS`].
    pub(super) fn of(mapping: Mapping, event: OwnedFd, bit: u32) -> Self {
        debug_assert!(bit < BELL_BITS, "the bell has no such bit");
        Self { mapped: Mapped { mapping, event: EventDescriptor::of_peer(event) }, bit }
    }

    /// Maps the page of a bell.
    pub(super) fn map(memory: BorrowedFd<'_>) -> io::Result<Mapping> {
        Mapping::of(memory, BELL_BYTES)
    }

    /// Where the peer ran when it told last.
    pub(super) fn processor(&self) -> Option<u32> {
        self.mapped.page().sleeper.processor.load(Ordering::Relaxed).checked_sub(1)
    }

    #[inline]
    pub(super) fn is_asleep(&self) -> bool {
        self.mapped.page().is_asleep()
    }

    /// Rings (if the peer does not watch our ring) and wakes (if it sleeps).
    #[cold]
    pub(super) fn notify(&self, cold: bool) {
        if cold {
            self.mapped.page().ring(self.bit);
        }
        self.mapped.wake();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn every_bit_that_is_rung_is_taken_once() {
        let bell = Bell::new().unwrap();
        let peer = |bit| {
            let event = rustix::io::dup(bell.event_fd()).unwrap();
            PeerBell::of(PeerBell::map(bell.descriptors().unwrap()[0]).unwrap(), event, bit)
        };
        for bit in [0, 63, 64, 1023, BELL_BITS - 1] {
            peer(bit).notify(true);
        }
        peer(7).notify(false);
        let mut rung = Vec::new();
        assert!(bell.is_rung());
        assert_eq!(bell.take_rung(|bit| rung.push(bit)), 5);
        assert_eq!(rung, [0, 63, 64, 1023, BELL_BITS - 1]);
        assert!(!bell.is_rung());
        assert_eq!(bell.take_rung(|_| ()), 0);
    }

    #[test]
    fn only_a_sleeper_is_woken_and_only_once() {
        let bell = Bell::new().unwrap();
        let count = || {
            let mut count = [0; 8];
            rustix::io::read(bell.event_fd(), &mut count).map(|_| u64::from_ne_bytes(count))
        };
        bell.wake();
        assert_eq!(count(), Err(Errno::AGAIN));
        bell.arm(Rouse::Event);
        bell.wake();
        bell.ring(3);
        assert_eq!(count(), Ok(1));
        assert_eq!(count(), Err(Errno::AGAIN));
        bell.arm(Rouse::Event);
        bell.disarm();
        bell.wake();
        assert_eq!(count(), Err(Errno::AGAIN));
        bell.arm(Rouse::Word);
        bell.wake();
        assert_eq!(count(), Err(Errno::AGAIN), "nobody waits for the event");
        bell.arm(Rouse::Both);
        bell.wake();
        assert_eq!(count(), Ok(1));
    }

    /// A peer that clears the page, and rings nothing, takes no wake-up of the endpoint's own threads along.
    #[test]
    fn own_threads_wake_the_endpoint_whatever_the_page_says() {
        let bell = Bell::new().unwrap();
        let count = || {
            let mut count = [0; 8];
            rustix::io::read(bell.event_fd(), &mut count).map(|_| u64::from_ne_bytes(count))
        };
        for rings in [|bell: &Bell| bell.wake(), |bell: &Bell| bell.ring(3)] {
            for scribbled in [0, Rouse::Word.bits()] {
                bell.arm(Rouse::Event);
                bell.mapped.page().sleeper.asleep.store(scribbled, Ordering::SeqCst);
                rings(&bell);
                assert_eq!(count(), Ok(1));
                assert!(!bell.mapped.page().is_asleep(), "peers need not ring");
            }
            rings(&bell);
            assert_eq!(count(), Err(Errno::AGAIN), "it is awake");
        }
    }

    /// A peer shares the descriptor's flags: who clears the one against blocking makes nobody wait who wakes, or who drains.
    #[test]
    fn nobody_waits_for_an_event_whose_flags_a_peer_has_changed() {
        let (says, done) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let bell = Bell::new().unwrap();
            rustix::fs::fcntl_setfl(bell.event_fd(), rustix::fs::OFlags::empty()).unwrap();
            bell.drain();
            bell.arm(Rouse::Event);
            bell.wake();
            bell.drain();
            // And the counter is full.
            rustix::io::write(bell.event_fd(), &(u64::MAX - 1).to_ne_bytes()).unwrap();
            bell.arm(Rouse::Event);
            bell.wake();
            let mut count = [0; 8];
            rustix::io::read(bell.event_fd(), &mut count).unwrap();
            says.send(u64::from_ne_bytes(count)).unwrap();
        });
        assert_eq!(done.recv_timeout(LONG), Ok(u64::MAX - 1));
    }

    /// Longer than anything here takes.
    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn who_sleeps_on_the_word_is_woken() {
        let bell = Bell::new().unwrap();
        let event = rustix::io::dup(bell.event_fd()).unwrap();
        let peer = PeerBell::of(PeerBell::map(bell.descriptors().unwrap()[0]).unwrap(), event, 1);
        let since = std::time::Instant::now();
        for rouse in [Rouse::Word, Rouse::Both] {
            bell.arm(rouse);
            std::thread::scope(|threads| {
                let sleeps = || {
                    while bell.mapped.page().is_asleep() {
                        bell.sleep(rouse, LONG);
                    }
                    std::time::Instant::now()
                };
                let sleepers = [(), ()].map(|()| threads.spawn(sleeps));
                std::thread::sleep(Duration::from_millis(20));
                let wakes = std::time::Instant::now();
                peer.notify(true);
                for sleeper in sleepers {
                    assert!(sleeper.join().unwrap() >= wakes, "it did not sleep");
                }
            });
            // What happened before is no reason to sleep.
            bell.arm(rouse);
            peer.notify(true);
            bell.sleep(rouse, LONG);
            bell.arm(rouse);
            let sleeps = std::time::Instant::now();
            while sleeps.elapsed() < Duration::from_millis(1) {
                bell.sleep(rouse, Duration::from_millis(1));
                assert!(peer.is_asleep(), "nobody woke it");
            }
            bell.disarm();
        }
        assert!(since.elapsed() < LONG);
    }

    #[test]
    fn whatever_the_page_says_somebody_is_woken() {
        assert_eq!(Rouse::of(0), None);
        for rouse in [Rouse::Event, Rouse::Word, Rouse::Both] {
            assert_eq!(Rouse::of(rouse.bits()), Some(rouse));
        }
        assert_eq!(Rouse::of(4), Some(Rouse::Event));
        assert_eq!(Rouse::of(u32::MAX), Some(Rouse::Both));
    }
}

#[cfg(all(test, loom))]
#[path = "bell_model.rs"]
mod model;
