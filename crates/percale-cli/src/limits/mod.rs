//! The machine's limits: short plain programs that transfer the same messages as percale, without any other work. They
//! run in the same two processes, in turns with the measurements that are compared with them.
//!
//! * [`ring`]: small messages through shared memory. There is one ring of 64 cache lines in each direction, with 8
//!   bytes and a mark in each line.
//! * [`copy`]: large messages. One core copies a buffer that the other core has written.
//! * [`twice`]: accesses to memory that can neither be mapped nor be copied by the kernel.
//! * [`access`]: one-sided operations. One core accesses the buffer of the other by a copy, by a system call
//!   ([`kernel`]), or by one locked instruction.
//! * [`sockets`]: TCP. It uses plain non-blocking sockets, with the fastest of the write sizes, buffer sizes and calls
//!   that the module lists.
//!
//! All of them except [`sockets`] use the memory of [`shared`]. Only [`shared`] and [`kernel`] contain `unsafe`.

pub(crate) mod access;
pub(crate) mod copy;
pub(crate) mod kernel;
pub(crate) mod ring;
pub(crate) mod shared;
pub(crate) mod sockets;
pub(crate) mod twice;

#[cfg(test)]
mod tests;
