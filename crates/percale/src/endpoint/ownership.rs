//! Ownership of an endpoint's engine: either one owner, or many threads that access it through a lock.
//!
//! A shared engine is accessed in two ways. The application's handles ([`Shared`]) own it: when the last one is
//! dropped, or one is closed, the engine is closed under its lock. Threads of the library (progress threads, readers of
//! its queues, threads that count) use a [`Helper`], which keeps only the memory alive. After the engine was closed,
//! calls through an existing helper do nothing, and no further helper is created ([`WeakShared::upgrade`]), except to
//! end operations that become due later ([`WeakShared::upgrade_closed`]). So when closing returns, no thread of the
//! library is in the engine, and later one enters it only for that purpose.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::time::Instant;

use self::reach::{EngineAccess, EngineCall};
use super::engine::sleep::SLEEP;
use super::engine::{Engine, deferred_cleanup};
use super::one_thread::OneThread;
use super::submissions::{Submissions, Transfer};
use crate::completion::counter::Counter;
use crate::completion::source::{Source, Undriven};
use crate::completion::wait::Driven;
use crate::later;
use crate::system::forked::Process;
use crate::system::spin::{SpinBudget, SpinStep};

/// The ownership of an engine: [`Owned`] or [`Shared`]. Sealed: no other crate can implement it.
pub trait Ownership: reach::EngineAccess + Sized + 'static {
    /// How operations in progress refer to the endpoint: `&Owned`, or [`Shared`], which borrows nothing.
    type Handle<'e>: EndpointHandle<Access = Self>;

    /// Returns a reference for an operation.
    #[doc(hidden)]
    fn handle(&self) -> Self::Handle<'_>;
}

impl Ownership for Owned {
    type Handle<'e> = &'e Self;

    #[inline(always)]
    fn handle(&self) -> &Self {
        self
    }
}

impl Ownership for Shared {
    type Handle<'e> = Self;

    #[inline]
    fn handle(&self) -> Self {
        self.clone()
    }
}

/// How an [`Operation`](super::safe::Operation) refers to its endpoint: [`Ownership::Handle`]. Sealed: no other crate can
/// implement it.
pub trait EndpointHandle {
    /// The ownership of the endpoint.
    type Access: Ownership;

    /// Returns the access to the endpoint.
    #[doc(hidden)]
    fn access(&self) -> &Self::Access;

    /// Returns whether both refer to the same endpoint.
    #[doc(hidden)]
    fn is_same(&self, other: &Self) -> bool;
}

impl EndpointHandle for &Owned {
    type Access = Owned;

    #[inline(always)]
    fn access(&self) -> &Owned {
        self
    }

    #[inline]
    fn is_same(&self, other: &Self) -> bool {
        std::ptr::eq(*self, *other)
    }
}

impl EndpointHandle for Shared {
    type Access = Self;

    #[inline(always)]
    fn access(&self) -> &Self {
        self
    }

    #[inline]
    fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }
}

pub(super) mod reach {
    use super::{Counter, Engine, Instant, Process, SpinBudget, SpinStep};
    use crate::endpoint::refused::RefusedResult;

    /// A call on an engine. Unlike a closure it is always inlined, and its fields are then kept in registers.
    pub trait EngineCall {
        /// The result of the call.
        type Result;

        /// Whether to check for log events after the call. The shortest calls skip that check: their fast path records
        /// no events, and their slow paths add a deferred action
        /// ([`note_events`](crate::endpoint::operations::Operations::note_events)), as every sweep of progress does.
        const LOOKS_FOR_EVENTS: bool = true;

        /// Makes the call.
        fn call(self, engine: &mut Engine) -> Self::Result;
    }

    struct Closure<F>(F);

    impl<R, F: FnOnce(&mut Engine) -> R> EngineCall for Closure<F> {
        type Result = R;

        #[inline]
        fn call(self, engine: &mut Engine) -> R {
            (self.0)(engine)
        }
    }

    #[cold]
    fn refused<R: RefusedResult>() -> R {
        R::refused()
    }

    /// The methods of [`Ownership`](super::Ownership) that only the library calls. The trait is public in a private
    /// module, so users can access neither it nor the engine.
    ///
    /// In a forked child the engine is not accessed, because a thread that does not exist in the child may have held
    /// the lock in the middle of a change.
    pub trait EngineAccess {
        /// Returns the process that opened the endpoint.
        fn process(&self) -> Process;

        /// Returns whether this is the process that opened the endpoint, and not a fork of it.
        #[inline(always)]
        fn is_here(&self) -> bool {
            self.process().is_here()
        }

        /// Runs a call with the engine, then wakes the tasks of the operations that the call finished. It must not be
        /// called in a forked child.
        fn run_here<C: EngineCall>(&self, call: C) -> C::Result;

        /// Like [`run_here`](Self::run_here), but refuses the call in a forked child.
        #[inline(always)]
        fn run<C: EngineCall<Result: RefusedResult>>(&self, call: C) -> C::Result {
            if self.is_here() { self.run_here(call) } else { refused() }
        }

        /// Like [`run`](Self::run), but for a closure.
        #[inline(always)]
        fn with<R: RefusedResult>(&self, f: impl FnOnce(&mut Engine) -> R) -> R {
            self.run(Closure(f))
        }

        /// Like [`run_here`](Self::run_here), but for a closure.
        #[inline(always)]
        fn with_here<R>(&self, f: impl FnOnce(&mut Engine) -> R) -> R {
            self.run_here(Closure(f))
        }

        /// Closes the engine and wakes the threads that wait for it, unless `may` returns false. Returns whether the
        /// engine is closed. Does nothing in a forked child.
        fn close(&self, may: impl FnOnce(&Engine) -> bool) -> bool;

        /// Makes a shared endpoint progress without calls by the application from now on.
        fn automate(&self) -> std::io::Result<()> {
            Ok(())
        }

        /// From now on, also reports to this counter. If the endpoint is shared, threads that wait for the counter
        /// drive it.
        fn reports_also_to(&self, counter: &Counter) -> std::io::Result<()>;

        /// Lets threads that read or wait for this counter, which counts work of the endpoint, drive a shared endpoint
        /// from now on. Makes waits for the counter fail if the endpoint has one owner.
        fn drive_for(&self, counter: &Counter) -> std::io::Result<()>;

        /// Sleeps until something may have changed or the deadline has passed. Does not sleep if the number of the
        /// engine's results differs from `looked`.
        fn sleep(&self, deadline: Option<Instant>, looked: u64);

        /// Makes progress until `ready` returns a value or the deadline passes. Spins briefly, then yields, then
        /// sleeps. Returns immediately in a forked child.
        fn wait_until<R>(
            &self,
            deadline: Option<Instant>,
            mut ready: impl FnMut(&mut Engine) -> Option<R>,
        ) -> Option<R> {
            self.poll_until(deadline, |engine| {
                let polled = engine.poll_for_wait();
                (polled, ready(engine))
            })
        }

        /// Like [`wait_until`](Self::wait_until), but `poll` makes the progress. It also returns whether everything was
        /// polled, because the thread sleeps only after that.
        fn poll_until<R>(
            &self,
            deadline: Option<Instant>,
            mut poll: impl FnMut(&mut Engine) -> (bool, Option<R>),
        ) -> Option<R> {
            if !self.is_here() {
                return None;
            }
            let mut budget = SpinBudget::new();
            loop {
                let found = self.with_here(|engine| match poll(engine) {
                    (_, None) if engine.is_closed() => Ok(None), // A closed engine completes nothing more.
                    (polled, None) => Err(polled.then(|| engine.results())),
                    (_, found) => Ok(found),
                });
                let looked = match found {
                    Ok(found) => return found,
                    Err(Some(looked)) => looked,
                    Err(None) => continue,
                };
                match budget.step(deadline, || self.with(|engine| engine.is_called_from_here())) {
                    SpinStep::Again => {}
                    SpinStep::Late => return None,
                    SpinStep::Sleep => {
                        self.sleep(deadline, looked);
                        budget.rest();
                    }
                }
            }
        }
    }
}

/// Ownership by one thread at a time, without a lock. The endpoint is `Send` but not `Sync`, and its operations, which
/// borrow it, are not `Send`. [`Shared`] is for several threads, and for tasks that a runtime may move to another thread.
pub struct Owned {
    process: Process,
    state: OneThread<OwnedState>,
}

/// The state of an endpoint that one thread at a time uses.
struct OwnedState {
    engine: RefCell<Engine>,
    /// Makes waits for the queues and counters to which the endpoint reports fail, because such a wait cannot drive the
    /// endpoint.
    undriven: RefCell<Undriven>,
}

crate::short_debug!(Owned, "Owned");

impl Owned {
    pub(crate) fn new(engine: Engine) -> Self {
        let (process, undriven) = (engine.process(), Undriven::new(engine.core.reporting.sources()));
        let state = OwnedState { engine: RefCell::new(engine), undriven: RefCell::new(undriven) };
        Self { process, state: OneThread(state) }
    }
}

impl Owned {
    /// Returns the engine, for conversion to another kind of ownership.
    pub(super) fn into_engine(self) -> Engine {
        let OneThread(OwnedState { engine, undriven }) = self.state;
        drop(undriven);
        engine.into_inner()
    }

    /// Wakes the tasks of finished operations when the engine is no longer borrowed.
    #[cold]
    fn run_deferred_actions(&self) {
        let deferred_actions = self.state.0.engine.borrow_mut().core.operations.take_deferred_actions();
        deferred_actions.run();
        later::flush();
    }
}

impl EngineAccess for Owned {
    #[inline(always)]
    fn process(&self) -> Process {
        self.process
    }

    #[inline(always)]
    fn run_here<C: EngineCall>(&self, call: C) -> C::Result {
        let mut engine = self.state.0.engine.borrow_mut();
        let result = call.call(&mut engine);
        let deferred_actions = engine.core.operations.has_deferred_actions() || (C::LOOKS_FOR_EVENTS && later::any());
        drop(engine);
        if deferred_actions {
            self.run_deferred_actions();
        }
        result
    }

    fn close(&self, may: impl FnOnce(&Engine) -> bool) -> bool {
        !self.is_here()
            || self.with_here(|engine| {
                let may = may(engine);
                if may {
                    engine.close();
                }
                may
            })
    }

    fn reports_also_to(&self, counter: &Counter) -> std::io::Result<()> {
        self.state.0.undriven.borrow_mut().add(Source::from(counter));
        Ok(())
    }

    fn drive_for(&self, counter: &Counter) -> std::io::Result<()> {
        self.state.0.undriven.borrow_mut().add_of_work(counter);
        Ok(())
    }

    fn sleep(&self, deadline: Option<Instant>, looked: u64) {
        if let Some(armed) = self.with(|engine| engine.arm(looked)) {
            armed.sleep(deadline);
            self.with(|engine| engine.disarm(&armed));
        }
    }
}

/// The state that the threads of a shared endpoint share.
struct Inner {
    state: Mutex<OwnershipState>,
    /// Whether the engine was closed.
    closed: AtomicBool,
    /// The process that opened the endpoint. In a forked child the lock may be held by a thread that does not exist
    /// there.
    process: Process,
    /// Notified when there are new results, the leader stops leading, or the endpoint is closed.
    changed: Condvar,
    /// The driver. The queues and counters that the endpoint reports to hold weak references to it.
    driver: OnceLock<Arc<dyn Driven>>,
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inner").field("state", &self.state).finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct OwnershipState {
    engine: Engine,
    /// Whether the endpoint's own progress thread is running.
    automatic: bool,
    /// Whether one thread (the leader) sleeps on the endpoint's descriptor. The other threads wait for `changed`.
    led: bool,
    /// The number of threads that wait for `changed`.
    followers: usize,
    /// The number of results (`Engine::results`) when the sleeping threads were last woken.
    seen: u64,
}

/// Ownership shared by many threads, through one lock.
#[derive(Clone)]
pub struct Shared {
    inner: Arc<Inner>,
    owner: Arc<Owner>,
}

crate::short_debug!(Shared, "Shared");

/// Shared by the application's handles. It closes the engine when the last of them is dropped.
#[derive(Debug)]
struct Owner(Option<Arc<Inner>>);

impl Drop for Owner {
    fn drop(&mut self) {
        let Some(inner) = &self.0 else { return };
        if !inner.process.is_here() {
            // The engine may have been in the middle of a change at the fork, so a child never drops it.
            return std::mem::forget(Arc::clone(inner));
        }
        inner.close(|_| true);
    }
}

/// A weak reference to the engine of a shared endpoint. Threads of the library hold it while they are not in the
/// engine.
#[derive(Clone, Debug)]
pub(crate) struct WeakShared(std::sync::Weak<Inner>);

/// A shared endpoint while a thread of the library is in it. It does not keep the endpoint open.
#[derive(Clone, Debug)]
pub(crate) struct Helper {
    inner: Arc<Inner>,
}

impl WeakShared {
    /// Returns the endpoint, if it is open.
    pub(crate) fn upgrade(&self) -> Option<Helper> {
        self.upgrade_closed().filter(|helper| !helper.inner.closed.load(Ordering::Acquire))
    }

    /// Returns whether the endpoint's memory is still referenced, closed or not.
    pub(crate) fn is_alive(&self) -> bool {
        self.0.strong_count() > 0
    }

    /// Like [`upgrade`](Self::upgrade), but also succeeds if the endpoint is closed, so that late operations can be
    /// ended.
    pub(crate) fn upgrade_closed(&self) -> Option<Helper> {
        self.0.upgrade().map(|inner| Helper { inner })
    }
}

impl Shared {
    pub(crate) fn new(engine: Engine) -> Self {
        let (process, closed) = (engine.process(), AtomicBool::new(false));
        let state = Mutex::new(OwnershipState { engine, automatic: false, led: false, followers: 0, seen: 0 });
        let (changed, driver) = (Condvar::new(), OnceLock::new());
        let inner = Arc::new(Inner { state, closed, process, changed, driver });
        Self { owner: Arc::new(Owner(Some(Arc::clone(&inner)))), inner }
    }

    /// Returns the engine. No other handle exists, but threads of the library may still be leaving the engine.
    pub(super) fn into_engine(self) -> Engine {
        let Self { mut inner, owner } = self;
        // The engine is taken out of its owner, so that dropping the owner does not close it.
        drop(Arc::into_inner(owner).expect("there is no other handle").0.take());
        loop {
            match Arc::try_unwrap(inner) {
                Ok(inner) => return inner.state.into_inner().unwrap_or_else(PoisonError::into_inner).engine,
                Err(used) => inner = used,
            }
            std::thread::yield_now();
        }
    }

    pub(crate) fn downgrade(&self) -> WeakShared {
        WeakShared(Arc::downgrade(&self.inner))
    }

    /// Returns the driver of the endpoint, for threads that read and wait.
    pub(super) fn driver(&self) -> Option<&Arc<dyn Driven>> {
        self.inner.driver.get()
    }

    /// Keeps the driver alive for as long as the endpoint.
    pub(super) fn keep(&self, driver: Arc<dyn Driven>) {
        self.inner.driver.get_or_init(|| driver);
    }
}

impl Helper {
    /// Returns a handle that keeps only the endpoint's memory alive.
    pub(super) fn into_memory(self) -> Arc<dyn Send + Sync> {
        self.inner
    }

    /// Begins an operation after those that are due, unless another thread is in the endpoint. In that case the
    /// operation is returned. On success, returns whether tasks have to be woken. This function wakes no tasks itself.
    #[inline]
    pub(crate) fn try_begin(&self, transfer: Box<Transfer>) -> Result<bool, Box<Transfer>> {
        let Some(mut state) = self.inner.try_lock() else { return Err(transfer) };
        state.engine.begin_due();
        state.engine.begin(transfer);
        self.inner.wake_sleepers(&mut state);
        Ok(state.engine.core.operations.has_deferred_actions())
    }

    /// Begins the operations that are due. Returns false if another thread is in the endpoint.
    pub(crate) fn begin_due(&self) -> bool {
        let Some(mut state) = self.inner.try_lock() else { return false };
        state.engine.begin_due();
        self.inner.wake_sleepers(&mut state);
        if Submissions::is_counting() {
            // No task is woken here: a woken task may be dropped, and its drop may use the endpoint that this thread is
            // in. The doorbell makes another thread wake it.
            if state.engine.core.operations.has_deferred_actions() {
                state.engine.ring();
            }
        } else {
            Inner::leave(state);
        }
        true
    }
}

impl Inner {
    /// Locks the engine, unless another thread is in the endpoint.
    fn try_lock(&self) -> Option<MutexGuard<'_, OwnershipState>> {
        if !self.process.is_here() {
            return None;
        }
        match self.state.try_lock() {
            Ok(state) => Some(state),
            Err(TryLockError::Poisoned(state)) => Some(state.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Unlocks the endpoint, and then wakes the tasks of finished operations.
    fn leave(mut state: MutexGuard<'_, OwnershipState>) {
        if state.engine.core.operations.has_deferred_actions() {
            let deferred_actions = state.engine.core.operations.take_deferred_actions();
            drop(state);
            deferred_actions.run();
        }
    }

    fn lock(&self) -> MutexGuard<'_, OwnershipState> {
        // A panic under the lock is a defect of this library. The state remains as usable as it was.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the sleeping threads if there are new results.
    fn wake_sleepers(&self, state: &mut OwnershipState) {
        let finished = state.engine.results();
        if finished != state.seen {
            state.seen = finished;
            state.engine.wake_sleepers();
            if state.followers > 0 {
                self.changed.notify_all();
            }
        }
    }

    fn run_here<C: EngineCall>(&self, call: C) -> C::Result {
        let mut state = self.lock();
        let result = call.call(&mut state.engine);
        self.wake_sleepers(&mut state);
        Self::leave(state);
        if later::any() {
            later::flush();
        }
        result
    }

    #[cold]
    fn close(&self, may: impl FnOnce(&Engine) -> bool) -> bool {
        if !self.process.is_here() {
            return true;
        }
        let mut state = self.lock();
        if !may(&state.engine) {
            return false;
        }
        state.engine.close();
        self.closed.store(true, Ordering::Release);
        self.wake_sleepers(&mut state);
        // A thread that sleeps for the endpoint wakes up and finds it closed.
        state.engine.ring();
        self.changed.notify_all();
        Self::leave(state);
        deferred_cleanup::settle();
        true
    }

    /// Sleeps on the endpoint's descriptor or doorbell (the leader), or until the leader or a call reports a change.
    fn sleep(&self, deadline: Option<Instant>, looked: u64) {
        let mut state = self.lock();
        if state.led {
            if state.engine.results() != looked || state.engine.is_closed() {
                return;
            }
            state.followers += 1;
            let timeout = deadline.map_or(SLEEP, |at| at.saturating_duration_since(Instant::now()).min(SLEEP));
            let (mut state, _) = self.changed.wait_timeout(state, timeout).unwrap_or_else(PoisonError::into_inner);
            state.followers -= 1;
            return;
        }
        let armed = state.engine.arm(looked);
        self.wake_sleepers(&mut state);
        let Some(armed) = armed else { return };
        state.led = true;
        drop(state);
        armed.sleep(deadline);
        let mut state = self.lock();
        state.engine.disarm(&armed);
        state.led = false;
        if state.followers > 0 {
            self.changed.notify_all();
        }
    }
}

/// Starts a thread that makes progress on an endpoint.
fn automate(inner: &Arc<Inner>) -> std::io::Result<()> {
    if !inner.process.is_here() {
        return Ok(());
    }
    let automatic = std::mem::replace(&mut inner.lock().automatic, true);
    if !automatic {
        let weak = WeakShared(Arc::downgrade(inner));
        super::automatic::start(weak).inspect_err(|_| inner.lock().automatic = false)?;
    }
    Ok(())
}

/// Implements the calls of an endpoint with a lock by forwarding them to its inner part.
macro_rules! reaches_inner {
    () => {
        #[inline]
        fn process(&self) -> Process {
            self.inner.process
        }

        fn run_here<C: EngineCall>(&self, call: C) -> C::Result {
            self.inner.run_here(call)
        }

        fn close(&self, may: impl FnOnce(&Engine) -> bool) -> bool {
            self.inner.close(may)
        }

        fn automate(&self) -> std::io::Result<()> {
            automate(&self.inner)
        }

        fn reports_also_to(&self, counter: &Counter) -> std::io::Result<()> {
            self.inner.driver.get().map_or(Ok(()), |driver| counter.attach(driver))
        }

        fn sleep(&self, deadline: Option<Instant>, looked: u64) {
            self.inner.sleep(deadline, looked);
        }
    };
}

impl EngineAccess for Shared {
    reaches_inner!();

    fn drive_for(&self, counter: &Counter) -> std::io::Result<()> {
        self.driver().map_or(Ok(()), |driver| counter.attach(driver))
    }
}

impl EngineAccess for Helper {
    reaches_inner!();

    fn drive_for(&self, _counter: &Counter) -> std::io::Result<()> {
        Ok(()) // Only handles of the application are passed to threads that wait.
    }
}
