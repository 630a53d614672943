//! Untagged messages (fi_msg(3)).

use std::ffi::c_void;

use percale::trigger::RawOperation;
use percale::{OpFlags, ReceiveWork, Segment, Segments, SendWork};

use super::calls::{Const, Descs, Iov, Void, calls, table};
use super::client_message::Message;
use super::flags::{Direction, TRIGGERED};
use super::trigger::StartMode;
use super::{Endpoint, answer, local};
use crate::abi::{fi_addr_t, fi_msg, fi_ops_msg};

pub(super) const TABLE: fi_ops_msg =
    table!(fi_ops_msg { recv, recvv, recvmsg, send, sendv, sendmsg, inject, senddata, injectdata });

/// The common implementation of the tagged and untagged message calls. All memory belongs to the client, which keeps it
/// valid as fi_msg(3) requires.
///
/// A single piece takes the short path. It is always inlined, so that conditions that are constant in a call are not
/// tested.
impl Endpoint {
    /// Sends one piece. `flags` returns the flags of the operation. It is called after the endpoint has a port, because
    /// the flags depend on the port.
    #[inline(always)]
    pub(super) fn send(
        &self,
        segment: Segment,
        peer: fi_addr_t,
        tag: Option<u64>,
        data: Option<u64>,
        context: *mut c_void,
        flags: impl FnOnce(&Direction) -> OpFlags,
    ) -> isize {
        let port = match self.port() {
            Ok(port) => port,
            Err(refused) => return refused,
        };
        let flags = flags(&self.transmit);
        if flags.contains(TRIGGERED) {
            return self.send_pieces(Segments::one(segment), peer, tag, data, context, flags);
        }
        // SAFETY: the client keeps the memory valid until the operation has completed.
        answer(unsafe { port.send_one(self.peer(peer), segment, tag, data, local::context(context), flags) })
    }

    /// Sends a message without a completion. The client may reuse its memory when the call returns.
    #[inline(always)]
    pub(super) fn inject(&self, segment: Segment, peer: fi_addr_t, tag: Option<u64>, data: Option<u64>) -> isize {
        self.send(segment, peer, tag, data, std::ptr::null_mut(), Direction::injecting)
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
                // SAFETY: the client keeps the memory valid until the operation has completed.
                answer(unsafe { port.receive_one(from, segment, tag, context, flags) })
            }
            Err(refused) => refused,
        }
    }

    fn send_pieces(
        &self,
        segments: Segments,
        peer: fi_addr_t,
        tag: Option<u64>,
        data: Option<u64>,
        context: *mut c_void,
        flags: OpFlags,
    ) -> isize {
        let work = SendWork { peer: self.peer(peer), segments, tag, data, context: local::context(context), flags };
        // SAFETY: the client keeps the memory valid until the operation has completed.
        self.post(work, flags, context, RawOperation::Send, |port, work| unsafe { port.send(work) })
    }

    fn receive_pieces(
        &self,
        segments: Segments,
        from: fi_addr_t,
        tag: Option<(u64, u64)>,
        context: *mut c_void,
        flags: OpFlags,
    ) -> isize {
        let work = ReceiveWork { from: self.from(from), segments, tag, context: local::context(context), flags };
        // SAFETY: the client keeps the memory valid until the operation has completed.
        self.post(work, flags, context, RawOperation::Receive, |port, work| unsafe { port.receive(work) })
    }

    /// Sends a list of pieces. An invalid list is rejected.
    #[inline]
    pub(super) fn send_list(
        &self,
        list: Result<Segments, isize>,
        peer: fi_addr_t,
        tag: Option<u64>,
        context: *mut c_void,
    ) -> isize {
        match list {
            Ok(segments) => self.send_pieces(segments, peer, tag, None, context, self.own_transmit()),
            Err(refused) => refused,
        }
    }

    /// Receives into a list of pieces. An invalid list is rejected.
    #[inline]
    pub(super) fn receive_list(
        &self,
        list: Result<Segments, isize>,
        from: fi_addr_t,
        tag: Option<(u64, u64)>,
        context: *mut c_void,
    ) -> isize {
        match list {
            Ok(segments) => self.receive_pieces(segments, from, tag, context, self.own_receive()),
            Err(refused) => refused,
        }
    }

    /// Sends a message from the client's structure, with the flags of the call.
    ///
    /// # Safety
    /// The message meets the requirements of fi_msg(3).
    #[inline]
    pub(super) unsafe fn send_as(&self, message: &Message, flags: u64) -> isize {
        if StartMode::of(flags) == StartMode::Triggered {
            // SAFETY: the caller upholds the same contract.
            return unsafe {
                self.post_triggered(self.message(false, message, StartMode::Triggered, flags), message.context)
            };
        }
        let (tag, data) = (message.tag.map(|(tag, _)| tag), message.data(flags));
        // SAFETY: the caller guarantees this.
        match (unsafe { message.segments() }, self.transmit_flags(flags)) {
            (Ok(segments), Ok(flags)) => self.send_pieces(segments, message.peer, tag, data, message.context, flags),
            (Err(refused), _) | (_, Err(refused)) => refused,
        }
    }

    /// Posts a receive from the client's structure, with the flags of the call.
    ///
    /// # Safety
    /// The message meets the requirements of fi_msg(3).
    #[inline]
    pub(super) unsafe fn receive_as(&self, message: &Message, flags: u64) -> isize {
        if StartMode::of(flags) == StartMode::Triggered {
            // SAFETY: the caller upholds the same contract.
            return unsafe {
                self.post_triggered(self.message(true, message, StartMode::Triggered, flags), message.context)
            };
        }
        // SAFETY: the caller guarantees this.
        match (unsafe { message.segments() }, self.receive_flags(flags)) {
            (Ok(segments), Ok(flags)) => {
                self.receive_pieces(segments, message.peer, message.tag, message.context, flags)
            }
            (Err(refused), _) | (_, Err(refused)) => refused,
        }
    }
}

calls! { impl Endpoint {
    fn recv(endpoint, buf: Void, len: usize, _desc: Void, from: fi_addr_t, context: Void) {
        // SAFETY: the client passed a valid buffer.
        endpoint.receive(unsafe { local::piece(buf, len) }, from, None, context)
    }

    fn recvv(endpoint, iov: Iov, _desc: Descs, count: usize, from: fi_addr_t, context: Void) {
        // SAFETY: the client passed valid buffers.
        endpoint.receive_list(unsafe { local::several(iov, count) }, from, None, context)
    }

    fn recvmsg(endpoint, msg: *const fi_msg, flags: u64) {
        // SAFETY: the client passed a valid message structure.
        unsafe { endpoint.receive_as(&Message::from(&*msg), flags) }
    }

    fn send(endpoint, buf: Const, len: usize, _desc: Void, peer: fi_addr_t, context: Void) {
        // SAFETY: the client passed a valid buffer.
        endpoint.send(unsafe { local::piece(buf, len) }, peer, None, None, context, Direction::own)
    }

    fn sendv(endpoint, iov: Iov, _desc: Descs, count: usize, peer: fi_addr_t, context: Void) {
        // SAFETY: the client passed valid buffers.
        endpoint.send_list(unsafe { local::several(iov, count) }, peer, None, context)
    }

    fn sendmsg(endpoint, msg: *const fi_msg, flags: u64) {
        // SAFETY: the client passed a valid message structure.
        unsafe { endpoint.send_as(&Message::from(&*msg), flags) }
    }

    fn inject(endpoint, buf: Const, len: usize, peer: fi_addr_t) {
        // SAFETY: the client passed a valid buffer.
        endpoint.inject(unsafe { local::piece(buf, len) }, peer, None, None)
    }

    fn senddata(endpoint, buf: Const, len: usize, _desc: Void, data: u64, peer: fi_addr_t, context: Void) {
        // SAFETY: the client passed a valid buffer.
        endpoint.send(unsafe { local::piece(buf, len) }, peer, None, Some(data), context, Direction::own)
    }

    fn injectdata(endpoint, buf: Const, len: usize, data: u64, peer: fi_addr_t) {
        // SAFETY: the client passed a valid buffer.
        endpoint.inject(unsafe { local::piece(buf, len) }, peer, None, Some(data))
    }
} }
