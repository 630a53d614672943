//! Safe wrappers of libibverbs, for RDMA over InfiniBand, RoCE, or the kernel's software RoCE.
//!
//! The crate is part of [percale](https://docs.rs/percale) and used by its transport `verbs`. A program may also use it
//! without percale. libibverbs is loaded at run time, so a program with this crate builds and starts on a machine
//! without libibverbs.
//!
//! * [`Context`] is an opened device, [`Port`] is one of its ports, and [`ProtectionDomain`] is a set of objects that
//!   can be used together.
//! * [`MemoryRegion`] is memory that a device can access. [`Registration`] registers memory of another owner, and
//!   [`VerbsRegistrar`] does this for a registration cache of `pindown`.
//! * [`CompletionChannel`] and [`CompletionQueue`] report the results of requests, each as a [`Completion`].
//! * [`QueuePair`] is one end of a reliable connection. It sends, receives, and reads and writes a peer's memory.
//! * [`Window`] grants a peer a right to a part of a region, and revokes it.
//!
//! # Rules
//! 1. Each object keeps alive the objects from which it was created, so objects may be dropped in any order.
//! 2. The wrappers do not add a thread to a request, and they add a lock only to the requests of windows.
//! 3. Memory that a device may write is never a Rust slice. It is copied in and out.
//! 4. In a forked child the objects do not destroy anything, because libibverbs' objects belong to the parent.
//!
//! Objects are shared by [`Arc`](std::sync::Arc). An error of libibverbs is reported as a [`VerbsError`] with the name
//! of the call and its errno.
//!
//! # Example
//! This example connects two queue pairs of one device to each other. The first sends a message to the second. If the
//! queue pairs are in two processes, each side sends its [`QueuePairEnd`] to the other, for example over TCP.
//!
//! ```no_run
//! use percale_verbs::{CompletionChannel, CompletionQueue, Context, MemoryRegion, PairSize, Path, ProtectionDomain, QueuePair, QueuePairEnd, Rights};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let context = Context::open_all()?.swap_remove(0);
//! let port = context.port(1)?;
//! let (gid_index, gid) = context.address(1, &port).ok_or("the port has no address")?;
//! let path = Path { port: 1, gid_index, ethernet: port.ethernet };
//!
//! let domain = ProtectionDomain::new(&context)?;
//! let pair = |sequence| -> Result<_, Box<dyn std::error::Error>> {
//!     let queue = CompletionQueue::new(&CompletionChannel::new(&context)?, 16)?;
//!     let memory = MemoryRegion::new(&domain, 4096, Rights::LOCAL_WRITE)?;
//!     let pair = QueuePair::new(&queue, &memory, PairSize { sends: 4, receives: 4, inline: 0, pieces: 1 })?;
//!     pair.prepare(path, Rights::empty())?;
//!     let end = QueuePairEnd { pair: pair.number(), sequence, lid: port.lid, gid, mtu: port.mtu };
//!     Ok((queue, memory, pair, end))
//! };
//! let (queue, memory, sender, ours) = pair(1)?;
//! let (arrived, received, receiver, theirs) = pair(2)?;
//! receiver.post_receive(7, 0, 4096)?;
//! sender.connect(path, &ours, &theirs)?;
//! receiver.connect(path, &theirs, &ours)?;
//!
//! memory.copy_in(b"hello", 0, 5);
//! sender.post_send(1, 0, 5, None)?;
//! let mut len = None;
//! while len.is_none() {
//!     queue.poll(|sent| assert_eq!(sent.status, 0))?;
//!     arrived.poll(|one| len = Some(one.len as usize))?;
//! }
//! let mut bytes = [0; 5];
//! received.copy_out(0, 5, &mut bytes);
//! assert_eq!((len, &bytes), (Some(5), b"hello"));
//! # Ok(()) }
//! ```

// Labels on docs.rs the items that need a feature.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod abi;
mod alarm;
mod completion;
mod context;
#[cfg(all(any(test, feature = "testing"), not(loom)))]
#[doc(hidden)]
pub mod double;
mod error;
mod pair;
mod region;
#[cfg(not(loom))]
mod registrar;
mod registration;
pub mod status;
mod window;
#[cfg(all(test, not(loom)))]
mod wrapper_tests;

// Modules of the crates below are re-exported under their names.
use percale_memory::{later, local_memory, system};
use percale_wire as wire;

#[doc(hidden)]
pub use abi::Sge;
pub use completion::{Completion, CompletionChannel, CompletionQueue, POLLED};
pub use context::{Context, DeviceLimits, Port, ProtectionDomain};
pub use error::{VerbsError, errno_of};
#[doc(hidden)]
pub use pair::RemoteAccess;
pub use pair::{PairSize, Path, QueuePair};
#[doc(inline)]
pub use percale_wire::queue_pair::{Gid, QueuePairEnd};
pub use region::{MemoryRegion, Rights};
#[cfg(not(loom))]
pub use registrar::VerbsRegistrar;
pub use registration::Registration;
pub use window::{Backing, Binding, Window, WindowKind};
