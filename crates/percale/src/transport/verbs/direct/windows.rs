//! The device's windows of one peer: bound over its queue pair, and taken back.
//!
//! Requests are posted to the target's end of the peer's queue pair, where nothing else is posted, and are done by this device alone: no
//! completion waits for a peer. A bind's is waited for. Taking a window back is begun, and looked at again
//! ([`poll`](Windows::poll)): whoever takes many back, of this peer and of others, waits for all of them at once. A queue pair that does not
//! answer in time, or is in error, is asked no more: deallocating a window takes it back as well, and needs none.
//!
//! Invariants: no window is invalidated that is not known to be bound, and none is bound any more when its queue pair is ended. What lies under
//! a window is kept with it until nothing comes through it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::super::{Binding, DeviceLimits, ProtectionDomain, QueuePair, VerbsError, Window, WindowKind, abi};
use super::making::BINDS;
use super::record::Under;
use crate::memory::region::wait_until;

/// How long a completion is waited for; a device that does not answer in this time never will.
const ANSWERS: Duration = Duration::from_secs(5);
/// Windows that are kept for the next binds.
const SPARE: usize = 64;
/// Who makes Linux' RDMA over Ethernet in software, rdma_rxe; hardware's makers have numbers of 24 bits, too, but not this one.
const SOFT_ROCE: u32 = 0xff_ffff;

/// What is registered beneath a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Extent {
    /// The region, once for a peer, until it is closed.
    Region,
    /// The window's own bytes, as long as it is bound: for devices that let accesses through which are outside the window, or still under
    /// way when its invalidation completes, but keep to registrations.
    Window,
}

/// How a device's windows are used. Clones are the same.
#[derive(Clone, Debug)]
pub(in super::super) struct Using {
    pub(super) kind: WindowKind,
    pub(super) extent: Extent,
    /// It has failed a request that nothing is wrong with, and its queue pair with it: it is asked for no more.
    refuses: Arc<AtomicBool>,
}

impl Using {
    /// Type 2, where there is one: its keys are ours to choose, and its right is worth nothing over other queue pairs. Else type 1, which in a
    /// protection domain that has but one queue pair comes to the same.
    pub(in super::super) fn of(limits: &DeviceLimits) -> Option<Self> {
        let (one, a2, b2) = limits.windows;
        let kind = match (one, a2 || b2) {
            (_, true) => WindowKind::Two,
            (true, false) => WindowKind::One,
            (false, false) => return None,
        };
        let extent = if limits.vendor == SOFT_ROCE { Extent::Window } else { Extent::Region };
        (limits.window_count > 0).then(|| Self::with(kind, extent))
    }

    pub(super) fn with(kind: WindowKind, extent: Extent) -> Self {
        Self { kind, extent, refuses: Arc::default() }
    }

    pub(super) fn refuses(&self) -> bool {
        self.refuses.load(Ordering::Relaxed)
    }
}

/// Why a window was not bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unbound {
    /// The queue pair is in error, or late accesses may name the keys that there are: another time.
    Later,
    /// The device has no window, or does not bind it.
    Never,
}

/// A window that is being taken back.
#[derive(Debug)]
struct Leaving {
    /// The number of the request.
    id: u64,
    /// When that was posted; not yet, while there is no room for it.
    posted: Option<Instant>,
    window: Window,
    under: Under,
}

/// A window through which nothing comes any more.
#[derive(Debug)]
pub(super) struct Ended {
    /// What lay under it.
    pub(super) under: Under,
    /// Itself, if it may be bound and the device does not even deallocate it.
    pub(super) stuck: Option<Window>,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Windows {
    pub(super) using: Using,
    /// Windows that are not bound.
    spare: Vec<Window>,
    /// Windows that are being taken back, in order.
    leaving: Vec<Leaving>,
    /// Requests that were done while another was waited for, and their statuses.
    done: Vec<(u64, i32)>,
    /// The number of the last request.
    last: u64,
    /// How many binds there were.
    pub(super) binds: u64,
    /// The queue pair is asked no more.
    broken: bool,
}

impl Windows {
    pub(super) const fn new(using: Using) -> Self {
        Self { using, spare: Vec::new(), leaving: Vec::new(), done: Vec::new(), last: 0, binds: 0, broken: false }
    }

    /// From here on requests are posted to another queue pair, or to none: `broken`.
    pub(super) fn change_pair(&mut self, broken: bool) {
        self.done.clear();
        self.broken = broken;
    }

    /// Whether the queue pair is in error, as far as is known here.
    pub(super) const fn is_broken(&self) -> bool {
        self.broken
    }

    /// Binds a window over the queue pair, under a key that is not `used`.
    ///
    /// # Errors
    /// With what had ended before it began.
    pub(super) fn bind(
        &mut self,
        (domain, pair): (&Arc<ProtectionDomain>, &Arc<QueuePair>),
        binding: &Binding,
        under: Under,
        used: impl Fn(u32) -> bool,
    ) -> Result<(Window, Under), (Unbound, Option<Ended>)> {
        let not = |why, under| Err((why, Some(Ended { under, stuck: None })));
        if self.broken {
            return not(Unbound::Later, under);
        }
        let window = match self.spare.iter().rposition(|window| !used(window.next_key())) {
            Some(at) => self.spare.swap_remove(at),
            None => match Window::new(domain, self.using.kind) {
                Ok(window) => window,
                Err(error) => {
                    tracing::warn!(%error, "the device gives no window: accesses are executed");
                    return not(Unbound::Never, under);
                }
            },
        };
        if used(window.next_key()) {
            self.keep(window);
            return not(Unbound::Later, under);
        }
        if let Err(why) = self.ask(pair, |id| window.bind(pair, id, binding)) {
            // Whether it is bound nobody knows, but it is no more when it is deallocated.
            return Err((why, Some(deallocate(window, under))));
        }
        self.binds += 1;
        if used(window.remote_key()) {
            // Of type 1, where the driver chose.
            return Err((Unbound::Later, self.take_back(window, under, Some(pair))));
        }
        Ok((window, under))
    }

    /// Begins to take a window's right back. What has ended at once; else [`poll`](Self::poll) tells.
    pub(super) fn take_back(&mut self, window: Window, under: Under, pair: Option<&Arc<QueuePair>>) -> Option<Ended> {
        // Where a device has failed once, nobody waits for it again.
        let Some(pair) = pair.filter(|_| !self.broken && !self.using.refuses()) else {
            return Some(deallocate(window, under));
        };
        self.last += 1;
        self.leaving.push(Leaving { id: self.last, posted: None, window, under });
        self.post(pair);
        None
    }

    /// The last window that is being taken back, or was: for [`have_left`](Self::have_left).
    pub(super) const fn last(&self) -> u64 {
        self.last
    }

    /// Whether none of the windows that were being taken back then is so still, as far as [`poll`](Self::poll) knows.
    pub(super) fn have_left(&self, then: u64) -> bool {
        self.leaving.iter().all(|one| one.id > then)
    }

    /// Looks how far the windows are that are being taken back, and returns what has ended. Waits for nothing.
    pub(super) fn poll(&mut self, pair: Option<&Arc<QueuePair>>) -> Vec<Ended> {
        if self.leaving.is_empty() {
            self.done.clear();
            return Vec::new();
        }
        let mut ended = Vec::new();
        if let Some(pair) = pair.filter(|_| !self.broken) {
            self.look(pair, &mut ended);
            self.post(pair);
        }
        // What was posted to a queue pair that is not in error may yet be done, to what is bound alone: it is waited for.
        let (is_over, refuses) = (pair.is_none() || self.broken, self.using.refuses());
        let left = self.leaving.extract_if(.., |one| is_over || refuses && one.posted.is_none());
        ended.extend(left.map(|one| deallocate(one.window, one.under)));
        ended
    }

    /// Posts as many requests as there is room for, and one more for a bind.
    fn post(&mut self, pair: &Arc<QueuePair>) {
        if self.using.refuses() {
            return;
        }
        let waiting = self.leaving.iter().filter(|one| one.posted.is_some()).count();
        let room = (BINDS as usize - 1).saturating_sub(waiting);
        for one in self.leaving.iter_mut().filter(|one| one.posted.is_none()).take(room) {
            if let Err(error) = one.window.unbind(pair, one.id) {
                tracing::error!(%error, "a window's request is not posted");
                return self.give_up(pair);
            }
            one.posted = Some(Instant::now());
        }
    }

    /// Takes completions, and gives up what has not come in time.
    fn look(&mut self, pair: &Arc<QueuePair>, ended: &mut Vec<Ended>) {
        let done = &mut self.done;
        if let Err(error) = pair.queue().poll(|one| done.push((one.id, one.status))) {
            tracing::error!(%error, "a window's request failed: the device is asked for no more");
            return self.give_up(pair);
        }
        for (id, status) in std::mem::take(&mut self.done) {
            // Others are of requests that were given up.
            let Some(at) = self.leaving.iter().position(|one| one.id == id) else { continue };
            match status {
                0 => {
                    let Leaving { window, under, .. } = self.leaving.remove(at);
                    window.let_go();
                    self.keep(window);
                    ended.push(Ended { under, stuck: None });
                }
                abi::WC_WR_FLUSH_ERR => self.broken = true,
                _ => {
                    let why = pair.queue().explain(status);
                    tracing::error!(why, "a window's request failed: the device is asked for no more");
                    self.give_up(pair);
                }
            }
        }
        if self.leaving.iter().any(|one| one.posted.is_some_and(|posted| posted.elapsed() > ANSWERS)) {
            tracing::error!("a window's request has no answer in {ANSWERS:?}: the device is asked for no more");
            self.give_up(pair);
        }
    }

    fn keep(&mut self, window: Window) {
        if self.spare.len() < SPARE {
            self.spare.push(window);
        }
    }

    /// Posts a request and waits until it is done.
    fn ask(&mut self, pair: &Arc<QueuePair>, post: impl FnOnce(u64) -> Result<(), VerbsError>) -> Result<(), Unbound> {
        self.last += 1;
        let id = self.last;
        if let Err(error) = post(id) {
            tracing::error!(%error, "a window's request is not posted");
            return Err(Unbound::Never);
        }
        let why = match completion(pair, id, &mut self.done) {
            Ok(Some(0)) => return Ok(()),
            Ok(Some(abi::WC_WR_FLUSH_ERR)) => {
                self.broken = true;
                return Err(Unbound::Later);
            }
            Ok(Some(status)) => pair.queue().explain(status),
            Ok(None) => format!("no answer in {ANSWERS:?}"),
            Err(error) => error.to_string(),
        };
        tracing::error!(why, "a window's request failed: the device is asked for no more");
        self.give_up(pair);
        Err(Unbound::Never)
    }

    /// The device has failed a request that nothing is wrong with.
    fn give_up(&mut self, pair: &QueuePair) {
        self.using.refuses.store(true, Ordering::Relaxed);
        self.broken = true;
        // What was posted must not be done later.
        if let Err(error) = pair.fail() {
            tracing::error!(%error, "its queue pair does not go into error");
        }
    }
}

/// Takes a window's right back by a system call.
fn deallocate(window: Window, under: Under) -> Ended {
    let stuck = window.end().err().map(|(window, error)| {
        tracing::error!(%error, "a window is not deallocated");
        window
    });
    Ended { under, stuck }
}

/// The status of a request, once it is done; `None` if that takes too long. Those of others that are done meanwhile go to `others`.
fn completion(pair: &QueuePair, id: u64, others: &mut Vec<(u64, i32)>) -> Result<Option<i32>, VerbsError> {
    let mut found = None;
    let look = || {
        let polled = pair.queue().poll(|one| match one.id == id {
            true => found = Some(one.status),
            false => others.push((one.id, one.status)),
        });
        match polled {
            Ok(_) => found.map(|status| Ok(Some(status))),
            Err(error) => Some(Err(error)),
        }
    };
    wait_until(Some(ANSWERS), look).unwrap_or(Ok(None))
}

/// Whether a completion that never comes is given up.
#[cfg(all(test, not(loom)))]
pub(super) fn never_comes(pair: &QueuePair) -> bool {
    completion(pair, 1, &mut Vec::new()) == Ok(None)
}
