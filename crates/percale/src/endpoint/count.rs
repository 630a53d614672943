//! Binds counters to an endpoint that is already open (fi_endpoint(3), fi_ep_bind).

use super::Endpoint;
pub use super::counted::Counted;
use super::ownership::Ownership;
use super::work::PostError;
use crate::completion::counter::Counter;

impl<A: Ownership> Endpoint<A> {
    /// Counts operations of these kinds from now on, like the counters of a [builder](crate::EndpointBuilder). An
    /// operation that ends later is counted even if it was posted before. Accesses that a peer makes directly are
    /// counted only after that peer has been notified of the counter, so bind a counter of remote accesses before peers
    /// use regions.
    ///
    /// # Errors
    /// [`PostError::HasCounter`] if the endpoint already has a counter for one of these kinds; in that case nothing was
    /// changed. [`PostError::Counter`] if waiting for the counter cannot make progress on the endpoint.
    /// [`PostError::Forked`] in a forked child. [`PostError::Closed`] if the endpoint was closed.
    pub fn count(&self, what: Counted, counter: &Counter) -> Result<(), PostError> {
        self.access.with(|engine| engine.count(what, counter))?;
        self.access.reports_also_to(counter).map_err(|error| PostError::Counter(crate::error_number(&error)))
    }
}
