//! Untagged messages (fi_msg(3)).

use std::ffi::c_void;

use percale::trigger::Operation;
use percale::{OpFlags, ReceiveWork, Segment, Segments, SendWork};

use super::flags::TRIGGERED;
use super::trigger::Begins;
use super::{Endpoint, answer, local};
use crate::abi::{FI_REMOTE_CQ_DATA, fi_addr_t, fi_msg, fi_ops_msg, fid_ep};
use crate::object::Object;
use crate::port::Port;

pub(super) const TABLE: fi_ops_msg = fi_ops_msg {
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

/// The common implementation of the message calls, tagged or not. All memory is the client's, which keeps it valid as fi_msg(3) requires.
///
/// A single piece takes the short path, which is always inlined: conditions that are constant in a call are then not tested.
impl Endpoint {
    #[inline(always)]
    pub(super) fn send(
        &self,
        segment: Segment,
        peer: fi_addr_t,
        tag: Option<u64>,
        data: Option<u64>,
        context: *mut c_void,
    ) -> isize {
        match self.port() {
            Ok(port) => self.send_by(port, segment, peer, tag, data, context, self.transmit.own()),
            Err(refused) => refused,
        }
    }

    /// Sends a message without a completion. The client may reuse its memory when this returns.
    #[inline(always)]
    pub(super) fn inject(&self, segment: Segment, peer: fi_addr_t, tag: Option<u64>, data: Option<u64>) -> isize {
        match self.port() {
            Ok(port) => self.send_by(port, segment, peer, tag, data, std::ptr::null_mut(), self.transmit.injecting()),
            Err(refused) => refused,
        }
    }

    #[inline(always)]
    #[expect(clippy::too_many_arguments, reason = "what the C calls take, and by parts, so that none is written down")]
    fn send_by(
        &self,
        port: &Port,
        segment: Segment,
        peer: fi_addr_t,
        tag: Option<u64>,
        data: Option<u64>,
        context: *mut c_void,
        flags: OpFlags,
    ) -> isize {
        if flags.contains(TRIGGERED) {
            return self.send_pieces(Segments::one(segment), peer, tag, data, context, flags);
        }
        // SAFETY: the client keeps the memory until the operation has completed.
        answer(unsafe { port.send_one(self.peer(peer), segment, tag, data, local::context(context), flags) })
    }

    #[inline(always)]
    pub(super) fn receive(
        &self,
        segment: Segment,
        from: fi_addr_t,
        tag: Option<(u64, u64)>,
        context: *mut c_void,
    ) -> isize {
        match self.port() {
            Ok(port) => {
                let flags = self.receive.own();
                if flags.contains(TRIGGERED) {
                    return self.receive_pieces(Segments::one(segment), from, tag, context, flags);
                }
                let (from, context) = (self.from(from), local::context(context));
                // SAFETY: the client keeps the memory until the operation has completed.
                answer(unsafe { port.receive_one(from, segment, tag, context, flags) })
            }
            Err(refused) => refused,
        }
    }

    pub(super) fn send_pieces(
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
        if flags.contains(TRIGGERED) {
            // SAFETY: the client says by its flags that the context is one of a triggered operation.
            return unsafe { self.post_triggered(Ok(Operation::Send(work)), context) };
        }
        // SAFETY: the client keeps the memory until the operation has completed.
        answer(unsafe { port.send(&work) })
    }

    pub(super) fn receive_pieces(
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
        if flags.contains(TRIGGERED) {
            // SAFETY: the client says by its flags that the context is one of a triggered operation.
            return unsafe { self.post_triggered(Ok(Operation::Receive(work)), context) };
        }
        // SAFETY: the client keeps the memory until the operation has completed.
        answer(unsafe { port.receive(&work) })
    }
}

pub(super) unsafe extern "C" fn recv(
    ep: *mut fid_ep,
    buf: *mut c_void,
    len: usize,
    _desc: *mut c_void,
    from: fi_addr_t,
    context: *mut c_void,
) -> isize {
    // SAFETY: an endpoint of ours, and the client's buffer.
    let (endpoint, segment) = unsafe { (Endpoint::of(ep), local::piece(buf, len)) };
    endpoint.receive(segment, from, None, context)
}

pub(super) unsafe extern "C" fn recvv(
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
        Ok(segments) => endpoint.receive_pieces(segments, from, None, context, endpoint.own_receive()),
        Err(refused) => refused,
    }
}

pub(super) unsafe extern "C" fn recvmsg(ep: *mut fid_ep, msg: *const fi_msg, flags: u64) -> isize {
    // SAFETY: an endpoint of ours, and the client's description.
    let (endpoint, description) = unsafe { (Endpoint::of(ep), &*msg) };
    if Begins::of(flags) == Begins::Triggered {
        // SAFETY: passed on.
        let operation = unsafe { endpoint.message(true, msg, Begins::Triggered, flags) };
        // SAFETY: passed on.
        return unsafe { endpoint.post_triggered(operation, description.context) };
    }
    let msg = description;
    // SAFETY: the client's buffers.
    match (unsafe { local::several(msg.msg_iov, msg.iov_count) }, endpoint.receive_flags(flags)) {
        (Ok(segments), Ok(flags)) => endpoint.receive_pieces(segments, msg.addr, None, msg.context, flags),
        (Err(refused), _) | (_, Err(refused)) => refused,
    }
}

pub(super) unsafe extern "C" fn send(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    _desc: *mut c_void,
    peer: fi_addr_t,
    context: *mut c_void,
) -> isize {
    // SAFETY: an endpoint of ours, and the client's buffer.
    let (endpoint, segment) = unsafe { (Endpoint::of(ep), local::piece(buf, len)) };
    endpoint.send(segment, peer, None, None, context)
}

pub(super) unsafe extern "C" fn sendv(
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
        Ok(segments) => endpoint.send_pieces(segments, peer, None, None, context, endpoint.own_transmit()),
        Err(refused) => refused,
    }
}

pub(super) unsafe extern "C" fn sendmsg(ep: *mut fid_ep, msg: *const fi_msg, flags: u64) -> isize {
    // SAFETY: an endpoint of ours, and the client's description.
    let (endpoint, description) = unsafe { (Endpoint::of(ep), &*msg) };
    if Begins::of(flags) == Begins::Triggered {
        // SAFETY: passed on.
        let operation = unsafe { endpoint.message(false, msg, Begins::Triggered, flags) };
        // SAFETY: passed on.
        return unsafe { endpoint.post_triggered(operation, description.context) };
    }
    let msg = description;
    let data = (flags & FI_REMOTE_CQ_DATA != 0).then_some(msg.data);
    // SAFETY: the client's buffers.
    match (unsafe { local::several(msg.msg_iov, msg.iov_count) }, endpoint.transmit_flags(flags)) {
        (Ok(segments), Ok(flags)) => endpoint.send_pieces(segments, msg.addr, None, data, msg.context, flags),
        (Err(refused), _) | (_, Err(refused)) => refused,
    }
}

pub(super) unsafe extern "C" fn inject(ep: *mut fid_ep, buf: *const c_void, len: usize, peer: fi_addr_t) -> isize {
    // SAFETY: an endpoint of ours, and the client's buffer.
    let (endpoint, segment) = unsafe { (Endpoint::of(ep), local::piece(buf, len)) };
    endpoint.inject(segment, peer, None, None)
}

pub(super) unsafe extern "C" fn senddata(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    _desc: *mut c_void,
    data: u64,
    peer: fi_addr_t,
    context: *mut c_void,
) -> isize {
    // SAFETY: an endpoint of ours, and the client's buffer.
    let (endpoint, segment) = unsafe { (Endpoint::of(ep), local::piece(buf, len)) };
    endpoint.send(segment, peer, None, Some(data), context)
}

pub(super) unsafe extern "C" fn injectdata(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    data: u64,
    peer: fi_addr_t,
) -> isize {
    // SAFETY: an endpoint of ours, and the client's buffer.
    let (endpoint, segment) = unsafe { (Endpoint::of(ep), local::piece(buf, len)) };
    endpoint.inject(segment, peer, None, Some(data))
}
