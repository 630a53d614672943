//! pindown: a registration cache that is never wrong.
//!
//! * [`monitor`]: learns that memory changed under a registration

pub mod monitor;
