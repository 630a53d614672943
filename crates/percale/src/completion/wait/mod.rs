//! How a thread sleeps until a queue or counter has something.
//!
//! A [`Wait`] belongs to one queue or counter. It knows the endpoints that feed it (as [`Progress`]), so that a waiting thread also
//! drives them. Threads sleep here in two ways:
//! * In [`Wait::until`], each on an eventfd of its own and on the endpoints' descriptors. A notification wakes all of them, and
//!   each checks its own condition: they may wait for different things. A thread that waits for a counter's threshold is only
//!   notified from that value on (`until_value`, `notify_value`); with several such threads, the lowest threshold counts.
//! * On [`Wait::descriptor`], in a poll or epoll set of the application's own. Only one thread at a time may do that.
//!
//! All descriptors are created on first use; a queue that is only ever polled has none.
//!
//! The rule for sleeping, both ways: **arm, look again, then sleep.** A thread that adds something publishes it first and then
//! checks whether a sleeper is armed ([`Wait::notify`]). Both sides put a sequentially consistent order (or the lock of the queue)
//! between their two steps, so at least one of them sees the other: no wake-up is lost, and while no thread sleeps, a notification
//! costs one load. A sleeper is on the list before it arms, so a thread that finds the mark and takes it down finds the sleeper as
//! well. Only arming drains the descriptor, and the thread that armed looks again afterwards.
//!
//! Each poll set and wait set has a [`Wait`] of its own, which follows those of its members (`followers`).
//!
//! Locks: `drivers`, `sleepers` and `followers` are never held together, nor while a driver or a caller's function runs.

mod face;
mod followers;
mod mark;
#[cfg(test)]
mod tests;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use rustix::event::epoll::{CreateFlags, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, epoll};
use rustix::io::Errno;

pub(in crate::completion) use self::face::face;
pub(in crate::completion) use self::followers::Follower;
use self::followers::Followers;
use self::mark::Mark;
use crate::system::call::{call, named};
use crate::system::event::EventDescriptor;
use crate::system::forked::Process;

/// How long a waiting thread makes progress before it sleeps. A wake-up costs about as much.
const SPIN: Duration = Duration::from_micros(50);
/// How long a thread sleeps at most before it looks again: an endpoint's peers can take its wake-ups away.
const SLEEP: Duration = Duration::from_millis(100);
/// Rounds of progress before a waiting thread yields its processor between rounds.
const EAGER_ROUNDS: u32 = 32;

/// Something that has to be driven for completions to come: an endpoint that several threads share.
pub trait Progress: Send + Sync {
    /// Does what can be done now, without blocking.
    fn progress(&self);

    /// Prepares for a thread that is about to sleep: makes sure that [`descriptor`](Self::descriptor) becomes readable when there
    /// is something to do. Returns false if there is something already.
    ///
    /// That holds until the descriptor has become readable, even if another thread makes progress meanwhile: an endpoint that
    /// progress disarms makes its descriptor readable then, so that the thread that armed it arms it again.
    fn arm(&self) -> bool {
        true
    }

    /// Makes sure that progress is made from now on without calls by the application.
    ///
    /// # Errors
    /// If the system cannot start a thread.
    fn automate(&self) -> io::Result<()> {
        Ok(())
    }

    /// The descriptor that, once armed, becomes readable when there is something to do. It stays readable until progress was made
    /// or a thread arms again. An endpoint's descriptor also becomes readable after 100 ms without a reason, so that a thread that
    /// sleeps on it looks again.
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// Why a wait ended without finding what it waited for.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WaitError {
    /// The timeout expired.
    #[error("nothing came before the time was up")]
    TimedOut,
    /// An endpoint of one owner reports here, and only its owner can drive it: the wait could last forever.
    #[error(
        "an endpoint that reports here has one owner, so this wait cannot drive it; open it with bind_shared, or wait with the endpoint"
    )]
    NotDriven,
    /// The system could not let the thread sleep, mostly because no descriptors are left.
    #[error("the system refused a descriptor to sleep on: {0}; or poll instead")]
    System(io::Error),
}

impl From<io::Error> for WaitError {
    fn from(error: io::Error) -> Self {
        Self::System(error)
    }
}

impl WaitError {
    /// The code that libfabric has for this error (positive).
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            Self::TimedOut => libc::ETIMEDOUT,
            Self::NotDriven => libc::EDEADLK,
            Self::System(error) => crate::system::call::errno(error).unwrap_or(libc::EIO),
        }
    }
}

/// The application's own poll set watches this: an epoll set that holds an eventfd and the set of the drivers.
#[derive(Debug)]
struct Outside {
    epoll: OwnedFd,
    event: EventDescriptor,
}

/// Where threads sleep until a queue or counter has something.
#[repr(C)]
pub struct Wait {
    /// Set while a thread sleeps, or is about to, and wants to be notified.
    armed: Mark,
    /// Whether `drivers` is not empty.
    driven: AtomicBool,
    /// Whether the drivers make progress by themselves.
    automatic: AtomicBool,
    /// An eventfd for each thread that is in the sleeping part of `until`.
    sleepers: Mutex<Vec<Arc<EventDescriptor>>>,
    /// The endpoints that make progress. The list is replaced, never changed, so that no endpoint is driven under the lock.
    drivers: Mutex<Arc<[Weak<dyn Progress>]>>,
    /// The epoll set of the drivers' descriptors. Made and changed under the lock of `drivers`.
    set: OnceLock<OwnedFd>,
    outside: OnceLock<Outside>,
    /// Poll sets and wait sets of which the owner of this `Wait` is a member.
    followers: Followers,
    /// Endpoints that report here and that no wait can drive.
    undriven: AtomicUsize,
    /// The process that created this: in a forked child the locks may be held by threads that do not exist there.
    process: Option<Process>,
}

impl std::fmt::Debug for Wait {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Wait").field("armed", &self.armed).field("set", &self.set).finish_non_exhaustive()
    }
}

impl Default for Wait {
    fn default() -> Self {
        Self::new()
    }
}

impl Wait {
    /// A `Wait` without drivers.
    #[must_use]
    pub fn new() -> Self {
        Self {
            armed: Mark::default(),
            driven: AtomicBool::new(false),
            automatic: AtomicBool::new(false),
            sleepers: Mutex::new(Vec::new()),
            drivers: Mutex::new(Arc::new([])),
            set: OnceLock::new(),
            outside: OnceLock::new(),
            followers: Followers::default(),
            undriven: AtomicUsize::new(0),
            process: Process::current().ok(),
        }
    }

    /// Whether this is the process that created it, and not a fork of it.
    #[inline]
    pub(in crate::completion) fn is_here(&self) -> bool {
        self.process.is_none_or(Process::is_here)
    }

    /// # Errors
    /// In a forked child.
    fn check_process(&self) -> io::Result<()> {
        if self.is_here() { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::ECHILD)) }
    }

    /// Makes waiting threads and readers drive `driver` from now on, for as long as it lives: once a look, however often it is
    /// attached.
    ///
    /// # Errors
    /// If a thread has slept here, or in a follower, and the system refuses to watch the driver's descriptor as well; if the drivers make
    /// progress by themselves and the system cannot start a thread; in a forked child.
    pub fn attach(&self, driver: &Arc<dyn Progress>) -> io::Result<()> {
        self.check_process()?;
        let descriptor = driver.descriptor();
        let mut drivers = lock(&self.drivers);
        let new = Arc::downgrade(driver);
        if drivers.iter().any(|known| known.ptr_eq(&new)) {
            return Ok(());
        }
        if let Some(set) = self.set.get() {
            watch(set, descriptor)?;
        }
        let living = drivers.iter().filter(|driver| driver.strong_count() > 0).cloned();
        *drivers = living.chain([new]).collect();
        self.driven.store(true, Ordering::Release);
        drop(drivers);
        if self.automatic.load(Ordering::SeqCst) {
            driver.automate()?;
        }
        // A thread that sleeps already has not armed this driver.
        self.notify();
        self.followers.all().iter().try_for_each(|follower| follower.attached(driver))
    }

    /// Forgets `driver`.
    pub fn detach(&self, driver: &Arc<dyn Progress>) {
        if !self.is_here() {
            return;
        }
        let descriptor = driver.descriptor();
        let mut drivers = lock(&self.drivers);
        if let (Some(set), Some(descriptor)) = (self.set.get(), descriptor) {
            epoll::delete(set, descriptor).ok(); // It may not have been watched.
        }
        let gone = Arc::downgrade(driver);
        *drivers = drivers.iter().filter(|other| other.strong_count() > 0 && !other.ptr_eq(&gone)).cloned().collect();
        self.driven.store(!drivers.is_empty(), Ordering::Release);
        drop(drivers);
        self.followers.all().iter().for_each(|follower| follower.detached(driver));
    }

    /// Counts an endpoint that reports here and that only its owner can drive. From then on waits that find nothing are refused.
    pub(in crate::completion) fn add_undriven(&self) {
        self.undriven.fetch_add(1, Ordering::SeqCst);
    }

    /// Counts down when one of these endpoints is gone, or can be driven now.
    pub(in crate::completion) fn remove_undriven(&self) {
        self.undriven.fetch_sub(1, Ordering::SeqCst);
    }

    /// Whether a wait could last forever because an endpoint makes no progress.
    pub(in crate::completion) fn is_undriven(&self) -> bool {
        self.undriven.load(Ordering::SeqCst) > 0
    }

    fn drivers(&self) -> Arc<[Weak<dyn Progress>]> {
        Arc::clone(&lock(&self.drivers))
    }

    /// Makes progress on everything that feeds the queue.
    #[inline]
    pub fn drive(&self) {
        if self.driven.load(Ordering::Acquire) && self.is_here() {
            for driver in self.drivers().iter().filter_map(Weak::upgrade) {
                driver.progress();
            }
        }
    }

    /// Makes everything that feeds the queue progress by itself.
    pub(in crate::completion) fn automate(&self) -> io::Result<()> {
        if !self.is_here() || self.automatic.load(Ordering::Relaxed) || self.automatic.swap(true, Ordering::SeqCst) {
            return Ok(()); // A driver that is attached later is automated in `attach`.
        }
        self.drivers().iter().filter_map(Weak::upgrade).try_for_each(|driver| driver.automate())
    }

    /// Wakes the sleepers. Called after what they wait for was published, with sequentially consistent order or under the lock that
    /// they look under.
    #[inline]
    pub fn notify(&self) {
        if self.armed.is_set() {
            self.wake();
        }
    }

    /// Like [`notify`](Self::notify), but for a value that rose: wakes no thread if all wait for a greater value. `value` is called
    /// after the look at the mark.
    #[inline]
    pub(in crate::completion) fn notify_value(&self, value: impl FnOnce() -> u64) {
        if self.armed.is_due(value) {
            self.wake();
        }
    }

    #[cold]
    fn wake(&self) {
        if !self.is_here() || !self.armed.take() {
            return;
        }
        for sleeper in lock(&self.sleepers).iter() {
            ring(sleeper);
        }
        if let Some(outside) = self.outside.get() {
            ring(&outside.event);
        }
        self.followers.all().iter().for_each(|follower| follower.woken());
    }

    /// The epoll set of the drivers' descriptors.
    fn set(&self) -> io::Result<&OwnedFd> {
        if let Some(set) = self.set.get() {
            return Ok(set);
        }
        loop {
            // The drivers' descriptors are requested without the lock.
            let known = self.drivers();
            let set = epoll::create(CreateFlags::CLOEXEC)?;
            for driver in known.iter().filter_map(Weak::upgrade) {
                watch(&set, driver.descriptor())?;
            }
            // Under the lock, so that no driver is attached between the look at them and the set's existence.
            let drivers = lock(&self.drivers);
            if Arc::ptr_eq(&drivers, &known) {
                return Ok(self.set.get_or_init(|| set));
            }
            // The drivers have changed. If another thread created the set first, that set holds them.
            if let Some(set) = self.set.get() {
                return Ok(set);
            }
        }
    }

    fn outside(&self) -> io::Result<&Outside> {
        self.check_process()?;
        if let Some(outside) = self.outside.get() {
            return Ok(outside);
        }
        let outside = Outside { epoll: new_set()?, event: EventDescriptor::new()? };
        epoll::add(&outside.epoll, &outside.event, EventData::new_u64(0), EventFlags::IN)?;
        epoll::add(&outside.epoll, self.set()?, EventData::new_u64(0), EventFlags::IN)?;
        // If another thread was faster, its descriptors are used.
        Ok(self.outside.get_or_init(|| outside))
    }

    /// A descriptor for the application's own poll or epoll set. It is readable when there may be something; before each sleep on
    /// it, [`arm`](Self::arm) and look again. Only one thread at a time may use it like this.
    ///
    /// # Errors
    /// If the system refuses a descriptor; in a forked child.
    pub fn descriptor(&self) -> io::Result<BorrowedFd<'_>> {
        Ok(self.outside()?.epoll.as_fd())
    }

    /// Arms the [`descriptor`](Self::descriptor). Returns false if a driver has something to do already: then make progress instead
    /// of sleeping. Otherwise look once more, and sleep if there is still nothing.
    ///
    /// # Errors
    /// If the system refuses a descriptor; in a forked child.
    pub fn arm(&self) -> io::Result<bool> {
        // Drain before arming: a wake-up that comes after arming must stay.
        drain(&self.outside()?.event)?;
        Ok(self.ask(0))
    }

    /// Arms for a value of at least `from` (0: for everything), and arms the drivers. Returns false if a driver has something to do
    /// already.
    fn ask(&self, from: u64) -> bool {
        self.armed.set(from);
        let mut calm = true;
        for driver in self.drivers().iter().filter_map(Weak::upgrade) {
            calm &= driver.arm();
        }
        calm
    }

    /// Makes progress, and sleeps when no progress can be made, until `look` finds something.
    ///
    /// # Errors
    /// If it finds nothing within `timeout` (`None`: forever), or the thread cannot sleep. At once, if it finds nothing and an endpoint
    /// that only its owner can drive reports here; also at once in a forked child.
    pub fn until<R>(&self, timeout: Option<Duration>, look: impl FnMut() -> Option<R>) -> Result<R, WaitError> {
        self.until_value(0, timeout, look)
    }

    /// Like [`until`](Self::until), but for a `look` that finds nothing before a value is at least `from`: a value below `from`
    /// does not wake the caller, other events do.
    ///
    /// # Errors
    /// Those of [`until`](Self::until).
    pub(in crate::completion) fn until_value<R>(
        &self,
        from: u64,
        timeout: Option<Duration>,
        mut look: impl FnMut() -> Option<R>,
    ) -> Result<R, WaitError> {
        self.check_process()?;
        let start = Instant::now();
        let deadline = timeout.and_then(|timeout| start.checked_add(timeout));
        let mut rounds = 0u32;
        let mut sleeper = None;
        loop {
            self.drive();
            if let Some(found) = look() {
                return Ok(found);
            }
            if self.is_undriven() {
                return Err(WaitError::NotDriven);
            }
            let now = Instant::now();
            if deadline.is_some_and(|deadline| now >= deadline) {
                return Err(WaitError::TimedOut);
            }
            if now.duration_since(start) < SPIN {
                rounds += 1;
                if rounds < EAGER_ROUNDS {
                    std::hint::spin_loop()
                } else {
                    std::thread::yield_now()
                }
                continue;
            }
            let sleeper = match &sleeper {
                Some(sleeper) => sleeper,
                None => sleeper.insert(Sleeper::enlist(self)?),
            };
            drain(&sleeper.event)?;
            if !self.ask(from) {
                continue;
            }
            if let Some(found) = look() {
                return Ok(found);
            }
            sleeper.sleep(deadline)?;
        }
    }
}

/// A thread on the list of those to wake, until this is dropped.
struct Sleeper<'a> {
    wait: &'a Wait,
    event: Arc<EventDescriptor>,
}

impl<'a> Sleeper<'a> {
    fn enlist(wait: &'a Wait) -> io::Result<Self> {
        let event = Arc::new(EventDescriptor::new()?);
        lock(&wait.sleepers).push(Arc::clone(&event));
        Ok(Self { wait, event })
    }

    fn sleep(&self, deadline: Option<Instant>) -> io::Result<()> {
        let rest = deadline.map_or(SLEEP, |deadline| deadline.saturating_duration_since(Instant::now()).min(SLEEP));
        let rest = Timespec::try_from(rest).ok();
        let set = self.wait.set()?;
        match rustix::event::poll(&mut [pollable(&self.event), pollable(set)], rest.as_ref()) {
            // Interrupted by a signal: the caller looks again, and checks its deadline.
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(named("poll")(error)),
        }
    }
}

impl Drop for Sleeper<'_> {
    fn drop(&mut self) {
        lock(&self.wait.sleepers).retain(|other| !Arc::ptr_eq(other, &self.event));
    }
}

/// The data under these locks is consistent between any two statements, so a panic elsewhere does not corrupt it.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn new_set() -> io::Result<OwnedFd> {
    call("epoll_create1", || epoll::create(CreateFlags::CLOEXEC))
}

fn pollable(descriptor: &impl AsFd) -> PollFd<'_> {
    PollFd::new(descriptor, PollFlags::IN)
}

fn ring(event: &EventDescriptor) {
    if let Err(error) = event.signal() {
        crate::later::later!(error: %error, "a sleeping thread could not be woken");
    }
}

fn drain(event: &EventDescriptor) -> io::Result<()> {
    event.clear().map_err(named("read"))
}

fn watch(set: &OwnedFd, descriptor: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let Some(descriptor) = descriptor else { return Ok(()) };
    match epoll::add(set, descriptor, EventData::new_u64(0), EventFlags::IN) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(error) => Err(named("epoll_ctl")(error)),
    }
}
