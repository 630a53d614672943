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

/// The reason why [`PendingRegion::finish`] returned no region.
#[non_exhaustive]
#[derive(thiserror::Error)]
pub enum PendingError {
    /// The registration has not ended, or its event was not read yet. Contains the handle.
    #[error("the registration has not ended; read its event from the event queue, then finish it")]
    NotDone(PendingRegion),
    /// The registration failed.
    #[error(transparent)]
    Failed(#[from] RegisterError),
    /// The registration panicked in the thread that read its event.
    #[error("the registration panicked in the thread that read its event; that thread has printed the reason")]
    Panicked,
}

crate::short_debug!(PendingError, "PendingError", reason: |this| this.to_string());

impl PendingError {
    /// Returns the handle if the registration has not ended ([`NotDone`](Self::NotDone)).
    #[must_use]
    pub fn into_inner(self) -> Option<PendingRegion> {
        match self {
            Self::NotDone(pending) => Some(pending),
            Self::Failed(_) | Self::Panicked => None,
        }
    }

    /// Returns whether the same call may succeed later although neither it nor the program is changed, which is the
    /// case for [`NotDone`](Self::NotDone).
    #[must_use]
    pub const fn is_retriable(&self) -> bool {
        matches!(self, Self::NotDone(_))
    }

    /// Returns the libfabric error code (positive) of this error.
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            Self::NotDone(_) => libc::EAGAIN,
            Self::Failed(error) => error.errno(),
            Self::Panicked => libc::EIO,
        }
    }
}

impl PendingRegion {
    /// Returns the region, once the event was read.
    ///
    /// # Errors
    /// [`PendingError::NotDone`], which contains this handle, if the event was not read yet.
    /// [`PendingError::Failed`] if the registration failed. In a forked child it has failed with
    /// [`RegisterError::Forked`]. [`PendingError::Panicked`] if the registration panicked.
    pub fn finish(self) -> Result<Region, PendingError> {
        let Some(mut state) = self.shared.lock() else { return Err(RegisterError::Forked.into()) };
        if matches!(*state, PendingState::Waiting(_)) {
            drop(state);
            return Err(PendingError::NotDone(self));
        }
        match std::mem::replace(&mut *state, PendingState::Taken) {
            PendingState::Over(result) => result.map_err(PendingError::Failed),
            // Reading the event stores a result, and only `finish` takes it.
            PendingState::Waiting(_) | PendingState::Taken => Err(PendingError::Panicked),
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn finish_after_a_panic_returns_an_error() {
        // The state that a panic leaves.
        let pending = PendingRegion { shared: Arc::new(ProcessMutex::new(PendingState::Taken)) };
        let error = pending.finish().expect_err("there is no region");
        assert!(matches!(error, PendingError::Panicked));
        assert_eq!((error.errno(), error.is_retriable()), (libc::EIO, false));
    }
}
