//! A double of libibverbs: RDMA devices in software, for tests on machines without hardware and kernel modules.
//!
//! It has the functions of libibverbs that percale calls, and devices with reliable connections: queue pairs of one process and of
//! several processes of one machine, memory regions, memory windows of types 1, 2A and 2B, completion channels, asynchronous
//! events, and limits. It is stricter than most drivers: what the specification forbids is refused, and an object with users
//! is not destroyed. What goes wrong on request is in [`control`](self): one variable, and one function, with one language.
//!
//! * `PERCALE_VERBS_DOUBLE`: commands that are carried out before the first call. Without it there is one device, `double0`.
//! * `PERCALE_VERBS_DOUBLE_NET`: a word. Processes with different words have no network in common.
//! * [`percale_verbs_double`]: carries out commands while a program runs.
//!
//! | command | effect |
//! |---|---|
//! | `device NAME [KEY=VALUE ...]` | makes a device, or changes it; the keys are those of `control.rs` |
//! | `fail NAME CALL NTH ERRNO` | the NTH call from now on fails; with `0` each one does |
//! | `fail NAME OPERATION NTH status STATUS` | the NTH request of this kind completes with this status |
//! | `delay NAME OPERATION MS` | requests of this kind begin so many milliseconds after they were posted |
//! | `calm NAME` | nothing more fails, and nothing begins later than it was posted |
//! | `reset NAME` | the device is as if it was made just now, also if it had failed; what was made of it before should be gone |
//! | `event NAME fatal\|port_error\|port_active\|gid_change` | the event, with its effect on the device |
//! | `event NAME cq_error\|qp_fatal` | the same for the queue, or queue pair, of the device that was made last |
//! | `event NAME cq_error N` | for the queue that was made `N` queues before it |
//!
//! Calls are named as in C (`ibv_reg_mr`). Operations are `send`, `write`, `read`, `bind`, `invalidate`; a delay also of `connect`, and of `receive`,
//! which delays the time at which its completion is seen.
//!
//! # How it works
//! The state of a process is one value behind one lock (`machine`); a request to a queue pair of the same process is executed in the call that posts
//! it. For peers in other processes, and for everything that waits, there is a thread (`exchange`), while a device is open that has a queue pair: it
//! listens on an abstract Unix socket, and the number of that socket is part of each queue pair's number. A process that is stopped answers when it
//! continues; one that died answers nothing, and requests to it end after `timeout` milliseconds.
//!
//! # What it is not
//! It pins no pages: of memory that was unmapped while it was registered, writes are dropped, and reads bring zeros.

#![expect(unsafe_code, reason = "it is a C library; each block states its own reason")]

mod abi;
mod control;
mod descriptors;
mod exchange;
mod exports;
mod keys;
mod machine;
mod memory;
mod network;
mod objects;
mod pair;
mod requester;
mod responder;
mod states;
mod wire;

pub use exports::percale_verbs_double;
