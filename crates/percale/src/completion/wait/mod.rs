//! Lets threads sleep until a queue or counter is ready.
//!
//! A [`Wait`] belongs to one queue or counter. It has a list of the endpoints that feed it (as [`Driven`]), so that a
//! waiting thread also drives them. Threads sleep here in two ways:
//! * In [`Wait::until`], each on its own eventfd and on the endpoints' descriptors. A notification wakes all of them,
//!   and each checks its own condition, because they may wait for different things. A thread that waits for a counter's
//!   threshold is notified only from that value on (`until_value`, `notify_value`). If there are several such threads,
//!   the lowest threshold is used.
//! * On [`Wait::descriptor`], in the application's own poll or epoll set. Only one thread at a time may do that.
//!
//! All descriptors are created when they are first used. A queue that is only polled has none.
//!
//! The rule for both ways is: **arm, check again, then sleep.** A thread that adds an item publishes it first, and then
//! checks whether a sleeping thread is armed ([`Wait::notify`]). Both sides have a sequentially consistent order (or
//! the lock of the queue) between their two steps, so at least one of them sees the other. No wake-up is lost, and
//! while no thread sleeps, a notification costs one load. A sleeping thread is in the list before it arms, so a thread
//! that finds the mark and clears it also finds the sleeping thread. Only arming drains the descriptor, and the thread
//! that armed it checks again afterwards.
//!
//! Each poll set and wait set has its own [`Wait`], which follows those of its members (`followers`).
//!
//! Locks: no two of `drivers`, `sleepers` and `followers` are held at the same time, and none is held while a driver or
//! a function of the caller runs.

mod followers;
mod mark;
#[cfg(test)]
pub(crate) mod tests;
mod wait_api;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use rustix::event::epoll::{CreateFlags, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, epoll};
use rustix::io::Errno;

pub(in crate::completion) use self::followers::Follower;
use self::followers::Followers;
use self::mark::SleepMark;
pub(in crate::completion) use self::wait_api::wait_api;
use crate::system::call::{call, named};
use crate::system::event::EventDescriptor;
use crate::system::forked::Process;

/// The time for which a waiting thread makes progress before it sleeps. A wake-up costs about as much.
const SPIN: Duration = Duration::from_micros(50);
/// The maximum time that a thread sleeps before it checks again, because peers of an endpoint can suppress its
/// wake-ups.
const SLEEP: Duration = Duration::from_millis(100);
/// The number of rounds of progress before a waiting thread yields its processor between rounds.
const EAGER_ROUNDS: u32 = 32;

/// An object that has to be driven to produce completions: an endpoint that several threads share.
#[doc(hidden)] // For the crates of percale.
pub trait Driven: Send + Sync {
    /// Makes the progress that is possible now, without blocking.
    fn progress(&self);

    /// Prepares for a thread that is about to sleep: ensures that [`descriptor`](Self::descriptor) becomes readable
    /// when there is something to do. Returns false if there is something to do already.
    ///
    /// This remains in effect until the descriptor has become readable, even if another thread makes progress in the
    /// meantime. If that progress disarms the endpoint, it makes the descriptor readable, so that the thread that armed
    /// the endpoint arms it again.
    fn arm(&self) -> bool {
        true
    }

    /// Ensures that progress is made from now on without calls by the application.
    ///
    /// # Errors
    /// If the system cannot start a thread.
    fn automate(&self) -> io::Result<()> {
        Ok(())
    }

    /// Returns the descriptor that, once armed, becomes readable when there is something to do. It stays readable until
    /// progress is made or a thread arms again. An endpoint's descriptor also becomes readable after 100 ms even if
    /// there is nothing to do, so that a thread that sleeps on it checks again.
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// The reason why a wait ended without success.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WaitError {
    /// The timeout expired.
    #[error("timeout: no event arrived")]
    TimedOut,
    /// An endpoint of one owner ([`Endpoint`](crate::Endpoint), not [`SharedEndpoint`](crate::SharedEndpoint)) reports
    /// here, and only its owner can drive it, so the wait might never end. This does not depend on the timeout, or on
    /// whether another thread uses the endpoint at the moment.
    #[error(
        "an endpoint that reports to this object has one owner, so this wait cannot make progress on it; open the \
         endpoint with bind_shared, or make calls on the endpoint and then read the object"
    )]
    NotDriven,
    /// The system could not let the thread sleep, usually because no descriptors are left.
    #[error("cannot create a descriptor to wait on: {0}; poll instead")]
    System(io::Error),
}

impl From<io::Error> for WaitError {
    fn from(error: io::Error) -> Self {
        Self::System(error)
    }
}

impl WaitError {
    /// Returns whether the same call may succeed later although neither it nor the program is changed, which is the
    /// case for [`TimedOut`](Self::TimedOut).
    #[must_use]
    pub const fn is_retriable(&self) -> bool {
        matches!(self, Self::TimedOut)
    }

    /// Returns the libfabric code for this error (positive).
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            Self::TimedOut => libc::ETIMEDOUT,
            Self::NotDriven => libc::EDEADLK,
            Self::System(error) => crate::system::call::errno(error).unwrap_or(libc::EIO),
        }
    }
}

/// The descriptors for the application's own poll set: an epoll set that contains an eventfd and the set of the
/// drivers.
#[derive(Debug)]
struct WaitDescriptors {
    epoll: OwnedFd,
    event: EventDescriptor,
}

/// The state in which threads sleep until a queue or counter is ready.
#[doc(hidden)] // For the crates of percale.
#[repr(C)]
pub struct Wait {
    /// Set while a thread sleeps, or is about to sleep, and needs to be notified.
    armed: SleepMark,
    /// Whether `drivers` is not empty.
    driven: AtomicBool,
    /// Whether the drivers make progress without calls by the application.
    automatic: AtomicBool,
    /// An eventfd for each thread that is in the sleeping part of `until`.
    sleepers: Mutex<Vec<Arc<EventDescriptor>>>,
    /// The endpoints that make progress. The list is replaced and never changed in place, so that no endpoint is driven
    /// under the lock.
    drivers: Mutex<Arc<[Weak<dyn Driven>]>>,
    /// The epoll set of the drivers' descriptors. It is created and changed under the lock of `drivers`.
    set: OnceLock<OwnedFd>,
    outside: OnceLock<WaitDescriptors>,
    /// The poll sets and wait sets that contain the owner of this `Wait`.
    followers: Followers,
    /// The number of endpoints that report here and that no wait can drive.
    undriven: AtomicUsize,
    /// The process that created this `Wait`. In a forked child the locks may be held by threads that do not exist
    /// there.
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
    /// Creates a `Wait` without drivers.
    #[must_use]
    pub fn new() -> Self {
        Self {
            armed: SleepMark::default(),
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

    /// Returns whether this is the process that created the `Wait`, and not a fork of it.
    #[inline]
    pub(in crate::completion) fn is_here(&self) -> bool {
        self.process.is_none_or(Process::is_here)
    }

    /// # Errors
    /// In a forked child.
    fn check_process(&self) -> io::Result<()> {
        if self.is_here() { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::ECHILD)) }
    }

    /// Makes waiting threads and readers drive `driver` from now on, as long as it exists. They drive it once per
    /// check, even if it is attached several times.
    ///
    /// # Errors
    /// If the system cannot watch the driver's descriptor (it is watched after a thread has slept here or in a
    /// follower, or has requested a descriptor), if the drivers make progress without calls and the system cannot start
    /// a thread, or in a forked child.
    pub fn attach(&self, driver: &Arc<dyn Driven>) -> io::Result<()> {
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
        // A thread that is already asleep has not armed this driver.
        self.notify();
        self.followers.all().iter().try_for_each(|follower| follower.attached(driver))
    }

    /// Removes `driver`.
    pub fn detach(&self, driver: &Arc<dyn Driven>) {
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

    /// Counts an endpoint that reports here and that only its owner can drive. From then on waits that find nothing
    /// fail.
    pub(in crate::completion) fn add_undriven(&self) {
        self.undriven.fetch_add(1, Ordering::SeqCst);
    }

    /// Removes one of these endpoints from the count, because it was dropped or can be driven now.
    pub(in crate::completion) fn remove_undriven(&self) {
        self.undriven.fetch_sub(1, Ordering::SeqCst);
    }

    /// Returns whether a wait might never end because no thread makes progress on an endpoint.
    pub(in crate::completion) fn is_undriven(&self) -> bool {
        self.undriven.load(Ordering::SeqCst) > 0
    }

    fn drivers(&self) -> Arc<[Weak<dyn Driven>]> {
        Arc::clone(&lock(&self.drivers))
    }

    /// Makes progress on all endpoints that feed the queue.
    #[inline]
    pub fn drive(&self) {
        if self.driven.load(Ordering::Acquire) && self.is_here() {
            for driver in self.drivers().iter().filter_map(Weak::upgrade) {
                driver.progress();
            }
        }
    }

    /// Makes all endpoints that feed the queue advance without calls by the application.
    pub(in crate::completion) fn automate(&self) -> io::Result<()> {
        if !self.is_here() || self.automatic.load(Ordering::Relaxed) || self.automatic.swap(true, Ordering::SeqCst) {
            return Ok(()); // A driver that is attached later is automated in `attach`.
        }
        self.drivers().iter().filter_map(Weak::upgrade).try_for_each(|driver| driver.automate())
    }

    /// Wakes the sleeping threads. It is called after the awaited change was published, with sequentially consistent
    /// order or under the lock under which they check for it.
    #[inline]
    pub fn notify(&self) {
        if self.armed.is_set() {
            self.wake();
        }
    }

    /// Like [`notify`](Self::notify), but for a value that increased: wakes no thread if all wait for a greater value.
    /// `value` is called after the mark was read.
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

    /// Returns the epoll set of the drivers' descriptors.
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
            // The lock is held, so that no driver is attached between reading the drivers and creating the set.
            let drivers = lock(&self.drivers);
            if Arc::ptr_eq(&drivers, &known) {
                return Ok(self.set.get_or_init(|| set));
            }
            // The drivers have changed. If another thread created the set first, that set contains them.
            if let Some(set) = self.set.get() {
                return Ok(set);
            }
        }
    }

    fn outside(&self) -> io::Result<&WaitDescriptors> {
        self.check_process()?;
        if let Some(outside) = self.outside.get() {
            return Ok(outside);
        }
        let outside = WaitDescriptors { epoll: new_set()?, event: EventDescriptor::new()? };
        epoll::add(&outside.epoll, &outside.event, EventData::new_u64(0), EventFlags::IN)?;
        epoll::add(&outside.epoll, self.set()?, EventData::new_u64(0), EventFlags::IN)?;
        // If another thread has created the descriptors first, those are used.
        Ok(self.outside.get_or_init(|| outside))
    }

    /// Returns a descriptor for the application's own poll or epoll set. It is readable when there may be something to
    /// read. Before each sleep on it, call [`arm`](Self::arm) and check again. Only one thread at a time may use it in
    /// this way.
    ///
    /// # Errors
    /// If no descriptor can be created, or in a forked child.
    pub fn descriptor(&self) -> io::Result<BorrowedFd<'_>> {
        Ok(self.outside()?.epoll.as_fd())
    }

    /// Arms the [`descriptor`](Self::descriptor). Returns false if a driver has something to do already; the caller
    /// should then make progress instead of sleeping. Otherwise the caller should check once more, and sleep if there
    /// is still nothing to read.
    ///
    /// # Errors
    /// If no descriptor can be created, or in a forked child.
    pub fn arm(&self) -> io::Result<bool> {
        // Drain before arming: a wake-up that arrives after arming must be kept.
        drain(&self.outside()?.event)?;
        Ok(self.ask(0))
    }

    /// Arms for a value of at least `from` (0: for every change), and arms the drivers. Returns false if a driver has
    /// something to do already.
    fn ask(&self, from: u64) -> bool {
        self.armed.set(from);
        let mut calm = true;
        for driver in self.drivers().iter().filter_map(Weak::upgrade) {
            calm &= driver.arm();
        }
        calm
    }

    /// Makes progress until `look` returns a value, and sleeps when no progress can be made.
    ///
    /// # Errors
    /// If `look` returns no value within `timeout` (`None`: no limit), or the thread cannot sleep. It fails immediately
    /// if `look` returns no value and an endpoint that only its owner can drive reports here, and in a forked child.
    pub fn until<R>(&self, timeout: Option<Duration>, look: impl FnMut() -> Option<R>) -> Result<R, WaitError> {
        self.until_value(0, timeout, look)
    }

    /// Like [`until`](Self::until), but for a `look` that returns no value before a counter's value is at least `from`.
    /// A lower value does not wake the caller, but other events do.
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

/// Keeps a thread in the list of threads to wake until this object is dropped.
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
            // After an interruption by a signal, the caller checks again, and checks its deadline.
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

/// Takes a lock. The data under these locks is consistent after every statement, so a panic elsewhere does not corrupt
/// it.
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
