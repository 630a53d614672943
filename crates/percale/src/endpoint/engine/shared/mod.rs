//! An endpoint's part in a shared receive context: its membership, and the context that reports its receives after it
//! has closed.
//!
//! Invariants:
//! 1. An endpoint that has left its context takes no more receives from it.
//! 2. An endpoint keeps the context that it has left only if no queue outlives the endpoint. Then other members report
//!    the receives that it has taken.

#[cfg(all(test, not(loom)))]
mod tests;

use std::sync::Arc;

use crate::endpoint::pool::{Membership, Pool};

/// An endpoint's part in a shared receive context.
#[derive(Debug)]
pub(crate) struct SharedReceives {
    /// The membership, if there is one.
    membership: Option<Membership>,
    /// The context that this endpoint has left because it is closing. Set only if the queue in which the endpoint would
    /// report the receives that it has taken is closed with it.
    successor: Option<Arc<Pool>>,
}

impl SharedReceives {
    pub(crate) const fn new(membership: Option<Membership>) -> Self {
        Self { membership, successor: None }
    }

    /// Returns whether the endpoint is a member of a context.
    #[inline]
    pub(super) const fn is_member(&self) -> bool {
        self.membership.is_some()
    }

    /// Returns the membership, if there is one.
    #[inline]
    pub(super) const fn membership(&self) -> Option<&Membership> {
        self.membership.as_ref()
    }

    /// Returns the membership if the context has notes for this endpoint.
    pub(super) fn with_notes(&self) -> Option<&Membership> {
        self.membership().filter(|membership| membership.has_notes())
    }

    /// Leaves the context. `reports_elsewhere` states whether a queue outlives the endpoint. If not, other members
    /// report the receives that it has taken. Returns the membership, so that the caller can still deliver the messages
    /// that were promised to shared receives.
    pub(super) fn leave(&mut self, reports_elsewhere: bool) -> Option<Membership> {
        let membership = self.membership.take()?;
        if !reports_elsewhere {
            self.successor = Some(Arc::clone(membership.pool()));
        }
        Some(membership)
    }

    /// Returns the context if this endpoint is closing and the other members report its receives.
    pub(super) const fn successor(&self) -> Option<&Arc<Pool>> {
        self.successor.as_ref()
    }
}
