//! Posts sends. A send goes directly to the link if that is possible. Otherwise it is queued after the operations that
//! wait for the link.

use zerocopy::IntoBytes;

use super::Engine;
use super::core::{Core, send_flags, sent_entry};
use super::peers::{OutgoingKind, QueuingKind};
use super::receive::unresolved;
use super::types::{GroupMessage, Notify, PendingOperation, QueuedWork, Side};
use crate::completion::entry::{Entry, ErrorCode, ErrorEntry};
use crate::endpoint::operation::RawOperation;
use crate::endpoint::posted::Posted;
use crate::endpoint::work::{INJECT_LIMIT, MESSAGE_LIMIT, OpFlags, PostError, SendWork};
use crate::local_memory::sealed;
use crate::local_memory::volatile::{Segment, Segments, SegmentsExt as _};
use crate::transport::any::AnyLink;
use crate::transport::{ConnectionId, Link, Refused};
use crate::types::PeerAddress;
use crate::wire::head::{Flags, FrameKind, Head, Offer};

/// The flags that make the peer acknowledge the message.
const ACKNOWLEDGED: OpFlags = OpFlags::DELIVERY_COMPLETE.union(OpFlags::MATCH_COMPLETE).union(OpFlags::INVALIDATE);

impl Engine {
    /// Posts a send on the fast path, which handles short messages in one piece over shared memory to a peer that is
    /// connected and for which nothing waits, if they are reported to the endpoint's own queue or not at all. Returns
    /// `None`, and does nothing, for any other send.
    ///
    /// This is always inlined, and the parts of the message are separate arguments, so that the compiler neither tests
    /// nor stores properties of the message that are constant at the caller.
    #[inline(always)]
    pub(crate) fn send_in_place(
        &mut self,
        peer: PeerAddress,
        segment: Segment,
        tag: Option<u64>,
        data: Option<u64>,
        context: u64,
        flags: OpFlags,
    ) -> Option<Result<(), PostError>> {
        const PLAIN: OpFlags =
            OpFlags::COMPLETION.union(OpFlags::MORE).union(OpFlags::INJECT).union(OpFlags::TRANSMIT_COMPLETE);
        if self.poller.hot.is_empty() {
            return None; // The link is not a shared-memory link.
        }
        // This code does not run in a forked child (`Reach::run`), and a closed endpoint has no links.
        let Self { core: Core { peers, reporting, .. }, links, pace, .. } = self;
        let (queue, fast_path_disabled) = reporting.transmit_path();
        let len = segment.len();
        // A message that is short enough to be injected is always sent at once.
        if !PLAIN.contains(flags) || len > INJECT_LIMIT || fast_path_disabled {
            return None;
        }
        let slot = peers.resolved(peer)?;
        if !peers.get(slot).may_send(OutgoingKind::Message) {
            return None;
        }
        let Some(AnyLink::Shm(link)) = links.get_mut(slot as usize)? else { return None };
        let reports = flags.contains(OpFlags::COMPLETION);
        if reports && queue.reserve().is_err() {
            return Some(Err(PostError::Again));
        }
        let (kind, tag, tagged) = tag.map_or((FrameKind::Message, 0, false), |tag| (FrameKind::Tagged, tag, true));
        let (data_flag, data) = data.map_or((Flags::empty(), 0), |data| (Flags::DATA, data));
        let head = Head { kind, flags: data_flag, len: len as u32, tag, data, id: 0 };
        let more = flags.contains(OpFlags::MORE);
        // This leaves nothing on the link that was not there before, so the poller need not be notified.
        match link.send_plain(&head, segment, more) {
            Ok(()) => {
                if more {
                    pace.require_progress(); // As in `require_progress`: the peer is not notified yet.
                }
                if reports {
                    queue.push(sent_entry(context, send_flags(tagged), len));
                }
                Some(Ok(()))
            }
            Err(refused) => {
                if reports {
                    queue.unreserve();
                }
                (refused == Refused::Full).then_some(Err(PostError::Again))
            }
        }
    }

    /// Posts a send. Always inlined, for the raw API; other callers use [`post_send_by_call`](Self::post_send_by_call).
    #[inline(always)]
    pub(crate) fn post_send(&mut self, work: &SendWork, notify: Notify) -> Result<(), PostError> {
        if !self.process.is_here() {
            return Err(self.refusal()); // In a forked child the rings are not even mapped.
        }
        self.require_progress();
        let slot = self.core.peers.resolve(work.peer).map_err(|error| unresolved(error, work.peer))?;
        let direct = self.core.peers.get(slot).may_send(OutgoingKind::Message)
            && !work.flags.intersects(OpFlags::FENCE | OpFlags::INVALIDATE | OpFlags::DEVICE);
        if direct
            && let Some(link) = &mut self.links[slot as usize]
            && (!work.flags.contains(OpFlags::INJECT) || sends_whole(link, work))
        {
            match transmit(link, &mut self.core, slot, work, notify, || Posted::lent(*work)) {
                Ok(()) => {
                    self.poller.sent(slot, link);
                    return Ok(());
                }
                Err(Refused::Full) if !notify.may_wait() => return Err(PostError::Again),
                Err(_) => {}
            }
        }
        self.post_send_slow(slot, work, notify)
    }

    /// Sends a message that a counter begins, if it can leave at once over shared memory. Returns false, and does
    /// nothing, if it cannot. The end of the send is not reported here.
    pub(super) fn send_at_once(&mut self, work: &SendWork) -> bool {
        const SPECIAL: OpFlags = ACKNOWLEDGED.union(OpFlags::FENCE).union(OpFlags::INVALIDATE).union(OpFlags::DEVICE);
        let len = work.segments.len();
        if work.flags.intersects(SPECIAL) || !self.process.is_here() {
            return false;
        }
        let Some(slot) = self.core.peers.resolved(work.peer) else { return false };
        if !self.core.peers.get(slot).may_send(OutgoingKind::Message) {
            return false;
        }
        let Some(Some(link @ AnyLink::Shm(_))) = self.links.get_mut(slot as usize) else { return false };
        if len > link.frame_limit() {
            return false;
        }
        let mut head = head_of(work);
        (head.kind, head.len) = (message(work.tag.is_some()), len as u32);
        if link.send(&head, &work.segments, work.flags.contains(OpFlags::MORE)).is_err() {
            return false;
        }
        self.poller.sent(slot, link);
        self.require_progress();
        true
    }

    /// Like `post_send`, but not inlined.
    #[inline(never)]
    pub(crate) fn post_send_by_call(&mut self, work: &SendWork, notify: Notify) -> Result<(), PostError> {
        self.post_send(work, notify)
    }

    /// Posts a send that cannot go to the link at once: the peer is not connected, other operations wait for it
    /// already, or the flags or the length need special handling.
    #[cold]
    fn post_send_slow(&mut self, slot: ConnectionId, work: &SendWork, notify: Notify) -> Result<(), PostError> {
        if work.flags.contains(OpFlags::DEVICE) {
            return self.post_located(RawOperation::Send(*work), notify);
        }
        let inject = work.flags.contains(OpFlags::INJECT);
        if inject && work.segments.len() > INJECT_LIMIT {
            return Err(PostError::InjectTooLong(work.segments.len()));
        }
        if work.segments.len() > MESSAGE_LIMIT {
            return Err(PostError::TooLong(work.segments.len()));
        }
        if work.flags.contains(OpFlags::INVALIDATE) && work.data.is_none() {
            return Err(PostError::Flags("INVALIDATE requires data, which is the key"));
        }
        let peer = self.core.peers.get(slot);
        if self.core.peers.is_single() && !peer.is_up() {
            return Err(PostError::NotConnected);
        }
        if inject && peer.is_up() && peer.takes_offers_only() {
            return Err(PostError::Again); // An offer would need the buffer after the call.
        }
        if !peer.may_queue(QueuingKind::Message, notify, work.flags.contains(OpFlags::FENCE)) {
            return Err(PostError::Again);
        }
        let posted =
            if inject { Posted::injected(*work).map_err(PostError::InjectTooLong)? } else { Posted::lent(*work) };
        self.core.peers.get_mut(slot).queue(PendingOperation { work: QueuedWork::Send(posted), notify });
        if self.core.peers.get(slot).is_idle() {
            self.start_connecting(slot);
        }
        self.drain(slot);
        Ok(())
    }

    /// Hands the message at the head of the queue to its link. Returns false if the message has to wait.
    fn start_message(&mut self, slot: ConnectionId) -> bool {
        let Some(link) = &mut self.links[slot as usize] else { return false };
        let Some(PendingOperation { work, notify }) = self.core.peers.get_mut(slot).take_first() else { return false };
        let (work, left) = match work {
            QueuedWork::Send(posted) => {
                let (work, mut posted) = (*posted.work(), Some(posted));
                let taken = || posted.take().unwrap_or_else(|| Posted::lent(work));
                let left = transmit(link, &mut self.core, slot, &work, notify, taken).is_ok();
                (posted.map(QueuedWork::Send), left)
            }
            QueuedWork::Collective(message) => {
                let result = transmit_collective(link, &mut self.core, slot, &message);
                if result == Ok(true) {
                    self.core.complete(Side::Transmit, notify, message.entry());
                }
                (Some(QueuedWork::Collective(message)), result.is_ok())
            }
            work => (Some(work), false),
        };
        if !left && let Some(work) = work {
            self.core.peers.get_mut(slot).put_back(PendingOperation { work, notify });
        }
        left
    }

    /// Hands waiting operations to their link, in order, until it refuses one.
    pub(crate) fn drain(&mut self, slot: ConnectionId) {
        if !self.core.peers.get(slot).is_up() || self.links[slot as usize].is_none() {
            return;
        }
        while let Some(first) = self.core.peers.get(slot).first()
            && self.core.peers.get(slot).may_send_first()
        {
            let left = match &first.work {
                QueuedWork::Send(_) | QueuedWork::Collective(_) => self.start_message(slot),
                QueuedWork::Access(_) => self.start_access(slot),
                QueuedWork::Window(_) => self.start_window(slot),
            };
            if !left {
                break;
            }
        }
        if self.core.peers.has_actions() {
            self.act();
        }
        if let Some(link) = &mut self.links[slot as usize] {
            self.poller.sent(slot, link);
        }
        if self.core.peers.get(slot).waiting() > 0 {
            self.poller.waits(slot);
        }
    }
}

impl Core {
    /// Records that a link took a whole send. Reports the send if all of its bytes have left.
    #[inline]
    fn sent(&mut self, to: ConnectionId, link: &AnyLink, notify: Notify, entry: Entry) {
        if self.try_finish_send(to, link, notify, || entry) {
            self.complete(Side::Transmit, notify, entry);
        }
    }

    /// Like [`sent`](Self::sent), but returns whether the send has left. If it has, the caller reports it; if not, it
    /// is reported when its last byte has left.
    #[inline]
    fn try_finish_send(
        &mut self,
        to: ConnectionId,
        link: &AnyLink,
        notify: Notify,
        entry: impl FnOnce() -> Entry,
    ) -> bool {
        self.report_sent(to, link); // This reports earlier sends: their last bytes may have left with this one.
        let Some((_, end)) = link.unsent() else { return true };
        self.messages.unsent().keep(to, end, notify, entry());
        false
    }

    /// Reports the sends that have left meanwhile. Returns whether there were any.
    #[inline]
    pub(super) fn report_sent(&mut self, to: ConnectionId, link: &AnyLink) -> bool {
        self.messages.unsent().any() && self.complete_sent(to, link.unsent().map_or(u64::MAX, |(start, _)| start))
    }

    #[inline(never)]
    fn complete_sent(&mut self, to: ConnectionId, left: u64) -> bool {
        let mut any = false;
        while let Some((notify, entry)) = self.messages.unsent().take_sent(to, left) {
            any = true;
            self.complete(Side::Transmit, notify, entry);
        }
        any
    }

    /// Fails the sends that have not left. They will not arrive, because the connection has ended.
    #[cold]
    pub(super) fn fail_unsent(&mut self, to: ConnectionId, error: ErrorCode, why: &str) {
        let peer = self.peers.source(to);
        for (notify, entry) in self.messages.unsent().take_lost(to) {
            let failure = ErrorEntry::new(entry, error).with_text(why.to_owned()).with_peer(peer);
            self.fail(Side::Transmit, notify, failure);
        }
    }
}

/// Returns whether the memory of an injected message is no longer needed once its link has taken it. Any other injected
/// message is copied first.
#[inline]
fn sends_whole(link: &AnyLink, work: &SendWork) -> bool {
    work.segments.len() <= link.frame_limit().min(INJECT_LIMIT) && !work.flags.intersects(ACKNOWLEDGED)
}

/// Hands one send to its link: the message itself, or an offer of it if the message is long or the peer requested
/// offers. `posted` is called if the send needs its memory after that.
#[inline(always)]
fn transmit(
    link: &mut AnyLink,
    core: &mut Core,
    slot: ConnectionId,
    work: &SendWork,
    notify: Notify,
    posted: impl FnOnce() -> Posted<SendWork>,
) -> Result<(), Refused> {
    let len = work.segments.len();
    let mut head = head_of(work);
    let more = work.flags.contains(OpFlags::MORE);
    let tagged = work.tag.is_some();
    let offers_only = core.peers.get(slot).takes_offers_only();
    if len <= link.frame_limit() && !offers_only && !work.flags.intersects(ACKNOWLEDGED) {
        (head.kind, head.len) = (message(tagged), len as u32);
        link.send(&head, &work.segments, more)?;
        if notify == Notify::Silent && !more {
            link.flush_queued();
        }
        core.sent(slot, link, notify, sent_entry(work.context, send_flags(tagged), len));
        return Ok(());
    }
    let eager = len <= link.frame_limit() && !offers_only;
    let kinds = if tagged {
        (FrameKind::Tagged, FrameKind::TaggedOffer)
    } else {
        (FrameKind::Message, FrameKind::MessageOffer)
    };
    let kind = if eager { Ok(kinds.0) } else { Err(kinds.1) };
    transmit_tracked(link, core, slot, work, notify, head, kind, posted)
}

/// Returns the head of a message without its kind and length.
#[inline(always)]
fn head_of(work: &SendWork) -> Head {
    let flags = if work.data.is_some() { Flags::DATA } else { Flags::empty() };
    Head { flags, tag: work.tag.unwrap_or(0), data: work.data.unwrap_or(0), ..Head::default() }
}

const fn message(tagged: bool) -> FrameKind {
    if tagged { FrameKind::Tagged } else { FrameKind::Message }
}

/// Like [`transmit`], but for a message of a group. Returns whether the message has left. If it has, its end is not
/// reported later.
pub(super) fn transmit_collective(
    link: &mut AnyLink,
    core: &mut Core,
    slot: ConnectionId,
    message: &GroupMessage,
) -> Result<bool, Refused> {
    let notify = Notify::Collective;
    let (len, tag, data) = (message.segments.len(), message.tag, message.data);
    let mut head = Head { kind: FrameKind::Collective, flags: Flags::DATA, tag, data, ..Head::default() };
    if len > link.frame_limit() || core.peers.get(slot).takes_offers_only() && len > 0 {
        let kind = Err(FrameKind::CollectiveOffer);
        let work = message.to_send();
        // The group keeps the memory until the transfers of its operation have ended.
        let posted = || Posted::lent(work);
        transmit_tracked(link, core, slot, &work, notify, head, kind, posted)?;
        core.peers.get_mut(slot).started_for_group();
        return Ok(false);
    }
    head.len = len as u32;
    link.send(&head, &message.segments, false)?;
    Ok(core.try_finish_send(slot, link, notify, || message.entry()))
}

/// Like [`transmit`], but for a send that waits for an answer of its peer. `kind` is the kind of the message (`Ok`), or
/// of its offer (`Err`).
#[expect(clippy::too_many_arguments, reason = "all of these values are separate variables of the caller")]
fn transmit_tracked(
    link: &mut AnyLink,
    core: &mut Core,
    slot: ConnectionId,
    work: &SendWork,
    notify: Notify,
    mut head: Head,
    kind: Result<FrameKind, FrameKind>,
    posted: impl FnOnce() -> Posted<SendWork>,
) -> Result<(), Refused> {
    let len = work.segments.len();
    let acknowledged = work.flags.intersects(ACKNOWLEDGED);
    if core.messages.sends().is_full() {
        return Err(Refused::Full);
    }
    head.id = core.messages.sends().next_wire();
    head.flags |= Flags::ID;
    if acknowledged {
        head.flags |= Flags::ACK;
    }
    if work.flags.contains(OpFlags::INVALIDATE) {
        head.flags |= Flags::INVALIDATE;
    }
    let more = work.flags.contains(OpFlags::MORE);
    let result = match kind {
        Ok(eager) => {
            (head.kind, head.len) = (eager, len as u32);
            link.send(&head, &work.segments, more)
        }
        Err(_) if len > MESSAGE_LIMIT => Err(Refused::Broken), // No link takes it; `post_send_slow` returns the reason.
        Err(offered) => {
            let offer = match core.arriving(notify, work.context) {
                None => offer_of(&work.segments),
                // Only this endpoint may copy, because the payload has not arrived completely.
                Some(_) => Offer { len: (len as u64).into(), ..Offer::default() },
            };
            (head.kind, head.len) = (offered, size_of::<Offer>() as u32);
            Segments::lend(offer.as_bytes(), |payload| link.send(&head, payload, more))
        }
    };
    result?;
    if notify == Notify::Silent && !more {
        link.flush_queued();
    }
    core.messages.sends_mut().add(slot, posted(), notify, kind.is_err(), acknowledged);
    core.peers.started(slot);
    Ok(())
}

/// Returns the offer to a receiver for a payload that waits at this endpoint.
pub(super) fn offer_of(segments: &Segments) -> Offer {
    let mut offer = Offer {
        len: (segments.len() as u64).into(),
        pieces: (segments.as_slice().len() as u32).into(),
        ..Offer::default()
    };
    if let [only] = segments.as_slice() {
        offer.address = (only.as_ptr().addr() as u64).into();
        if let Some(located) = sealed::locate(only.as_ptr(), only.len()) {
            offer.arena = located.arena.into();
            offer.offset = located.offset.into();
        }
    }
    offer
}
