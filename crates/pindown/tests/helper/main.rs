//! pindown-helper and its clients, as processes: the helper runs as root, clients run as user `nobody`. The tests are
//! skipped, with the reason, if the programs cannot be loaded.
#![expect(unsafe_code, reason = "the clients make raw system calls; each block states its own reason")]

mod client;
#[path = "../copied/mod.rs"]
mod copied;
mod fuzz;
mod hostile;
mod parked;
mod protocol;
mod service;
mod serving;
mod strangers;
mod support;
