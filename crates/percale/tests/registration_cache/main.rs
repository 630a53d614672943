//! The registration cache of a domain, with io_uring's fixed buffers as the device. The tests check the registrations,
//! as counted by the device and by the kernel (VmPin), and the data of transfers. A separate program, because pinned
//! pages are counted for the whole process, so one test runs at a time. The tests are skipped, and print the reason, if
//! io_uring is forbidden.

#![allow(unsafe_code, reason = "maps memory, and imports a monitor; each block states its own reason")]

mod changes;
mod kept;
mod limits;
mod memory;
mod monitors;
mod world;
