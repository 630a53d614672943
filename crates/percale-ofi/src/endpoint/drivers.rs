//! Which threads make progress on an endpoint, and which sleep until it has something: this decides whether the endpoint has a lock.
//!
//! Everything that can use an endpoint besides the calls on the endpoint itself:
//!
//! | user | when |
//! |---|---|
//! | readers of its completion queues | always |
//! | readers of its counters | always |
//! | readers of its event queue | connected endpoints, and those that join groups |
//! | readers of counters that deferred work is counted by | endpoints of such work, which have a lock from the first work on |
//! | readers of counters of regions | endpoints through which peers' writes are counted (FI_RMA_EVENT) |
//! | threads that sleep at any of these | they drive what they sleep on, or wait until other threads have done so |
//!
//! With FI_THREAD_SAFE (and FI_THREAD_FID, FI_THREAD_ENDPOINT) these are different threads. With FI_THREAD_DOMAIN they are one at a time,
//! unless a thread sleeps. With FI_THREAD_COMPLETION the client serializes an endpoint with what is bound to it: completion queues
//! and counters, but neither event queues nor counters of regions, which are bound to regions. So a lock is needed if any of the list is
//! outside of what the client serializes.

use std::sync::Arc;

use crate::counter;
use crate::domain::{self, Serialized};
use crate::queue;

/// The objects that an endpoint is bound to, as far as they matter here.
pub(super) struct Drivers<'a> {
    pub(super) domain: &'a domain::Shared,
    pub(super) queues: [Option<&'a Arc<queue::Shared>>; 2],
    pub(super) counters: &'a [(u64, Arc<counter::Shared>)],
    /// Reading its event queue makes progress on it.
    pub(super) events: bool,
    /// Counters of regions count what peers write through it.
    pub(super) regions: bool,
}

impl Drivers<'_> {
    /// Whether other threads may use the endpoint than the one that the client's promise leaves.
    pub(super) fn need_a_lock(&self) -> bool {
        let slept_on = self.queues.iter().flatten().any(|queue| !queue.takes_directly())
            || self.counters.iter().any(|(_, counter)| counter.is_slept_on())
            || self.events;
        let by_regions = match self.domain.serialized {
            Serialized::Nothing | Serialized::Completions => self.regions,
            Serialized::Domain => self.domain.sleeps_for_regions(),
        };
        self.domain.serialized == Serialized::Nothing || slept_on || by_regions
    }
}
