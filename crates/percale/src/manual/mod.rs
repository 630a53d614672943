//! The manual of percale: how to write programs with it.
//!
//! Each chapter takes about five minutes to read. The chapters build on each other, but each can be read alone. All
//! examples are compiled and run by `cargo test --doc`. A doc test is one process, so most examples use two endpoints
//! of one process. Two processes would make the same calls.
//!
//! 1. [Getting started](_01_getting_started): two programs that exchange messages
//! 2. [Transports](_02_transports): how to choose them, and which one is used for which peer
//! 3. [Messages and tags](_03_messages): matching, sources, delivery, sizes
//! 4. [Remote memory](_04_remote_memory): regions, keys, rights, atomic operations, closing
//! 5. [Windows](_05_windows): limited rights that are revoked without a system call
//! 6. [Completion](_06_completion): waiting, polling, futures, counters and events
//! 7. [Triggered and deferred work](_07_triggers): operations that start when a counter reaches a value
//! 8. [Collectives](_08_collectives): operations of groups of endpoints
//! 9. [Progress, threads and performance](_09_progress): how operations advance
//! 10. [Failure](_10_failure): what each error means and what to do next
//! 11. [Containers and clusters](_11_clusters): limits, networks, keys, and how processes exchange addresses
//! 12. [For users of libfabric, verbs and UCX](_12_other_libraries): their terms and calls in percale
//! 13. [Testing](_13_testing): the simulated network and injected faults
//!
//! # Terms
//! * A *domain* holds settings and the resources that endpoints share. An *endpoint* sends and receives.
//! * A *peer* is another endpoint. An *address vector* maps the network addresses of peers to small numbers
//!   ([`PeerAddress`](crate::PeerAddress)), which operations use to name them.
//! * A *region* is memory that peers may access. A *key* is the number that identifies a region to its peers.
//! * The *initiator* of an operation posts it; the *target* is the peer whose memory it accesses.
//! * *Progress* is the work that an endpoint does to advance its operations. With manual progress, which is the
//!   default, this work is done inside calls.

pub mod _01_getting_started;
pub mod _02_transports;
pub mod _03_messages;
pub mod _04_remote_memory;
pub mod _05_windows;
pub mod _06_completion;
pub mod _07_triggers;
pub mod _08_collectives;
pub mod _09_progress;
pub mod _10_failure;
pub mod _11_clusters;
pub mod _12_other_libraries;
pub mod _13_testing;
