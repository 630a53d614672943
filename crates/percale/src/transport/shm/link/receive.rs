//! What arrives on a link.

#![expect(unsafe_code, reason = "lends what arrived to the sink; each block states its own reason")]

use super::super::pair::Size;
use super::super::ring::{Arrival, Consumer, Mark};
use super::super::sender::GROW;
use super::ShmLink;
use crate::memory::volatile::View;
use crate::transport::{Broken, Connection, Sink};
use crate::wire::head::{Head, Kind};

/// Frames that one poll takes at most, so that other links get their turn.
const BATCH: u32 = 16;

/// What a [glance](ShmLink::glance) at a ring found.
pub(crate) enum Glance {
    /// Nothing has arrived.
    Nothing,
    /// A message.
    Message(Message),
    /// What only a [poll](crate::transport::Link::poll) deals with.
    More,
}

/// A message that stands next in a ring. Its place and length were checked.
pub(crate) struct Message {
    head: Head,
    payload: *const u8,
    /// More of it, if its payload is not in its line.
    long: Option<Arrival>,
}

impl Message {
    #[inline(always)]
    pub(crate) const fn head(&self) -> &Head {
        &self.head
    }
}

/// What stands next.
enum Found {
    Message(Message),
    /// What is not simply a message.
    Other,
    /// A message that is not all there yet.
    Beginning,
    /// No message, for this reason.
    Broken(&'static str),
}

impl ShmLink {
    /// A frame that is not simply the sink's.
    fn own_frame(&mut self, arrival: &Arrival) -> Result<(), Broken> {
        match arrival.head.kind {
            Kind::Transport if arrival.head.tag == GROW && !self.rx_grown => {
                self.rx_grown = true;
                if let Err(error) = self.pair.back_grown(1 - self.side) {
                    return Err(self.break_with(Broken::NoMemory(format!("for a larger ring: {error}"))));
                }
                self.rx = Consumer::new(self.pair.area(1 - self.side, Size::Grown));
                return Ok(());
            }
            Kind::Transport => {
                return Err(self.break_with(Broken::Protocol("an unknown frame of the transport's own".to_owned())));
            }
            Kind::Data => {
                // SAFETY: the frame is consumed only below.
                let view = unsafe { arrival.view() };
                if let Err(error) = self.transfers.data(&arrival.head, view) {
                    return Err(self.transfer_error(error));
                }
            }
            Kind::Resolve | Kind::Resolved | Kind::Assist => {
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
    fn consume(&mut self, arrival: &Arrival) {
        if self.rx.consume(arrival) {
            self.sender.gave_room();
        }
    }

    /// The message that stands next, if that is one with no more besides than remote data.
    #[inline(always)]
    fn message(&mut self, mark: Mark) -> Found {
        let Some(head) = self.rx.peek_message(mark) else { return Found::Other };
        if let Some(payload) = self.rx.short_payload(&head) {
            return Found::Message(Message { head, payload, long: None });
        }
        match self.rx.payload(head, &mut self.scratch) {
            Ok(Some(arrival)) => Found::Message(Message { head, payload: arrival.payload(), long: Some(arrival) }),
            Ok(None) => Found::Beginning,
            Err(why) => Found::Broken(why),
        }
    }

    /// The payload of a message, until that is gone past.
    #[inline(always)]
    pub(crate) fn payload(&self, message: &Message) -> View<'_> {
        // SAFETY: that many bytes lie there, as was checked, in the pair's memory or in the scratch memory, both of which stay
        // as long as the link. (Of a message that was gone past they are whatever came since.)
        unsafe { View::new(message.payload, message.head.len as usize) }
    }

    /// Goes past the message that stands next.
    #[inline(always)]
    fn go_past(&mut self, message: &Message) {
        let published = match &message.long {
            None => self.rx.consume_short(),
            Some(arrival) => self.rx.consume(arrival),
        };
        if published {
            self.sender.gave_room();
        }
    }

    /// Looks at the ring only, for the message that stands next. It stays there until it is [taken](Self::take).
    #[inline(always)]
    pub(crate) fn glance(&mut self) -> Glance {
        let Some(mark) = self.rx.next() else {
            self.waited = true;
            return Glance::Nothing;
        };
        if self.broken.is_some() {
            return Glance::More;
        }
        match self.message(mark) {
            Found::Message(message) if message.head.kind != Kind::Collective => Glance::Message(message),
            Found::Message(_) | Found::Other | Found::Beginning | Found::Broken(_) => Glance::More,
        }
    }

    /// The message that a glance found has been dealt with. Whether others may be there; otherwise it came alone, and what comes
    /// next is probably yet to come.
    #[inline(always)]
    pub(crate) fn take(&mut self, message: &Message) -> bool {
        self.go_past(message);
        self.sender.answered(1);
        if std::mem::take(&mut self.waited) {
            return false;
        }
        self.rx.prefetch();
        true
    }

    /// Gives what has arrived to `sink`. Whether there was anything.
    #[inline]
    pub(super) fn receive(&mut self, me: Connection, sink: &mut impl Sink) -> Result<bool, Broken> {
        let mut count = 0;
        // Of single messages, the line behind them is not looked at before they are answered: that would fetch it from the
        // sender, which is about to write it.
        let most = if std::mem::take(&mut self.waited) { 1 } else { BATCH };
        while count < most
            && let Some(mark) = self.rx.next()
        {
            let message = match self.message(mark) {
                Found::Message(message) => message,
                Found::Other => {
                    if !self.receive_any(mark, me, sink)? {
                        break;
                    }
                    count += 1;
                    if self.broken.is_some() {
                        break; // It was a goodbye.
                    }
                    continue;
                }
                Found::Beginning => break,
                Found::Broken(why) => return Err(self.broken_frame(why)),
            };
            sink.frame(me, &message.head, self.payload(&message));
            self.go_past(&message);
            if count > 0 && message.long.is_none() {
                // They come in a stream: fetch the next ones while this one is dealt with. (Not in an exchange of
                // single messages: the next line is then about to be written.)
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

    /// Gives a frame of any kind to `sink`. False if it is not all there.
    #[inline(never)]
    fn receive_any(&mut self, mark: Mark, me: Connection, sink: &mut impl Sink) -> Result<bool, Broken> {
        let arrival = match self.rx.peek_any(mark, &mut self.scratch) {
            Ok(Some(arrival)) => arrival,
            Ok(None) => return Ok(false),
            Err(why) => return Err(self.broken_frame(why)),
        };
        if matches!(
            arrival.head.kind,
            Kind::Data | Kind::Nothing | Kind::Transport | Kind::Resolve | Kind::Resolved | Kind::Assist
        ) {
            return self.own_frame(&arrival).map(|()| true);
        }
        // SAFETY: the frame is consumed only after the sink has returned.
        sink.frame(me, &arrival.head, unsafe { arrival.view() });
        self.consume(&arrival);
        if arrival.head.kind == Kind::Bye {
            if !self.transfers.is_empty() {
                self.step(me, sink)?; // What the peer has all of is told before the end.
            }
            self.break_with(Broken::Closed);
        }
        Ok(true)
    }
}
