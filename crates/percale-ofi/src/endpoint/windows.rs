//! The operations of memory windows (`include/percale_fi_ext.h`).

use std::ffi::c_void;
use std::ops::Range;

use percale::{Bind, OpFlags, RawRegion, RemoteMemory, SendWork, Window, WindowAccess};

use super::{Endpoint, answer, local, refusal};
use crate::abi::fi_addr_t;

/// The range of a region that a window is bound to, and the access rights of peers.
#[derive(Clone, Debug)]
pub(crate) struct Bound {
    pub(crate) range: Range<u64>,
    pub(crate) access: WindowAccess,
}

impl Endpoint {
    /// Binds a window of type 2 for a peer. Returns the remote memory that the peer uses.
    #[expect(clippy::too_many_arguments, reason = "the C function has as many arguments")]
    pub(crate) fn bind_window(
        &self,
        peer: fi_addr_t,
        window: &Window,
        region: &RawRegion,
        bound: Bound,
        key: u8,
        context: *mut c_void,
        flags: u64,
    ) -> Result<RemoteMemory, isize> {
        let (port, flags) = (self.port()?, self.transmit_flags(flags)?);
        let bind = Bind { range: bound.range, access: bound.access, key };
        let posted = port.post_bind(self.peer(peer), window, region, &bind, local::context(context), flags);
        posted.map_err(|error| refusal(&error))
    }

    /// Invalidates a key of a window of type 2 that was bound through this endpoint.
    pub(crate) fn invalidate_window(&self, peer: fi_addr_t, key: u64, context: *mut c_void, flags: u64) -> isize {
        match (self.port(), self.transmit_flags(flags)) {
            (Ok(port), Ok(flags)) => answer(port.post_invalidate(self.peer(peer), key, local::context(context), flags)),
            (Err(refused), _) | (_, Err(refused)) => refused,
        }
    }

    /// Sends a message that invalidates a key at the receiver.
    ///
    /// # Safety
    /// The buffer belongs to the client, which keeps it valid as fi_msg(3) requires.
    pub(crate) unsafe fn send_invalidating(
        &self,
        buffer: (*const c_void, usize),
        peer: fi_addr_t,
        key: u64,
        context: *mut c_void,
        flags: u64,
    ) -> isize {
        let (port, flags) = match (self.port(), self.transmit_flags(flags)) {
            (Ok(port), Ok(flags)) => (port, flags | OpFlags::INVALIDATE),
            (Err(refused), _) | (_, Err(refused)) => return refused,
        };
        // SAFETY: the caller guarantees this.
        let segments = unsafe { local::one(buffer.0, buffer.1) };
        let (peer, context) = (self.peer(peer), local::context(context));
        let work = SendWork { peer, segments, tag: None, data: Some(key), context, flags };
        // SAFETY: the caller guarantees this.
        answer(unsafe { port.send(&work) })
    }
}
