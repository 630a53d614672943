//! Registrations that are removed from the cache under its lock, and unpinned after the lock is released.

use crate::range::Range;

/// A registration to be unpinned after the lock is released.
#[derive(Debug)]
pub(super) struct PendingUnpin<P> {
    pub(super) pin: P,
    /// The watched file, which the registration no longer needs.
    pub(super) inode: Option<u32>,
    /// The range that the monitor keeps locked for the registration.
    pub(super) locked: Option<Range>,
}
