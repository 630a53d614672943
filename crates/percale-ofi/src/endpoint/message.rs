//! Untagged messages (fi_msg(3)).

use std::ffi::c_void;

use percale::trigger::Operation;
use percale::{OpFlags, ReceiveWork, Segment, Segments, SendWork};

use super::calls::{Const, Descs, Iov, Void, calls, table};
use super::client_message::Message;
use super::flags::{Direction, TRIGGERED};
use super::trigger::Begins;
use super::{Endpoint, answer, local};
use crate::abi::{fi_addr_t, fi_msg, fi_ops_msg};

pub(super) const TABLE: fi_ops_msg =
    table!(fi_ops_msg { recv, recvv, recvmsg, send, sendv, sendmsg, inject, senddata, injectdata });

/// The common implementation of the message calls, tagged or not. All memory is the client's, which keeps it valid as fi_msg(3) requires.
///
/// A single piece takes the short path, which is always inlined: conditions that are constant in a call are then not tested.
impl Endpoint {
    /// Sends one piece. `flags` returns those of the operation; it is called once the endpoint has a port, which they depend on.
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
        // SAFETY: the client keeps the memory until the operation has completed.
        answer(unsafe { port.send_one(self.peer(peer), segment, tag, data, local::context(context), flags) })
    }

    /// Sends a message without a completion. The client may reuse its memory when this returns.
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
                // SAFETY: the client keeps the memory until the operation has completed.
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
        // SAFETY: the client keeps the memory until the operation has completed.
        self.post(work, flags, context, Operation::Send, |port, work| unsafe { port.send(work) })
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
        // SAFETY: the client keeps the memory until the operation has completed.
        self.post(work, flags, context, Operation::Receive, |port, work| unsafe { port.receive(work) })
    }

    /// Sends a list of pieces, unless that is invalid.
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

    /// Receives into a list of pieces, unless that is invalid.
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

    /// Sends a message that the client describes, with its own flags.
    ///
    /// # Safety
    /// The message is as fi_msg(3) has it.
    #[inline]
    pub(super) unsafe fn send_as(&self, message: &Message, flags: u64) -> isize {
        if Begins::of(flags) == Begins::Triggered {
            // SAFETY: passed on.
            return unsafe {
                self.post_triggered(self.message(false, message, Begins::Triggered, flags), message.context)
            };
        }
        let (tag, data) = (message.tag.map(|(tag, _)| tag), message.data(flags));
        // SAFETY: promised by the caller.
        match (unsafe { message.segments() }, self.transmit_flags(flags)) {
            (Ok(segments), Ok(flags)) => self.send_pieces(segments, message.peer, tag, data, message.context, flags),
            (Err(refused), _) | (_, Err(refused)) => refused,
        }
    }

    /// Receives a message as the client describes it, with its own flags.
    ///
    /// # Safety
    /// The message is as fi_msg(3) has it.
    #[inline]
    pub(super) unsafe fn receive_as(&self, message: &Message, flags: u64) -> isize {
        if Begins::of(flags) == Begins::Triggered {
            // SAFETY: passed on.
            return unsafe {
                self.post_triggered(self.message(true, message, Begins::Triggered, flags), message.context)
            };
        }
        // SAFETY: promised by the caller.
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
        // SAFETY: the client's buffer.
        endpoint.receive(unsafe { local::piece(buf, len) }, from, None, context)
    }

    fn recvv(endpoint, iov: Iov, _desc: Descs, count: usize, from: fi_addr_t, context: Void) {
        // SAFETY: the client's buffers.
        endpoint.receive_list(unsafe { local::several(iov, count) }, from, None, context)
    }

    fn recvmsg(endpoint, msg: *const fi_msg, flags: u64) {
        // SAFETY: the client's description.
        unsafe { endpoint.receive_as(&Message::from(&*msg), flags) }
    }

    fn send(endpoint, buf: Const, len: usize, _desc: Void, peer: fi_addr_t, context: Void) {
        // SAFETY: the client's buffer.
        endpoint.send(unsafe { local::piece(buf, len) }, peer, None, None, context, Direction::own)
    }

    fn sendv(endpoint, iov: Iov, _desc: Descs, count: usize, peer: fi_addr_t, context: Void) {
        // SAFETY: the client's buffers.
        endpoint.send_list(unsafe { local::several(iov, count) }, peer, None, context)
    }

    fn sendmsg(endpoint, msg: *const fi_msg, flags: u64) {
        // SAFETY: the client's description.
        unsafe { endpoint.send_as(&Message::from(&*msg), flags) }
    }

    fn inject(endpoint, buf: Const, len: usize, peer: fi_addr_t) {
        // SAFETY: the client's buffer.
        endpoint.inject(unsafe { local::piece(buf, len) }, peer, None, None)
    }

    fn senddata(endpoint, buf: Const, len: usize, _desc: Void, data: u64, peer: fi_addr_t, context: Void) {
        // SAFETY: the client's buffer.
        endpoint.send(unsafe { local::piece(buf, len) }, peer, None, Some(data), context, Direction::own)
    }

    fn injectdata(endpoint, buf: Const, len: usize, data: u64, peer: fi_addr_t) {
        // SAFETY: the client's buffer.
        endpoint.inject(unsafe { local::piece(buf, len) }, peer, None, Some(data))
    }
} }
