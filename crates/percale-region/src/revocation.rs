//! The revocation of a region. After it has completed, no access of a peer to the region's memory is in progress, and
//! none begins.
//!
//! The order of the steps is important. The loom model of [`rundown`](crate::local_memory::rundown) checks it:
//!
//! 1. The region is closed to threads of this process: from this point on, none enters it.
//! 2. Each grant is made void.
//! 3. A fence is executed, also on behalf of peers that announce without fences.
//! 4. A snapshot of each peer's announcement is taken.
//! 5. The revoker waits for the accesses that were announced at the time of the snapshots.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::registered::{RegionGrant, Registered};
use crate::local_memory::rundown::{Snapshot, fence_after_revoking, fence_initiators};

/// The revocation of a region, or of some of its grants.
#[derive(Debug)]
pub struct Revocation {
    region: Arc<Registered>,
    waits: Vec<PendingGrant>,
    /// Whether only some grants are revoked, and the region itself continues to exist.
    goes_on: bool,
    /// Earlier revocations of the same memory that have not completed. This one completes after them.
    earlier: Vec<Self>,
}

/// A grant to a peer that may be in the middle of an access.
#[derive(Debug)]
struct PendingGrant {
    grant: RegionGrant,
    /// The snapshot of the peer's announcement. It is `None` as long as a fence on behalf of the peer was not possible.
    then: Option<Snapshot>,
}

impl Revocation {
    /// Starts the revocation of a region, which is no longer in its domain's table.
    pub fn start(region: Arc<Registered>) -> Self {
        region.pin.revoke();
        let waits = void(&region);
        Self { region, waits, goes_on: false, earlier: Vec::new() }
    }

    /// Starts the revocation of some grants of a region. The region itself continues to exist.
    pub(super) fn of_grants(region: &Arc<Registered>, grants: Vec<RegionGrant>) -> Self {
        Self { region: Arc::clone(region), waits: revoke(grants), goes_on: true, earlier: Vec::new() }
    }

    /// Makes this revocation complete only after an earlier one of the same memory.
    pub(super) fn follow(&mut self, earlier: Self) {
        self.earlier.push(earlier);
    }

    /// Returns whether no window of the regions exists any more.
    pub(super) fn windows_are_gone(&self) -> bool {
        self.region.windows().are_gone() && self.earlier.iter().all(Self::windows_are_gone)
    }

    /// Returns the region.
    pub const fn region(&self) -> &Arc<Registered> {
        &self.region
    }

    /// Returns whether the revocation has completed. Checks once, without waiting.
    pub fn is_over(&mut self) -> bool {
        if !self.region.is_here() {
            return true; // In a forked child, peers and threads that were inside access the parent's memory.
        }
        retire(&mut self.waits);
        self.earlier.retain_mut(|earlier| !earlier.is_over());
        self.waits.is_empty() && self.earlier.is_empty() && (self.goes_on || self.region.pin.is_quiet())
    }

    /// Waits until the revocation has completed. Returns false if it has not completed after `timeout`. If `timeout` is
    /// `None`, waits forever.
    pub fn wait(&mut self, timeout: Option<Duration>) -> bool {
        wait_until(timeout, || self.is_over().then_some(())).is_some()
    }
}

/// Calls `look` until it returns `Some`, for at most `timeout`. If `timeout` is `None`, waits forever.
pub fn wait_until<R>(timeout: Option<Duration>, mut look: impl FnMut() -> Option<R>) -> Option<R> {
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

/// Makes all grants of a region void permanently. Returns those that may still be in use.
fn void(region: &Registered) -> Vec<PendingGrant> {
    let grants = region.grants().close();
    revoke(grants)
}

/// Makes these grants void. Returns those that may still be in use.
fn revoke(grants: Vec<RegionGrant>) -> Vec<PendingGrant> {
    if grants.is_empty() {
        return Vec::new();
    }
    for grant in &grants {
        grant.to.revoke(grant.entry);
    }
    fence_after_revoking();
    let mut waits = grants.into_iter().map(|grant| PendingGrant { grant, then: None }).collect();
    retire(&mut waits);
    waits
}

/// Removes the waits that have retired.
fn retire(waits: &mut Vec<PendingGrant>) {
    if waits.iter().any(|wait| wait.then.is_none()) {
        look(waits);
    }
    waits.retain(|PendingGrant { grant, then }| {
        let retired = then.is_some_and(|then| grant.to.has_retired(grant.entry, then));
        if retired {
            grant.to.release(grant.entry);
        }
        !retired
    });
}

/// Takes the missing snapshots. If a fence on behalf of a peer is not possible, the peer is requested to use fences
/// itself, and its snapshot is taken later.
fn look(waits: &mut [PendingGrant]) {
    let mut unfenced = waits.iter().filter(|wait| wait.then.is_none() && wait.grant.to.is_unfenced()).peekable();
    let mut all = true;
    if unfenced.peek().is_some() {
        all = fence_initiators();
        unfenced.for_each(|wait| wait.grant.to.ask_to_fence());
    }
    for PendingGrant { grant, then } in waits {
        if then.is_none() && (all || !grant.to.is_unfenced()) {
            *then = Some(grant.to.snapshot());
        }
    }
}
