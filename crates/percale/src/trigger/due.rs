//! What begins when a counter has reached a threshold.

use std::sync::Arc;

use super::submissions::{Submissions, Transfer};
use crate::completion::counter::Counter;

/// The action once a counter meets its condition.
#[derive(Debug)]
pub(crate) enum Due {
    /// Adds to a counter.
    Add(Counter, u64),
    /// Sets a counter's value.
    Set(Counter, u64),
    /// Begins an operation of an endpoint.
    Transfer(Arc<Submissions>, Box<Transfer>),
}
