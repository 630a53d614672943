//! Tagged messages (fi_tagged(3)).

use super::calls::{Const, Descs, Iov, Void, calls, table};
use super::client_message::Message;
use super::flags::Direction;
use super::{Endpoint, local};
use crate::abi::{fi_addr_t, fi_msg_tagged, fi_ops_tagged};

pub(super) const TABLE: fi_ops_tagged =
    table!(fi_ops_tagged { recv, recvv, recvmsg, send, sendv, sendmsg, inject, senddata, injectdata });

calls! { impl Endpoint {
    fn recv(endpoint, buf: Void, len: usize, _desc: Void, from: fi_addr_t, tag: u64, ignore: u64, context: Void) {
        // SAFETY: the client passed a valid buffer.
        endpoint.receive(unsafe { local::piece(buf, len) }, from, Some((tag, ignore)), context)
    }

    fn recvv(endpoint, iov: Iov, _desc: Descs, count: usize, from: fi_addr_t, tag: u64, ignore: u64, context: Void) {
        // SAFETY: the client passed valid buffers.
        endpoint.receive_list(unsafe { local::several(iov, count) }, from, Some((tag, ignore)), context)
    }

    fn recvmsg(endpoint, msg: *const fi_msg_tagged, flags: u64) {
        // SAFETY: the client passed a valid message structure.
        unsafe { endpoint.receive_as(&Message::from(&*msg), flags) }
    }

    fn send(endpoint, buf: Const, len: usize, _desc: Void, peer: fi_addr_t, tag: u64, context: Void) {
        // SAFETY: the client passed a valid buffer.
        endpoint.send(unsafe { local::piece(buf, len) }, peer, Some(tag), None, context, Direction::own)
    }

    fn sendv(endpoint, iov: Iov, _desc: Descs, count: usize, peer: fi_addr_t, tag: u64, context: Void) {
        // SAFETY: the client passed valid buffers.
        endpoint.send_list(unsafe { local::several(iov, count) }, peer, Some(tag), context)
    }

    fn sendmsg(endpoint, msg: *const fi_msg_tagged, flags: u64) {
        // SAFETY: the client passed a valid message structure.
        unsafe { endpoint.send_as(&Message::from(&*msg), flags) }
    }

    fn inject(endpoint, buf: Const, len: usize, peer: fi_addr_t, tag: u64) {
        // SAFETY: the client passed a valid buffer.
        endpoint.inject(unsafe { local::piece(buf, len) }, peer, Some(tag), None)
    }

    fn senddata(endpoint, buf: Const, len: usize, _desc: Void, data: u64, peer: fi_addr_t, tag: u64, context: Void) {
        // SAFETY: the client passed a valid buffer.
        endpoint.send(unsafe { local::piece(buf, len) }, peer, Some(tag), Some(data), context, Direction::own)
    }

    fn injectdata(endpoint, buf: Const, len: usize, data: u64, peer: fi_addr_t, tag: u64) {
        // SAFETY: the client passed a valid buffer.
        endpoint.inject(unsafe { local::piece(buf, len) }, peer, Some(tag), Some(data))
    }
} }
