//! Registration that ends later: an event tells when (fi_mr(3), FI_REG_MR).
//!
//! What is registered waits with the event queue, and whoever reads the event makes the registration: so nothing of the region is
//! known before, and nobody reaches it. The memory belongs to the [`PendingRegion`] meanwhile (MR-065), which has no key to show
//! (MR-062).

use std::sync::Arc;

use super::Domain;
use crate::completion::event::{Event, EventQueue, EventQueueFull};
use crate::memory::buffer::Buffer;
use crate::memory::forked::ProcessMutex;
use crate::memory::region::{Region, RegisterError, Registration, Terms};

/// A region that is not there yet. Dropping it withdraws the registration: then there is no event.
#[must_use = "dropping it withdraws the registration"]
pub struct PendingRegion {
    shared: Arc<ProcessMutex<State>>,
}

crate::short_debug!(PendingRegion, "PendingRegion");

#[derive(Debug)]
enum State {
    Waiting(Box<Asked>),
    Over(Result<Region, RegisterError>),
    /// Between the two.
    Taken,
}

/// What was asked for.
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
    /// The region, or why there is none; once the event was read. `Err` gives this back: it was not.
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
    /// Registers memory later: an [`Event::Registered`] with this `context` tells that it was done, or an
    /// [`Event::RegistrationFailed`] that it cannot be; then [`PendingRegion::finish`] gives the region (MR-060, MR-064).
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
            let shared = waiting.upgrade()?; // Withdrawn, if it is not there.
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
