//! The channel between the two processes of a measurement: [`control`], over which they agree on what to do next; [`proof`], by which each checks
//! that the other has the authorization key; and [`watch`], by which every wait notices that the other process has ended.

pub(crate) mod control;
pub(crate) mod proof;
pub(crate) mod watch;
