//! The sending half of a link. It writes its ring, and decides when to fence, when to check whether the peer must be
//! notified, and when the ring grows.
//!
//! After a single frame the sender fences and checks at once. Within a batch (`more`) the check is *due*, and is made
//! with the last frame, with a refusal, or in the next poll. A sender that streams does not use fences (see
//! `doorbell`). It starts to stream after [`STREAMING`] frames with few answers. It stops when it sends nothing for
//! [`SILENCE`] polls, when its owner is about to sleep, or when its owner ends the stream ([`RingSender::end_stream`]).
//! The small ring is replaced by the large one when it was full a few times, or at the first payload that does not fit.

use std::sync::Arc;

use super::pair::{GROWN_MAX, IDLE_MAX, PairMemory, RingSize};
use super::ring::{NoRoom, Producer, Publish, RoomRequest, clear_unfenced, is_room_requested, mark_unfenced};
use super::sync::{Ordering, compiler_barrier, fence};
use crate::Refused;
use crate::local_memory::barrier;
use crate::local_memory::doorbell::PeerDoorbell;
use crate::local_memory::volatile::{Segment, Segments};
use crate::wire::head::{FrameKind, Head};

/// The tag of a `FrameKind::Transport` frame that announces that all further frames are in the large ring.
pub(super) const GROW: u64 = 1;
/// The number of frames without an answer after which a sender streams.
const STREAMING: u32 = 64;
/// The number of frames that one answer offsets.
const ANSWER: u32 = 4;
/// The number of polls without a frame sent after which a sender stops streaming.
const SILENCE: u32 = 4096;
/// The number of times that the small ring may be full before it grows.
const FULL_BEFORE_GROWTH: u32 = 4;

#[derive(Debug)]
pub(super) struct RingSender {
    tx: Producer,
    /// Declared after `tx`, which points into it.
    pair: Arc<PairMemory>,
    side: usize,
    doorbell: PeerDoorbell,
    /// Whether frames were published and the peer may have to be notified.
    due: bool,
    /// Whether frames are published without fences. This is also stored in the pair memory.
    unfenced: bool,
    /// Increases with each frame sent, and decreases with each answer.
    streak: u32,
    silence: u32,
    room: RoomRequest,
    found_full: u32,
    growth: RingGrowth,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RingGrowth {
    Possible,
    Done,
    /// There is no memory for the large ring.
    Failed,
}

impl RingSender {
    pub(super) fn new(pair: Arc<PairMemory>, side: usize, doorbell: PeerDoorbell) -> Self {
        Self {
            tx: Producer::new(pair.area(side, RingSize::Idle)),
            pair,
            side,
            doorbell,
            due: false,
            unfenced: false,
            streak: 0,
            silence: 0,
            room: RoomRequest::default(),
            found_full: 0,
            growth: RingGrowth::Possible,
        }
    }

    #[inline]
    pub(super) fn peer_processor(&self) -> Option<u32> {
        self.doorbell.processor()
    }

    /// Returns the longest payload that can be sent now or after growing.
    #[inline]
    pub(super) fn limit(&self) -> usize {
        if self.growth == RingGrowth::Failed { IDLE_MAX } else { GROWN_MAX }
    }

    /// Sends a frame.
    #[inline]
    pub(super) fn send(&mut self, head: &Head, payload: &Segments, more: bool) -> Result<(), SendError> {
        let publish = self.publish(more);
        match self.tx.push(head, payload, publish) {
            Ok(()) => {
                self.sent(more, publish);
                Ok(())
            }
            Err(why) => self.retry(why, *head, payload, more),
        }
    }

    /// Sends a frame with a payload in one piece.
    #[inline(always)]
    pub(super) fn send_one(&mut self, head: &Head, payload: Segment, more: bool) -> Result<(), SendError> {
        let publish = self.publish(more);
        match self.tx.push_one(head, payload, publish) {
            Ok(()) => {
                self.sent(more, publish);
                Ok(())
            }
            Err(why) => self.retry_one(why, *head, payload, more),
        }
    }

    #[inline(always)]
    const fn publish(&self, more: bool) -> Publish {
        if more | self.unfenced | self.due { Publish::Plain } else { Publish::Fenced }
    }

    #[inline(always)]
    fn sent(&mut self, more: bool, publish: Publish) {
        self.streak += 1;
        self.silence = 0;
        if self.streak >= STREAMING {
            self.stream();
        }
        if more {
            self.due = true;
        } else if publish == Publish::Fenced {
            self.look();
        } else {
            self.wake_peer();
        }
    }

    /// Checks whether the peer's doorbell must be rung or the peer must be woken up, after the published frames are
    /// visible to it.
    #[inline(always)]
    fn look(&self) {
        let cold = self.pair.direction(self.side).consumer.cold.load(Ordering::SeqCst) != 0;
        if cold | self.doorbell.is_asleep() {
            self.doorbell.notify(cold);
        }
    }

    /// Returns whether the peer polls this ring without being notified.
    #[inline]
    pub(super) fn peer_is_awake(&self) -> bool {
        let cold = self.pair.direction(self.side).consumer.cold.load(Ordering::Relaxed) != 0;
        !cold && !self.doorbell.is_asleep()
    }

    /// Ensures that the peer notices the frames that were published or written to the pair memory.
    #[inline]
    pub(super) fn wake_peer(&mut self) {
        self.due = false;
        if self.unfenced {
            compiler_barrier();
        } else {
            fence(Ordering::SeqCst);
        }
        self.look();
    }

    /// Returns whether there is nothing to do until something arrives. While the sender streams, these calls count as
    /// silent polls, as with [`idle`](Self::idle), until streaming has to end.
    #[inline]
    pub(super) fn is_at_rest(&mut self) -> bool {
        if self.unfenced {
            self.silence += 1;
            return !self.due && self.silence < SILENCE;
        }
        !self.due
    }

    /// Makes the check if it is due.
    #[inline]
    pub(super) fn flush(&mut self) {
        if self.due {
            self.wake_peer();
        }
    }

    /// Records that this many answers arrived.
    #[inline]
    pub(super) fn answered(&mut self, count: u32) {
        self.streak = self.streak.saturating_sub(ANSWER * count);
    }

    /// Records that a poll found nothing.
    #[inline]
    pub(super) fn idle(&mut self) {
        if self.unfenced && !self.is_at_rest() {
            self.fenced();
        }
    }

    /// Starts streaming, if both sides support it.
    #[cold]
    fn stream(&mut self) {
        // Stays below the threshold for a while, so that this check is not repeated for each frame.
        self.streak = STREAMING - 16;
        let marks = self.pair.direction(self.side);
        if self.unfenced || marks.consumer.barrier.load(Ordering::Acquire) == 0 || !barrier::is_registered() {
            return;
        }
        mark_unfenced(&marks.producer.unfenced);
        self.unfenced = true;
    }

    /// Ends streaming: publishes with fences again.
    #[cold]
    pub(super) fn fenced(&mut self) {
        clear_unfenced(&self.pair.direction(self.side).producer.unfenced);
        (self.unfenced, self.streak) = (false, 0);
        self.look();
    }

    /// Ends streaming. A sender that sleeps between its frames, or yields to other threads, must not stream, even if
    /// there are few answers.
    #[inline]
    pub(super) fn end_stream(&mut self) {
        if self.unfenced {
            self.fenced();
        }
        self.streak = 0;
    }

    /// Prepares for the sleep of the owner: ends streaming and makes the check that is due.
    #[inline]
    pub(super) fn prepare_sleep(&mut self) {
        self.end_stream();
        self.flush();
    }

    #[cold]
    fn retry_one(&mut self, why: NoRoom, head: Head, payload: Segment, more: bool) -> Result<(), SendError> {
        self.retry(why, head, &Segments::one(payload), more)
    }

    #[cold]
    fn retry(&mut self, why: NoRoom, head: Head, payload: &Segments, more: bool) -> Result<(), SendError> {
        match why {
            NoRoom::BadCredits => return Err(SendError::BadCredits),
            NoRoom::TooLong => {
                if payload.len() > GROWN_MAX {
                    return Err(SendError::TooLong);
                }
                if !self.grow() {
                    self.flush();
                    return Err(SendError::Refused(Refused::Full));
                }
            }
            NoRoom::Full => {
                self.found_full += u32::from(!self.room.is_for(self.tx.position()));
                if self.found_full >= FULL_BEFORE_GROWTH {
                    self.grow();
                }
            }
        }
        let wants_room = &self.pair.direction(self.side).producer.wants_room;
        match self.room.push(wants_room, &mut self.tx, &head, payload) {
            Ok(()) => {
                self.due = true;
                self.sent(more, Publish::Plain);
                Ok(())
            }
            Err(NoRoom::BadCredits) => Err(SendError::BadCredits),
            Err(NoRoom::Full | NoRoom::TooLong) => {
                self.flush();
                Err(SendError::Refused(Refused::Full))
            }
        }
    }

    /// Replaces the small ring by the large one.
    fn grow(&mut self) -> bool {
        if self.growth != RingGrowth::Possible {
            return false;
        }
        if let Err(error) = self.pair.back_grown(self.side) {
            crate::later::later!(warn: %error, "cannot allocate a larger ring; the small one remains in use");
            self.growth = RingGrowth::Failed;
            return false;
        }
        self.tx.push_reserved(&Head { kind: FrameKind::Transport, tag: GROW, ..Head::default() });
        self.due = true;
        self.tx = Producer::new(self.pair.area(self.side, RingSize::Grown));
        self.growth = RingGrowth::Done;
        true
    }

    /// Wakes up the peer if it waits for credits of its outbound ring. Called after credits were published.
    #[cold]
    pub(super) fn wake_for_credits(&self) {
        if is_room_requested(&self.pair.direction(1 - self.side).producer.wants_room) {
            self.look();
        }
    }
}

#[cfg(all(any(test, feature = "testing"), not(loom)))]
impl RingSender {
    /// Writes a line with arbitrary content.
    pub(super) fn forge(&mut self, line: &super::ring::ForgedLine, back: u64) {
        self.tx.forge(line, back);
        self.wake_peer();
    }

    /// Returns the peer's doorbell.
    pub(super) const fn doorbell(&self) -> &PeerDoorbell {
        &self.doorbell
    }
}

/// The reason why a frame was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SendError {
    Refused(Refused),
    TooLong,
    BadCredits,
}
