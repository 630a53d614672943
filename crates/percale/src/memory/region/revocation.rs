//! Taking a region back: after this is over, nobody reads or writes its memory for a peer.
//!
//! The order matters, and the loom model of [`rundown`](crate::memory::rundown) proves it: no thread of ours enters any
//! more; each grant is made void; a fence; each peer's announcement is looked at; what was announced then is waited for.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::registered::{Grant, Registered};
use crate::memory::forked::forked;
use crate::memory::rundown::{Snapshot, fence_after_revoking};

/// A region that is being taken back.
#[derive(Debug)]
pub(crate) struct Revocation {
    region: Arc<Registered>,
    /// Grants whose peers had announced something.
    waits: Vec<(Grant, Snapshot)>,
}

impl Revocation {
    /// Begins. The region is no longer in its domain's table.
    pub(crate) fn start(region: Arc<Registered>) -> Self {
        region.pin.revoke();
        let waits = void(&region);
        Self { region, waits }
    }

    /// What is being taken back.
    pub(crate) const fn region(&self) -> &Arc<Registered> {
        &self.region
    }

    /// Whether it is over; looks once.
    pub(crate) fn is_over(&mut self) -> bool {
        if forked() {
            return true; // Whoever was inside was so in the parent: its memory is not ours.
        }
        retire(&mut self.waits);
        self.waits.is_empty() && self.region.pin.is_quiet()
    }

    /// Waits until it is over; false if it is not after `timeout` (`None`: waits for ever).
    pub(crate) fn wait(&mut self, timeout: Option<Duration>) -> bool {
        wait_until(timeout, || self.is_over().then_some(())).is_some()
    }
}

/// Looks until there is something, for as long as `timeout` (`None`: for ever).
pub(crate) fn wait_until<R>(timeout: Option<Duration>, mut look: impl FnMut() -> Option<R>) -> Option<R> {
    if let Some(found) = look() {
        return Some(found);
    }
    let started = Instant::now();
    let mut looks = 0_u32;
    loop {
        looks += 1;
        match looks {
            // A copy of 64 KiB takes a few microseconds.
            ..64 => std::hint::spin_loop(),
            64..1024 => std::thread::yield_now(),
            _ => std::thread::sleep(Duration::from_micros(200)),
        }
        let found = look();
        if found.is_some() || timeout.is_some_and(|timeout| started.elapsed() > timeout) {
            return found;
        }
    }
}

/// Makes all grants of a region void, for good; returns those that may still be in use.
fn void(region: &Registered) -> Vec<(Grant, Snapshot)> {
    let grants = region.grants().close();
    if grants.is_empty() {
        return Vec::new();
    }
    for grant in &grants {
        grant.to.revoke(grant.entry);
    }
    fence_after_revoking();
    let mut waits: Vec<_> = grants
        .into_iter()
        .map(|grant| {
            let snapshot = grant.to.snapshot();
            (grant, snapshot)
        })
        .collect();
    retire(&mut waits);
    waits
}

/// Removes those whose peers are done.
fn retire(waits: &mut Vec<(Grant, Snapshot)>) {
    waits.retain(|(grant, snapshot)| {
        let retired = grant.to.has_retired(*snapshot);
        if retired {
            grant.to.release(grant.entry);
        }
        !retired
    });
}
