//! What leaves the cache under its lock, and is unpinned outside it.

use crate::range::Range;

/// A registration that is to be released, outside the lock.
#[derive(Debug)]
pub(super) struct Out<P> {
    pub(super) pin: P,
    /// The file that need not be watched for it any more.
    pub(super) inode: Option<u32>,
    /// What the monitor need not keep locked for it any more.
    pub(super) locked: Option<Range>,
}
