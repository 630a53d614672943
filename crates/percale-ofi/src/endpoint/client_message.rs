//! Messages in the client's structures, tagged or untagged.

use std::ffi::c_void;

use percale::Segments;

use super::local;
use crate::abi::{FI_REMOTE_CQ_DATA, fi_addr_t, fi_msg, fi_msg_tagged};

/// A message from an `fi_msg` or an `fi_msg_tagged`.
#[derive(Clone, Copy)]
pub(crate) struct Message {
    iov: *const libc::iovec,
    iov_count: usize,
    /// The destination of a send or the source of a receive.
    pub(super) peer: fi_addr_t,
    /// The tag of a tagged message, and the tag bits that a receive ignores.
    pub(super) tag: Option<(u64, u64)>,
    pub(super) context: *mut c_void,
    data: u64,
}

impl From<&fi_msg> for Message {
    fn from(msg: &fi_msg) -> Self {
        let &fi_msg { msg_iov: iov, iov_count, addr: peer, context, data, .. } = msg;
        Self { iov, iov_count, peer, tag: None, context, data }
    }
}

impl From<&fi_msg_tagged> for Message {
    fn from(msg: &fi_msg_tagged) -> Self {
        let &fi_msg_tagged { msg_iov: iov, iov_count, addr: peer, tag, ignore, context, data, .. } = msg;
        Self { iov, iov_count, peer, tag: Some((tag, ignore)), context, data }
    }
}

impl Message {
    /// Returns the memory of the message.
    ///
    /// # Safety
    /// The list meets the requirements of fi_msg(3).
    #[inline]
    pub(super) unsafe fn segments(&self) -> Result<Segments, isize> {
        // SAFETY: the caller guarantees this.
        unsafe { local::several(self.iov, self.iov_count) }
    }

    /// Returns the remote completion data if the flags of the operation contain FI_REMOTE_CQ_DATA.
    #[inline]
    pub(super) fn data(&self, flags: u64) -> Option<u64> {
        (flags & FI_REMOTE_CQ_DATA != 0).then_some(self.data)
    }
}
