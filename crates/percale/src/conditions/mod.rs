//! The conditions for which operations wait before they begin: counters and variables.
//!
//! * `lines`: the counters for which work of one owner waits, and the deferred work of a domain
//! * `variable`: variables that devices write; `watched`: the work that waits for them

pub(crate) mod lines;
pub(crate) mod variable;
pub(crate) mod watched;
