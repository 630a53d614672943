//! The registrar, which pins memory through a device's driver or through the kernel.

use std::io;

use crate::access::Access;
use crate::range::Range;

/// Pins and unpins memory for a device.
///
/// Both calls are made by the threads that use the cache, never while the cache holds a lock and never on a monitor's
/// thread. They may block, which delays only the calling thread, and may use the cache through a lane of their own.
pub trait Registrar: Send + Sync + 'static {
    /// The data that the registrar needs to undo a registration: a verbs region, or the number of a fixed buffer.
    type Pin: Send + 'static;

    /// Pins `range` (whole pages) so that its physical pages stay where they are until [`Self::unpin`].
    ///
    /// # Errors
    /// The registrar's error. ENOMEM, EAGAIN, ENOSPC and EDQUOT report a limit of pinned memory or of registrations:
    /// the cache then drops idle registrations and tries again. The caller of the cache gets all other errors.
    ///
    /// # Panics
    /// A panic reaches the caller of the cache. No registration is kept then.
    fn pin(&self, range: Range, access: Access) -> io::Result<Pinned<Self::Pin>>;

    /// Unpins the pages. Never called twice for one pin, even if the first call fails. A panic is logged and not
    /// propagated, since the calling thread may be looking up other memory.
    fn unpin(&self, pin: Self::Pin);
}

/// A registration that was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pinned<P> {
    /// The data that the registrar needs to undo the registration.
    pub pin: P,
    /// The key by which work requests of this process name the memory.
    pub local_key: u64,
    /// The key by which peers name the memory.
    pub remote_key: u64,
}
