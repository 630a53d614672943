//! RDMA over libibverbs: InfiniBand, RoCE, or the kernel's own RoCE in software.
//!
//! * `abi` is libibverbs as C has it, found by dlopen: a machine without it builds and runs.
//! * Safe, small wrappers, each of which keeps alive what it needs: [`Context`], [`ProtectionDomain`], [`MemoryRegion`],
//!   [`CompletionChannel`], [`CompletionQueue`], [`QueuePair`], [`Window`]. They add no thread and no lock on the way of a
//!   request. In a forked child they end nothing: what they name is the parent's.
//! * [`VerbsRegistrar`] registers any memory, for a cache; [`Reach`] reads and writes it through the device.
//! * [`Adapter`] chooses device, port and address, or says what is missing.

mod abi;
mod adapter;
mod completion;
mod context;
mod error;
mod pair;
mod reach;
mod region;
mod registrar;
#[cfg(test)]
mod registrar_tests;
#[cfg(test)]
mod tests;
mod window;

pub use abi::Gid;
pub use adapter::Adapter;
pub use completion::{Completion, CompletionChannel, CompletionQueue, POLLED};
pub use context::{Context, DeviceLimits, Port, ProtectionDomain};
pub use error::VerbsError;
pub use pair::{End, PairSize, Path, QueuePair};
pub use reach::Reach;
pub use region::{MemoryRegion, Rights};
pub use registrar::{Registration, VerbsRegistrar};
pub use window::{Binding, Window, WindowKind};
