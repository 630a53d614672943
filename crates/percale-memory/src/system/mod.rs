//! What every module needs from the operating system. This module depends on no other.
//!
//! * `call` adds names to failed system calls; `interrupted` repeats calls that a signal interrupted.
//! * `forked` distinguishes a process from its forks; `process_socket` contains a socket that a fork does not keep.
//! * `random` returns random bytes.
//! * `thread` starts threads; `event` contains the descriptor with which threads and peers wake each other; `spin`
//!   determines how long a waiting thread polls before it sleeps.

pub mod call;
pub mod event;
pub mod forked;
pub mod interrupted;
pub mod process_socket;
pub mod random;
pub mod spin;
pub mod thread;
