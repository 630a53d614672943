//! Tagged messages (fi_tagged(3)).

use std::ffi::c_void;

use super::trigger::Begins;
use super::{Endpoint, local};
use crate::abi::{FI_REMOTE_CQ_DATA, fi_addr_t, fi_msg_tagged, fi_ops_tagged, fid_ep};
use crate::object::Object;

pub(super) const TABLE: fi_ops_tagged = fi_ops_tagged {
    size: size_of::<fi_ops_tagged>(),
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

pub(super) unsafe extern "C" fn recv(
    ep: *mut fid_ep,
    buf: *mut c_void,
    len: usize,
    _desc: *mut c_void,
    from: fi_addr_t,
    tag: u64,
    ignore: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: an endpoint of ours, and the client's buffer.
    let (endpoint, segment) = unsafe { (Endpoint::of(ep), local::piece(buf, len)) };
    endpoint.receive(segment, from, Some((tag, ignore)), context)
}

pub(super) unsafe extern "C" fn recvv(
    ep: *mut fid_ep,
    iov: *const libc::iovec,
    _desc: *mut *mut c_void,
    count: usize,
    from: fi_addr_t,
    tag: u64,
    ignore: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: an endpoint of ours, and the client's buffers.
    let (endpoint, segments) = unsafe { (Endpoint::of(ep), local::several(iov, count)) };
    match segments {
        Ok(segments) => endpoint.receive_pieces(segments, from, Some((tag, ignore)), context, endpoint.own_receive()),
        Err(refused) => refused,
    }
}

pub(super) unsafe extern "C" fn recvmsg(ep: *mut fid_ep, msg: *const fi_msg_tagged, flags: u64) -> isize {
    // SAFETY: an endpoint of ours, and the client's description.
    let (endpoint, description) = unsafe { (Endpoint::of(ep), &*msg) };
    if Begins::of(flags) == Begins::Triggered {
        // SAFETY: passed on.
        let operation = unsafe { endpoint.tagged_message(true, msg, Begins::Triggered, flags) };
        // SAFETY: passed on.
        return unsafe { endpoint.post_triggered(operation, description.context) };
    }
    let msg = description;
    // SAFETY: the client's buffers.
    match (unsafe { local::several(msg.msg_iov, msg.iov_count) }, endpoint.receive_flags(flags)) {
        (Ok(segments), Ok(flags)) => {
            endpoint.receive_pieces(segments, msg.addr, Some((msg.tag, msg.ignore)), msg.context, flags)
        }
        (Err(refused), _) | (_, Err(refused)) => refused,
    }
}

pub(super) unsafe extern "C" fn send(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    _desc: *mut c_void,
    peer: fi_addr_t,
    tag: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: an endpoint of ours, and the client's buffer.
    let (endpoint, segment) = unsafe { (Endpoint::of(ep), local::piece(buf, len)) };
    endpoint.send(segment, peer, Some(tag), None, context)
}

pub(super) unsafe extern "C" fn sendv(
    ep: *mut fid_ep,
    iov: *const libc::iovec,
    _desc: *mut *mut c_void,
    count: usize,
    peer: fi_addr_t,
    tag: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: an endpoint of ours, and the client's buffers.
    let (endpoint, segments) = unsafe { (Endpoint::of(ep), local::several(iov, count)) };
    match segments {
        Ok(segments) => endpoint.send_pieces(segments, peer, Some(tag), None, context, endpoint.own_transmit()),
        Err(refused) => refused,
    }
}

pub(super) unsafe extern "C" fn sendmsg(ep: *mut fid_ep, msg: *const fi_msg_tagged, flags: u64) -> isize {
    // SAFETY: an endpoint of ours, and the client's description.
    let (endpoint, description) = unsafe { (Endpoint::of(ep), &*msg) };
    if Begins::of(flags) == Begins::Triggered {
        // SAFETY: passed on.
        let operation = unsafe { endpoint.tagged_message(false, msg, Begins::Triggered, flags) };
        // SAFETY: passed on.
        return unsafe { endpoint.post_triggered(operation, description.context) };
    }
    let msg = description;
    let data = (flags & FI_REMOTE_CQ_DATA != 0).then_some(msg.data);
    // SAFETY: the client's buffers.
    match (unsafe { local::several(msg.msg_iov, msg.iov_count) }, endpoint.transmit_flags(flags)) {
        (Ok(segments), Ok(flags)) => endpoint.send_pieces(segments, msg.addr, Some(msg.tag), data, msg.context, flags),
        (Err(refused), _) | (_, Err(refused)) => refused,
    }
}

pub(super) unsafe extern "C" fn inject(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    peer: fi_addr_t,
    tag: u64,
) -> isize {
    // SAFETY: an endpoint of ours, and the client's buffer.
    let (endpoint, segment) = unsafe { (Endpoint::of(ep), local::piece(buf, len)) };
    endpoint.inject(segment, peer, Some(tag), None)
}

pub(super) unsafe extern "C" fn senddata(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    _desc: *mut c_void,
    data: u64,
    peer: fi_addr_t,
    tag: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: an endpoint of ours, and the client's buffer.
    let (endpoint, segment) = unsafe { (Endpoint::of(ep), local::piece(buf, len)) };
    endpoint.send(segment, peer, Some(tag), Some(data), context)
}

pub(super) unsafe extern "C" fn injectdata(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    data: u64,
    peer: fi_addr_t,
    tag: u64,
) -> isize {
    // SAFETY: an endpoint of ours, and the client's buffer.
    let (endpoint, segment) = unsafe { (Endpoint::of(ep), local::piece(buf, len)) };
    endpoint.inject(segment, peer, Some(tag), Some(data))
}
