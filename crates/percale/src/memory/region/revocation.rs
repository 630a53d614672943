//! Taking a region back: after this is over, nobody reads or writes its memory for a peer.
//!
//! The order matters, and the loom model of [`rundown`](crate::memory::rundown) proves it: no thread of ours enters any
//! more; each grant is made void; a fence, for peers that go without one, too; each peer's announcement is looked at; what
//! was announced then is waited for.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::registered::{Grant, Registered};
use crate::memory::rundown::{Snapshot, fence_after_revoking, fence_initiators};

/// A region that is being taken back.
#[derive(Debug)]
pub(crate) struct Revocation {
    region: Arc<Registered>,
    waits: Vec<Wait>,
    /// The region is not taken back, but some of its grants are.
    goes_on: bool,
}

/// A grant whose peer may be in the middle of an access.
#[derive(Debug)]
struct Wait {
    grant: Grant,
    /// What the peer had announced. `None` while it could not be fenced.
    then: Option<Snapshot>,
}

impl Revocation {
    /// Begins. The region is no longer in its domain's table.
    pub(crate) fn start(region: Arc<Registered>) -> Self {
        region.pin.revoke();
        let waits = void(&region);
        Self { region, waits, goes_on: false }
    }

    /// Takes these grants of a region back, which goes on.
    pub(super) fn of_grants(region: &Arc<Registered>, grants: Vec<Grant>) -> Self {
        Self { region: Arc::clone(region), waits: revoke(grants), goes_on: true }
    }

    /// Waits for what another one waits for, too, whose region is the same.
    pub(super) fn join(&mut self, other: Self) {
        self.waits.extend(other.waits);
    }

    /// What is being taken back.
    pub(crate) const fn region(&self) -> &Arc<Registered> {
        &self.region
    }

    /// Whether it is over; looks once.
    pub(crate) fn is_over(&mut self) -> bool {
        if !self.region.is_here() {
            return true; // Whoever was inside was so in the parent: its memory is not ours.
        }
        retire(&mut self.waits);
        self.waits.is_empty() && (self.goes_on || self.region.pin.is_quiet())
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
fn void(region: &Registered) -> Vec<Wait> {
    let grants = region.grants().close();
    revoke(grants)
}

/// Makes these grants void; returns those that may still be in use.
fn revoke(grants: Vec<Grant>) -> Vec<Wait> {
    if grants.is_empty() {
        return Vec::new();
    }
    for grant in &grants {
        grant.to.revoke(grant.entry);
    }
    fence_after_revoking();
    let mut waits = grants.into_iter().map(|grant| Wait { grant, then: None }).collect();
    retire(&mut waits);
    waits
}

/// Removes those whose peers are done.
fn retire(waits: &mut Vec<Wait>) {
    if waits.iter().any(|wait| wait.then.is_none()) {
        look(waits);
    }
    waits.retain(|Wait { grant, then }| {
        let retired = then.is_some_and(|then| grant.to.has_retired(grant.entry, then));
        if retired {
            grant.to.release(grant.entry);
        }
        !retired
    });
}

/// Takes the snapshots that are missing. Peers that cannot be fenced are asked to fence by themselves, and looked at again later.
fn look(waits: &mut [Wait]) {
    let mut unfenced = waits.iter().filter(|wait| wait.then.is_none() && wait.grant.to.is_unfenced()).peekable();
    let mut all = true;
    if unfenced.peek().is_some() {
        all = fence_initiators();
        unfenced.for_each(|wait| wait.grant.to.ask_to_fence());
    }
    for Wait { grant, then } in waits {
        if then.is_none() && (all || !grant.to.is_unfenced()) {
            *then = Some(grant.to.snapshot());
        }
    }
}
