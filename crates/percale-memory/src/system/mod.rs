//! What every module needs of the operating system. It depends on no other module.
//!
//! * `call` names the system calls that fail; `interrupted` repeats those that a signal interrupted.
//! * `forked` distinguishes a process from its forks; `process_socket` is a socket that a fork does not keep.
//! * `random` gives random bytes.
//! * `thread` starts threads; `event` is the means by which threads and peers wake each other; `spin` is how long a waiting thread looks
//!   before it sleeps.

pub mod call;
pub mod event;
pub mod forked;
pub mod interrupted;
pub mod process_socket;
pub mod random;
pub mod spin;
pub mod thread;
