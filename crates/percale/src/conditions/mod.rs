//! The conditions for which operations wait before they begin: counters and variables.
//!
//! * `lines`: the counters at which work of one owner waits, and the deferred work of a domain
//! * `variable`: variables that devices write (defined in percale-device); `watched`: work that waits for them

pub(crate) mod lines;
pub(crate) mod watched;

/// Variables that a device, or a thread, writes to begin an operation.
pub(crate) mod variable {
    pub use percale_device::Variable;
    pub(crate) use percale_device::Variables;
}
