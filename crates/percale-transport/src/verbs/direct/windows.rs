//! The device's windows of one peer: bound over its queue pair, and taken back.
//!
//! Requests are posted to the target's end of the peer's queue pair, where nothing else is posted. They are executed by this device alone, so no
//! thread waits for a peer. A bind is waited for; a request that takes a window back is posted, and looked at again later. A queue pair that does not
//! answer in time, or is in error, gets no more requests: deallocating a window takes it back as well, and needs no queue pair.
//!
//! Invariants: no window is invalidated that is not known to be bound, and none is bound any more when its queue pair is ended. No more
//! requests are under way than the queue pair and its completion queue have room for.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::super::window_use::Using;
use super::super::{Binding, ProtectionDomain, QueuePair, VerbsError, Window, status};

/// Requests that take windows back which may be under way at a time. Others wait for room.
const TAKING: u32 = 15;
/// Requests of windows that may be under way: those, and a bind.
pub(super) const REQUESTS: u32 = TAKING + 1;

/// How long a completion is waited for; a device that does not answer in this time never will.
const ANSWERS: Duration = Duration::from_secs(5);
/// How long no windows are bound for a peer after a request of one failed that nothing is wrong with; twice as long after the next, and so on.
const PAUSE: Duration = Duration::from_secs(1);
/// How often that is doubled at most.
const DOUBLED: u32 = 6;
/// Windows that are kept for the next binds.
const SPARE: usize = 64;

/// Why a window was not bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unbound {
    /// The queue pair is in error, or late accesses may name the keys that there are: another time.
    Later,
    /// The device has no window, or does not bind it.
    Never,
}

/// How far it is to take a window back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taking {
    /// It has to be looked at again.
    Waits,
    /// The device lets no access through any more, and the window may be bound anew.
    Over,
    /// The device is not asked, or has not done it: the window is to be deallocated.
    Failed,
}

/// What was posted to take a window back.
#[derive(Debug)]
pub(super) struct Request {
    since: Instant,
    /// Once there was room for it.
    id: Option<u64>,
}

impl Request {
    /// One that has yet to be posted.
    pub(super) fn new() -> Self {
        Self { since: Instant::now(), id: None }
    }
}

/// The device's windows of one peer.
#[derive(Debug)]
pub(super) struct Windows {
    pub(super) using: Using,
    /// Windows that are not bound.
    spare: Vec<Window>,
    /// The number of the next request.
    next: u64,
    /// How many binds there were.
    pub(super) binds: u64,
    /// The queue pair is asked no more.
    broken: bool,
    /// Requests that failed with nothing wrong with them since a bind went well, and until when no other is made.
    failures: u32,
    refuses: Option<Instant>,
    /// Requests over it that have not completed.
    under_way: u32,
    /// Completions that were not asked for yet: number and status.
    done: Vec<(u64, i32)>,
}

impl Windows {
    pub(super) const fn new(using: Using) -> Self {
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

    /// From here on requests are posted to another queue pair, or to none: `broken`.
    pub(super) fn change_pair(&mut self, broken: bool) {
        (self.broken, self.under_way) = (broken, 0);
        self.done.clear();
    }

    /// Returns whether the queue pair is in error, or was put there.
    pub(super) const fn is_broken(&self) -> bool {
        self.broken
    }

    /// Returns whether the device is asked to take windows back.
    const fn may_ask(&self) -> bool {
        !self.broken
    }

    /// Returns whether no windows are bound now, for the device has failed lately over this peer's queue pair.
    pub(super) fn refuses(&self) -> bool {
        self.refuses.is_some_and(|until| Instant::now() < until)
    }

    /// Binds a window over the queue pair, under a key that is not `used`.
    ///
    /// # Errors
    /// With the window, if it may be bound and the device does not even deallocate it.
    pub(super) fn bind(
        &mut self,
        (domain, pair): (&Arc<ProtectionDomain>, &Arc<QueuePair>),
        binding: &Binding,
        used: impl Fn(u32) -> bool,
    ) -> Result<Window, (Unbound, Option<Window>)> {
        if self.broken {
            return Err((Unbound::Later, None));
        }
        let window = match self.spare.iter().rposition(|window| !used(window.next_key())) {
            Some(at) => self.spare.swap_remove(at),
            None => Window::new(domain, self.using.kind).map_err(|error| {
                crate::later::later!(warn: %error, "the device gives no window: accesses are executed");
                (Unbound::Never, None)
            })?,
        };
        if used(window.next_key()) {
            self.keep(window);
            return Err((Unbound::Later, None));
        }
        if let Err(why) = self.ask(pair, |id| window.bind(pair, id, binding)) {
            // It is unknown whether the window is bound, but it is bound no more once it is deallocated.
            return Err((why, Self::deallocate(window).err()));
        }
        self.binds += 1;
        self.failures = 0;
        if used(window.remote_key()) {
            // Of type 1, where the driver chose.
            if self.ask(pair, |id| window.unbind(pair, id)).is_err() {
                return Err((Unbound::Later, Self::deallocate(window).err()));
            }
            self.give_back(window);
            return Err((Unbound::Later, None));
        }
        Ok(window)
    }

    /// Begins to take a window's right back, or looks how far that is.
    pub(super) fn take_back(
        &mut self,
        window: &Window,
        request: &mut Request,
        pair: Option<&Arc<QueuePair>>,
    ) -> Taking {
        let Some(pair) = pair else { return Taking::Failed };
        if request.id.is_some() || self.under_way >= TAKING {
            self.look(pair);
        }
        if let Some(id) = request.id {
            match self.done.iter().position(|(done, _)| *done == id).map(|at| self.done.swap_remove(at)) {
                Some((_, 0)) => return Taking::Over,
                Some((_, status)) => _ = self.failed(pair, status),
                None if !self.may_ask() => {}
                None if request.since.elapsed() > ANSWERS => _ = self.silent(pair),
                None => return Taking::Waits,
            }
            return Taking::Failed;
        }
        if !self.may_ask() {
            return Taking::Failed;
        }
        if self.under_way >= TAKING {
            // Perhaps no thread looks at the requests before this one, so the wait for them is limited.
            if request.since.elapsed() <= ANSWERS {
                return Taking::Waits;
            }
            self.silent(pair);
            return Taking::Failed;
        }
        match self.post(|id| window.unbind(pair, id)) {
            Ok(id) => {
                *request = Request { id: Some(id), ..Request::new() };
                Taking::Waits
            }
            Err(_) => Taking::Failed,
        }
    }

    /// A window is bound no more, and may be bound anew. Every request of its has completed.
    pub(super) fn give_back(&mut self, window: Window) {
        window.let_go();
        self.keep(window);
    }

    /// # Errors
    /// The window, if the device does not deallocate it.
    pub(super) fn deallocate(window: Window) -> Result<(), Window> {
        window.end().map_err(|(window, error)| {
            crate::later::later!(error: %error, "a window is not deallocated");
            window
        })
    }

    fn keep(&mut self, window: Window) {
        if self.spare.len() < SPARE {
            self.spare.push(window);
        }
    }

    /// Posts a request; its number.
    fn post(&mut self, post: impl FnOnce(u64) -> Result<(), VerbsError>) -> Result<u64, Unbound> {
        self.next += 1;
        if let Err(error) = post(self.next) {
            crate::later::later!(error: %error, "a window's request is not posted");
            return Err(Unbound::Never);
        }
        self.under_way += 1;
        Ok(self.next)
    }

    /// Posts a request and waits until it is done.
    fn ask(&mut self, pair: &Arc<QueuePair>, post: impl FnOnce(u64) -> Result<(), VerbsError>) -> Result<(), Unbound> {
        let id = self.post(post)?;
        let (under_way, done) = (&mut self.under_way, &mut self.done);
        // The others are of windows that are being taken back.
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

    /// Takes what has completed.
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

    /// A request has completed in error.
    fn failed(&mut self, pair: &Arc<QueuePair>, status: i32) -> Unbound {
        if status == status::WR_FLUSH_ERR {
            self.broken = true;
            return Unbound::Later;
        }
        self.give_up(pair, &pair.queue().explain(status))
    }

    /// A request was not answered in time.
    fn silent(&mut self, pair: &Arc<QueuePair>) -> Unbound {
        self.give_up(pair, &format!("no answer in {ANSWERS:?}"))
    }

    fn give_up(&mut self, pair: &Arc<QueuePair>, why: &str) -> Unbound {
        let pause = PAUSE * (1 << self.failures.min(DOUBLED));
        crate::later::later!(error: why, ?pause, "a window's request failed: this peer's accesses through windows are executed");
        self.failures += 1;
        (self.refuses, self.broken) = (Some(Instant::now() + pause), true);
        // What was posted must not be done later.
        if let Err(error) = pair.fail() {
            crate::later::later!(error: %error, "its queue pair does not go into error");
        }
        Unbound::Never
    }
}

/// Returns whether a completion that never comes is given up.
#[cfg(all(test, not(loom)))]
pub(super) fn never_comes(pair: &QueuePair) -> bool {
    pair.queue().finish(1, ANSWERS, |_| {}) == Ok(None)
}
