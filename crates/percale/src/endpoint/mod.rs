//! Endpoints: where operations are posted and messages arrive.
//!
//! * `matching` decides which receive takes which message.

#[allow(dead_code, reason = "the engine that calls it is not here yet; its tests use all of it")]
pub(crate) mod matching;
