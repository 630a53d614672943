//! RDMA over libibverbs, with InfiniBand, RoCE, or the kernel's software RoCE.
//!
//! * percale-verbs contains small safe wrappers. Each wrapper keeps alive the objects that it needs: [`Context`],
//!   [`ProtectionDomain`], [`MemoryRegion`], [`CompletionChannel`], [`CompletionQueue`], [`QueuePair`], [`Window`].
//!   They add no thread to a request, and a lock only to the requests of windows. In a forked child they do not destroy
//!   anything, because their objects belong to the parent.
//! * [`VerbsRegistrar`] registers any memory, for a cache. [`LoopbackPair`] reads and writes it through the device.
//! * [`Adapter`] chooses the device, port and address, or reports the missing component.
//! * `direct` accesses peers' regions by RDMA, over separate queue pairs that `makers` creates. `window_use` defines
//!   how windows are used for this.
//! * [`Wire`] is a byte stream over a queue pair (`wire_pair`) with credits (`credit`). `VerbsLink` is the link over
//!   it, which carries the same frames as TCP.

mod adapter;
mod credit;
mod direct;
mod link;
mod makers;
mod reach;
#[cfg(all(test, not(loom)))]
mod registrar_kept_tests;
#[cfg(all(test, not(loom)))]
mod registrar_tests;
#[cfg(all(any(test, feature = "testing"), not(loom)))]
#[doc(hidden)]
pub mod testing;
#[cfg(test)]
mod tests;
mod window_use;
mod wire;
mod wire_pair;

pub use crate::wire::queue_pair::{Gid, QueuePairEnd};
pub use adapter::Adapter;
#[cfg(any(test, fuzzing))]
pub use direct::fuzz_grants;
#[cfg(not(loom))]
pub use direct::{EarlyRegistration, Registers};
pub use direct::{Pins, PostFailure};
pub use link::VerbsLink;
#[cfg(not(loom))]
#[doc(inline)]
pub use percale_verbs::VerbsRegistrar;
#[cfg(all(any(test, feature = "testing"), not(loom)))]
#[doc(hidden)]
pub use percale_verbs::double;
#[doc(inline)]
pub use percale_verbs::{
    Backing, Binding, Completion, CompletionChannel, CompletionQueue, Context, DeviceLimits, MemoryRegion, POLLED,
    PairSize, Path, Port, ProtectionDomain, QueuePair, Registration, Rights, VerbsError, Window, WindowKind,
};
pub use percale_verbs::{RemoteAccess, errno_of, status};
pub use reach::LoopbackPair;
pub use wire::Wire;
