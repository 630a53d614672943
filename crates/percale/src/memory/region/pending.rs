//! Registration that completes later, reported by an event (fi_mr(3), FI_REG_MR).
//!
//! The registration waits in the event queue, and the thread that reads the event performs it: so no property of the region is
//! known before, and no peer reaches it. The memory belongs to the [`PendingRegion`] meanwhile (MR-065), which has no key to show
//! (MR-062).

use std::sync::Arc;

use super::{Region, RegisterError, Registration};
use crate::completion::event::{Event, EventQueue, EventQueueFull};
use crate::domain::Domain;
use crate::local_memory::buffer::Buffer;
use crate::region::terms::Terms;
use crate::system::forked::ProcessMutex;

/// A region that is not registered yet. Dropping it withdraws the registration: then there is no event.
#[must_use = "dropping it withdraws the registration"]
pub struct PendingRegion {
    shared: Arc<ProcessMutex<State>>,
}

crate::short_debug!(PendingRegion, "PendingRegion");

#[derive(Debug)]
enum State {
    Waiting(Box<Asked>),
    Over(Result<Region, RegisterError>),
    /// The result was taken, or the registration is being performed.
    Taken,
}

/// The requested registration.
#[derive(Debug)]
struct Asked {
    domain: Domain,
    terms: Terms,
    memory: Buffer,
}

impl Asked {
    fn register(self) -> Result<Region, RegisterError> {
        Registration::of(&self.domain, self.terms).own(self.memory)
    }
}

impl PendingRegion {
    /// Returns the region, or the reason why there is none, once the event was read. Before that, returns itself as `Err`.
    ///
    /// # Errors
    /// If the event was not read yet. In a forked child the registration is over with [`RegisterError::Forked`].
    pub fn finish(self) -> Result<Result<Region, RegisterError>, Self> {
        let Some(mut state) = self.shared.lock() else { return Ok(Err(RegisterError::Forked)) };
        if matches!(*state, State::Waiting(_)) {
            drop(state);
            return Err(self);
        }
        match std::mem::replace(&mut *state, State::Taken) {
            State::Over(result) => Ok(result),
            State::Waiting(_) | State::Taken => unreachable!("finishing takes it, and reading leaves a result"),
        }
    }
}

impl Registration<'_> {
    /// Registers memory later: an [`Event::Registered`] with this `context` reports that it was done, or an
    /// [`Event::RegistrationFailed`] that it failed; then [`PendingRegion::finish`] returns the region or the error (MR-060, MR-064).
    ///
    /// # Errors
    /// If the queue has no room for the event; then there will be none (MR-063).
    pub fn begin(
        self,
        memory: impl Into<Buffer>,
        events: &EventQueue,
        context: u64,
    ) -> Result<PendingRegion, EventQueueFull> {
        let (domain, terms) = self.parts();
        let asked = Asked { domain: domain.clone(), terms, memory: memory.into() };
        let shared = Arc::new(ProcessMutex::new(State::Waiting(Box::new(asked))));
        let waiting = Arc::downgrade(&shared);
        events.write_later(move || {
            let shared = waiting.upgrade()?; // Gone if the registration was withdrawn.
            let mut state = shared.lock()?;
            let State::Waiting(asked) = std::mem::replace(&mut *state, State::Taken) else { return None };
            let result = asked.register();
            let event = match &result {
                Ok(_) => Event::Registered { context },
                Err(error) => Event::RegistrationFailed { context, errno: error.errno(), reason: error.to_string() },
            };
            *state = State::Over(result);
            Some(event)
        })?;
        Ok(PendingRegion { shared })
    }
}
