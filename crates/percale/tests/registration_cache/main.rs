//! Tests of a domain's registration cache, with io_uring's fixed buffers as the device. The tests check the
//! registrations, as counted by the device and by the kernel (VmPin), and the data of transfers. This is a separate
//! program in which one test runs at a time, because pinned pages are counted for the whole process. The tests are
//! skipped, and print the reason, if io_uring is forbidden.

#![allow(unsafe_code, reason = "maps memory, and imports a monitor; each block states its own reason")]

mod changes;
mod kept;
mod limits;
mod memory;
mod monitors;
mod world;
