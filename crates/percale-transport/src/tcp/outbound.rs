//! The sending half of a link.
//!
//! **Time of sending.** A frame is written in the call that sends it if the queue is empty and no frame was sent since
//! the last `poll`. The frames that follow in such a burst are collected in the queue. They are written together at the
//! next `poll`, when the queue has [`FLUSH_BYTES`], or with the first frame that is sent more than [`BURST`] after the
//! last write. So a single message is never delayed, and a stream of small messages shares system calls. After sending
//! something without a completion, a caller may make no further calls. So it [hurries](Outbound::flush_queued) the
//! queue: the data is passed to the kernel, which collects it (MSG_MORE) until the next `poll`, until there are
//! [`FLUSH_BYTES`], or until the kernel's own timeout of at most 0.2 s (tcp(7), TCP_CORK).
//!
//! **Order.** The stream consists of whole frames. A partly written `Data` frame is sent first, then the bytes that
//! were in the queue when it ended (`ahead`), then the next `Data` frame. Without this alternation a sender that always
//! has messages would starve its pushes. Without pushes the whole queue is due.
//!
//! **Limits.** A frame is refused while [`QUEUE_LIMIT`] bytes are queued. Frames that the protocol needs to make
//! progress (answers, pulls, `Bye`) may exceed the limit by [`RESERVE`] bytes. Data for a stalled peer must not
//! accumulate in the queue.
//!
//! **Revocable sources.** Each write of a `Data` frame enters the lease. If that fails, zeros are written for the rest
//! of the announced bytes, and the next frame reports that the offer is void. To ensure that there is a next frame, the
//! last [`LAST_BYTES`] are sent in a separate frame, which is copied into the queue.
//!
//! A write error only stops sending. The link first delivers the data that still arrives, and then breaks.

use std::time::{Duration, Instant};

use rustix::io::Errno;
use zerocopy::IntoBytes;

use super::buffers::{give_queue, take_queue};
use super::socket::{Stream, broken};
use super::{DATA_LIMIT, TcpLink};
use crate::local_memory::volatile::{Segments, SegmentsExt as _};
use crate::region::lease::Lease;
use crate::stream::Pushes;
use crate::wire::head::{FrameKind, HEAD_BYTES, Head};
use crate::{Broken, Refused};

/// The number of queued bytes that justifies a system call.
pub(super) const FLUSH_BYTES: usize = 16 << 10;

/// A frame that is sent later than this after the last write is written at once.
const BURST: Duration = Duration::from_micros(4);

/// The number of queued bytes beyond which messages and requests are refused.
pub(super) const QUEUE_LIMIT: usize = 256 << 10;

/// The number of bytes by which control frames may exceed that limit. It includes the longest message, which may have
/// been queued when the limit was almost reached.
const RESERVE: usize = TcpLink::EAGER_LIMIT + (64 << 10);

/// Frames up to this length are assembled before they are sent or queued.
const SMALL_BYTES: usize = 256;

/// The size of the last frame of a revocable source. It is so small that the receiver does not read it directly into
/// its destination.
const LAST_BYTES: usize = 64;

/// The bytes that are written in place of announced bytes that are no longer available.
static ZEROS: [u8; 4 << 10] = [0; 4 << 10];

/// Returns the number of bytes of a large frame that are written at once. The receiver can copy the first pieces while
/// later ones are written. A short frame is cut into a few pieces. The pieces of a long frame are large enough to keep
/// the cost of the calls small.
const fn piece_bytes(payload: usize) -> usize {
    if payload <= 96 << 10 { 32 << 10 } else { 256 << 10 }
}

/// The number of bytes that one `poll` writes, so that sending does not prevent receiving.
const TURN_BYTES: usize = 1 << 20;

/// The sending half of a link.
#[derive(Debug)]
pub(crate) struct Outbound {
    queue: Vec<u8>,
    start: usize,
    /// The number of bytes that have ever left the queue.
    left: u64,
    ahead: usize,
    data: Option<DataFrame>,
    pub(super) pushes: Pushes,
    /// A `Bye` frame that waits until the pushes have ended.
    bye: Option<Head>,
    said_bye: bool,
    /// Whether anything was written since the last poll.
    burst: bool,
    /// The number of bytes that the kernel holds back (MSG_MORE).
    held: usize,
    /// Whether the kernel has no room. Writing is not tried again before the next poll.
    blocked: bool,
    written: Instant,
    pub(crate) failed: Option<Broken>,
}

/// A `Data` frame that is being written.
#[derive(Debug)]
struct DataFrame {
    head: [u8; HEAD_BYTES],
    payload: Lease,
    done: usize,
    /// Whether the payload was revoked, so that the rest of the frame is zeros.
    void: bool,
}

impl DataFrame {
    /// Returns the number of bytes that are still to be written.
    fn rest(&self) -> usize {
        HEAD_BYTES + self.payload.len() - self.done
    }

    /// Writes the rest of the frame, or a part of it. Returns the number of requested bytes and the result, or `None`
    /// if the payload was revoked.
    fn write(&self, to: &mut impl Stream) -> Option<(usize, Result<usize, Errno>)> {
        let prefix = &self.head[self.done.min(HEAD_BYTES)..];
        let offset = self.done.saturating_sub(HEAD_BYTES);
        if self.void {
            let zeros = &ZEROS[..ZEROS.len().min(self.payload.len() - offset)];
            let result = Segments::lend(zeros, |zeros| to.write(prefix, zeros));
            return Some((prefix.len() + zeros.len(), result));
        }
        let (payload, _held) = self.payload.enter()?;
        Some((self.rest(), to.write(prefix, &payload.slice(offset, usize::MAX))))
    }
}

impl Outbound {
    pub(super) fn new() -> Self {
        Self {
            queue: Vec::new(),
            start: 0,
            left: 0,
            ahead: 0,
            data: None,
            pushes: Pushes::default(),
            bye: None,
            said_bye: false,
            burst: false,
            held: 0,
            blocked: false,
            written: Instant::now(),
            failed: None,
        }
    }

    /// Returns the number of bytes in the queue.
    #[inline]
    pub(super) fn queued(&self) -> usize {
        self.queue.len() - self.start
    }

    /// Returns whether there is nothing to write.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.queued() == 0 && self.data.is_none() && self.pushes.is_empty() && self.bye.is_none()
    }

    /// Returns whether there is nothing to write, and the kernel holds nothing back.
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        self.held == 0 && self.is_empty()
    }

    /// Returns the positions of the queued bytes, counted from the first byte that was ever queued.
    #[inline]
    pub(super) fn unsent(&self) -> Option<(u64, u64)> {
        let queued = self.queued() as u64;
        (queued > 0).then_some((self.left, self.left + queued))
    }

    /// Returns an upper bound of the number of bytes that will be written until the last byte of the current queue is
    /// written, or 0 if the queue is empty.
    #[cfg(feature = "verbs")]
    pub(crate) fn ahead_of_last(&self) -> u64 {
        let queued = self.queued() as u64;
        let data = self.data.as_ref().map_or(0, |frame| frame.rest() as u64);
        // Each frame of a push has a head, which is short compared with a full frame.
        if queued == 0 { 0 } else { queued + data + 2 * self.pushes.remaining() }
    }

    /// Sends a frame at once or later.
    #[inline]
    pub(super) fn send(
        &mut self,
        to: &mut impl Stream,
        head: &Head,
        payload: &Segments,
        more: bool,
    ) -> Result<(), Refused> {
        debug_assert_eq!(head.len as usize, payload.len());
        if head.kind == FrameKind::Bye && !self.pushes.is_empty() {
            self.bye = Some(*head);
            return Ok(());
        }
        let len = HEAD_BYTES + payload.len();
        if len <= SMALL_BYTES {
            let mut frame = [0; SMALL_BYTES];
            frame[..HEAD_BYTES].copy_from_slice(head.to_bytes().as_bytes());
            payload.copy_to(0, &mut frame[HEAD_BYTES..len]);
            self.send_small(to, head.kind, &frame[..len], more)
        } else {
            self.send_large(to, head, payload, more)
        }
    }

    /// Sends a frame that is already assembled.
    #[inline]
    pub(super) fn send_small(
        &mut self,
        to: &mut impl Stream,
        kind: FrameKind,
        frame: &[u8],
        more: bool,
    ) -> Result<(), Refused> {
        self.admit(kind)?;
        let mut rest = frame;
        if !self.burst && !more && self.is_empty() {
            let result = to.write_one(frame);
            rest = &frame[self.account(result, frame.len())..];
        }
        if !rest.is_empty() {
            self.reserve();
            self.queue.extend_from_slice(rest);
            self.maybe_flush(to, more);
        }
        self.outcome()
    }

    fn send_large(&mut self, to: &mut impl Stream, head: &Head, payload: &Segments, more: bool) -> Result<(), Refused> {
        self.admit(head.kind)?;
        let mut sent = 0;
        let alone = self.queued() == 0;
        let at_once = !more && (!self.burst || self.is_late()) || payload.len() >= FLUSH_BYTES;
        if at_once && !self.blocked && self.data.is_none() && self.pushes.is_empty() {
            let bytes = head.to_bytes();
            if alone {
                sent = self.write_frame(to, bytes.as_bytes(), payload);
                if sent < HEAD_BYTES {
                    self.reserve();
                    self.queue.extend_from_slice(&bytes.as_bytes()[sent..]);
                }
            } else {
                // The queued bytes are written before these bytes in the same system call.
                self.queue.extend_from_slice(bytes.as_bytes());
                let queue = std::mem::take(&mut self.queue);
                let prefix = queue.len() - self.start;
                let written = self.write_frame(to, &queue[self.start..], payload);
                self.queue = queue;
                self.consume(written.min(prefix));
                sent = HEAD_BYTES + written.saturating_sub(prefix);
            }
        } else {
            self.reserve();
            self.queue.extend_from_slice(head.to_bytes().as_bytes());
        }
        let offset = sent.saturating_sub(HEAD_BYTES);
        if offset < payload.len() {
            self.reserve();
            let at = self.queue.len();
            self.queue.resize(at + payload.len() - offset, 0);
            payload.copy_to(offset, &mut self.queue[at..]);
            self.maybe_flush(to, more);
        }
        self.outcome()
    }

    /// Starts serving a pull that was accepted.
    pub(super) fn push_started(&mut self, to: &mut impl Stream) {
        if self.data.is_none() {
            self.ahead = self.ahead.max(self.queued());
        }
        self.flush(to);
    }

    /// Sends the queued bytes, up to a limit. Returns whether anything was written.
    #[inline]
    pub(crate) fn poll(&mut self, to: &mut impl Stream) -> bool {
        self.blocked = false;
        let sent = !self.is_empty() && self.flush(to);
        if self.held > 0 {
            self.release(to);
        }
        self.burst = false;
        sent
    }

    /// Passes the queued bytes to the kernel, which may hold them back for a while.
    #[inline]
    pub(super) fn flush_queued(&mut self, to: &mut impl Stream) {
        if self.queued() > 0 && !self.blocked {
            self.hold(to);
        }
    }

    #[inline(never)]
    fn hold(&mut self, to: &mut impl Stream) {
        let due = self.queued();
        if self.held + due >= FLUSH_BYTES || self.data.is_some() || !self.pushes.is_empty() {
            self.flush(to);
            return;
        }
        let result = to.write_held(&self.queue[self.start..]);
        let held = self.held;
        let written = self.account(result, due);
        self.held = held + written;
        self.consume(written);
    }

    #[inline(never)]
    fn release(&mut self, to: &mut impl Stream) {
        self.held = 0;
        to.release();
    }

    /// Writes the due bytes until the kernel has no more room or the limit of one call is reached.
    #[inline(never)]
    fn flush(&mut self, to: &mut impl Stream) -> bool {
        let mut turn = 0;
        while !self.blocked && self.failed.is_none() && turn < TURN_BYTES {
            let due = if self.pushes.is_empty() { self.queued() } else { self.ahead };
            if let Some(mut frame) = self.data.take() {
                let Some((requested, result)) = frame.write(to) else {
                    self.pushes.revoked();
                    // If no part of the frame was sent, its head has not announced anything to the peer.
                    frame.void = true;
                    self.data = (frame.done > 0).then_some(frame);
                    continue;
                };
                let written = self.account(result, requested);
                turn += written;
                frame.done += written;
                if frame.rest() == 0 {
                    self.pushes.advance(frame.payload.len());
                    self.ahead = self.queued();
                } else {
                    self.data = Some(frame);
                }
            } else if due > 0 {
                let result = to.write_one(&self.queue[self.start..self.start + due]);
                let written = self.account(result, due);
                turn += written;
                self.consume(written);
            } else if let Some((head, payload)) = self.pushes.next(DATA_LIMIT, LAST_BYTES) {
                if payload.is_revocable() && payload.len() <= LAST_BYTES {
                    self.queue_data(&head, &payload);
                    continue;
                }
                let mut bytes = [0; HEAD_BYTES];
                bytes.copy_from_slice(head.to_bytes().as_bytes());
                self.data = Some(DataFrame { head: bytes, payload, done: 0, void: false });
            } else if let Some(bye) = self.bye.take() {
                self.reserve();
                self.queue.extend_from_slice(bye.to_bytes().as_bytes());
                self.said_bye = true;
            } else {
                break;
            }
        }
        turn > 0
    }

    /// Puts a short `Data` frame into the queue, unless its source was revoked.
    fn queue_data(&mut self, head: &Head, payload: &Lease) {
        let Some((source, _held)) = payload.enter() else { return self.pushes.revoked() };
        self.reserve();
        self.queue.extend_from_slice(head.to_bytes().as_bytes());
        let at = self.queue.len();
        self.queue.resize(at + payload.len(), 0);
        source.copy_to(0, &mut self.queue[at..]);
        self.pushes.advance(payload.len());
        self.ahead = self.queued();
    }

    /// Checks whether a frame of this kind may be sent or queued at the moment.
    #[inline]
    fn admit(&mut self, kind: FrameKind) -> Result<(), Refused> {
        if self.failed.is_some() || self.said_bye || self.bye.is_some() {
            return Err(Refused::Broken);
        }
        let limit = match kind {
            kind if kind.begins() => QUEUE_LIMIT,
            _ => QUEUE_LIMIT + RESERVE,
        };
        if self.queued() >= limit {
            return Err(Refused::Full);
        }
        self.said_bye = kind == FrameKind::Bye;
        Ok(())
    }

    /// Returns whether a frame was accepted. It was not accepted if the stream broke during the call.
    #[inline]
    fn outcome(&self) -> Result<(), Refused> {
        if self.failed.is_some() { Err(Refused::Broken) } else { Ok(()) }
    }

    /// Writes a frame in pieces. Returns how many bytes of prefix and payload were written.
    fn write_frame(&mut self, to: &mut impl Stream, prefix: &[u8], payload: &Segments) -> usize {
        let total = prefix.len() + payload.len();
        let mut sent = 0;
        while sent < total && !self.blocked && self.failed.is_none() {
            let offset = sent.saturating_sub(prefix.len());
            let prefix = &prefix[sent.min(prefix.len())..];
            let piece = payload.slice(offset, piece_bytes(payload.len()));
            let result = to.write(prefix, &piece);
            sent += self.account(result, prefix.len() + piece.len());
        }
        sent
    }

    /// Records the result of a write of `requested` bytes. Returns how many were written.
    #[inline]
    fn account(&mut self, result: Result<usize, Errno>, requested: usize) -> usize {
        self.burst = true;
        match result {
            Ok(written) => {
                self.written = Instant::now();
                self.held = 0;
                self.blocked = written < requested;
                written
            }
            Err(Errno::AGAIN) => {
                self.blocked = true;
                0
            }
            Err(error) => {
                self.failed = Some(broken("sendmsg or sendto", error));
                0
            }
        }
    }

    #[inline]
    fn is_late(&self) -> bool {
        self.written.elapsed() >= BURST
    }

    #[inline]
    fn maybe_flush(&mut self, to: &mut impl Stream, more: bool) {
        if !self.blocked && (self.queued() >= FLUSH_BYTES || (!more && (!self.burst || self.is_late()))) {
            self.flush(to);
        }
    }

    /// Ensures that the queue has a buffer. Removes sent bytes from its start if they are more than half of it.
    #[inline]
    fn reserve(&mut self) {
        if self.queue.capacity() == 0 {
            self.queue = take_queue();
        } else if self.start > self.queue.len() / 2 {
            self.queue.drain(..self.start);
            self.start = 0;
        }
    }

    /// Removes the first `bytes` bytes of the queue.
    fn consume(&mut self, bytes: usize) {
        self.start += bytes;
        self.left += bytes as u64;
        self.ahead = self.ahead.saturating_sub(bytes);
        if self.start == self.queue.len() {
            give_queue(std::mem::take(&mut self.queue));
            self.start = 0;
        }
    }
}
