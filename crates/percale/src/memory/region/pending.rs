//! Registration that completes later, reported by an event (fi_mr(3), FI_REG_MR).
//!
//! The registration waits in the event queue, and the thread that reads the event performs it. So the properties of the
//! region are not available before the event is read, and no peer can access it. Until then the memory belongs to the
//! [`PendingRegion`], which has no method that returns a key.

use std::sync::Arc;

use super::{Region, RegisterError, Registration};
use crate::completion::event::{Event, EventQueue, EventQueueFull};
use crate::domain::Domain;
use crate::local_memory::buffer::Buffer;
use crate::region::properties::RegistrationProperties;
use crate::system::forked::ProcessMutex;

/// A region that is not registered yet. Dropping it cancels the registration, and no event is reported.
#[must_use = "dropping it cancels the registration"]
pub struct PendingRegion {
    shared: Arc<ProcessMutex<PendingState>>,
}

crate::short_debug!(PendingRegion, "PendingRegion");

#[derive(Debug)]
enum PendingState {
    Waiting(Box<RegistrationRequest>),
    Over(Result<Region, RegisterError>),
    /// The result was taken, or the registration is being performed.
    Taken,
}

/// The requested registration.
#[derive(Debug)]
struct RegistrationRequest {
    domain: Domain,
    terms: RegistrationProperties,
    memory: Buffer,
}

impl RegistrationRequest {
    fn register(self) -> Result<Region, RegisterError> {
        Registration::of(&self.domain, self.terms).own(self.memory)
    }
}

impl PendingRegion {
    /// Returns the region, or the error of the registration, once the event was read. Before that, returns itself as
    /// `Err`.
    ///
    /// # Errors
    /// If the event was not read yet. In a forked child the registration has failed with [`RegisterError::Forked`].
    pub fn finish(self) -> Result<Result<Region, RegisterError>, Self> {
        let Some(mut state) = self.shared.lock() else { return Ok(Err(RegisterError::Forked)) };
        if matches!(*state, PendingState::Waiting(_)) {
            drop(state);
            return Err(self);
        }
        match std::mem::replace(&mut *state, PendingState::Taken) {
            PendingState::Over(result) => Ok(result),
            PendingState::Waiting(_) | PendingState::Taken => {
                unreachable!("`finish` consumes the object, and reading the event stores a result")
            }
        }
    }
}

impl Registration<'_> {
    /// Registers memory later. An [`Event::Registered`] with this `context` reports success, an
    /// [`Event::RegistrationFailed`] an error. After that [`PendingRegion::finish`] returns the region or the error.
    ///
    /// # Errors
    /// If the queue has no room for the event. In this case no event is reported.
    pub fn begin(
        self,
        memory: impl Into<Buffer>,
        events: &EventQueue,
        context: u64,
    ) -> Result<PendingRegion, EventQueueFull> {
        let (domain, terms) = self.parts();
        let requested = RegistrationRequest { domain: domain.clone(), terms, memory: memory.into() };
        let shared = Arc::new(ProcessMutex::new(PendingState::Waiting(Box::new(requested))));
        let waiting = Arc::downgrade(&shared);
        events.write_later(move || {
            let shared = waiting.upgrade()?; // `None` if the registration was canceled.
            let mut state = shared.lock()?;
            let PendingState::Waiting(requested) = std::mem::replace(&mut *state, PendingState::Taken) else {
                return None;
            };
            let result = requested.register();
            let event = match &result {
                Ok(_) => Event::Registered { context },
                Err(error) => Event::RegistrationFailed { context, errno: error.errno(), reason: error.to_string() },
            };
            *state = PendingState::Over(result);
            Some(event)
        })?;
        Ok(PendingRegion { shared })
    }
}
