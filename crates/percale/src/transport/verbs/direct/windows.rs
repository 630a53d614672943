//! The device's windows of one peer: bound over its queue pair, and taken back, one request after the other.
//!
//! A request is posted to the target's end of the peer's queue pair, where nothing else is posted, and its completion is waited for: it is done
//! by this device alone, so it waits for no peer. A queue pair that does not answer in time, or is in error, is asked no more: deallocating
//! a window takes it back as well, and needs none.
//!
//! Invariants: no window is invalidated that is not known to be bound, and none is bound any more when its queue pair is ended.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::super::{Binding, DeviceLimits, ProtectionDomain, QueuePair, VerbsError, Window, WindowKind, abi};
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

/// See the module.
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
}

impl Windows {
    pub(super) const fn new(using: Using) -> Self {
        Self { using, spare: Vec::new(), next: 0, binds: 0, broken: false }
    }

    /// From here on requests are posted to another queue pair, or to none: `broken`.
    pub(super) const fn change_pair(&mut self, broken: bool) {
        self.broken = broken;
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
                tracing::warn!(%error, "the device gives no window: accesses are executed");
                (Unbound::Never, None)
            })?,
        };
        if used(window.next_key()) {
            self.keep(window);
            return Err((Unbound::Later, None));
        }
        if let Err(why) = self.ask(pair, |id| window.bind(pair, id, binding)) {
            // Whether it is bound nobody knows, but it is no more when it is deallocated.
            return Err((why, Self::deallocate(window).err()));
        }
        self.binds += 1;
        if used(window.remote_key()) {
            // Of type 1, where the driver chose.
            return Err((Unbound::Later, self.take_back(window, Some(pair)).err()));
        }
        Ok(window)
    }

    /// Takes a window's right back: when this returns Ok, the device lets no access through it.
    ///
    /// # Errors
    /// The window, if the device does not even deallocate it.
    pub(super) fn take_back(&mut self, window: Window, pair: Option<&Arc<QueuePair>>) -> Result<(), Window> {
        // Where a device has failed once, nobody waits for it again.
        if let Some(pair) = pair.filter(|_| !self.broken && !self.using.refuses())
            && self.ask(pair, |id| window.unbind(pair, id)).is_ok()
        {
            window.let_go();
            self.keep(window);
            return Ok(());
        }
        Self::deallocate(window)
    }

    fn deallocate(window: Window) -> Result<(), Window> {
        window.end().map_err(|(window, error)| {
            tracing::error!(%error, "a window is not deallocated");
            window
        })
    }

    fn keep(&mut self, window: Window) {
        if self.spare.len() < SPARE {
            self.spare.push(window);
        }
    }

    /// Posts a request and waits until it is done.
    fn ask(&mut self, pair: &Arc<QueuePair>, post: impl FnOnce(u64) -> Result<(), VerbsError>) -> Result<(), Unbound> {
        self.next += 1;
        let id = self.next;
        if let Err(error) = post(id) {
            tracing::error!(%error, "a window's request is not posted");
            return Err(Unbound::Never);
        }
        let why = match completion(pair, id) {
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
        self.using.refuses.store(true, Ordering::Relaxed);
        self.broken = true;
        // What was posted must not be done later.
        if let Err(error) = pair.fail() {
            tracing::error!(%error, "its queue pair does not go into error");
        }
        Err(Unbound::Never)
    }
}

/// The status of a request, once it is done; `None` if that takes too long.
fn completion(pair: &QueuePair, id: u64) -> Result<Option<i32>, VerbsError> {
    let mut found = None;
    let look = || {
        // Others are of requests that were given up.
        let polled = pair.queue().poll(|one| {
            if one.id == id {
                found = Some(one.status);
            }
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
    completion(pair, 1) == Ok(None)
}
