//! One-sided operations, at the initiator.
//!
//! An access is made in one of three ways. *Directly*: over a shared-memory link the initiator accesses the peer's
//! region itself, and the access mostly ends within the call. *By RDMA*: a device makes the access (`rdma`).
//! *Executed*: the target makes the access during its progress. In that case the access is split into parts. Each part
//! is one request frame and ends with one answer ([`FrameKind::Done`] or [`FrameKind::ReadData`]) or with the end of a
//! pull. Short data is sent in its frame. Over a stream, longer data is sent in its frame too. A long write is offered
//! by the initiator and pulled by the target. A long read is offered by the target and pulled by the initiator, or,
//! over a stream, expected by the initiator and sent at once.
//!
//! Order: only one way is used at a time. While executed accesses to a peer are outstanding, later ones to it are
//! executed as well (or wait, see `rdma`), and frames are handled in order. Only long parts are performed out of that
//! order, at some time after their frames were handled: an access to the same bytes waits for them (unless both read),
//! and a message waits for all long writes. So accesses to the same bytes of a region, and messages after writes, take
//! effect in the order in which they were posted.
//!
//! `remote` records the accesses that are in progress. This module contains the routes from there to the links, to the
//! counts of peers, and to the reports.

mod issue;
mod rdma;

use zerocopy::IntoBytes;
use zerocopy::little_endian::U64;

pub(super) use self::issue::execute;
pub(super) use self::rdma::{RdmaOutcome, by_rdma};
use super::core::Core;
use super::remote::{AccessError, AccessNotice, AccessPart, Execution, OfferedRead, PendingAccess, RemoteWriteData};
use super::types::{LinkAction, Notify, PayloadPull, Side};
use crate::completion::entry::{ErrorCode, ErrorEntry};
use crate::local_memory::access::RefusalExt as _;
use crate::local_memory::volatile::{Segments, SegmentsExt as _, View};
use crate::region::Refusal;
use crate::region::lease::Lease;
use crate::table::Id;
use crate::transport::any::AnyLink;
use crate::transport::{ConnectionId, Link, PullError, Refused};
use crate::wire::head::{Counts, Flags, FrameKind, Head, RMA_EAGER, ReadHead, WriteNotice};

/// Returns the refusal for a failed transfer from or to a region.
const fn pull_refusal(error: PullError) -> Refusal {
    match error {
        PullError::Fault | PullError::Unknown => Refusal::Fault,
        PullError::Gone | PullError::Revoked => Refusal::Key,
        PullError::Refused(refusal) => refusal,
    }
}

/// Returns the error code of a refusal.
pub(super) fn refused_code(refusal: Refusal) -> ErrorCode {
    refusal.code()
}

impl Core {
    /// Sends the request of a read. Over a stream, the pull of a long read begins at once.
    fn send_read(&mut self, link: &mut AnyLink, mut head: Head, local: &Segments) -> Result<(), Refused> {
        let expected = (local.len() > RMA_EAGER && link.is_stream()).then(|| self.messages.next_pull());
        let payload = ReadHead {
            len: U64::new(local.len() as u64),
            expected: U64::new(expected.map_or(0, |token| u64::from(token) + 1)),
        };
        head.len = size_of::<ReadHead>() as u32;
        Segments::lend(payload.as_bytes(), |payload| link.send(&head, payload, false))?;
        if expected.is_some()
            && let Some((part, from)) = self.remote.expect(head.id)
        {
            let token = self.messages.begin_pull(PayloadPull::Fetch { from, part });
            link.expect(&Lease::own(local), token);
        }
        Ok(())
    }

    /// Handles a [`FrameKind::Done`] frame.
    pub(super) fn done(&mut self, from: ConnectionId, head: &Head) {
        let result = match (head.tag, Refusal::from_number(head.tag)) {
            (0, _) => Ok(()),
            (_, Some(refusal)) => Err(refusal),
            (_, None) => return self.peers.flag_violation(from, "unknown error code in a reply"),
        };
        match self.remote.answered(from, head, result) {
            Ok(Some(part)) => self.part_over(part, result),
            Ok(None) => {}
            Err(why) => self.peers.flag_violation(from, why),
        }
    }

    /// Handles a [`FrameKind::ReadData`] frame.
    pub(super) fn read_data(&mut self, from: ConnectionId, head: &Head, payload: View<'_>) {
        match self.remote.read_data(from, head, payload) {
            Ok(Some(part)) => self.part_over(part, Ok(())),
            Ok(None) => {}
            Err(why) => self.peers.flag_violation(from, why),
        }
    }

    /// Handles a [`FrameKind::ReadOffer`] frame: fetches the bytes.
    pub(super) fn read_offered(&mut self, from: ConnectionId, head: &Head, payload: View<'_>) {
        let OfferedRead { part, offer, into } = match self.remote.read_offered(from, head, payload) {
            Ok(Some(offered)) => offered,
            Ok(None) => return,
            Err(why) => return self.peers.flag_violation(from, why),
        };
        let token = self.messages.begin_pull(PayloadPull::Fetch { from, part });
        self.peers.push(from, LinkAction::Pull { id: head.tag as u32, offer, into, token });
    }

    /// Ends the part of a long read that was fetched, or that could not be fetched.
    pub(super) fn fetched(&mut self, part: Id<AccessPart>, result: Result<u64, PullError>) {
        self.part_over(part, result.map(drop).map_err(pull_refusal));
    }

    /// Handles the end of a push: no transport reads the bytes of this long write any more.
    pub(super) fn write_pushed(&mut self, from: ConnectionId, wire: u32) {
        if let Some((part, result)) = self.remote.write_pushed(from, wire) {
            self.part_over(part, result);
        }
    }

    /// Ends a part.
    fn part_over(&mut self, id: Id<AccessPart>, result: Result<(), Refusal>) {
        let Some(part) = self.remote.end_part(id) else { return };
        self.peers.get_mut(part.to()).part_ended();
        let result = result.map_err(|refusal| (refused_code(refusal), refusal.to_string().into()));
        self.access_step(part.access(), result);
    }

    /// Counts one of the events for which an access waits. The last event completes the access.
    fn access_step(&mut self, id: Id<Execution>, result: Result<(), AccessError>) {
        let Some(mut access) = self.remote.step(id, result) else { return };
        self.access_ended(&access);
        match access.take_error() {
            None => {
                if let Some(notice) = access.notice() {
                    self.notify_target(access.to(), notice);
                }
                self.complete(Side::Transmit, access.notify(), access.entry());
            }
            Some((code, why)) => {
                let failure = ErrorEntry::new(access.entry(), code).with_text(why);
                let peer = self.peers.source(access.to());
                self.fail(Side::Transmit, access.notify(), failure.with_peer(peer));
            }
        }
        access.recycle();
    }

    /// Counts the end, or the restart, of an access.
    fn access_ended(&mut self, access: &Execution) {
        let peer = self.peers.get_mut(access.to());
        if access.is_by_rdma() { peer.rdma_ended(access.is_long()) } else { peer.execution_ended(access.is_long()) }
    }

    /// Notifies the target of the parts of an access that the target cannot see. Sends one notice for each region; the
    /// last notice also carries the counts of the endpoint, and the data.
    fn notify_target(&mut self, to: ConnectionId, notice: &AccessNotice) {
        let regions = notice.regions();
        let counted = self.peers.get(to).counts() & notice.counts();
        for (at, region) in regions.iter().enumerate() {
            let (completion_data, counted) =
                if at + 1 == regions.len() { (notice.completion_data(), counted) } else { (None, Counts::empty()) };
            self.wrote(to, *region, notice.counts() & Counts::REGION | counted, completion_data);
        }
    }

    /// Notifies the target that its region with this key and this generation was accessed, if the target counts or
    /// reports that.
    pub(super) fn wrote(
        &mut self,
        to: ConnectionId,
        (key, generation): (u64, u64),
        counts: Counts,
        completion_data: Option<RemoteWriteData>,
    ) {
        if counts.is_empty() && completion_data.is_none() {
            return;
        }
        let mut flags = Flags::ID;
        flags.set(Flags::DATA, completion_data.is_some());
        self.peers.get_mut(to).notice_queued();
        let RemoteWriteData { data, len } = completion_data.unwrap_or(RemoteWriteData { data: 0, len: 0 });
        let head = Head {
            kind: FrameKind::Wrote,
            flags,
            len: size_of::<WriteNotice>() as u32,
            tag: key,
            data,
            id: counts.bits(),
        };
        let notice = WriteNotice { generation: U64::new(generation), len: U64::new(len) };
        self.peers.push(to, LinkAction::Notice(head, notice));
    }

    /// Begins a long access that this endpoint makes itself with the target's help. Returns its number, or `None` if
    /// the access had begun already.
    pub(super) fn start_assisted(
        &mut self,
        slot: ConnectionId,
        waiting: &mut PendingAccess,
        notify: Notify,
        (generation, counts): (u64, Counts),
    ) -> Option<Id<Execution>> {
        let what = waiting.what()?;
        let notice = (!counts.is_empty() || what.data().is_some()).then(|| {
            let mut notice = what.notice(counts);
            what.pieces().iter().for_each(|piece| notice.learn(piece.key, generation));
            notice
        });
        let id = self.remote.start(slot, waiting, notify, notice)?;
        self.peers.get_mut(slot).execution_started();
        Some(id)
    }

    /// Removes an assisted access if it ended (and is reported) in the call that began it, or if no part of it could be
    /// sent.
    pub(super) fn withdraw_assisted(&mut self, slot: ConnectionId, waiting: &mut PendingAccess, id: Id<Execution>) {
        self.remote.withdraw(waiting, id);
        self.peers.get_mut(slot).execution_ended(false);
    }

    /// Ends an assisted access.
    pub(super) fn assisted_end(&mut self, from: ConnectionId, wire: u32, result: Result<(), PullError>) {
        if let Some(id) = self.remote.access_of(from, wire) {
            let result = result.map_err(|error| match error {
                PullError::Unknown => {
                    (ErrorCode::TimedOut, "the queue pair failed; the write may or may not have been executed".into())
                }
                other => {
                    let refusal = pull_refusal(other);
                    (refused_code(refusal), refusal.to_string().into())
                }
            });
            self.access_step(id, result);
        }
    }

    /// Fails the accesses that were being executed over a closed connection.
    pub(super) fn accesses_down(&mut self, from: ConnectionId, error: ErrorCode, why: &str) {
        let peer = self.peers.source(from);
        for access in self.remote.take_of(from) {
            let failure = ErrorEntry::new(access.entry(), error).with_text(why.to_owned()).with_peer(peer);
            self.fail(Side::Transmit, access.notify(), failure);
        }
    }
}
