//! How a thread sleeps until a queue or counter has something.
//!
//! A [`Wait`] belongs to one queue or counter. It knows the endpoints that feed it (as [`Progress`]), so that whoever
//! waits also drives them, and it has a descriptor, which becomes readable when there may be something to find: an
//! epoll set that holds an eventfd of its own and the descriptors of those endpoints. It is made when first needed; a
//! queue that is only ever polled costs no descriptor.
//!
//! The rule for sleeping, which [`Wait::until`] follows, and which whoever puts the descriptor into a poll set of his
//! own follows too: **arm, look again, then sleep.** Whoever adds something publishes it first and then looks whether
//! anybody is armed ([`Wait::notify`]). Both sides put a sequentially consistent order (or the lock of the queue)
//! between their two steps, so at least one of them sees the other: nothing is slept over, and while nobody sleeps,
//! telling costs one load.
//!
//! Only arming drains the eventfd, and whoever arms looks afterwards. A thread that takes some of what it found and
//! leaves the rest while somebody is armed tells again, since it may have drained the other's wake-up.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use rustix::event::epoll::{CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, epoll, eventfd};
use rustix::io::Errno;

/// How long a waiting thread makes progress before it sleeps. A wake-up costs about as much.
const SPIN: Duration = Duration::from_micros(50);
/// Rounds of progress before a waiting thread yields its processor between rounds.
const EAGER_ROUNDS: u32 = 32;

/// Something that has to be driven for completions to come: an endpoint that several threads share.
pub trait Progress: Send + Sync {
    /// Does what can be done now, without blocking. Ends what [`arm`](Self::arm) began.
    fn progress(&self);

    /// Somebody is about to sleep: makes sure that [`descriptor`](Self::descriptor) becomes readable when there is
    /// something to do. Returns false if there is something already.
    fn arm(&self) -> bool {
        true
    }

    /// Becomes readable when there is something to do, once armed; until progress was made.
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// Why a wait ended without what it waited for.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WaitError {
    /// The time was up.
    #[error("nothing came before the time was up")]
    TimedOut,
    /// The system refused to let the thread sleep, mostly for want of descriptors.
    #[error("the system refused a descriptor to sleep on: {0}; raise the limit on open files, or poll instead")]
    System(#[from] io::Error),
}

/// The descriptors of a [`Wait`] that somebody has slept on.
#[derive(Debug)]
struct Kernel {
    epoll: OwnedFd,
    event: OwnedFd,
}

/// Where threads sleep until a queue or counter has something.
#[repr(C)]
pub struct Wait {
    /// Somebody sleeps, or is about to, and wants to be told.
    armed: AtomicBool,
    /// Whether `drivers` has any.
    driven: AtomicBool,
    kernel: OnceLock<Kernel>,
    /// Who makes progress. Replaced, never changed, so that nobody is driven under the lock.
    drivers: Mutex<Arc<[Weak<dyn Progress>]>>,
}

impl std::fmt::Debug for Wait {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Wait").field("armed", &self.armed).field("kernel", &self.kernel).finish_non_exhaustive()
    }
}

impl Default for Wait {
    fn default() -> Self {
        Self::new()
    }
}

impl Wait {
    /// A wait that nobody drives.
    #[must_use]
    pub fn new() -> Self {
        Self {
            armed: AtomicBool::new(false),
            driven: AtomicBool::new(false),
            kernel: OnceLock::new(),
            drivers: Mutex::new(Arc::new([])),
        }
    }

    /// Whoever waits here, or reads, drives `driver` from now on, for as long as it lives.
    ///
    /// # Errors
    /// If somebody has slept here and the system refuses to watch the driver's descriptor as well.
    pub fn attach(&self, driver: &Arc<dyn Progress>) -> io::Result<()> {
        let mut drivers = self.drivers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(kernel) = self.kernel.get() {
            kernel.watch(driver.as_ref())?;
        }
        let living = drivers.iter().filter(|driver| driver.strong_count() > 0).cloned();
        *drivers = living.chain([Arc::downgrade(driver)]).collect();
        self.driven.store(true, Ordering::Release);
        Ok(())
    }

    /// Forgets `driver`.
    pub fn detach(&self, driver: &Arc<dyn Progress>) {
        let mut drivers = self.drivers.lock().unwrap_or_else(PoisonError::into_inner);
        if let (Some(kernel), Some(descriptor)) = (self.kernel.get(), driver.descriptor())
            && let Err(error) = epoll::delete(&kernel.epoll, descriptor)
        {
            tracing::debug!(%error, "a descriptor was not watched");
        }
        let gone = Arc::downgrade(driver);
        *drivers = drivers.iter().filter(|other| other.strong_count() > 0 && !other.ptr_eq(&gone)).cloned().collect();
        self.driven.store(!drivers.is_empty(), Ordering::Release);
    }

    fn drivers(&self) -> Arc<[Weak<dyn Progress>]> {
        Arc::clone(&self.drivers.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Makes progress on everything that feeds the queue.
    #[inline]
    pub fn drive(&self) {
        if self.driven.load(Ordering::Acquire) {
            for driver in self.drivers().iter().filter_map(Weak::upgrade) {
                driver.progress();
            }
        }
    }

    /// Wakes who sleeps. Called after what they wait for was published, with sequentially consistent order or under
    /// the lock that they look under.
    #[inline]
    pub fn notify(&self) {
        if self.armed.load(Ordering::SeqCst) {
            self.wake();
        }
    }

    #[cold]
    fn wake(&self) {
        if self.armed.swap(false, Ordering::SeqCst) {
            self.wake_always();
        }
    }

    /// Makes the descriptor readable, armed or not.
    pub(super) fn wake_always(&self) {
        // Nobody can be armed before there are descriptors.
        let Some(kernel) = self.kernel.get() else { return };
        // EAGAIN: it counts to its end, so it is readable already.
        if let Err(error) = rustix::io::retry_on_intr(|| rustix::io::write(&kernel.event, &1u64.to_ne_bytes()))
            && error != Errno::AGAIN
        {
            tracing::error!(%error, "a sleeping thread could not be woken");
        }
    }

    fn kernel(&self) -> io::Result<&Kernel> {
        if let Some(kernel) = self.kernel.get() {
            return Ok(kernel);
        }
        // Under the lock, so that no driver is attached between the look at them and the descriptor's existence.
        let drivers = self.drivers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(kernel) = self.kernel.get() {
            return Ok(kernel);
        }
        let kernel = Kernel {
            epoll: epoll::create(CreateFlags::CLOEXEC)?,
            event: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        };
        epoll::add(&kernel.epoll, &kernel.event, EventData::new_u64(0), EventFlags::IN)?;
        for driver in drivers.iter().filter_map(Weak::upgrade) {
            kernel.watch(driver.as_ref())?;
        }
        Ok(self.kernel.get_or_init(|| kernel))
    }

    /// A descriptor for the caller's own poll or epoll set. It is readable when there may be something; before each
    /// sleep on it, [`arm`](Self::arm) and look again.
    ///
    /// # Errors
    /// If the system has no descriptor to give.
    pub fn descriptor(&self) -> io::Result<BorrowedFd<'_>> {
        Ok(self.kernel()?.epoll.as_fd())
    }

    /// Asks to be woken. Returns false if a driver has something to do already: then make progress instead of
    /// sleeping. Otherwise look once more, and sleep if there is still nothing.
    ///
    /// # Errors
    /// If the system has no descriptor to give.
    pub fn arm(&self) -> io::Result<bool> {
        let kernel = self.kernel()?;
        // Drain before asking: a wake-up that comes after the asking must stay.
        let mut count = [0; 8];
        if let Err(error) = rustix::io::retry_on_intr(|| rustix::io::read(&kernel.event, &mut count))
            && error != Errno::AGAIN
        {
            return Err(error.into());
        }
        self.armed.store(true, Ordering::SeqCst);
        // All of them are armed, whatever the first says.
        Ok(self.drivers().iter().filter_map(Weak::upgrade).fold(true, |calm, driver| driver.arm() && calm))
    }

    /// Makes progress, and sleeps when there is none to be made, until `look` finds something.
    ///
    /// # Errors
    /// If it does not within `timeout` (`None`: for ever), or the thread cannot sleep.
    pub fn until<R>(&self, timeout: Option<Duration>, mut look: impl FnMut() -> Option<R>) -> Result<R, WaitError> {
        let start = Instant::now();
        let deadline = timeout.and_then(|timeout| start.checked_add(timeout));
        for round in 0u32.. {
            self.drive();
            if let Some(found) = look() {
                return Ok(found);
            }
            let now = Instant::now();
            if deadline.is_some_and(|deadline| now >= deadline) {
                return Err(WaitError::TimedOut);
            }
            if now.duration_since(start) < SPIN {
                if round < EAGER_ROUNDS {
                    std::hint::spin_loop()
                } else {
                    std::thread::yield_now()
                }
                continue;
            }
            if !self.arm()? {
                continue;
            }
            if let Some(found) = look() {
                return Ok(found);
            }
            self.sleep(deadline)?;
        }
        // Four billion rounds without a result and without a deadline: as good as none.
        Err(WaitError::TimedOut)
    }

    fn sleep(&self, deadline: Option<Instant>) -> io::Result<()> {
        let rest = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        // Too long for the kernel's clock is as good as no limit.
        let rest = rest.and_then(|rest| Timespec::try_from(rest).ok());
        match rustix::event::poll(&mut [PollFd::new(&self.kernel()?.epoll, PollFlags::IN)], rest.as_ref()) {
            // Interrupted by a signal: the caller looks again, and at the time.
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

impl Kernel {
    fn watch(&self, driver: &dyn Progress) -> io::Result<()> {
        let Some(descriptor) = driver.descriptor() else { return Ok(()) };
        match epoll::add(&self.epoll, descriptor, EventData::new_u64(0), EventFlags::IN) {
            Ok(()) | Err(Errno::EXIST) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;

    fn readable(wait: &Wait) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let descriptor = wait.descriptor().unwrap();
        rustix::event::poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], Some(&now)).unwrap() == 1
    }

    #[test]
    fn the_descriptor_tells_only_who_armed() {
        let wait = Wait::new();
        wait.notify();
        assert!(!readable(&wait));
        assert!(wait.arm().unwrap());
        assert!(!readable(&wait));
        wait.notify();
        assert!(readable(&wait), "and stays so until somebody arms again");
        assert!(readable(&wait));
        assert!(wait.arm().unwrap());
        assert!(!readable(&wait));
    }

    /// Finds something after a number of rounds; its descriptor is a pipe's.
    struct Driver {
        rounds: AtomicU32,
        busy: AtomicBool,
        pipe: (OwnedFd, OwnedFd),
    }

    impl Driver {
        fn new() -> Arc<Self> {
            let pipe = rustix::pipe::pipe().unwrap();
            Arc::new(Self { rounds: AtomicU32::new(0), busy: AtomicBool::new(false), pipe })
        }
    }

    impl Progress for Driver {
        fn progress(&self) {
            self.rounds.fetch_add(1, Ordering::Relaxed);
        }
        fn arm(&self) -> bool {
            !self.busy.load(Ordering::Relaxed)
        }
        fn descriptor(&self) -> Option<BorrowedFd<'_>> {
            Some(self.pipe.0.as_fd())
        }
    }

    #[test]
    fn waiting_drives_what_is_attached_and_wakes_for_its_descriptor() {
        for before in [true, false] {
            let wait = Wait::new();
            let driver = Driver::new();
            let shared: Arc<dyn Progress> = driver.clone();
            if before {
                wait.attach(&shared).unwrap();
                assert!(!readable(&wait));
            } else {
                assert!(!readable(&wait));
                wait.attach(&shared).unwrap();
            }
            wait.until(None, || (driver.rounds.load(Ordering::Relaxed) > 3).then_some(())).unwrap();
            driver.busy.store(true, Ordering::Relaxed);
            assert!(!wait.arm().unwrap());
            rustix::io::write(&driver.pipe.1, b"x").unwrap();
            assert!(readable(&wait));
            wait.detach(&shared);
            assert!(!readable(&wait));
            let rounds = driver.rounds.load(Ordering::Relaxed);
            wait.drive();
            assert_eq!(driver.rounds.load(Ordering::Relaxed), rounds);
        }
    }

    #[test]
    fn a_wait_ends_when_its_time_is_up() {
        let wait = Wait::new();
        for timeout in [Duration::ZERO, Duration::from_millis(2)] {
            let ended = wait.until(Some(timeout), || None::<()>);
            assert!(matches!(ended, Err(WaitError::TimedOut)));
        }
    }

    #[test]
    fn nothing_is_slept_over() {
        // Each thread waits for the other's turn. A lost wake-up would make this hang.
        let turn = AtomicU32::new(0);
        let waits = [Wait::new(), Wait::new()];
        std::thread::scope(|scope| {
            for me in 0..2u32 {
                let (turn, waits) = (&turn, &waits);
                scope.spawn(move || {
                    for round in (me..2000).step_by(2) {
                        if round % 100 < 2 {
                            std::thread::sleep(SPIN * 3);
                        }
                        let mine = &waits[me as usize];
                        mine.until(None, || (turn.load(Ordering::SeqCst) == round).then_some(())).unwrap();
                        turn.store(round + 1, Ordering::SeqCst);
                        waits[1 - me as usize].notify();
                    }
                });
            }
        });
        assert_eq!(turn.into_inner(), 2000);
    }
}
