//! The registrar, which pins memory through a device's driver or through the kernel.

use std::io;

use crate::access::Access;
use crate::range::Range;

/// Pins and unpins memory for a device.
///
/// Both calls are made by the threads that use the cache, never while the cache holds a lock and never on a monitor's
/// thread. They may block, which delays only the calling thread, and may use the cache through their own lane.
pub trait Registrar: Send + Sync + 'static {
    /// The data that the registrar needs to unpin a registration, such as a verbs region or the number of a fixed
    /// buffer.
    type Pin: Send + 'static;

    /// Pins `range` (whole pages) so that its physical pages stay where they are until [`Self::unpin`].
    ///
    /// # Errors
    /// The registrar's error. ENOMEM, EAGAIN, ENOSPC and EDQUOT report a limit of pinned memory or of registrations:
    /// the cache then drops idle registrations and tries again. The caller of the cache gets all other errors.
    ///
    /// # Panics
    /// A panic is propagated to the caller of the cache. No registration is kept then.
    fn pin(&self, range: Range, access: Access) -> io::Result<Pinned<Self::Pin>>;

    /// Unpins the pages. Never called twice for one pin, even if the first call panics. A panic is logged and not
    /// propagated, because the calling thread may be looking up other memory.
    fn unpin(&self, pin: Self::Pin);
}

/// A registration that was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pinned<P> {
    /// The data that the registrar needs to unpin the registration.
    pub pin: P,
    /// The local key, for work requests of this process.
    pub local_key: u64,
    /// The remote key, for peers.
    pub remote_key: u64,
}
