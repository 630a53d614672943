//! One end of a shared-memory connection. The receiving part is in `receive`, and accesses to the peer's regions are in
//! `regions`.

mod receive;
mod regions;
#[cfg(all(test, not(loom)))]
pub(super) mod tests;

pub use self::receive::PeekResult;

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use zerocopy::IntoBytes;

use super::connection_end::ConnectionEnd;
use super::direct::{Direct, DirectError, Initiator, LinkParts, Lookup};
use super::draining_link::DrainingLink;
use super::pair::{Mappings, PairMemory, RingSize};
use super::parts::{SetUpError, ShmLinkParts};
use super::ring::{AssemblyBuffer, Consumer, SCRATCH, is_unfenced};
use super::sender::{RingSender, SendError};
use super::sync::{Ordering, fence};
use super::transfer::{Cma, TransferError, Transfers};
use crate::local_memory::barrier;
use crate::local_memory::doorbell::{DOORBELL_BITS, PeerDoorbell};
use crate::local_memory::volatile::{Segment, Segments, SegmentsExt as _, View};
use crate::region::lease::Lease;
use crate::wire::head::{FrameKind, Head, Offer};
use crate::{Broken, ConnectionId, Link, PullError, Refused, Sink};

/// The parts of a link that tests of misbehaving peers change.
#[cfg(all(any(test, feature = "testing"), not(loom)))]
pub(super) struct ForgedParts<'a> {
    pub(super) side: usize,
    pub(super) pair: &'a PairMemory,
    pub(super) sender: &'a mut RingSender,
    pub(super) transfers: &'a mut Transfers,
    pub(super) direct: &'a Direct,
}

/// Payloads longer than this are offered instead of sent.
const EAGER_MAX: usize = 8192;
/// The time for which a link that ends waits for copies that the peer has in progress.
const QUIESCE: Duration = Duration::from_millis(20);

/// One end of a connection over shared memory.
///
/// The endpoint polls *hot* links. A link that was silent for a long time can be made *cold*
/// ([`set_cold`](Self::set_cold)). For a cold link the peer rings the endpoint's doorbell for each frame (or batch),
/// and the endpoint polls the link when its bit was rung.
#[derive(Debug)]
pub struct ShmLink {
    // Fields that point into the pair's memory come first, so that they are dropped before the fields that keep this
    // memory mapped.
    rx: Consumer,
    sender: RingSender,
    transfers: Transfers,
    direct: Direct,
    pair: Arc<PairMemory>,
    side: usize,
    rx_grown: bool,
    cold: bool,
    /// Whether the last check found nothing. If so, the next frame probably arrives alone.
    waited: bool,
    broken: Option<Broken>,
    end: Arc<ConnectionEnd>,
    cma: Result<(), String>,
    scratch: AssemblyBuffer,
}

impl ShmLink {
    /// Creates this side's end of a link.
    ///
    /// # Errors
    /// If the parts that the peer provided are not valid.
    pub fn new(parts: ShmLinkParts) -> Result<Self, SetUpError> {
        if parts.side > 1 {
            return Err(SetUpError::Side(parts.side));
        }
        if let Some(&bit) = [parts.my_bit, parts.peer_bit].iter().find(|bit| **bit >= DOORBELL_BITS) {
            return Err(SetUpError::Bit(bit));
        }
        let side = usize::from(parts.side);
        let (pair, doorbell) = match parts.mappings {
            Some(Mappings { pair, doorbell }) => (PairMemory::of(pair, parts.pair), doorbell),
            None => {
                let pair = PairMemory::new(parts.pair).map_err(SetUpError::Pair)?;
                (pair, PeerDoorbell::map(parts.peer_doorbell.as_fd()).map_err(SetUpError::Doorbell)?)
            }
        };
        let (pair, doorbell) = (Arc::new(pair), PeerDoorbell::of(doorbell, parts.peer_event, parts.peer_bit));
        let cma = if parts.cma {
            let process = parts.process.as_ref().map(Arc::clone).ok_or_else(|| "no process".to_owned());
            process.and_then(|process| Cma::probe(process, parts.peer_nonce))
        } else {
            Err("not allowed by configuration".to_owned())
        };
        let inbound = pair.direction(1 - side);
        inbound.consumer.barrier.store(u32::from(barrier::available()), Ordering::Release);
        pair.announcements(1 - side).allow_unfenced();
        Ok(Self {
            rx: Consumer::new(pair.area(1 - side, RingSize::Idle)),
            sender: RingSender::new(Arc::clone(&pair), side, doorbell),
            transfers: Transfers::new(Arc::clone(&pair), side, cma.as_ref().ok().cloned(), parts.control),
            direct: Direct::new(parts.keys, parts.via, parts.process),
            pair,
            side,
            rx_grown: false,
            cold: false,
            waited: false,
            broken: None,
            end: Arc::new(ConnectionEnd::new(parts.my_doorbell, parts.my_bit)),
            cma: cma.map(|_| ()),
            scratch: [0; SCRATCH],
        })
    }

    /// Returns the processor on which the peer was running at its last report. The peer may report an arbitrary value.
    #[doc(hidden)]
    #[inline]
    pub fn peer_processor(&self) -> Option<u32> {
        self.sender.peer_processor()
    }

    /// Ends streaming. After that the peer may sleep without a fence on behalf of this side.
    #[doc(hidden)]
    #[inline]
    pub fn end_stream(&mut self) {
        self.sender.end_stream();
    }

    /// Returns the handle with which the thread that watches the connection reports its end.
    #[must_use]
    #[inline]
    pub fn connection_end(&self) -> Arc<ConnectionEnd> {
        Arc::clone(&self.end)
    }

    /// Returns the reason why CMA is not used, or `None` if it is used.
    #[must_use]
    #[inline]
    pub fn cma_reason(&self) -> Option<&str> {
        self.cma.as_ref().err().map(String::as_str)
    }

    /// Sends a frame that is not an offer, with a payload in one piece. Always inlined, so that properties of the head
    /// that the caller has checked are not checked again.
    ///
    /// # Errors
    /// As for `Link::send`.
    #[inline(always)]
    #[doc(hidden)]
    pub fn send_plain(&mut self, head: &Head, payload: Segment, more: bool) -> Result<(), Refused> {
        if self.broken.is_some() {
            return Err(Refused::Broken);
        }
        self.sender.send_one(head, payload, more).map_err(|error| self.send_error(error))
    }

    /// Describes how large messages are copied, and the reason.
    #[must_use]
    pub fn describe(&self) -> String {
        let mapped = "memory that percale allocated: both sides copy through mappings";
        match self.cma_reason() {
            None => format!("{mapped}; other memory: both sides copy by process_vm_readv and process_vm_writev"),
            Some(reason) => format!("{mapped}; other memory: two copies through the ring (no CMA: {reason})"),
        }
    }

    /// Makes the link cold: from now on the peer rings the doorbell. Returns false if the link stays hot, because
    /// something has arrived or is in progress.
    pub fn set_cold(&mut self) -> bool {
        if self.cold {
            return true;
        }
        if !self.transfers.is_empty() || !self.direct.is_settled() {
            return false;
        }
        self.sender.prepare_sleep();
        let direction = self.pair.direction(1 - self.side);
        direction.consumer.cold.store(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let unfenced = is_unfenced(&direction.producer.unfenced);
        if (unfenced && !barrier::everywhere()) || !self.rx.is_empty() || self.end.is_set() {
            direction.consumer.cold.store(0, Ordering::Relaxed);
            return false;
        }
        self.cold = true;
        true
    }

    /// Makes the link hot again: it must be polled from now on.
    #[inline]
    pub fn set_hot(&mut self) {
        self.cold = false;
        self.pair.direction(1 - self.side).consumer.cold.store(0, Ordering::Relaxed);
    }

    /// Returns whether the link is cold, so that it need not be polled until its bit is rung.
    #[must_use]
    #[inline]
    pub const fn is_cold(&self) -> bool {
        self.cold
    }

    /// Must be called on each hot link between [`Doorbell::arm`](super::Doorbell::arm) and the last check before
    /// sleeping. Returns true if the peer publishes without fences, so that a
    /// [`Doorbell::barrier`](super::Doorbell::barrier) is needed before that check.
    #[inline]
    pub fn prepare_sleep(&mut self) -> bool {
        self.sender.prepare_sleep();
        is_unfenced(&self.pair.direction(1 - self.side).producer.unfenced)
    }

    /// Returns whether a poll would find nothing to do. For an idle peer this check is the whole cost of a poll.
    #[must_use]
    #[inline]
    pub fn is_quiet(&mut self) -> bool {
        if !self.rx.is_empty() {
            return false;
        }
        self.waited = true;
        self.broken.is_none()
            && self.transfers.is_empty()
            && self.direct.is_settled()
            && !self.end.is_set()
            && self.sender.is_at_rest()
    }

    /// Ends the link. Waits a short time for copies into local memory that the peer has in progress. After that, the
    /// copies that have not ended are [left behind](Self::draining).
    #[cold]
    fn break_with(&mut self, why: Broken) -> Broken {
        if self.broken.is_none() {
            self.broken = Some(why.clone());
            self.quiesce();
        }
        why
    }

    fn quiesce(&mut self) {
        if !self.pair.is_here() {
            return; // Neither the pair nor the copied memory exists in this process.
        }
        self.stop();
        self.transfers.let_go();
    }

    fn stop(&mut self) {
        if self.transfers.is_empty() && !self.direct.is_assisted() {
            return;
        }
        let until = Instant::now() + QUIESCE;
        while !self.transfers.quiesce(&mut self.sender) || self.has_assisted() {
            if self.direct.process().is_some_and(|process| process.ended().is_some()) {
                return;
            }
            if Instant::now() > until {
                crate::later::later!(warn: "timeout: a peer did not confirm the end of its copies");
                return;
            }
            std::thread::yield_now();
        }
    }

    /// Returns the remains of a link that is about to be dropped, or `None` if the peer cannot have a copy into local
    /// memory in progress.
    #[doc(hidden)]
    pub fn draining(&mut self) -> Option<DrainingLink> {
        self.break_with(Broken::Closed);
        if !self.pair.is_here() {
            return None;
        }
        let (pulls, assisted) = (self.transfers.held(), self.direct.take_assisted(&self.pair, self.side));
        let (pair, process) = (Arc::clone(&self.pair), self.direct.process().cloned());
        let draining = DrainingLink { pair, side: self.side, pulls, assisted, process };
        draining.release().is_none().then_some(draining)
    }

    /// Returns whether the peer still copies for a long access of this side. Calling this discards the report of the
    /// end of the access.
    #[inline]
    fn has_assisted(&mut self) -> bool {
        self.direct.is_assisted() && self.direct.assisted_end(&self.pair, self.side).is_none()
    }

    #[cold]
    fn send_error(&mut self, error: SendError) -> Refused {
        let why = match error {
            SendError::Refused(refused) => return refused,
            SendError::TooLong => "frame too long for the link",
            SendError::BadCredits => "the peer acknowledged data that was not sent",
        };
        self.break_with(Broken::Protocol(why.to_owned()));
        Refused::Broken
    }

    fn transfer_error(&mut self, error: TransferError) -> Broken {
        match error {
            TransferError::Protocol(why) => self.break_with(Broken::Protocol(why.to_owned())),
            TransferError::Send(error) => {
                let why = Broken::Protocol(format!("a frame could not be sent: {error:?}"));
                self.send_error(error);
                self.broken.clone().unwrap_or(why)
            }
        }
    }

    #[cold]
    fn send_offer(&mut self, head: &Head, payload: &Segments, more: bool) -> Result<(), Refused> {
        if self.broken.is_some() {
            return Err(Refused::Broken);
        }
        let Some(offer) = self.transfers.complete_offer(payload) else {
            return self.sender.send(head, payload, more).map_err(|error| self.send_error(error));
        };
        let sent = Segments::lend(offer.as_bytes(), |payload| self.sender.send(head, payload, more));
        sent.map_err(|error| self.send_error(error))
    }

    /// Returns the initiator's side, which holds the grants of the peer's regions.
    #[inline]
    pub(super) fn initiator(&mut self) -> Option<&mut Initiator> {
        self.direct.initiator()
    }

    /// Returns the link's direct accesses, and the parts of the link that they need.
    #[inline]
    pub(super) fn direct(&mut self) -> (&mut Direct, LinkParts<'_>) {
        let (pair, side, end) = (&self.pair, self.side, &self.end);
        let ((cma, arenas), sender) = (self.transfers.reach(), &mut self.sender);
        (&mut self.direct, LinkParts { pair, side, end, cma, arenas, sender })
    }

    /// Looks up a key, and sends a request to the peer if there is no entry for it.
    fn ask(&mut self, key: u64) -> Lookup {
        if self.broken.is_some() {
            return Lookup::Unknown;
        }
        let (direct, side) = self.direct();
        direct.ask(key, side).unwrap_or_else(|error| {
            self.send_error(error);
            Lookup::Unknown
        })
    }

    /// Answers the peer's requests about keys.
    #[cold]
    fn answer(&mut self) -> Result<bool, Broken> {
        let (direct, side) = self.direct();
        direct.answer(side).map_err(|error| self.transfer_error(TransferError::Send(error)))
    }

    /// Continues long accesses of both sides. Returns whether anything happened.
    #[cold]
    fn continue_accesses(&mut self, me: ConnectionId, sink: &mut impl Sink) -> bool {
        let helped = self.direct.help(&self.pair, self.side);
        if helped {
            self.sender.wake_peer();
        }
        let Some((token, result)) = self.direct.assisted_end(&self.pair, self.side) else { return helped };
        let result =
            result.map_err(|error| if error == DirectError::Fault { PullError::Fault } else { PullError::Gone });
        sink.assisted(me, token, result);
        true
    }

    /// Returns whether the watcher has reported the end of the connection.
    #[inline]
    #[doc(hidden)]
    pub fn has_ended(&self) -> bool {
        self.end.is_set()
    }

    /// Returns whether a long access has not ended yet. Until it ends, no other may begin.
    #[doc(hidden)]
    #[inline]
    pub const fn is_assisted(&self) -> bool {
        self.direct.is_assisted()
    }

    /// Continues transfers. Returns whether any made progress.
    #[inline(never)]
    fn step(&mut self, me: ConnectionId, sink: &mut impl Sink) -> Result<bool, Broken> {
        let stepped = self.transfers.step(&mut self.sender, me, sink);
        stepped.map_err(|error| self.transfer_error(error))
    }

    /// Returns the parts of the link that tests of misbehaving peers change.
    #[cfg(all(any(test, feature = "testing"), not(loom)))]
    pub(super) fn forged_parts(&mut self) -> ForgedParts<'_> {
        ForgedParts {
            side: self.side,
            pair: &self.pair,
            sender: &mut self.sender,
            transfers: &mut self.transfers,
            direct: &self.direct,
        }
    }

    #[cold]
    fn break_at_end(&mut self) -> Broken {
        let reason = self.end.reason().to_owned();
        self.break_with(Broken::Died(reason))
    }
}

#[doc(hidden)]
impl Link for ShmLink {
    #[inline]
    fn frame_limit(&self) -> usize {
        self.sender.limit().min(EAGER_MAX)
    }

    #[inline]
    fn is_stream(&self) -> bool {
        false
    }

    // The most frequent frames use `send_plain`, which is inlined.
    #[inline(never)]
    fn send(&mut self, head: &Head, payload: &Segments, more: bool) -> Result<(), Refused> {
        use FrameKind::{CollectiveOffer, MessageOffer, ReadOffer, TaggedOffer, WriteOffer};
        if matches!(head.kind, MessageOffer | TaggedOffer | WriteOffer | ReadOffer | CollectiveOffer) {
            return self.send_offer(head, payload, more);
        }
        if self.broken.is_some() {
            return Err(Refused::Broken);
        }
        self.sender.send(head, payload, more).map_err(|error| self.send_error(error))
    }

    // Not inlined: callers check first whether the link is quiet.
    #[inline(never)]
    fn poll(&mut self, me: ConnectionId, sink: &mut impl Sink) -> Result<bool, Broken> {
        if let Some(broken) = &self.broken {
            return Err(broken.clone());
        }
        // Read first, so that everything that the peer sent before the end is handled below.
        let ended = self.end.is_set();
        // After the end, frames are received in any case. The ring bounds their number.
        let mut moved = (ended || sink.takes(me)) && self.receive(me, sink)?;
        if !self.direct.is_settled() && self.broken.is_none() {
            moved |= self.answer()? | self.continue_accesses(me, sink);
        }
        self.sender.flush();
        if !self.transfers.is_empty() && self.broken.is_none() {
            moved |= self.step(me, sink)?;
        }
        if !moved {
            self.sender.idle();
            if ended {
                return Err(self.break_at_end());
            }
        }
        Ok(moved)
    }

    fn pull(&mut self, id: u32, offer: &Offer, into: &Lease, token: u32) -> Result<(), Refused> {
        if self.broken.is_some() {
            return Err(Refused::Broken);
        }
        self.transfers.pull(id, offer, into, token);
        match self.transfers.start_waiting(&mut self.sender) {
            Ok(_) => Ok(()),
            Err(error) => {
                self.transfer_error(error);
                Err(Refused::Broken)
            }
        }
    }

    #[inline]
    fn expect(&mut self, _into: &Lease, token: u32) {
        debug_assert!(false, "pull {token} was announced to a link that is not a stream");
    }

    fn push(&mut self, id: u32, token: u64, request: View<'_>, source: &Lease) -> Result<(), Refused> {
        if self.broken.is_some() {
            return Err(Refused::Broken);
        }
        self.transfers.push(id, token as u32, request, source, &mut self.sender).map_err(|error| {
            self.transfer_error(error);
            Refused::Broken
        })
    }

    #[inline]
    fn is_idle(&self) -> bool {
        self.transfers.is_idle() && self.direct.is_settled()
    }
}

impl Drop for ShmLink {
    fn drop(&mut self) {
        if self.broken.is_none() {
            self.quiesce();
        }
    }
}
