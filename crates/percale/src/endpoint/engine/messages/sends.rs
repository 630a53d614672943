//! Sends that wait for their peer: they were offered, or the peer is to answer that it has the message.

use super::super::core::{send_flags, sent_entry};
use super::super::types::Notify;
use crate::completion::entry::{Entry, ErrorCode};
use crate::endpoint::posted::Posted;
use crate::endpoint::work::SendWork;
use crate::local_memory::volatile::Segments;
use crate::table::{Id, Table};
use crate::transport::Connection;

/// Why a send failed.
pub(in super::super) type SendFailure = (ErrorCode, &'static str);

/// The failure of a send whose message the receiver could not take.
const NOT_TAKEN: SendFailure = (ErrorCode::Io, "the peer could not take the message");

/// A send that is known to the peer by its number. It is kept until the peer has sent its last answer about it.
#[derive(Debug)]
struct Send {
    /// The peer.
    to: Connection,
    /// Its progress.
    state: SendState,
}

/// The progress of a send.
#[derive(Debug)]
enum SendState {
    /// The send has not ended.
    Open(OpenSend),
    /// The send was reported as failed, and its memory was given back; the peer has yet to answer with a
    /// [`Kind::Ack`](crate::wire::head::Kind::Ack).
    Failed,
}

/// A send that has not ended.
#[derive(Debug)]
struct OpenSend {
    /// What is sent, with its memory: a transport may read it until the payload is [`Over`](Payload::Over).
    posted: Posted<SendWork>,
    /// How its end is reported.
    notify: Notify,
    /// Where the payload is.
    payload: Payload,
    /// Whether the peer has yet to answer that it delivered the message.
    ack: bool,
}

/// Where the payload of a send is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Payload {
    /// Here, offered to the peer.
    Offered,
    /// A transport reads it to serve the peer's pull: the send cannot end before that.
    Leaving,
    /// Like [`Leaving`](Self::Leaving), but the peer has already answered that it cannot take the message.
    LeavingRefused,
    /// It left with the message, or nothing needs it any more.
    Over,
}

impl OpenSend {
    fn entry(&self) -> Entry {
        let work = self.posted.work();
        sent_entry(work.context, send_flags(work.tag.is_some()), work.segments.len())
    }
}

/// A send that has ended, and is to be reported. No transport reads its memory any more.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct SendEnd {
    pub(in super::super) to: Connection,
    pub(in super::super) notify: Notify,
    pub(in super::super) entry: Entry,
    /// Why it failed, if it did.
    pub(in super::super) failure: Option<SendFailure>,
}

/// The result of a peer's request for the payload of a send.
#[derive(Clone, Copy, Debug)]
pub(in super::super) enum SendAsked {
    /// The payload, which a transport reads from now on, with where the send is reported and its context.
    Payload(Notify, u64, Segments),
    /// The send is gone: the request is late.
    Gone,
    /// The send offers nothing, or the peer asked before.
    Nothing,
}

/// Sends that wait for their peer.
///
/// Invariants:
/// 1. A send ends once: when its payload is over and no answer is awaited, or when it fails. What ends it returns its [`SendEnd`].
/// 2. A send does not end while a transport reads its memory.
/// 3. A send that failed while its peer owes an answer keeps its number, and nothing else, until the answer has come or the connection is
///    over: no other send gets the number.
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

    /// Returns the number by which the peer will name the send that is added next.
    pub(in super::super) fn next_wire(&self) -> u32 {
        self.sends.next_id().to_wire()
    }

    /// Adds a send that waits for its peer. `offered` is whether the payload was offered; else it left with the message. `ack` is whether
    /// the peer is to answer when it has the message.
    pub(in super::super) fn add(
        &mut self,
        to: Connection,
        posted: Posted<SendWork>,
        notify: Notify,
        offered: bool,
        ack: bool,
    ) {
        let payload = if offered { Payload::Offered } else { Payload::Over };
        self.sends.insert(Send { to, state: SendState::Open(OpenSend { posted, notify, payload, ack }) });
    }

    /// Returns the send that a peer names by its number, or `None` if it is gone, or is a send to another peer.
    #[inline]
    fn find(&self, from: Connection, wire: u32) -> Option<Id<Send>> {
        let id = self.sends.find_wire(wire)?;
        (self.sends[id].to == from).then_some(id)
    }

    /// Changes a send. Returns its end if nothing is left to wait for.
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

    /// Fails a send that no transport reads. It keeps its number if the peer has yet to answer.
    fn fail(&mut self, id: Id<Send>, failure: Option<SendFailure>) -> Option<SendEnd> {
        let Send { to, state } = self.sends.get_mut(id)?;
        let to = *to;
        let SendState::Open(send) = std::mem::replace(state, SendState::Failed) else { return None };
        if !send.ack {
            self.sends.remove(id);
        }
        Some(SendEnd { to, notify: send.notify, entry: send.entry(), failure })
    }

    /// Handles the notice that the receiver wants none of the payload of an offer. Returns the end of the send, if it ends.
    ///
    /// # Errors
    /// How that breaks the protocol.
    pub(in super::super) fn not_pulled(
        &mut self,
        from: Connection,
        wire: u32,
    ) -> Result<Option<SendEnd>, &'static str> {
        let Some(id) = self.find(from, wire) else { return Ok(None) };
        if let SendState::Open(send) = &self.sends[id].state
            && matches!(send.payload, Payload::Leaving | Payload::LeavingRefused)
        {
            return Err("it wants nothing of what it is pulling");
        }
        Ok(self.step(id, |send| send.payload = Payload::Over))
    }

    /// Handles the answer that the receiver has delivered a message, or (with a failure) could not. Returns the end of the send, if it ends.
    pub(in super::super) fn acknowledged(
        &mut self,
        from: Connection,
        wire: u32,
        failure: Option<SendFailure>,
    ) -> Option<SendEnd> {
        let id = self.find(from, wire)?;
        let SendState::Open(send) = &mut self.sends[id].state else {
            self.sends.remove(id); // It was reported before. This was the last answer that the peer owed.
            return None;
        };
        if failure.is_none() {
            return self.step(id, |send| send.ack = false);
        }
        match send.payload {
            // It ends when nothing reads its source any more.
            Payload::Leaving | Payload::LeavingRefused => {
                send.payload = Payload::LeavingRefused;
                None
            }
            Payload::Offered | Payload::Over => {
                send.ack = false; // The receiver sends no further answer about it.
                self.fail(id, failure)
            }
        }
    }

    /// Handles the peer's request for the payload of an offer.
    pub(in super::super) fn asked(&mut self, from: Connection, wire: u32) -> SendAsked {
        let Some(id) = self.find(from, wire) else { return SendAsked::Gone };
        let SendState::Open(send) = &mut self.sends[id].state else { return SendAsked::Gone };
        if send.payload != Payload::Offered {
            return SendAsked::Nothing;
        }
        send.payload = Payload::Leaving;
        let work = send.posted.work();
        SendAsked::Payload(send.notify, work.context, work.segments)
    }

    /// Records that no transport reads the payload any more: it has left, or that failed. Returns the end of the send, if it ends.
    pub(in super::super) fn pushed(
        &mut self,
        from: Connection,
        wire: u32,
        failure: Option<SendFailure>,
    ) -> Option<SendEnd> {
        let id = self.find(from, wire)?;
        let SendState::Open(send) = &mut self.sends[id].state else { return None };
        let refused = match send.payload {
            Payload::Leaving => false,
            Payload::LeavingRefused => true,
            // The push was for an operation that is gone, or of another kind, and sent nothing of this one.
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

    /// Ends all sends to a peer with which there is no connection any more. The caller decides how they failed.
    pub(in super::super) fn take_of(&mut self, to: Connection) -> Vec<SendEnd> {
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
    #[cfg(all(test, not(loom)))]
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

/// Returns the failure of a send whose receiver answered with an error number. `None` if it is 0: the message was delivered.
pub(in super::super) fn refusal_of(number: u64) -> Option<SendFailure> {
    match number {
        0 => None,
        number if number == ErrorCode::KeyRejected.errno() as u64 => Some((
            ErrorCode::KeyRejected,
            "the peer has no window with the key to be invalidated, or not for this endpoint",
        )),
        _ => Some(NOT_TAKEN),
    }
}
