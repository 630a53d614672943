//! The registrar, which pins memory: by a device's driver, or by the kernel.

use std::io;

use crate::access::Access;
use crate::range::Range;

/// Pins memory for a device and lets it go again.
///
/// Both calls are made by the threads that use the cache, never while it holds a lock and never on a monitor's thread. They may
/// block, which holds up the calling thread alone, and may use the cache, by a lane of their own.
pub trait Registrar: Send + Sync + 'static {
    /// What the registrar needs to undo a registration: a verbs region, the number of a fixed buffer.
    type Pin: Send + 'static;

    /// Pins `range` (whole pages) so that its physical pages stay where they are until [`Self::unpin`].
    ///
    /// # Errors
    /// The reason. On ENOMEM, EAGAIN, ENOSPC and EDQUOT, which limits of pinned memory and of registrations answer, the
    /// cache lets idle registrations go and asks again (RCACHE-023); all others reach the caller.
    ///
    /// # Panics
    /// A panic reaches the caller of the cache. Nothing is kept then.
    fn pin(&self, range: Range, access: Access) -> io::Result<Pinned<Self::Pin>>;

    /// Unpins the pages. Never called twice for one pin, whatever becomes of the first call: a panic is logged and goes no further, since
    /// the call in which it happens may be a look-up of other memory.
    fn unpin(&self, pin: Self::Pin);
}

/// A registration that was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pinned<P> {
    /// What the registrar needs to undo it.
    pub pin: P,
    /// What this process' work requests name the memory by.
    pub local_key: u64,
    /// What peers name it by.
    pub remote_key: u64,
}
