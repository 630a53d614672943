//! The machine's limits: short plain programs that carry the same messages as percale, without any other work. They run
//! in the same two processes and in the same minute as the measurements that are compared with them.
//!
//! * [`ring`]: small messages through shared memory. One ring of 64 cache lines each way; 8 bytes and a mark in each.
//! * [`copy`]: large ones. One core copies a buffer that the other has written.
//! * [`access`]: one-sided operations. One core accesses the other's buffer: by a copy, by the system call ([`kernel`]), or by one locked
//!   instruction.
//! * [`sockets`]: TCP. Plain non-blocking sockets; the fastest of the write sizes, buffer sizes and calls named there.
//!
//! [`shared`] is the memory of the first three; only it and [`kernel`] have `unsafe`.

pub(crate) mod access;
pub(crate) mod copy;
pub(crate) mod kernel;
pub(crate) mod ring;
pub(crate) mod shared;
pub(crate) mod sockets;
pub(crate) mod twice;

#[cfg(test)]
mod tests;
