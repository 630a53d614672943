//! percale moves bytes between the memories of processes, on one machine and across machines.
//!
//! It is a fabric library. It provides messages, remote reads and writes, atomic operations and collectives, with the
//! concepts of RDMA. It is intended for programs that need more than sockets and run on more than one kind of hardware:
//! storage and database servers, data movers, runtimes, communication libraries. Processes of one user on one machine
//! communicate over shared memory, all others over TCP, or over RDMA if it is requested. The program does not change.
//! Users of libfabric, verbs or UCX find the equivalents of their terms in [chapter 12 of the
//! manual](manual::_12_other_libraries).
//!
//! ```
//! use percale::Info;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let domain = Info::discover()?.best()?.open()?; // all transports of this machine
//! let vector = domain.address_vector().build()?; // the peers of this program
//! let endpoint = domain.endpoint().vector(&vector).bind("127.0.0.1:0")?;
//!
//! let peer = vector.insert(endpoint.address())?; // here the endpoint itself; usually "node7:7471"
//! let sent = endpoint.send(peer, vec![1, 2, 3]).wait()?; // owns the buffer, and returns it
//! let received = endpoint.recv(sent).from(peer).wait()?;
//! assert_eq!(received.to_vec(), [1, 2, 3]);
//! # Ok(()) }
//! ```
//!
//! # Where to start
//! | | |
//! |---|---|
//! | [the manual](manual) | thirteen short chapters; begin with [two processes](manual::_01_getting_started) |
//! | [`Endpoint`] | the operations: messages, remote access, windows, collectives |
//! | [`endpoint::safe`] | the safe API: operations own their buffers; `wait`, poll or `.await` |
//! | [`endpoint::work`] | the raw API: pointers, contexts and flags, `unsafe`; for libraries that are built on percale |
//! | [failures](manual::_10_failure) | what each error means, and what to do next |
//! | [features of cargo](#features-of-cargo) | the optional parts |
//!
//! # Where types are
//! The root of the crate has the types that programs name in structs and signatures: the objects ([`Domain`],
//! [`Endpoint`], [`AddressVector`], [`Region`], [`Window`], the queues and counters), the handles and results of
//! operations ([`Operation`], [`OperationSet`], [`Received`], [`Group`]), the two kinds of ownership ([`Owned`],
//! [`Shared`]), and the errors that operations return ([`OperationError`], [`Cause`], [`ErrorCode`]). The modules below
//! have them too, and the types that programs rarely name: builders, requests, and the errors of calls that open
//! something.
//!
//! # Modules
//! * [`fabric`]: the transports that this machine has, and the reasons why others are unavailable
//! * [`domain`]: the resources that endpoints share
//! * [`endpoint`]: where operations are posted and messages arrive
//! * [`address`]: how peers are named
//! * [`completion`]: how the outcome of operations is reported
//! * [`memory`]: the memory that operations read and write
//! * [`device`]: devices that access memory: kinds of memory, CUDA, fixed buffers of io_uring
//! * [`transport`]: the transports that connect two endpoints, and a simulated network for tests
//! * [`trigger`]: operations that start when a counter or a variable reaches a value
//! * [`collective`]: operations of groups of endpoints
//! * [`rpc`]: requests and answers
//!
//! # Features of cargo
//! The libraries of devices are loaded at run time, so a build with every feature also runs on a machine without them.
//! Turning a feature off reduces the code and the number of crates. Public enums are the same in every build: without a
//! feature, its transport or device is reported as unavailable, as if its library were missing, and the error names the
//! feature. Without features, the dependency tree of percale has at most 25 crates (including percale and the crates of
//! derive macros). The default features add 17 crates.
//!
//! | feature | default | what it adds | what it costs |
//! |---|---|---|---|
//! | `verbs` | yes | RDMA over libibverbs, which is loaded when transports are discovered | about 6,500 lines; percale-verbs and libloading, 2 crates |
//! | `cuda` | yes | memory of CUDA devices, over the driver's library, which is loaded when it is first used | about 900 lines; libloading, 1 crate |
//! | `io-uring` | yes | [`FixedBuffers`]: io_uring's fixed buffers behind a registration cache | about 700 lines; io-uring, 1 crate |
//! | `bpf` | yes | registration caches load the kernel programs of their best monitor; without it they still use a running pindown-helper | aya, 13 crates |
//! | `serde` | no | `Serialize` and `Deserialize` of [`RemoteMemory`] and [`RawKey`], which peers exchange: their bytes in binary formats, text in readable ones. serde itself supports the addresses of endpoints ([`SocketAddr`](std::net::SocketAddr)) | about 150 lines; serde_core, 1 crate |
//! | `bytes` | no | conversions between [`Buffer`] and `bytes::Bytes`, without copying the bytes | bytes, 1 crate |
//! | `futures` | no | `Stream` for [`ReceivingMany`], and `FusedFuture` for operations | futures-core, 1 crate |
//! | `sim` | no | `transport::sim`: a deterministic network within one process, for tests | about 900 lines |
//!
//! The registration cache itself (`pindown`) is in every build, because its crate adds no further dependencies.

// Labels on docs.rs the items that need a feature.
#![cfg_attr(docsrs, feature(doc_cfg))]

/// Compiles the program in the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}

#[cfg(doctest)]
pub mod refused;

pub mod address;
mod address_vector;
pub mod collective;
pub mod completion;
mod conditions;
pub mod device;
pub mod domain;
pub mod endpoint;
#[cfg(all(test, not(loom)))]
mod errno_tests;
pub mod fabric;
#[cfg(all(test, not(loom)))]
mod log_tests;
#[cfg(any(doc, doctest))]
pub mod manual;
pub mod memory;
pub mod rpc;
pub mod transport;
pub mod trigger;

// Modules of lower-level crates, which the code of this crate uses under `crate::`.
pub(crate) use percale_memory::{
    debug, deferred_actions, later, local_memory, short_debug, sync, system, table, types,
};
pub(crate) use percale_region as region;
pub(crate) use percale_wire as wire;

pub use address::PeerAddress;
pub use address::vector::AddressVector;
pub use collective::{AddressSet, Collective, CollectiveWork, GroupId};
pub use completion::counter::Counter;
pub use completion::entry::{CompletionFlags, Entry, ErrorCode, ErrorEntry};
pub use completion::event::{Event, EventQueue};
pub use completion::poll_set::PollSet;
pub use completion::queue::CompletionQueue;
pub use completion::wait_set::WaitSet;
#[cfg(not(loom))]
#[doc(no_inline)]
pub use device::FixedBuffers;
#[cfg(not(loom))]
pub use domain::{CacheMonitor, CacheSettings};
pub use domain::{Domain, DomainBuilder, Progress, Trust};
pub use endpoint::connection::{ConnectionError, ConnectionRequest, ConnectionState, Listener};
pub use endpoint::counted::Counted;
pub use endpoint::remote_work::{AtomicWork, RemotePieces, RmaWork};
pub use endpoint::safe::{
    Cause, Group, Operation, OperationError, OperationSet, Outcome, Part, Received, ReceivingMany,
};
pub use endpoint::scalable::ScalableEndpoint;
pub use endpoint::shared_receive::{SharedReceive, SharedReceiving};
pub use endpoint::verbs::{LocalPiece, WorkRequest};
pub use endpoint::window_work::Bind;
pub use endpoint::work::{OpFlags, PostError, ReceiveWork, SendWork};
pub use endpoint::{BindError, Endpoint, EndpointBuilder, EndpointHandle, Owned, Ownership, Shared, SharedEndpoint};
pub use fabric::{Info, TransportKind};
pub use memory::atomic::{AtomicOp, Datatype};
pub use memory::buffer::{Buffer, BufferPool};
pub use memory::region::{
    Access, MappedKey, MemoryView, RawKey, RawRegion, Region, RegionSlice, RemoteMemory, RemoteMemoryError,
    TypedRegion, VerbsAccess, ViewError,
};
pub use memory::sealed::Allocation;
pub use memory::typed::{Plain, TypedAllocation, TypedMemory};
pub use memory::volatile::{Segment, Segments};
pub use memory::window::{TypeTwo, Window, WindowAccess, WindowType};
/// The registration cache that a domain opens ([`Domain::registration_cache`]).
#[cfg(not(loom))]
pub use pindown;
pub use system::call::error_number;
