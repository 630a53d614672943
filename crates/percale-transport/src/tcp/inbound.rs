//! The receiving half of a link.
//!
//! Bytes are received into the thread's scratch, and whole frames in it are passed to the sink. If only a part of a
//! long payload has arrived, the sink (or, for `Data`, the table of pulls) provides its destination. The rest is then
//! received directly into the destination, and the bytes that follow it are received into a small part of the scratch.
//! Between two calls only the start of a short frame is kept ([`CARRY_BYTES`], inline).
//!
//! Everything is checked before it is used: a head by its check word and by the form of its kind, and `Data` by the
//! table of pulls. After an error no more frames are read, because the frame boundaries are lost.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use rustix::io::Errno;
use zerocopy::FromBytes;

use super::buffers::SCRATCH_BYTES;
use super::socket::{Stream, broken};
use crate::local_memory::volatile::{Segments, View, ViewExt as _};
use crate::region::lease::Lease;
use crate::stream::{Data, Pulls};
use crate::wire::form::{FormError, STREAM};
use crate::wire::head::{FrameKind, HEAD_BYTES, Head, HeadBytes};
use crate::{Broken, ConnectionId, Sink};

/// The length of a payload that always reaches the sink whole. The payloads of most kinds are not longer.
const WHOLE_LIMIT: usize = 64;

/// The longest frame that always reaches the sink whole. The start of such a frame is kept until the rest arrives.
const CARRY_BYTES: usize = HEAD_BYTES + WHOLE_LIMIT;

/// The number of bytes that are received behind a long payload. It is enough for the heads that usually follow, and
/// includes only a small part of the next long payload, because that part has to be copied.
const TAIL_BYTES: usize = 4 << 10;

/// The length from which a payload justifies a separate system call that reads it directly into its destination.
const LONG_BYTES: usize = 16 << 10;

/// The number of bytes that one `poll` receives, so that receiving does not prevent sending.
const TURN_BYTES: usize = 1 << 20;

/// The receiving half of a link.
#[derive(Debug)]
pub(super) struct Inbound {
    carry: [u8; CARRY_BYTES],
    carried: usize,
    body: Option<Body>,
    /// Whether the last frame was long. The next one may be long too, so only a small part of it is received into the
    /// scratch.
    long: bool,
    said_bye: bool,
}

/// A payload that is arriving.
#[derive(Debug)]
struct Body {
    kind: FrameKind,
    token: u32,
    into: Lease,
    len: usize,
    done: usize,
}

impl Inbound {
    pub(super) const fn new() -> Self {
        Self { carry: [0; CARRY_BYTES], carried: 0, body: None, long: false, said_bye: false }
    }

    /// Receives available bytes and reports them to the sink. Returns whether there were any.
    #[inline]
    pub(super) fn poll(
        &mut self,
        from: &mut impl Stream,
        scratch: &mut [u8; SCRATCH_BYTES],
        pulls: &mut Pulls,
        me: ConnectionId,
        sink: &mut impl Sink,
    ) -> Result<bool, Broken> {
        let mut turn = 0;
        while turn < TURN_BYTES {
            let (result, requested) = if self.body.is_some() {
                self.read_body(from, scratch, pulls)
            } else {
                // If long payloads are expected, leave them in the socket so that they are read directly into their
                // destination.
                let room = if pulls.is_empty() && !self.long { SCRATCH_BYTES } else { TAIL_BYTES };
                let into = &mut scratch[self.carried..room];
                let requested = into.len();
                (from.read_one(into), requested)
            };
            let received = match result {
                Ok(0) => return Err(self.ended()),
                Ok(received) => received,
                Err(Errno::AGAIN) => break,
                Err(error) => return Err(broken("readv or recvfrom", error)),
            };
            turn = received.wrapping_add(turn);
            self.accept(received, scratch, pulls, me, sink)?;
            // Short frames cost more than their bytes, so one full scratch is enough for one call.
            if received < requested || self.body.is_none() {
                break;
            }
        }
        Ok(turn > 0)
    }

    /// Receives into the destination of the payload that is arriving, and receives the bytes after it into the scratch.
    #[inline(never)]
    fn read_body(
        &mut self,
        from: &mut impl Stream,
        scratch: &mut [u8; SCRATCH_BYTES],
        pulls: &mut Pulls,
    ) -> (Result<usize, Errno>, usize) {
        let Some(body) = &mut self.body else { return (Ok(0), 0) };
        let Some((into, _held)) = body.into.enter() else {
            // The rest of the payload no longer has a destination.
            if body.kind == FrameKind::Data {
                pulls.revoked(body.token);
            }
            body.into = Lease::own(&Segments::EMPTY);
            return self.read_body(from, scratch, pulls);
        };
        let placed = body.placed();
        let tail = &mut scratch[..body.excess().saturating_add(TAIL_BYTES).min(SCRATCH_BYTES)];
        let requested = placed.saturating_add(tail.len());
        (from.read(&into.slice(body.done, placed), tail), requested)
    }

    /// Processes `received` bytes: first the bytes of the payload that is arriving, then the frames in the scratch.
    #[inline(always)]
    fn accept(
        &mut self,
        received: usize,
        scratch: &mut [u8; SCRATCH_BYTES],
        pulls: &mut Pulls,
        me: ConnectionId,
        sink: &mut impl Sink,
    ) -> Result<(), Broken> {
        let frames = if self.body.is_none() {
            let carried = std::mem::take(&mut self.carried);
            if carried > 0 {
                scratch[..carried].copy_from_slice(&self.carry[..carried]);
            }
            0..carried.wrapping_add(received)
        } else {
            self.accept_body(received, pulls, me, sink)
        };
        self.frames(&scratch[frames], pulls, me, sink)
    }

    /// Processes the received part of a payload that is arriving. Returns the range of the scratch that contains the
    /// bytes after it.
    #[inline(never)]
    fn accept_body(
        &mut self,
        received: usize,
        pulls: &mut Pulls,
        me: ConnectionId,
        sink: &mut impl Sink,
    ) -> std::ops::Range<usize> {
        let Some(body) = &mut self.body else { return 0..received };
        let placed = received.min(body.placed());
        let rest = received.saturating_sub(placed);
        let dropped = rest.min(body.excess());
        body.done = body.done.saturating_add(placed).saturating_add(dropped);
        if body.done == body.len {
            let (kind, token, len) = (body.kind, body.token, body.len);
            self.body = None;
            if kind == FrameKind::Data {
                data_arrived(pulls, token, len as u32, me, sink);
            } else {
                sink.landed(me, token);
            }
        }
        dropped..rest
    }

    /// Passes the frames in `bytes` to the sink. Keeps the start of an incomplete short frame, and begins to receive an
    /// incomplete long frame.
    #[inline(always)]
    fn frames(
        &mut self,
        mut bytes: &[u8],
        pulls: &mut Pulls,
        me: ConnectionId,
        sink: &mut impl Sink,
    ) -> Result<(), Broken> {
        while let Some((head, rest)) = parse(bytes)? {
            let len = head.len as usize;
            if let Some((payload, next)) = rest.split_at_checked(len) {
                self.long = len >= LONG_BYTES;
                self.whole(&head, payload, pulls, me, sink)?;
                bytes = next;
            } else if len <= const { CARRY_BYTES - HEAD_BYTES } {
                break;
            } else {
                return self.begin(&head, rest, pulls, me, sink);
            }
        }
        if !bytes.is_empty() {
            self.carry[..bytes.len()].copy_from_slice(bytes);
        }
        self.carried = bytes.len();
        Ok(())
    }

    #[inline(always)]
    fn whole(
        &mut self,
        head: &Head,
        payload: &[u8],
        pulls: &mut Pulls,
        me: ConnectionId,
        sink: &mut impl Sink,
    ) -> Result<(), Broken> {
        match head.kind {
            FrameKind::Data => match pulls.data(head)? {
                Data::Bytes(into) => {
                    match into.enter() {
                        Some((into, _held)) => drop(View::of(payload).copy_into(into, 0)),
                        None => pulls.revoked(head.id),
                    }
                    data_arrived(pulls, head.id, head.len, me, sink);
                }
                Data::Ended((token, result)) => sink.pulled(me, token, result),
            },
            FrameKind::Nothing => {}
            FrameKind::Bye => {
                self.said_bye = true;
                sink.frame(me, head, View::of(payload));
                return Err(Broken::Closed);
            }
            _ => sink.frame(me, head, View::of(payload)),
        }
        Ok(())
    }

    /// Finds the destination of a payload. So far only `part` of the payload has arrived.
    fn begin(
        &mut self,
        head: &Head,
        part: &[u8],
        pulls: &mut Pulls,
        me: ConnectionId,
        sink: &mut impl Sink,
    ) -> Result<(), Broken> {
        self.long = head.len as usize >= LONG_BYTES;
        let (token, into) = if head.kind == FrameKind::Data {
            match pulls.data(head)? {
                Data::Bytes(into) => (head.id, into),
                Data::Ended(_) => return Err(Broken::Protocol("an empty frame with a payload".into())),
            }
        } else {
            let landing = sink.begin(me, *head);
            (landing.token, landing.into)
        };
        // If this fails, the first read into that destination fails as well.
        if let Some((into, _held)) = into.enter() {
            View::of(part).copy_into(into, 0);
        }
        self.body = Some(Body { kind: head.kind, token, into, len: head.len as usize, done: part.len() });
        Ok(())
    }

    /// Returns the reason why the stream ended.
    fn ended(&self) -> Broken {
        if self.said_bye {
            Broken::Closed
        } else if self.body.is_some() || self.carried > 0 {
            Broken::Died("the connection ended in the middle of a frame".into())
        } else {
            Broken::Died("the connection ended without a closing message".into())
        }
    }
}

impl Body {
    /// Returns the number of bytes that have not arrived yet and have a destination.
    fn placed(&self) -> usize {
        self.into.len().min(self.len).saturating_sub(self.done)
    }

    /// Returns the number of bytes that have not arrived yet and will be discarded.
    fn excess(&self) -> usize {
        self.len.saturating_sub(self.done).saturating_sub(self.placed())
    }
}

/// Returns the error for a frame with an invalid form.
#[cold]
fn invalid(head: &Head, defect: FormError) -> Broken {
    Broken::Protocol(format!("{defect} ({:?}, {} payload bytes)", head.kind, head.len))
}

/// Parses and checks the head at the start of `bytes`. Returns `None` if it is not complete.
#[inline(always)]
fn parse(bytes: &[u8]) -> Result<Option<(Head, &[u8])>, Broken> {
    let Ok((head, rest)) = HeadBytes::read_from_prefix(bytes) else { return Ok(None) };
    let Some(head) = Head::from_bytes(&head) else {
        return Err(Broken::Protocol("invalid frame header".into()));
    };
    if let Err(defect) = head.check(&STREAM) {
        return Err(invalid(&head, defect));
    }
    Ok(Some((head, rest)))
}

fn data_arrived(pulls: &mut Pulls, token: u32, len: u32, me: ConnectionId, sink: &mut impl Sink) {
    if let Some((token, result)) = pulls.arrived(token, len) {
        sink.pulled(me, token, result);
    }
}
