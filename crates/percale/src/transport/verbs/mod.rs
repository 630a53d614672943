//! RDMA over libibverbs: InfiniBand, RoCE, or the kernel's software RoCE.
//!
//! * `abi` declares the interface of libibverbs, which is loaded by dlopen: percale builds and runs on a machine
//!   without it.
//! * Safe, small wrappers, each of which keeps the objects alive that it needs: [`Context`], [`ProtectionDomain`],
//!   [`MemoryRegion`], [`CompletionChannel`], [`CompletionQueue`], [`QueuePair`], [`Window`]. They add no thread and no
//!   lock to the path of a request. In a forked child they destroy nothing, because the objects belong to the parent.
//! * [`VerbsRegistrar`] registers any memory, for a cache. [`Reach`] reads and writes registered memory through the
//!   device.
//! * [`Adapter`] selects the device, the port and the address, or reports what is missing.
//! * `direct`: accesses to peers' regions by RDMA, over separate queue pairs, which `makers` creates. `window_use`: how
//!   memory windows are used for them.
//! * [`Wire`] is a byte stream over a queue pair (`wire_pair`), with credits (`credit`). `VerbsLink` is its link, which
//!   carries the same frames as a TCP link.

mod abi;
mod adapter;
mod alarm;
mod completion;
mod context;
mod credit;
mod direct;
#[cfg(all(test, not(loom)))]
pub(crate) mod double;
mod error;
mod link;
mod makers;
mod pair;
mod reach;
mod region;
#[cfg(not(loom))]
mod registrar;
#[cfg(all(test, not(loom)))]
mod registrar_kept_tests;
#[cfg(all(test, not(loom)))]
mod registrar_tests;
mod registration;
#[cfg(all(test, not(loom)))]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
mod window;
mod window_use;
mod wire;
mod wire_pair;

pub use crate::wire::queue_pair::{End, Gid};
pub use adapter::Adapter;
pub use completion::{Completion, CompletionChannel, CompletionQueue, POLLED};
pub use context::{Context, DeviceLimits, Port, ProtectionDomain};
#[cfg(not(loom))]
pub(crate) use direct::Registers;
#[cfg(any(test, fuzzing))]
pub use direct::fuzz_grants;
pub(crate) use direct::{Pins, Unposted};
pub use error::VerbsError;
pub(crate) use error::errno_of;
pub(crate) use link::VerbsLink;
pub use pair::{PairSize, Path, QueuePair};
pub use reach::Reach;
pub use region::{MemoryRegion, Rights};
#[cfg(not(loom))]
pub use registrar::VerbsRegistrar;
pub use registration::Registration;
pub use window::{Backing, Binding, Window, WindowKind};
pub use wire::Wire;
