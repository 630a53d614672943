//! What is on this machine.
//!
//! * [`host`] tells this host, this network namespace and this user from others, and picks the address to advertise.

pub mod host;
