//! The receiving part of a link.

#![expect(unsafe_code, reason = "lends what arrived to the sink; each block states its own reason")]

use super::super::pair::RingSize;
use super::super::ring::{Consumer, FrameMark, RingFrame};
use super::super::sender::GROW;
use super::ShmLink;
use crate::local_memory::volatile::{View, ViewExt as _};
use crate::wire::form::RING;
use crate::wire::head::{FrameKind, Head};
use crate::{Broken, ConnectionId, Sink};

/// The largest number of frames that one poll receives, so that other links are also served.
const BATCH: u32 = 16;

/// The result of [`ShmLink::peek`].
#[derive(Debug)]
pub enum PeekResult {
    /// Nothing has arrived.
    Nothing,
    /// A message.
    Message(Message),
    /// Something that only a [poll](crate::Link::poll) handles.
    More,
}

/// The next message in a ring. Its position and length were checked.
#[derive(Debug)]
pub struct Message {
    head: Head,
    payload: *const u8,
    /// The rest of the description, if the payload is not in the message's line.
    long: Option<RingFrame>,
}

impl Message {
    #[inline(always)]
    pub const fn head(&self) -> &Head {
        &self.head
    }
}

/// The next frame in a ring.
enum NextFrame {
    Message(Message),
    /// A frame that is not a plain message.
    Other,
    /// A message that has arrived only in part.
    Beginning,
    /// The frame is invalid, for this reason.
    Broken(&'static str),
}

impl ShmLink {
    /// Handles a frame that the sink does not get directly.
    fn own_frame(&mut self, arrival: &RingFrame) -> Result<(), Broken> {
        match arrival.head.kind {
            FrameKind::Transport if arrival.head.tag == GROW && !self.rx_grown => {
                self.rx_grown = true;
                if let Err(error) = self.pair.back_grown(1 - self.side) {
                    return Err(self.break_with(Broken::NoMemory(format!("for a larger ring: {error}"))));
                }
                self.rx = Consumer::new(self.pair.area(1 - self.side, RingSize::Grown));
                return Ok(());
            }
            FrameKind::Transport => {
                return Err(self.break_with(Broken::Protocol("unknown transport frame".to_owned())));
            }
            FrameKind::Data => {
                // SAFETY: the frame is consumed only below.
                let view = unsafe { arrival.view() };
                if let Err(error) = self.transfers.data(&arrival.head, view) {
                    return Err(self.transfer_error(error));
                }
            }
            FrameKind::Resolve | FrameKind::Resolved | FrameKind::Assist => {
                // SAFETY: the frame is consumed only below.
                let view = unsafe { arrival.view() };
                let (direct, side) = self.direct();
                if let Err(why) = direct.frame(&arrival.head, view, side) {
                    return Err(self.break_with(Broken::Protocol(why.to_owned())));
                }
            }
            _ => {}
        }
        self.consume(arrival);
        Ok(())
    }

    #[inline]
    fn consume(&mut self, arrival: &RingFrame) {
        if self.rx.consume(arrival) {
            self.sender.wake_for_credits();
        }
    }

    /// Returns the next frame if it is a message with no flag other than
    /// [`Flags::DATA`](crate::wire::head::Flags::DATA).
    #[inline(always)]
    fn message(&mut self, mark: FrameMark) -> NextFrame {
        let Some(head) = self.rx.peek_message(mark) else { return NextFrame::Other };
        if let Some(payload) = self.rx.short_payload(&head) {
            return NextFrame::Message(Message { head, payload, long: None });
        }
        match self.rx.payload(head, &mut self.scratch) {
            Ok(Some(arrival)) => NextFrame::Message(Message { head, payload: arrival.payload(), long: Some(arrival) }),
            Ok(None) => NextFrame::Beginning,
            Err(why) => NextFrame::Broken(why),
        }
    }

    /// Returns the payload of a message, which is valid until the message is consumed.
    #[inline(always)]
    #[doc(hidden)]
    pub fn payload(&self, message: &Message) -> View<'_> {
        // SAFETY: the length was checked against the memory at the payload. The payload lies in the pair's memory or in
        // the scratch memory, both of which live as long as the link. (After the message was consumed, they may contain
        // other bytes.)
        unsafe { View::new(message.payload, message.head.len as usize) }
    }

    /// Consumes the next message.
    #[inline(always)]
    fn consume_message(&mut self, message: &Message) {
        let published = match &message.long {
            None => self.rx.consume_short(),
            Some(arrival) => self.rx.consume(arrival),
        };
        if published {
            self.sender.wake_for_credits();
        }
    }

    /// Checks only the ring for the next message, which stays in the ring until it is [taken](Self::take).
    #[inline(always)]
    #[doc(hidden)]
    pub fn peek(&mut self) -> PeekResult {
        let Some(mark) = self.rx.next() else {
            self.waited = true;
            return PeekResult::Nothing;
        };
        if self.broken.is_some() {
            return PeekResult::More;
        }
        match self.message(mark) {
            NextFrame::Message(message) if message.head.kind != FrameKind::Collective => PeekResult::Message(message),
            NextFrame::Message(_) | NextFrame::Other | NextFrame::Beginning | NextFrame::Broken(_) => PeekResult::More,
        }
    }

    /// Consumes the message that [`peek`](Self::peek) found, after the caller has handled it. Returns whether there
    /// may be more messages. If not, the message arrived alone, and the next one has probably not been sent yet.
    #[inline(always)]
    #[doc(hidden)]
    pub fn take(&mut self, message: &Message) -> bool {
        self.consume_message(message);
        self.sender.answered(1);
        if std::mem::take(&mut self.waited) {
            return false;
        }
        self.rx.prefetch();
        true
    }

    /// Passes the frames that have arrived to `sink`. Returns whether there were any.
    #[inline]
    pub(super) fn receive(&mut self, me: ConnectionId, sink: &mut impl Sink) -> Result<bool, Broken> {
        let mut count = 0;
        // In an exchange of single messages, the line behind a message is not read before the message is answered:
        // reading it would fetch the line from the sender, which is about to write it.
        let most = if std::mem::take(&mut self.waited) { 1 } else { BATCH };
        while count < most
            && let Some(mark) = self.rx.next()
        {
            let message = match self.message(mark) {
                NextFrame::Message(message) => message,
                NextFrame::Other => {
                    if !self.receive_any(mark, me, sink)? {
                        break;
                    }
                    count += 1;
                    if self.broken.is_some() {
                        break; // The frame was a `Bye`.
                    }
                    continue;
                }
                NextFrame::Beginning => break,
                NextFrame::Broken(why) => return Err(self.broken_frame(why)),
            };
            sink.frame(me, &message.head, self.payload(&message));
            self.consume_message(&message);
            if count > 0 && message.long.is_none() {
                // The messages arrive in a stream, so the next lines are fetched while this message is handled. (In an
                // exchange of single messages this is not done, because the sender is about to write the next line.)
                self.rx.prefetch();
            }
            count += 1;
        }
        self.sender.answered(count);
        Ok(count > 0)
    }

    #[cold]
    fn broken_frame(&mut self, why: &str) -> Broken {
        self.break_with(Broken::Protocol(why.to_owned()))
    }

    /// Handles a frame of any kind. Returns false if it has not arrived completely.
    #[inline(never)]
    fn receive_any(&mut self, mark: FrameMark, me: ConnectionId, sink: &mut impl Sink) -> Result<bool, Broken> {
        let arrival = match self.rx.peek_any(mark, &mut self.scratch) {
            Ok(Some(arrival)) => arrival,
            Ok(None) => return Ok(false),
            Err(why) => return Err(self.broken_frame(why)),
        };
        if let Err(defect) = arrival.head.check(&RING) {
            return Err(self.broken_frame(defect.text()));
        }
        if matches!(
            arrival.head.kind,
            FrameKind::Data
                | FrameKind::Nothing
                | FrameKind::Transport
                | FrameKind::Resolve
                | FrameKind::Resolved
                | FrameKind::Assist
        ) {
            return self.own_frame(&arrival).map(|()| true);
        }
        // SAFETY: the frame is consumed only after the sink has returned.
        sink.frame(me, &arrival.head, unsafe { arrival.view() });
        self.consume(&arrival);
        if arrival.head.kind == FrameKind::Bye {
            if !self.transfers.is_empty() {
                self.step(me, sink)?; // Report transfers that the peer has completed before the end.
            }
            self.break_with(Broken::Closed);
        }
        Ok(true)
    }
}
