//! The channel between the two processes of a measurement.
//!
//! * [`control`] coordinates the processes.
//! * [`proof`] checks that the other process has the authorization key.
//! * [`watch`] ends every wait if the other process has ended.

pub(crate) mod control;
pub(crate) mod proof;
pub(crate) mod watch;
