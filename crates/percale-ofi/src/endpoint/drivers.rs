//! Decides which threads make progress on an endpoint, and which threads sleep until it has results. An endpoint has a
//! lock if several threads may use it concurrently.
//!
//! Besides the calls on the endpoint itself, the following threads may use it:
//!
//! | user | when |
//! |---|---|
//! | readers of its completion queues | always |
//! | readers of its counters | always |
//! | readers of its event queue | connected endpoints, and endpoints that join groups |
//! | readers of counters of deferred work | endpoints of such work, which have a lock from the first work on |
//! | readers of counters of regions | endpoints through which writes of peers are counted (FI_RMA_EVENT) |
//! | threads that sleep on any of these | they drive the objects that they sleep on, or wait until other threads have done so |
//!
//! With FI_THREAD_SAFE (and FI_THREAD_FID, FI_THREAD_ENDPOINT) these are different threads. With FI_THREAD_DOMAIN only
//! one of them runs at a time, unless a thread sleeps. With FI_THREAD_COMPLETION the client serializes an endpoint with
//! the completion queues and counters that are bound to it, but not with event queues or with counters of regions,
//! which are bound to regions. A lock is therefore needed if the client does not serialize all users in the table.

use std::sync::Arc;

use crate::counter;
use crate::domain::{self, Serialized};
use crate::queue;

/// The objects bound to an endpoint that determine its users.
pub(super) struct Drivers<'a> {
    pub(super) domain: &'a domain::DomainShared,
    pub(super) queues: [Option<&'a Arc<queue::QueueShared>>; 2],
    pub(super) counters: &'a [(u64, Arc<counter::CounterShared>)],
    /// Set if reading the event queue makes progress on the endpoint.
    pub(super) events: bool,
    /// Set if the endpoint counts the writes of peers for counters of regions.
    pub(super) regions: bool,
}

impl Drivers<'_> {
    /// Returns whether threads other than the one that the client serializes may use the endpoint.
    pub(super) fn need_a_lock(&self) -> bool {
        let slept_on = self.queues.iter().flatten().any(|queue| !queue.takes_directly())
            || self.counters.iter().any(|(_, counter)| counter.has_sleepers())
            || self.events;
        let by_regions = match self.domain.serialized {
            Serialized::Nothing | Serialized::Completions => self.regions,
            Serialized::Domain => self.domain.sleeps_for_regions(),
        };
        self.domain.serialized == Serialized::Nothing || slept_on || by_regions
    }
}
