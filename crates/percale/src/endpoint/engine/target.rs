//! Remote accesses that this endpoint executes for its peers.
//!
//! Every request is checked against the domain's table of regions, and answered: a short request at once, a long one at
//! the end of a pull, unless the peer expects the answer immediately. For every request, the memory of a region is
//! touched only while the region is pinned, so that closing the region waits until the memory is no longer touched.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use std::sync::Arc;

use zerocopy::IntoBytes;
use zerocopy::little_endian::U64;

use super::core::Core;
use super::counting::{counts_of_atomic, is_whole};
use super::remote::{PART_LIMIT, RemoteWriteData, ServeMode};
use super::types::{LinkAction, Notify, PayloadPull, PullFrame, Side, checked_offer};
use crate::completion::entry::{CompletionFlags, Entry};
use crate::local_memory::access::RefusalExt as _;
use crate::local_memory::atomic::{AtomicKind, AtomicOp, AtomicRequest as Atomic, Datatype, KindWireExt as _};
use crate::local_memory::buffer::{Buffer, BufferExt as _};
use crate::local_memory::short_bytes::ShortBytes;
use crate::local_memory::volatile::{Segments, SegmentsExt as _, View, ViewExt as _};
use crate::region::lease::Lease;
use crate::region::{Access, Refusal, Registered};
use crate::transport::stream::{expected_pull, refused_pull};
use crate::transport::{ConnectionId, PullError};
use crate::wire::head::{AtomicHead, Counts, Flags, FrameKind, Head, Offer, RMA_EAGER, ReadHead, WriteNotice};

/// A long write that is being fetched.
#[derive(Debug)]
pub(crate) struct FetchedWrite {
    from: ConnectionId,
    /// The request.
    head: Head,
    region: Arc<Registered>,
    /// The buffer that holds the bytes if only the kernel may touch the region.
    staged: Option<Buffer>,
}

impl FetchedWrite {
    pub(super) const fn from(&self) -> ConnectionId {
        self.from
    }
}

impl Core {
    /// Handles a frame of a remote access.
    pub(super) fn remote(&mut self, from: ConnectionId, head: &Head, payload: View<'_>) {
        if self.too_many(from) {
            return;
        }
        match head.kind {
            FrameKind::Write => self.write(from, head, payload),
            FrameKind::WriteOffer => self.write_offered(from, head, payload),
            FrameKind::Read => self.read(from, head, payload),
            FrameKind::Atomic => self.atomic(from, head, payload),
            FrameKind::ReadData => self.read_data(from, head, payload),
            FrameKind::ReadOffer => self.read_offered(from, head, payload),
            FrameKind::Done => self.done(from, head),
            FrameKind::Wrote => self.written(from, head, payload),
            _ => self.peers.flag_violation(from, "a frame that is not a remote access"),
        }
    }

    /// Returns whether the peer has more requests under way than it may. Such a peer is disconnected.
    fn too_many(&mut self, from: ConnectionId) -> bool {
        let too_many = self.peers.get(from).exceeds_request_limit();
        if too_many {
            self.peers.flag_violation(from, "too many requests in progress");
        }
        too_many
    }

    /// Answers a request that has ended.
    fn answer(&mut self, to: ConnectionId, head: &Head, result: Result<(), Refusal>) {
        let number = result.err().map_or(0, Refusal::number);
        self.peers.get_mut(to).reply_queued();
        self.peers.reply(to, FrameKind::Done, head.id, number);
    }

    /// Answers a request that changed a region, if the initiator may send a notice of the access later. The notice
    /// identifies the region by the generation in this answer.
    #[cold]
    fn answer_part(&mut self, to: ConnectionId, head: &Head, region: &Registered) {
        self.peers.get_mut(to).reply_queued();
        let (flags, data) = (Flags::ID | Flags::DATA, region.generation());
        let done = Head { kind: FrameKind::Done, flags, len: 0, tag: 0, data, id: head.id };
        self.peers.push(to, LinkAction::Frame(done));
    }

    /// Ends a request that changed a region, or that was refused.
    fn changed(
        &mut self,
        from: ConnectionId,
        head: &Head,
        result: Result<&Registered, Refusal>,
        completion_data: Option<RemoteWriteData>,
    ) {
        if let Ok(region) = result {
            if let Some(completion_data) = completion_data {
                self.report_written(from, completion_data);
            }
            if is_whole(head) {
                self.count_access(Some(region), Counts::REGION | Counts::WRITES);
            }
            if !is_whole(head) || head.kind == FrameKind::Atomic {
                return self.answer_part(from, head, region);
            }
        }
        self.answer(from, head, result.map(drop));
    }

    /// Counts an answer, or a notice, that the link took.
    #[inline]
    pub(super) fn answered(&mut self, to: ConnectionId, action: &LinkAction) {
        let (LinkAction::Frame(head) | LinkAction::Bytes(head, _) | LinkAction::Notice(head, _)) = action else {
            return;
        };
        let peer = self.peers.get_mut(to);
        if head.kind == FrameKind::Wrote {
            peer.notice_left();
        } else if matches!(head.kind, FrameKind::Done | FrameKind::Data) || matches!(action, LinkAction::Bytes(..)) {
            peer.reply_left();
        }
    }

    fn report_written(&mut self, from: ConnectionId, RemoteWriteData { data, len }: RemoteWriteData) {
        let flags = CompletionFlags::RMA | CompletionFlags::REMOTE_WRITE | CompletionFlags::REMOTE_DATA;
        let entry = Entry { flags, len, data, source: self.peers.source(from), ..Entry::default() };
        self.complete(Side::Receive, Notify::Event, entry);
    }

    fn write(&mut self, from: ConnectionId, head: &Head, payload: View<'_>) {
        let (bytes, data) = if head.flags.contains(Flags::TELLS) {
            let Some(len) = payload.len().checked_sub(size_of::<U64>()) else {
                return self.peers.flag_violation(from, "write without its data");
            };
            (payload.first(len), payload.read::<U64>(len).map(U64::get))
        } else {
            (payload, None)
        };
        match self.region(from, head.data) {
            Ok(region) => {
                let result = region.store(head.tag, bytes).map(|()| &*region);
                self.changed(from, head, result, data.map(|data| RemoteWriteData { data, len: bytes.len() as u64 }));
            }
            Err(refusal) => self.answer(from, head, Err(refusal)),
        }
    }

    /// Returns the place in its region at which a write that arrives in pieces lands, or `None` if the write must be
    /// assembled first.
    pub(super) fn place_of_write(
        &self,
        from: ConnectionId,
        head: &Head,
    ) -> Result<Option<(Arc<Registered>, Lease)>, Refusal> {
        if head.kind != FrameKind::Write || head.flags.contains(Flags::TELLS) {
            return Ok(None);
        }
        let region = self.region(from, head.data)?;
        let len = u64::from(head.len);
        region.check(head.tag, len, Access::REMOTE_WRITE)?;
        if !region.is_backed() {
            return Ok(None); // Only the kernel may touch the region.
        }
        let into = region.lease(head.tag, len, Access::REMOTE_WRITE)?;
        Ok(Some((region, into)))
    }

    /// Ends a write that arrived in pieces. It has arrived in its region or, if it was refused, its bytes were
    /// discarded.
    pub(super) fn write_landed(&mut self, from: ConnectionId, head: &Head, region: Result<Arc<Registered>, Refusal>) {
        if self.too_many(from) {
            return;
        }
        // If the region was revoked meanwhile, some of the bytes did not arrive there.
        let region = region.and_then(|region| {
            let stands = region.pin().enter().is_some();
            if stands { Ok(region) } else { Err(Refusal::Key) }
        });
        self.changed(from, head, region.as_deref().map_err(|refusal| *refusal), None);
    }

    /// Allocates a buffer for bytes with a destination that only the kernel may touch.
    fn stage(&mut self, from: ConnectionId, len: u64) -> Result<Buffer, Refusal> {
        let room = usize::try_from(len).map_err(|_| Refusal::Memory)?;
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(room).map_err(|_| Refusal::Memory)?;
        self.count_staged(from, len)?; // This is last, so that a refused request is not counted.
        bytes.resize(room, 0);
        Ok(Buffer::from(bytes))
    }

    /// Counts bytes that are kept for a peer.
    fn count_staged(&mut self, from: ConnectionId, len: u64) -> Result<(), Refusal> {
        if self.peers.get_mut(from).stage(len) { Ok(()) } else { Err(Refusal::Memory) }
    }

    fn write_offered(&mut self, from: ConnectionId, head: &Head, payload: View<'_>) {
        let offer = match checked_offer(payload, u64::MAX) {
            Ok(offer) => offer,
            Err(why) => return self.peers.flag_violation(from, why),
        };
        let len = offer.len.get();
        match self.start_store(from, head, &offer, len) {
            Ok(()) => {}
            Err(refusal) => self.answer(from, head, Err(refusal)),
        }
    }

    fn start_store(&mut self, from: ConnectionId, head: &Head, offer: &Offer, len: u64) -> Result<(), Refusal> {
        let region = self.region(from, head.data)?;
        region.check(head.tag, len, Access::REMOTE_WRITE)?;
        if len == 0 || len > PART_LIMIT {
            return Err(Refusal::Range);
        }
        let (into, staged) = if region.is_backed() {
            (region.lease(head.tag, len, Access::REMOTE_WRITE)?, None)
        } else {
            let mut buffer = self.stage(from, len)?;
            let segment = buffer.segment_for_receive().ok_or(Refusal::Memory)?;
            (Lease::own(&Segments::one(segment)), Some(buffer))
        };
        self.peers.get_mut(from).serving_started();
        let token = self.messages.begin_pull(PayloadPull::Store(FetchedWrite { from, head: *head, region, staged }));
        self.peers.push(from, LinkAction::Pull { id: head.id, offer: *offer, into, token });
        Ok(())
    }

    /// Ends the fetch of a long write.
    pub(super) fn stored(&mut self, store: FetchedWrite, result: Result<u64, PullError>) {
        let FetchedWrite { from, head, region, staged } = store;
        self.peers.get_mut(from).serving_ended(staged.as_ref());
        let result = result.map_err(|error| match error {
            PullError::Fault | PullError::Gone | PullError::Refused(_) | PullError::Unknown => Refusal::Fault,
            PullError::Revoked => Refusal::Key,
        });
        let region = result.and_then(|_| match staged {
            None => Ok(region),
            Some(buffer) => {
                let bytes = buffer.into_vec();
                region.store(head.tag, View::of(&bytes)).map(|()| region)
            }
        });
        match region {
            Ok(region) => self.changed(from, &head, Ok(&region), None),
            Err(refusal) => self.answer(from, &head, Err(refusal)),
        }
    }

    fn read(&mut self, from: ConnectionId, head: &Head, payload: View<'_>) {
        let Some(ReadHead { len, expected }) = payload.read::<ReadHead>(0) else {
            return self.peers.flag_violation(from, "read without a length");
        };
        let Some(expected) = expected.get().checked_sub(1) else {
            if let Err(refusal) = self.start_read(from, head, len.get()) {
                self.answer(from, head, Err(refusal));
            }
            return;
        };
        let Ok(token) = u32::try_from(expected) else {
            return self.peers.flag_violation(from, "read without a destination");
        };
        let action = match self.prepare_read(from, head, len.get()) {
            Ok((source, staged)) => self.push_read(from, token, source, staged, is_whole(head)),
            Err(refusal) => LinkAction::Frame(refused_pull(token, refusal)),
        };
        self.peers.get_mut(from).reply_queued();
        self.peers.push(from, action);
    }

    fn start_read(&mut self, from: ConnectionId, head: &Head, len: u64) -> Result<(), Refusal> {
        if len <= RMA_EAGER as u64 {
            let bytes = self.region(from, head.data)?.load(head.tag, len, ShortBytes::copy_of)?;
            if is_whole(head) {
                self.count_access(None, Counts::READS);
            }
            self.send_data(from, head, None, bytes);
            return Ok(());
        }
        let (source, staged) = self.prepare_read(from, head, len)?;
        let offer = self.serve(from, head.id, source, staged, is_whole(head));
        self.peers.get_mut(from).reply_queued();
        self.peers.push(from, offer);
        Ok(())
    }

    /// Returns the bytes that a long read requests, and their copy if one has to be kept.
    fn prepare_read(&mut self, from: ConnectionId, head: &Head, len: u64) -> Result<(Lease, Option<Buffer>), Refusal> {
        let region = self.region(from, head.data)?;
        region.check(head.tag, len, Access::REMOTE_READ)?;
        if len > PART_LIMIT {
            return Err(Refusal::Range);
        }
        if region.is_backed() {
            return Ok((region.lease(head.tag, len, Access::REMOTE_READ)?, None));
        }
        let buffer = Buffer::from(region.load(head.tag, len, |bytes| bytes.to_vec())?);
        self.count_staged(from, len)?;
        Ok((Lease::own(&Segments::one(buffer.segment_for_send())), Some(buffer)))
    }

    /// Lets a peer fetch the bytes that its part reads, and returns the offer.
    fn serve(
        &mut self,
        to: ConnectionId,
        part: u32,
        source: Lease,
        staged: Option<Buffer>,
        counted: bool,
    ) -> LinkAction {
        // The offer contains no address: the region may be closed while the peer copies, so only this endpoint copies.
        let offer = Offer { len: (source.len() as u64).into(), ..Offer::default() };
        self.peers.get_mut(to).serving_started();
        let serve = self.remote.serve(to, source, staged, ServeMode::Offered, counted);
        let head = Head {
            kind: FrameKind::ReadOffer,
            flags: Flags::ID,
            len: size_of::<Offer>() as u32,
            tag: u64::from(serve),
            data: 0,
            id: part,
        };
        LinkAction::Bytes(head, Segments::lend(offer.as_bytes(), ShortBytes::copy_of))
    }

    /// Sends the bytes that a peer's part reads into the pull that expects them.
    fn push_read(
        &mut self,
        to: ConnectionId,
        token: u32,
        source: Lease,
        staged: Option<Buffer>,
        counted: bool,
    ) -> LinkAction {
        let (token, wanted) = expected_pull(source.len() as u64, token);
        let request = PullFrame::of(View::of(wanted.as_bytes()));
        self.peers.get_mut(to).serving_started();
        let id = self.remote.serve(to, source.clone(), staged, ServeMode::Expected, counted);
        LinkAction::Push { id, token, request, source }
    }

    /// Offers an answer that is too long for a frame of its link.
    #[cold]
    pub(super) fn offer(&mut self, to: ConnectionId, head: &Head, bytes: ShortBytes) -> LinkAction {
        self.peers.get_mut(to).stage_answer(bytes.len() as u64);
        let buffer = Buffer::from(bytes.into_vec());
        let source = Lease::own(&Segments::one(buffer.segment_for_send()));
        self.serve(to, head.id, source, Some(buffer), false)
    }

    /// Sends bytes of a region; `changed` is the region if it was changed too.
    fn send_data(&mut self, to: ConnectionId, head: &Head, changed: Option<&Registered>, bytes: ShortBytes) {
        let mut flags = Flags::ID;
        flags.set(Flags::DATA, changed.is_some());
        let data = changed.map_or(0, Registered::generation);
        let head = Head { kind: FrameKind::ReadData, flags, len: bytes.len() as u32, tag: 0, data, id: head.id };
        self.peers.get_mut(to).reply_queued();
        self.peers.push(to, LinkAction::Bytes(head, bytes));
    }

    /// Ends a transfer to a peer: its pull reported that it has all bytes, or that the transfer failed.
    pub(super) fn served(&mut self, from: ConnectionId, id: u32, whole: bool) {
        let Some(serve) = self.remote.served(from, id) else { return };
        self.peers.get_mut(from).serving_ended(serve.staged());
        if whole && serve.is_counted() {
            self.count_access(None, Counts::READS);
        }
        if serve.mode() == ServeMode::Expected {
            self.peers.get_mut(from).reply_left();
        }
    }

    fn atomic(&mut self, from: ConnectionId, head: &Head, payload: View<'_>) {
        let Some(request) = AtomicAccess::parse(payload) else {
            return self.peers.flag_violation(from, "unknown atomic operation");
        };
        let result = self.region(from, head.data).and_then(|region| {
            let fetched = request.execute(&region, head.tag, payload)?;
            Ok((region, fetched))
        });
        match result {
            Ok((region, _)) if request.kind == AtomicKind::Plain => self.changed(from, head, Ok(&region), None),
            Ok((region, fetched)) => {
                self.count_access(Some(&region), counts_of_atomic(request.op, request.kind));
                self.send_data(from, head, Some(&region), fetched);
            }
            Err(refusal) => self.answer(from, head, Err(refusal)),
        }
    }

    /// Handles a notice of a peer that wrote or read a region itself, or that made an access of several parts.
    fn written(&mut self, from: ConnectionId, head: &Head, payload: View<'_>) {
        let Some(WriteNotice { generation, len }) = payload.read::<WriteNotice>(0) else {
            return self.peers.flag_violation(from, "access notification without a region");
        };
        let Some(counts) = Counts::from_bits(head.id) else {
            return self.peers.flag_violation(from, "access notification with unknown counters");
        };
        let Ok(region) = self.region(from, head.tag) else { return }; // The region was closed meanwhile.
        // These are reads that were executed in parts: the initiator gets no generation, and only the endpoint counts.
        let read = counts == Counts::READS && !head.flags.contains(Flags::DATA);
        if generation.get() != region.generation() && !(read && generation.get() == 0) {
            return; // The region was closed meanwhile, and another region has the key.
        }
        let right = if counts == Counts::READS { Access::REMOTE_FETCH } else { Access::REMOTE_ATOMIC };
        if !region.rights().contains(right) {
            return;
        }
        if head.flags.contains(Flags::DATA) {
            self.report_written(from, RemoteWriteData { data: head.data, len: len.get() });
        }
        self.count_access(Some(&region), counts);
    }
}

/// A request for an atomic operation, which was checked.
struct AtomicAccess {
    op: AtomicOp,
    datatype: Datatype,
    kind: AtomicKind,
    count: usize,
}

impl AtomicAccess {
    fn parse(payload: View<'_>) -> Option<Self> {
        let head = payload.read::<AtomicHead>(0)?;
        let (op, datatype) = (AtomicOp::from_u8(head.op)?, Datatype::from_u8(head.datatype)?);
        let kind = AtomicKind::from_u8(head.kind)?;
        let count = head.count.get() as usize;
        let bytes = count.checked_mul(datatype.size())?;
        let operands = if op == AtomicOp::Read { 0 } else { bytes };
        let compares = if kind == AtomicKind::Compare { bytes } else { 0 };
        let fits = head.reserved == 0
            && count > 0
            && bytes <= crate::endpoint::remote_work::ATOMIC_LIMIT
            && Some(payload.len()) == size_of::<AtomicHead>().checked_add(operands)?.checked_add(compares);
        (fits && crate::local_memory::atomic::is_valid(kind, op, datatype)).then_some(Self {
            op,
            datatype,
            kind,
            count,
        })
    }

    /// Changes the elements. Returns their previous values if they are fetched, otherwise no bytes.
    fn execute(&self, region: &Registered, address: u64, payload: View<'_>) -> Result<ShortBytes, Refusal> {
        let Self { op, datatype, kind, count } = *self;
        let mut operands = ShortBytes::zeroed(payload.len());
        payload.read_into(&mut operands);
        let bytes = if op == AtomicOp::Read { 0 } else { count.saturating_mul(datatype.size()) };
        let (operand, compare) = operands[size_of::<AtomicHead>()..].split_at(bytes);
        let request = Atomic { op, datatype, kind, count, operand, compare };
        let mut fetched = ShortBytes::zeroed(if kind == AtomicKind::Plain { 0 } else { request.len() });
        region.change(address, &request, &mut fetched)?;
        Ok(fetched)
    }
}
