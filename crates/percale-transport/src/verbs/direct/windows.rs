//! The device's windows of one peer, which are bound over the peer's queue pair, and the revocation of these windows.
//!
//! Requests are posted to the target's end of the peer's queue pair, where nothing else is posted. The local device
//! alone executes them, so no thread waits for a peer. A thread that binds a window waits for the completion. A request
//! that unbinds a window is posted, and its completion is polled later. A queue pair that does not answer in time, or
//! is in the error state, gets no more requests: deallocating a window revokes its rights as well, and does not need
//! the queue pair.
//!
//! Invariants:
//! 1. A window is invalidated only if it is known to be bound.
//! 2. No window is bound over a queue pair when the queue pair is destroyed.
//! 3. There are never more outstanding requests than the queue pair and its completion queue have room for.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::super::window_use::WindowUse;
use super::super::{Binding, ProtectionDomain, QueuePair, VerbsError, Window, status};

/// The maximum number of outstanding requests that unbind windows. Further requests wait for room.
const TAKING: u32 = 15;
/// The maximum number of outstanding requests: those that unbind windows, and one bind.
pub(super) const REQUESTS: u32 = TAKING + 1;

/// The timeout of a completion. A device that does not answer in this time is assumed never to answer.
const ANSWERS: Duration = Duration::from_secs(5);
/// The time for which no windows are bound for a peer after a valid request has failed. It doubles with each further
/// failure.
const PAUSE: Duration = Duration::from_secs(1);
/// The maximum number of times that the pause is doubled.
const DOUBLED: u32 = 6;
/// The maximum number of windows that are kept for later binds.
const SPARE: usize = 64;

/// The reason why a window was not bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BindFailure {
    /// The queue pair is in the error state, or late accesses may use the available keys. Try again later.
    Later,
    /// The device has no window, or does not bind it.
    Never,
}

/// The state of the unbinding of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UnbindState {
    /// The request is not complete. Poll again.
    Waits,
    /// No access through the window is possible any more, and it may be bound again.
    Over,
    /// The device was not requested to unbind the window, or did not do it. The window has to be deallocated.
    Failed,
}

/// The request that unbinds a window.
#[derive(Debug)]
pub(super) struct UnbindRequest {
    since: Instant,
    /// The number of the request, once there was room to post it.
    id: Option<u64>,
}

impl UnbindRequest {
    /// Creates a request that has not been posted.
    pub(super) fn new() -> Self {
        Self { since: Instant::now(), id: None }
    }
}

/// The device's windows of one peer.
#[derive(Debug)]
pub(super) struct PeerWindows {
    pub(super) using: WindowUse,
    /// Windows that are not bound.
    spare: Vec<Window>,
    /// The number of the next request.
    next: u64,
    /// The number of binds so far.
    pub(super) binds: u64,
    /// Whether the queue pair does not get any more requests.
    broken: bool,
    /// The number of valid requests that failed since the last successful bind, and the end of the pause.
    failures: u32,
    refuses: Option<Instant>,
    /// The number of outstanding requests on the queue pair.
    under_way: u32,
    /// The number and status of each completion that has not been queried yet.
    done: Vec<(u64, i32)>,
}

impl PeerWindows {
    pub(super) const fn new(using: WindowUse) -> Self {
        Self {
            using,
            spare: Vec::new(),
            next: 0,
            binds: 0,
            broken: false,
            failures: 0,
            refuses: None,
            under_way: 0,
            done: Vec::new(),
        }
    }

    /// Changes to a new queue pair. If `broken` is true, there is none.
    pub(super) fn change_pair(&mut self, broken: bool) {
        (self.broken, self.under_way) = (broken, 0);
        self.done.clear();
    }

    /// Returns whether the queue pair is in the error state.
    pub(super) const fn is_broken(&self) -> bool {
        self.broken
    }

    /// Returns whether requests may be posted.
    const fn may_ask(&self) -> bool {
        !self.broken
    }

    /// Returns whether no windows are bound at the moment, because a request over this peer's queue pair has failed
    /// recently.
    pub(super) fn refuses(&self) -> bool {
        self.refuses.is_some_and(|until| Instant::now() < until)
    }

    /// Binds a window over the queue pair, under a key for which `used` returns false.
    ///
    /// # Errors
    /// The reason, and the window if it may be bound and the device did not deallocate it.
    pub(super) fn bind(
        &mut self,
        (domain, pair): (&Arc<ProtectionDomain>, &Arc<QueuePair>),
        binding: &Binding,
        used: impl Fn(u32) -> bool,
    ) -> Result<Window, (BindFailure, Option<Window>)> {
        if self.broken {
            return Err((BindFailure::Later, None));
        }
        let window = match self.spare.iter().rposition(|window| !used(window.next_key())) {
            Some(at) => self.spare.swap_remove(at),
            None => Window::new(domain, self.using.kind).map_err(|error| {
                crate::later::later!(warn: %error, "cannot allocate a device window: accesses are executed by this process");
                (BindFailure::Never, None)
            })?,
        };
        if used(window.next_key()) {
            self.keep(window);
            return Err((BindFailure::Later, None));
        }
        if let Err(why) = self.ask(pair, |id| window.bind(pair, id, binding)) {
            // It is unknown whether the window is bound. Deallocating it ends any binding.
            return Err((why, Self::deallocate(window).err()));
        }
        self.binds += 1;
        self.failures = 0;
        if used(window.remote_key()) {
            // This happens for type 1, because the driver chose the key.
            if self.ask(pair, |id| window.unbind(pair, id)).is_err() {
                return Err((BindFailure::Later, Self::deallocate(window).err()));
            }
            self.give_back(window);
            return Err((BindFailure::Later, None));
        }
        Ok(window)
    }

    /// Starts to unbind a window, or polls for the result.
    pub(super) fn take_back(
        &mut self,
        window: &Window,
        request: &mut UnbindRequest,
        pair: Option<&Arc<QueuePair>>,
    ) -> UnbindState {
        let Some(pair) = pair else { return UnbindState::Failed };
        if request.id.is_some() || self.under_way >= TAKING {
            self.look(pair);
        }
        if let Some(id) = request.id {
            match self.done.iter().position(|(done, _)| *done == id).map(|at| self.done.swap_remove(at)) {
                Some((_, 0)) => return UnbindState::Over,
                Some((_, status)) => _ = self.failed(pair, status),
                None if !self.may_ask() => {}
                None if request.since.elapsed() > ANSWERS => _ = self.silent(pair),
                None => return UnbindState::Waits,
            }
            return UnbindState::Failed;
        }
        if !self.may_ask() {
            return UnbindState::Failed;
        }
        if self.under_way >= TAKING {
            // Possibly no thread polls for the requests before this one, so the wait for them is limited.
            if request.since.elapsed() <= ANSWERS {
                return UnbindState::Waits;
            }
            self.silent(pair);
            return UnbindState::Failed;
        }
        match self.post(|id| window.unbind(pair, id)) {
            Ok(id) => {
                *request = UnbindRequest { id: Some(id), ..UnbindRequest::new() };
                UnbindState::Waits
            }
            Err(_) => UnbindState::Failed,
        }
    }

    /// Keeps a window that is no longer bound, so that it can be bound again. All its requests must have completed.
    pub(super) fn give_back(&mut self, window: Window) {
        window.let_go();
        self.keep(window);
    }

    /// Deallocates a window.
    ///
    /// # Errors
    /// The window, if the device does not deallocate it.
    pub(super) fn deallocate(window: Window) -> Result<(), Window> {
        window.end().map_err(|(window, error)| {
            crate::later::later!(error: %error, "cannot deallocate a window");
            window
        })
    }

    fn keep(&mut self, window: Window) {
        if self.spare.len() < SPARE {
            self.spare.push(window);
        }
    }

    /// Posts a request, and returns its number.
    fn post(&mut self, post: impl FnOnce(u64) -> Result<(), VerbsError>) -> Result<u64, BindFailure> {
        self.next += 1;
        if let Err(error) = post(self.next) {
            crate::later::later!(error: %error, "cannot post a window request");
            return Err(BindFailure::Never);
        }
        self.under_way += 1;
        Ok(self.next)
    }

    /// Posts a request and waits for its completion.
    fn ask(
        &mut self,
        pair: &Arc<QueuePair>,
        post: impl FnOnce(u64) -> Result<(), VerbsError>,
    ) -> Result<(), BindFailure> {
        let id = self.post(post)?;
        let (under_way, done) = (&mut self.under_way, &mut self.done);
        // Other completions belong to requests that unbind windows.
        let finished = pair.queue().finish(id, ANSWERS, |one| {
            *under_way = under_way.saturating_sub(1);
            done.push((one.id, one.status));
        });
        match finished {
            Ok(Some(status)) => {
                self.under_way = self.under_way.saturating_sub(1);
                if status == 0 { Ok(()) } else { Err(self.failed(pair, status)) }
            }
            Ok(None) => Err(self.silent(pair)),
            Err(error) => Err(self.give_up(pair, &error.to_string())),
        }
    }

    /// Reads available completions.
    fn look(&mut self, pair: &Arc<QueuePair>) {
        let (under_way, done) = (&mut self.under_way, &mut self.done);
        let polled = pair.queue().poll(|one| {
            *under_way = under_way.saturating_sub(1);
            done.push((one.id, one.status));
        });
        if let Err(error) = polled {
            self.give_up(pair, &error.to_string());
        }
    }

    /// Handles a request that completed with an error.
    fn failed(&mut self, pair: &Arc<QueuePair>, status: i32) -> BindFailure {
        if status == status::WR_FLUSH_ERR {
            self.broken = true;
            return BindFailure::Later;
        }
        self.give_up(pair, &pair.queue().explain(status))
    }

    /// Handles a request that was not answered in time.
    fn silent(&mut self, pair: &Arc<QueuePair>) -> BindFailure {
        self.give_up(pair, &format!("no answer within {ANSWERS:?}"))
    }

    fn give_up(&mut self, pair: &Arc<QueuePair>, why: &str) -> BindFailure {
        let pause = PAUSE * (1 << self.failures.min(DOUBLED));
        crate::later::later!(error: why, ?pause, "a window request failed: accesses of this peer through windows are executed by this process");
        self.failures += 1;
        (self.refuses, self.broken) = (Some(Instant::now() + pause), true);
        // The posted requests must not be executed later.
        if let Err(error) = pair.fail() {
            crate::later::later!(error: %error, "cannot move its queue pair to the error state");
        }
        BindFailure::Never
    }
}

/// Returns whether waiting for a completion that never arrives ends with a timeout.
#[cfg(all(test, not(loom)))]
pub(super) fn times_out(pair: &QueuePair) -> bool {
    pair.queue().finish(1, ANSWERS, |_| {}) == Ok(None)
}
