//! Hands the parts of an access to a link.

use zerocopy::IntoBytes;
use zerocopy::little_endian::U64;

use super::super::core::Core;
use super::super::peers::OutgoingKind;
use super::super::remote::{AccessOperation, AccessPart, Execution, PART, PendingAccess, atomic_kind};
use super::super::send::offer_of;
use super::super::types::Notify;
use crate::endpoint::remote_work::AtomicWork;
use crate::local_memory::atomic::{AtomicOp, KindWireExt as _};
use crate::local_memory::short_bytes::ShortBytes;
use crate::local_memory::volatile::{Segments, SegmentsExt as _};
use crate::region::RemoteMemory;
use crate::table::Id;
use crate::transport::any::AnyLink;
use crate::transport::{ConnectionId, Link, Refused};
use crate::wire::head::{AtomicHead, Counts, Flags, FrameKind, Head, Offer, RMA_EAGER};

/// Hands parts of an access to the link, until the link refuses one or the limits of the peer are reached. Returns `Ok`
/// when no part is left to be sent.
pub(in super::super) fn execute(
    link: &mut AnyLink,
    core: &mut Core,
    slot: ConnectionId,
    waiting: &mut PendingAccess,
    notify: Notify,
) -> Result<(), Refused> {
    if let Some(what) = waiting.what() {
        if core.remote.conflicts_with_long(slot, what) || core.remote.is_full() {
            return Err(Refused::Full);
        }
        let notice = what.part(1).is_some().then(|| what.notice(what.counts()));
        if core.remote.start(slot, waiting, notify, notice).is_some() {
            core.peers.get_mut(slot).execution_started();
        }
    }
    let Some((access, &what, _)) = core.remote.started(waiting) else {
        return Ok(()); // The access has ended.
    };
    let several = what.part(1).is_some();
    while let Some((remote, offset)) = what.part(waiting.sent()) {
        if core.remote.has_failed(access) {
            break; // A refused part ends the access, so the others are not requested.
        }
        let long_bytes = core.remote.long_bytes(slot) + remote.len;
        let sent = match core.peers.get(slot).may_send(OutgoingKind::AccessPart { long_bytes }) {
            false => Err(Refused::Full),
            true => send_part(link, core, slot, access, &what, remote, offset as usize, several),
        };
        if let Err(refused) = sent {
            if waiting.sent() == 0 {
                core.withdraw_assisted(slot, waiting, access); // No part was sent, so the access is not counted.
            }
            return Err(refused);
        }
        core.peers.get_mut(slot).part_sent();
        core.remote.count_part(access);
        waiting.part_sent();
    }
    core.access_step(access, Ok(()));
    if notify == Notify::Silent {
        link.flush_queued();
    }
    Ok(())
}

#[expect(clippy::too_many_arguments, reason = "all of these values are separate variables of the caller")]
fn send_part(
    link: &mut AnyLink,
    core: &mut Core,
    slot: ConnectionId,
    access: Id<Execution>,
    what: &AccessOperation,
    remote: RemoteMemory,
    offset: usize,
    several: bool,
) -> Result<(), Refused> {
    let len = remote.len as usize; // The length is at most PART_LIMIT.
    let (local, takes_data) = match what {
        AccessOperation::Write(work) => (work.local.slice(offset, len), false),
        AccessOperation::Read(work) => (work.local.slice(offset, len), true),
        AccessOperation::Atomic(work) => (work.result.unwrap_or(Segments::EMPTY), work.result.is_some()),
    };
    let id = core.remote.add_part(AccessPart::new(access, slot, local, remote.key, takes_data));
    let mut head = Head {
        kind: FrameKind::Write,
        flags: Flags::DATA | Flags::ID,
        len: len as u32,
        tag: remote.address,
        data: remote.key,
        id: id.to_wire() | PART,
    };
    head.flags.set(Flags::PART, several);
    // Over a stream, longer writes also arrive directly at their destination.
    let limit = if link.is_stream() { link.frame_limit() } else { link.frame_limit().min(RMA_EAGER) };
    let eager = len <= limit;
    let mut long = false;
    let sent = match what {
        AccessOperation::Write(_) if eager => send_write(link, core, access, head, &local, what, several),
        AccessOperation::Write(_) => {
            head.flags.set(Flags::PART, several || what.data().is_some());
            head.kind = FrameKind::WriteOffer;
            head.len = size_of::<Offer>() as u32;
            long = true;
            let offer = offer_of(&local);
            Segments::lend(offer.as_bytes(), |payload| link.send(&head, payload, false))
        }
        AccessOperation::Read(_) => {
            head.kind = FrameKind::Read;
            core.send_read(link, head, &local)
        }
        AccessOperation::Atomic(work) => send_atomic(link, head, work),
    };
    if let Err(refused) = sent {
        core.remote.withdraw_part(id);
        return Err(refused);
    }
    if long || (len > RMA_EAGER && matches!(what, AccessOperation::Read(_))) {
        core.remote.note_long_part(id, remote, what.changes());
    }
    if long && core.remote.note_long_write(access) {
        core.peers.get_mut(slot).long_write_started();
    }
    if what.data().is_some() && what.changes() && (long || !matches!(what, AccessOperation::Write(_))) {
        // The notice that reports a write also counts it, so a target that sees the count finds the report.
        core.remote.notify_at_end(access, || what.notice(if long { what.counts() } else { Counts::empty() }));
    }
    Ok(())
}

/// Sends a write in one frame. The completion data is appended to the bytes if the write has only one part, the bytes
/// are few, and the frame has room. The number of bytes is limited because a target assembles a frame that carries
/// both.
fn send_write(
    link: &mut AnyLink,
    core: &mut Core,
    access: Id<Execution>,
    mut head: Head,
    local: &Segments,
    what: &AccessOperation,
    several: bool,
) -> Result<(), Refused> {
    let Some(data) = what.data() else { return link.send(&head, local, false) };
    // The eight bytes of completion data have to fit as well.
    let fits = !several && local.len() <= RMA_EAGER && local.len() + size_of::<U64>() <= link.frame_limit();
    let completion_data = fits.then(|| {
        local.with_tail(U64::new(data).as_bytes(), |payload| {
            head.flags |= Flags::TELLS;
            head.len += size_of::<U64>() as u32;
            link.send(&head, payload, false)
        })
    });
    match completion_data.flatten() {
        Some(result) => result,
        None => {
            head.flags |= Flags::PART;
            link.send(&head, local, false)?;
            core.remote.notify_at_end(access, || what.notice(what.counts()));
            Ok(())
        }
    }
}

fn send_atomic(link: &mut AnyLink, mut head: Head, work: &AtomicWork) -> Result<(), Refused> {
    let kind = atomic_kind(work);
    let about = AtomicHead {
        op: work.op.to_u8(),
        datatype: work.datatype.to_u8(),
        kind: kind.to_u8(),
        reserved: 0,
        count: ((work.remote.len as usize / work.datatype.size()) as u32).into(),
    };
    // The payload is short, so it is copied into one buffer. The copy takes far less time than an atomic operation that
    // is sent in a frame.
    let operands = [(work.op != AtomicOp::Read).then_some(&work.operand), work.compare.as_ref()];
    let len = operands.into_iter().flatten().fold(size_of::<AtomicHead>(), |len, list| len.saturating_add(list.len()));
    let mut payload = ShortBytes::zeroed(len);
    let (first, mut rest) = payload.split_at_mut(size_of::<AtomicHead>());
    first.copy_from_slice(about.as_bytes());
    for list in operands.into_iter().flatten() {
        let (part, others) = rest.split_at_mut(list.len());
        list.copy_to(0, part);
        rest = others;
    }
    head.kind = FrameKind::Atomic;
    head.len = payload.len() as u32;
    Segments::lend(&payload, |payload| link.send(&head, payload, false))
}
