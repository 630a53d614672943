//! Functions of the operating system that every module needs. This module does not depend on any other.
//!
//! * `call` adds names to failed system calls. `interrupted` repeats calls that a signal interrupted.
//! * `forked` distinguishes a process from its forked children. `process_socket` contains a socket that a forked child
//!   does not keep.
//! * `random` returns random bytes.
//! * `thread` starts threads. `event` contains the descriptor with which threads and peers wake each other up. `spin`
//!   determines how long a waiting thread polls before it sleeps.

pub mod call;
pub mod event;
pub mod forked;
pub mod interrupted;
pub mod process_socket;
pub mod random;
pub mod spin;
pub mod thread;
