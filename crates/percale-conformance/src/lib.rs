//! The conformance suite for all transports.
//!
//! * [`fabric`]: the transports under test, and how their domains are opened
//! * [`mesh`]: endpoints of one process that are driven together, and their reports
//! * [`net`]: a listener and endpoints of one connection each, driven together
//! * [`memory`]: memory for raw operations, and contents that can be verified
//! * [`denial`]: system calls that the system rejects
//! * [`application`]: driver calls that an application makes itself
//! * [`device`]: device memory, and the driver that tests run on
//! * [`kernel`]: a program that runs on a device
//! * [`suite`]: the tests, generic over the transport. `build/registry.rs` finds them and the transports of each
//! * [`peers`]: endpoints of helper processes, and the roles of those processes
//! * [`polled`](mod@polled): futures that are polled by hand
//! * [`process`]: helper processes, which are the test program itself in another role
//! * [`provider`]: the libfabric provider for tests in C
//! * [`ring`]: a token that many processes pass around
//! * [`search_processes`]: the randomized tests with several processes
//! * [`search`]: random operations and lifecycle events, checked against a model
//! * [`watchdog`]: aborts a test that hangs
//! * [`measure`]: the resources of a process: descriptors, mappings, memory
//!
//! The documentation of a test names the requirements that it proves (`Requirements: MSG-001.`, see
//! docs/requirements.md). Its module path contains the transport and the API:
//! `conformance::shm::rust::messages_of_every_size_arrive`.

pub mod application;
pub mod denial;
pub mod device;
pub mod fabric;
pub mod kernel;
pub mod measure;
pub mod memory;
pub mod mesh;
pub mod net;
pub mod peers;
pub mod polled;
pub mod process;
pub mod provider;
pub mod random;
#[cfg(test)]
mod registered;
pub mod ring;
pub mod search;
pub mod search_processes;
pub mod suite;
pub mod watchdog;

/// Returns whether the long forms of tests are enabled (`PERCALE_LONG=1`).
#[must_use]
pub fn long() -> bool {
    std::env::var_os("PERCALE_LONG").is_some_and(|value| value != "0")
}

/// Prints that a test cannot run here because this capability is missing, and the reason. The capabilities are listed in
/// `xtask/src/capabilities.rs`.
pub fn skipped(capability: &str, what: &str, why: &str) {
    eprintln!("SKIPPED ({capability}) {what}: {why}");
}
