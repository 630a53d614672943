//! Untagged messages (fi_msg(3)).

use std::ffi::c_void;

use percale::{OpFlags, ReceiveWork, Segments, SendWork};

use super::{Endpoint, answer, local};
use crate::abi::{FI_REMOTE_CQ_DATA, fi_addr_t, fi_msg, fi_ops_msg, fid_ep};
use crate::object::Object;

pub(super) static OPS: fi_ops_msg = fi_ops_msg {
    size: size_of::<fi_ops_msg>(),
    recv: Some(recv),
    recvv: Some(recvv),
    recvmsg: Some(recvmsg),
    send: Some(send),
    sendv: Some(sendv),
    sendmsg: Some(sendmsg),
    inject: Some(inject),
    senddata: Some(senddata),
    injectdata: Some(injectdata),
};

/// What the calls of messages, tagged or not, come down to. All memory is the client's, who keeps it as fi_msg(3) has it.
///
/// Both are inlined for certain: the description is then built where percale reads it, and not moved there.
impl Endpoint {
    #[inline(always)]
    pub(super) fn send(
        &self,
        segments: Segments,
        peer: fi_addr_t,
        tag: Option<u64>,
        data: Option<u64>,
        context: *mut c_void,
        flags: OpFlags,
    ) -> isize {
        let port = match self.port() {
            Ok(port) => port,
            Err(refused) => return refused,
        };
        let work = SendWork { peer: self.peer(peer), segments, tag, data, context: local::context(context), flags };
        // SAFETY: the client keeps the memory until the operation has completed.
        answer(unsafe { port.send(&work) })
    }

    #[inline(always)]
    pub(super) fn receive(
        &self,
        segments: Segments,
        from: fi_addr_t,
        tag: Option<(u64, u64)>,
        context: *mut c_void,
        flags: OpFlags,
    ) -> isize {
        let port = match self.port() {
            Ok(port) => port,
            Err(refused) => return refused,
        };
        let work = ReceiveWork { from: self.from(from), segments, tag, context: local::context(context), flags };
        // SAFETY: the client keeps the memory until the operation has completed.
        answer(unsafe { port.receive(&work) })
    }

    /// A message that reports nothing, whose memory is the client's again when this returns.
    #[inline]
    pub(super) fn inject(&self, segments: Segments, peer: fi_addr_t, tag: Option<u64>, data: Option<u64>) -> isize {
        self.send(segments, peer, tag, data, std::ptr::null_mut(), OpFlags::INJECT)
    }
}

unsafe extern "C" fn recv(
    ep: *mut fid_ep,
    buf: *mut c_void,
    len: usize,
    _desc: *mut c_void,
    from: fi_addr_t,
    context: *mut c_void,
) -> isize {
    // SAFETY: an endpoint of ours, and the client's buffer.
    let (endpoint, segments) = unsafe { (Endpoint::of(ep), local::one(buf, len)) };
    endpoint.receive(segments, from, None, context, endpoint.own_receive())
}

unsafe extern "C" fn recvv(
    ep: *mut fid_ep,
    iov: *const libc::iovec,
    _desc: *mut *mut c_void,
    count: usize,
    from: fi_addr_t,
    context: *mut c_void,
) -> isize {
    // SAFETY: an endpoint of ours, and the client's buffers.
    let (endpoint, segments) = unsafe { (Endpoint::of(ep), local::several(iov, count)) };
    match segments {
        Ok(segments) => endpoint.receive(segments, from, None, context, endpoint.own_receive()),
        Err(refused) => refused,
    }
}

unsafe extern "C" fn recvmsg(ep: *mut fid_ep, msg: *const fi_msg, flags: u64) -> isize {
    // SAFETY: an endpoint of ours, and the client's description.
    let (endpoint, msg) = unsafe { (Endpoint::of(ep), &*msg) };
    // SAFETY: the client's buffers.
    match (unsafe { local::several(msg.msg_iov, msg.iov_count) }, endpoint.receive_flags(flags)) {
        (Ok(segments), Ok(flags)) => endpoint.receive(segments, msg.addr, None, msg.context, flags),
        (Err(refused), _) | (_, Err(refused)) => refused,
    }
}

unsafe extern "C" fn send(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    _desc: *mut c_void,
    peer: fi_addr_t,
    context: *mut c_void,
) -> isize {
    // SAFETY: an endpoint of ours, and the client's buffer.
    let (endpoint, segments) = unsafe { (Endpoint::of(ep), local::one(buf, len)) };
    endpoint.send(segments, peer, None, None, context, endpoint.own_transmit())
}

unsafe extern "C" fn sendv(
    ep: *mut fid_ep,
    iov: *const libc::iovec,
    _desc: *mut *mut c_void,
    count: usize,
    peer: fi_addr_t,
    context: *mut c_void,
) -> isize {
    // SAFETY: an endpoint of ours, and the client's buffers.
    let (endpoint, segments) = unsafe { (Endpoint::of(ep), local::several(iov, count)) };
    match segments {
        Ok(segments) => endpoint.send(segments, peer, None, None, context, endpoint.own_transmit()),
        Err(refused) => refused,
    }
}

unsafe extern "C" fn sendmsg(ep: *mut fid_ep, msg: *const fi_msg, flags: u64) -> isize {
    // SAFETY: an endpoint of ours, and the client's description.
    let (endpoint, msg) = unsafe { (Endpoint::of(ep), &*msg) };
    let data = (flags & FI_REMOTE_CQ_DATA != 0).then_some(msg.data);
    // SAFETY: the client's buffers.
    match (unsafe { local::several(msg.msg_iov, msg.iov_count) }, endpoint.transmit_flags(flags)) {
        (Ok(segments), Ok(flags)) => endpoint.send(segments, msg.addr, None, data, msg.context, flags),
        (Err(refused), _) | (_, Err(refused)) => refused,
    }
}

unsafe extern "C" fn inject(ep: *mut fid_ep, buf: *const c_void, len: usize, peer: fi_addr_t) -> isize {
    // SAFETY: an endpoint of ours, and the client's buffer.
    let (endpoint, segments) = unsafe { (Endpoint::of(ep), local::one(buf, len)) };
    endpoint.inject(segments, peer, None, None)
}

unsafe extern "C" fn senddata(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    _desc: *mut c_void,
    data: u64,
    peer: fi_addr_t,
    context: *mut c_void,
) -> isize {
    // SAFETY: an endpoint of ours, and the client's buffer.
    let (endpoint, segments) = unsafe { (Endpoint::of(ep), local::one(buf, len)) };
    endpoint.send(segments, peer, None, Some(data), context, endpoint.own_transmit())
}

unsafe extern "C" fn injectdata(ep: *mut fid_ep, buf: *const c_void, len: usize, data: u64, peer: fi_addr_t) -> isize {
    // SAFETY: an endpoint of ours, and the client's buffer.
    let (endpoint, segments) = unsafe { (Endpoint::of(ep), local::one(buf, len)) };
    endpoint.inject(segments, peer, None, Some(data))
}
