//! What every module needs of the operating system. It depends on no other module.
//!
//! * `call` names the system calls that fail; `interrupted` repeats those that a signal interrupted.
//! * `forked` distinguishes a process from its forks; `process_socket` is a socket that a fork does not keep.
//! * `thread` starts threads; `event` is the means by which threads and peers wake each other; `spin` is how long a waiting thread looks
//!   before it sleeps.

pub(crate) mod call;
pub(crate) mod event;
pub(crate) mod forked;
pub(crate) mod interrupted;
pub(crate) mod process_socket;
pub(crate) mod spin;
pub(crate) mod thread;
