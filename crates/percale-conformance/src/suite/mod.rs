//! The tests, generic over the transport.
//!
//! A public function of these modules is a test. Its bounds are traits of [`fabric`](crate::fabric) and determine the
//! transports that it runs on:
//!
//! | bound | the test runs on |
//! |---|---|
//! | `F: Fabric` | every transport, and every other access path to regions: tests of accesses |
//! | `F: Transport` | every transport |
//! | `F: Peers` | transports between endpoints |
//! | `F: Real` | transports with descriptors, sockets and threads that sleep; not the simulation |
//! | `F: Peers + Real` | transports that satisfy both bounds |
//! | `F: Direct` | transports that can access the memory of a peer that makes no progress |
//! | `F: Alone` | transports that cannot reach other endpoints |
//! | `F: Devices` | transports that support device memory, in the program `device` |
//!
//! The build script finds the tests (`build/registry.rs`) and writes a function with `#[test]` for each test and
//! transport.

pub mod answering;
pub mod closing;
pub mod collectives;
pub mod completions;
pub mod connected;
pub mod connections;
pub mod connections_shared;
pub mod counting;
pub mod deferred;
pub mod devices;
pub mod exchanges;
pub mod flow;
pub mod handles;
pub mod joins;
pub mod local_keys;
pub mod messages;
pub mod model;
pub mod operation_sets;
pub mod pools;
pub mod probing;
pub mod regions;
pub mod remote;
pub mod remote_model;
pub mod rpc;
pub mod safe;
pub mod scalable;
pub mod senders;
pub mod sets;
pub mod shared_closing;
pub mod shared_receive;
pub mod sleeping;
pub mod specification;
pub mod tagged;
pub mod triggered;
pub mod triggered_model;
pub mod undriven;
pub mod vectors;
pub mod views;
pub mod waiting;
pub mod wakers;
pub mod window_model;
pub mod window_pairs;
pub mod windows;
pub mod written;
