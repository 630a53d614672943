//! Sends that wait for their peer: they were offered, or the peer has to acknowledge the message.

use super::super::core::{send_flags, sent_entry};
use super::super::types::Notify;
use crate::completion::entry::{Entry, ErrorCode};
use crate::endpoint::posted::Posted;
use crate::endpoint::work::SendWork;
use crate::local_memory::volatile::Segments;
use crate::table::{Id, Table};
use crate::transport::ConnectionId;

/// The reason why a send failed.
pub(in super::super) type SendFailure = (ErrorCode, &'static str);

/// The failure of a send if the receiver could not take the message.
const NOT_TAKEN: SendFailure = (ErrorCode::Io, "the peer could not receive the message");

/// A send, after its number was sent to the peer. It is kept until the peer has sent its last answer about it.
#[derive(Debug)]
struct Send {
    /// The peer to which the message is sent.
    to: ConnectionId,
    /// The progress of the send.
    state: SendState,
}

/// The progress of a send.
#[derive(Debug)]
enum SendState {
    /// The send has not ended.
    Open(OpenSend),
    /// The send was reported as failed, and its memory was returned. The peer has yet to answer with a
    /// [`FrameKind::Ack`](crate::wire::head::FrameKind::Ack).
    Failed,
}

/// A send that has not ended.
#[derive(Debug)]
struct OpenSend {
    /// The operation with its memory. A transport may read the memory until the payload is [`Over`](Payload::Over).
    posted: Posted<SendWork>,
    /// How the end of the send is reported.
    notify: Notify,
    /// The state of the payload.
    payload: Payload,
    /// Whether the peer has yet to acknowledge that it delivered the message.
    ack: bool,
}

/// The state of the payload of a send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Payload {
    /// The payload was offered to the peer, and no transport reads it.
    Offered,
    /// A transport reads the payload to serve the peer's pull. The send cannot end before that ends.
    Leaving,
    /// Like [`Leaving`](Self::Leaving), but the peer has already answered that it cannot take the message.
    LeavingRefused,
    /// The payload left with the message, or is not needed any more.
    Over,
}

impl OpenSend {
    fn entry(&self) -> Entry {
        let work = self.posted.work();
        sent_entry(work.context, send_flags(work.tag.is_some()), work.segments.len())
    }
}

/// A send that has ended, and has to be reported. No transport reads its memory any more.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct SendEnd {
    pub(in super::super) to: ConnectionId,
    pub(in super::super) notify: Notify,
    pub(in super::super) entry: Entry,
    /// The reason for the failure, if the send failed.
    pub(in super::super) failure: Option<SendFailure>,
}

/// The result of a peer's request for the payload of a send.
#[derive(Clone, Copy, Debug)]
pub(in super::super) enum SendAsked {
    /// The payload, which a transport reads from now on, with the notification and the context of the send.
    Payload(Notify, u64, Segments),
    /// The send no longer exists: the request is late.
    Gone,
    /// The send offers nothing, or the peer requested its payload before.
    Nothing,
}

/// Sends that wait for their peer.
///
/// Invariants:
/// 1. A send ends once: when its payload is over and no answer is awaited, or when it fails. The function that ends it
///    returns its [`SendEnd`].
/// 2. A send does not end while a transport reads its memory.
/// 3. A send that failed before its peer sent its last answer keeps its number, and nothing else, until the answer has
///    arrived or the connection has ended: no other send gets the number.
/// 4. Only the peer of a send can change it.
#[derive(Debug, Default)]
pub(in super::super) struct Sends {
    sends: Table<Send>,
}

impl Sends {
    /// Returns whether no number is free.
    pub(in super::super) fn is_full(&self) -> bool {
        self.sends.is_full()
    }

    /// Returns the number that the next added send gets, and that the peer uses for it.
    pub(in super::super) fn next_wire(&self) -> u32 {
        self.sends.next_id().to_wire()
    }

    /// Adds a send that waits for its peer. `offered` states whether the payload was offered; otherwise it left with
    /// the message. `ack` states whether the peer has to acknowledge the message.
    pub(in super::super) fn add(
        &mut self,
        to: ConnectionId,
        posted: Posted<SendWork>,
        notify: Notify,
        offered: bool,
        ack: bool,
    ) {
        let payload = if offered { Payload::Offered } else { Payload::Over };
        self.sends.insert(Send { to, state: SendState::Open(OpenSend { posted, notify, payload, ack }) });
    }

    /// Returns the send with this number, which a peer sent, or `None` if the send no longer exists or its target is
    /// another peer.
    #[inline]
    fn find(&self, from: ConnectionId, wire: u32) -> Option<Id<Send>> {
        let id = self.sends.find_wire(wire)?;
        (self.sends[id].to == from).then_some(id)
    }

    /// Changes a send. Returns its end if the send has ended.
    fn step(&mut self, id: Id<Send>, step: impl FnOnce(&mut OpenSend)) -> Option<SendEnd> {
        let Send { to, state: SendState::Open(send) } = self.sends.get_mut(id)? else { return None };
        step(send);
        if send.payload != Payload::Over || send.ack {
            return None;
        }
        let end = SendEnd { to: *to, notify: send.notify, entry: send.entry(), failure: None };
        self.sends.remove(id);
        Some(end)
    }

    /// Fails a send that no transport reads. The send keeps its number if the peer has yet to answer.
    fn fail(&mut self, id: Id<Send>, failure: Option<SendFailure>) -> Option<SendEnd> {
        let Send { to, state } = self.sends.get_mut(id)?;
        let to = *to;
        let SendState::Open(send) = std::mem::replace(state, SendState::Failed) else { return None };
        if !send.ack {
            self.sends.remove(id);
        }
        Some(SendEnd { to, notify: send.notify, entry: send.entry(), failure })
    }

    /// Handles the notice that the receiver does not need the payload of an offer. Returns the end of the send, if it
    /// ends.
    ///
    /// # Errors
    /// Returns the peer's violation of the protocol.
    pub(in super::super) fn not_pulled(
        &mut self,
        from: ConnectionId,
        wire: u32,
    ) -> Result<Option<SendEnd>, &'static str> {
        let Some(id) = self.find(from, wire) else { return Ok(None) };
        if let SendState::Open(send) = &self.sends[id].state {
            match send.payload {
                Payload::Offered => {}
                Payload::Leaving | Payload::LeavingRefused => return Err("pull of zero bytes"),
                Payload::Over => return Err("rejection of a payload that was not offered"),
            }
        }
        Ok(self.step(id, |send| send.payload = Payload::Over))
    }

    /// Handles the answer that the receiver has delivered a message or, with a failure, could not deliver it. Returns
    /// the end of the send, if it ends.
    ///
    /// # Errors
    /// Returns the peer's violation of the protocol.
    pub(in super::super) fn acknowledged(
        &mut self,
        from: ConnectionId,
        wire: u32,
        failure: Option<SendFailure>,
    ) -> Result<Option<SendEnd>, &'static str> {
        let Some(id) = self.find(from, wire) else { return Ok(None) };
        let SendState::Open(send) = &mut self.sends[id].state else {
            self.sends.remove(id); // The send was reported before. This was the last answer that the peer owed.
            return Ok(None);
        };
        if !send.ack || send.payload == Payload::LeavingRefused {
            return Err("acknowledgement that was not requested");
        }
        if failure.is_none() {
            return Ok(self.step(id, |send| send.ack = false));
        }
        Ok(match send.payload {
            // The send ends when no transport reads its payload any more.
            Payload::Leaving | Payload::LeavingRefused => {
                send.payload = Payload::LeavingRefused;
                None
            }
            Payload::Offered | Payload::Over => {
                send.ack = false; // The receiver sends no further answer about this message.
                self.fail(id, failure)
            }
        })
    }

    /// Handles the peer's request for the payload of an offer.
    pub(in super::super) fn handle_pull_request(&mut self, from: ConnectionId, wire: u32) -> SendAsked {
        let Some(id) = self.find(from, wire) else { return SendAsked::Gone };
        let SendState::Open(send) = &mut self.sends[id].state else { return SendAsked::Gone };
        if send.payload != Payload::Offered {
            return SendAsked::Nothing;
        }
        send.payload = Payload::Leaving;
        let work = send.posted.work();
        SendAsked::Payload(send.notify, work.context, work.segments)
    }

    /// Records that no transport reads the payload any more, because it has left or its transfer failed. Returns the
    /// end of the send, if it ends.
    pub(in super::super) fn pushed(
        &mut self,
        from: ConnectionId,
        wire: u32,
        failure: Option<SendFailure>,
    ) -> Option<SendEnd> {
        let id = self.find(from, wire)?;
        let SendState::Open(send) = &mut self.sends[id].state else { return None };
        let refused = match send.payload {
            Payload::Leaving => false,
            Payload::LeavingRefused => true,
            // The push was for an operation that no longer exists, or for one of another kind, and sent nothing of this
            // send.
            Payload::Offered | Payload::Over => return None,
        };
        send.ack &= !refused; // The receiver sends no further answer about a message that it refused.
        match failure {
            None if refused => self.fail(id, Some(NOT_TAKEN)),
            None => self.step(id, |send| send.payload = Payload::Over),
            Some(_) => {
                send.payload = Payload::Over;
                self.fail(id, failure)
            }
        }
    }

    /// Ends all sends to a disconnected peer. The caller adds the error with which they fail.
    pub(in super::super) fn take_of(&mut self, to: ConnectionId) -> Vec<SendEnd> {
        let gone: Vec<_> = self.sends.iter().filter(|(_, send)| send.to == to).map(|(id, _)| id).collect();
        let mut ended = Vec::with_capacity(gone.len());
        for id in gone {
            ended.extend(self.fail(id, None));
            self.sends.remove(id); // No answer will come.
        }
        ended
    }

    /// Returns whether there are no sends.
    #[cfg(all(test, not(loom)))]
    pub(in super::super) fn is_empty(&self) -> bool {
        self.sends.is_empty()
    }

    /// Returns the number of sends.
    #[cfg(any(test, feature = "sim"))]
    pub(in super::super) fn len(&self) -> usize {
        self.sends.len()
    }

    /// Returns whether a number belongs to a send.
    #[cfg(all(test, not(loom)))]
    pub(in super::super) fn has(&self, wire: u32) -> bool {
        self.sends.find_wire(wire).is_some()
    }

    /// Returns the number of the first send.
    #[cfg(all(test, not(loom)))]
    pub(in super::super) fn first(&self) -> Option<u32> {
        self.sends.iter().next().map(|(id, _)| id.to_wire())
    }
}

/// Returns the failure of a send that the receiver answered with this error number. Returns `None` for 0: the message
/// was delivered.
pub(in super::super) fn refusal_of(number: u64) -> Option<SendFailure> {
    match number {
        0 => None,
        number if number == ErrorCode::KeyRejected.errno() as u64 => {
            Some((ErrorCode::KeyRejected, "the peer has no window with this key that is bound for this endpoint"))
        }
        _ => Some(NOT_TAKEN),
    }
}
