//! A double of libibverbs with RDMA devices in software, for tests on machines without RDMA hardware and kernel
//! modules.
//!
//! It implements the functions of libibverbs that percale calls, and devices with reliable connections. It supports
//! queue pairs within one process and between processes of one machine, memory regions, memory windows of types 1, 2A
//! and 2B, completion channels, asynchronous events, and limits. It is stricter than most drivers: it rejects requests
//! that the specification forbids, and does not destroy an object that has users. Failures are requested by commands.
//! An environment variable and a function execute the same commands.
//!
//! * `PERCALE_VERBS_DOUBLE`: commands that are executed before the first call. Without it there is one device,
//!   `double0`.
//! * `PERCALE_VERBS_DOUBLE_NET`: an arbitrary word. Processes with different words cannot reach each other.
//! * [`percale_verbs_double`]: executes commands while a program runs.
//!
//! | command | effect |
//! |---|---|
//! | `device NAME [KEY=VALUE ...]` | creates a device, or changes it; the keys are those of `control.rs` |
//! | `fail NAME CALL NTH ERRNO` | the NTH call from now on fails; with `0` each call fails |
//! | `fail NAME OPERATION NTH status STATUS` | the NTH request of this kind completes with this status |
//! | `delay NAME OPERATION MS` | requests of this kind begin MS milliseconds after they were posted |
//! | `calm NAME` | cancels all failures and delays |
//! | `reset NAME` | restores the device to the state of a new one, even if it had failed; its objects should have been destroyed before |
//! | `event NAME fatal\|port_error\|port_active\|gid_change` | raises the event, with its effect on the device |
//! | `event NAME cq_error\|qp_fatal` | the same, for the queue or queue pair of the device that was created last |
//! | `event NAME cq_error N` | the same for the queue that was created `N` queues before the last one |
//!
//! Calls have their names in C (`ibv_reg_mr`). Operations are `send`, `write`, `read`, `bind`, `invalidate`. A delay
//! can also be set for `connect`, and for `receive`, where it delays the time at which the completion becomes visible.
//!
//! # Implementation
//! The state of a process is one value behind one lock (`machine`). A request to a queue pair of the same process is
//! executed in the call that posts it. For peers in other processes, and for everything that waits, a thread
//! (`exchange`) runs while a device with a queue pair is open. It listens on an abstract Unix socket. The number of the
//! socket is part of each queue pair's number. A process that is stopped answers when it continues. A process that has
//! exited does not answer, and requests to it end after `timeout` milliseconds.
//!
//! # Limitations
//! It does not pin pages. If registered memory has been unmapped, writes to it are dropped, and reads from it return
//! zeros.

#![expect(unsafe_code, reason = "exports C functions; each block states its own reason")]

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
