//! Direct access: an initiator reads and writes a target's regions by RDMA, without involving the target's CPU.
//!
//! Operations name regions by percale's keys. The first access with a key is executed by the target. Meanwhile the
//! initiator creates a queue pair for its accesses ([`FrameKind::QueuePair`]) and sends a request for the location of
//! the region ([`FrameKind::Locate`]). The target *grants* the region to this peer: it registers the memory with the
//! device, with the region's rights, and answers with the address and the remote key ([`FrameKind::Located`]). From
//! then on the initiator posts RDMA reads and writes itself.
//!
//! * `initiator`: the initiator's side of a link
//! * `grants`: the initiator's table of regions, by key
//! * `lane`: the initiator's queue pair and the outstanding requests
//! * `local`: registrations of the operations' own memory
//! * `target`: the target's side of a link, and its answers
//! * `grantee`: the target's grants to a peer
//! * `record`: these grants by number, and their end
//! * `windows`: the device's windows
//! * `making`: queue pairs, which are created and destroyed by separate threads (`makers`)
//!
//! # Revocation
//! A grant is a registration in a *protection domain that contains only this peer's queue pair*. Revoking the grant
//! ends the registration. After ibv_dereg_mr has returned, the device does not allow any access, so a revocation never
//! waits for a peer, whether it is alive or not. A remote key has 32 bits and can be guessed. Because of the separate
//! protection domain it is useless to other peers.
//!
//! A window is granted by binding one of the device's windows over that queue pair, to a registration without rights
//! for peers. Revoking it unbinds the device's window, and waits only for the local device (`windows`). The window also
//! ends with its queue pair.
//!
//! A late access uses a key that is no longer valid. The device refuses it and sets that queue pair to the error state.
//! Nothing else uses that queue pair: there is one for each direction, separate from the queue pair of the frames. A
//! refusal implies that all requests posted before the refused one took place, and none posted after it. So the refused
//! access and the accesses after it are then executed by the target, in their order, which gives each access the right
//! result. A new queue pair is created for later accesses. The target also reports that a grant has ended
//! ([`FrameKind::Revoked`]), so that late accesses are rare.
//!
//! **A target's end in the error state** does not answer. The target detects this state when it unbinds a window, or it
//! sets its end to the error state itself because it cannot end a window or registration. In both cases it notifies the
//! initiator. The initiator then stops posting to that end, and requests a new one as soon as the outstanding accesses
//! have ended. Acknowledged accesses took place. Reads, and accesses with grants that have ended, are executed by the
//! target, because a repetition of them cannot be observed. A write with a grant that still exists fails, because it is
//! unknown whether it took place. The connection continues.
//!
//! **The device reuses keys.** The key of a late access must not be valid for another region. So the target does not
//! make a grant with a remote key that it has used for this peer before, until the peer has confirmed that no
//! outstanding request uses the old grant. For a window of type 2 this is checked before it is bound, because its next
//! key can be computed. In all other cases the driver chooses the key, and the key is checked immediately after it has
//! become valid.
//!
//! # Trust
//! Everything that either side sends is checked. A grant from a hostile target can make the initiator's accesses to
//! that target fail, and has no other effect. A hostile initiator reaches only memory that was granted to it, within
//! rights and range, and only until the grant is revoked. The device enforces this.

#[cfg(any(test, fuzzing))]
mod fuzz;
mod grantee;
mod grants;
mod initiator;
mod lane;
mod local;
mod making;
mod record;
mod target;
#[cfg(all(test, not(loom)))]
mod tests;
#[cfg(all(test, not(loom)))]
mod window_tests;
mod windows;

use std::collections::VecDeque;
use std::sync::Arc;

use zerocopy::{FromBytes, IntoBytes};

#[cfg(any(test, fuzzing))]
pub use self::fuzz::fuzz_grants;
use self::initiator::Initiator;
pub use self::local::Pins;
#[cfg(not(loom))]
pub use self::local::{EarlyRegistration, Registers};
use self::target::AccessTarget;
use super::Wire;
use crate::local_memory::volatile::{Segments, SegmentsExt as _, View, ViewExt as _};
use crate::region::{AccessOrigin, Keys, RemoteMemory};
use crate::tcp::StreamLink;
use crate::wire::head::{Flags, FrameKind, Head};
use crate::wire::queue_pair::{Offered, OfferedBytes};
use crate::{Broken, ConnectionId, Link, Refused, Sink};

/// The maximum number of frames that may wait for room. This is more than the number of grants to report in both
/// directions. A peer that sends requests and never reads is disconnected.
const PENDING_LIMIT: usize = 3 * record::GRANTS;

/// The values of the `id` of a frame about a queue pair.
const ASKS: u32 = 0;
const ANSWERS: u32 = 1;
/// The values of the `tag` of a frame about a grant that has ended, or about the queue pair.
const GONE: u64 = 0;
const FORGOTTEN: u64 = 1;
const OVER: u64 = 2;

/// The reason why an access was not posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PostFailure {
    /// There is no room at the moment.
    Full,
    /// The grant or the queue pair no longer exists, or the memory of the operation cannot be registered.
    Unreachable,
    /// The device refuses the request. The connection ends.
    Broken,
}

/// Both sides of a link's direct accesses. A link without accesses to regions allocates nothing here.
#[derive(Debug)]
pub(super) struct Direct {
    /// The local regions, or `None` if peers must not access them directly.
    keys: Option<Arc<Keys>>,
    /// The origin of the peer's accesses.
    via: AccessOrigin,
    pins: Pins,
    initiator: Option<Box<Initiator>>,
    target: Option<Box<AccessTarget>>,
    /// Frames that are waiting to be sent.
    pending_frames: PendingFrames,
    /// Whether accesses were returned to the engine in the last call.
    gave_back: bool,
}

/// Frames that wait for room in the link, in order.
#[derive(Debug, Default)]
pub(super) struct PendingFrames(VecDeque<(Head, Vec<u8>)>);

impl PendingFrames {
    fn push(&mut self, head: Head, payload: &[u8]) {
        let head = Head { flags: head.flags | Flags::ID, len: payload.len() as u32, ..head };
        self.0.push_back((head, payload.to_vec()));
    }

    /// Queues a frame with the end of a queue pair of this side, or the reason why there is none.
    fn offer(&mut self, id: u32, offered: &Offered) {
        self.push(Head { kind: FrameKind::QueuePair, id, ..Head::default() }, OfferedBytes::of(offered).as_bytes());
    }

    /// Sends as many frames as there is room for. Returns whether any was sent.
    fn send(&mut self, frames: &mut StreamLink<Wire>) -> bool {
        let mut any = false;
        while let Some((head, payload)) = self.0.front() {
            let sent = Segments::lend(payload, |payload| frames.send(head, payload, false));
            match sent {
                Ok(()) => drop(self.0.pop_front()),
                Err(Refused::Full) => break,
                Err(Refused::Broken) => self.0.clear(),
            }
            any = true;
        }
        any
    }
}

impl Direct {
    pub(super) fn new(keys: Option<Arc<Keys>>, via: AccessOrigin, pins: Pins) -> Self {
        Self {
            keys,
            via,
            pins,
            initiator: None,
            target: None,
            pending_frames: PendingFrames::default(),
            gave_back: false,
        }
    }

    /// Returns whether frames of this kind are handled by [`frame`](Self::frame).
    #[inline]
    pub(super) const fn takes(kind: FrameKind) -> bool {
        matches!(kind, FrameKind::QueuePair | FrameKind::Locate | FrameKind::Located | FrameKind::Revoked)
    }

    /// Handles a frame of direct access.
    ///
    /// # Errors
    /// If the peer violated the protocol.
    #[cold]
    pub(super) fn frame(&mut self, wire: &WireParts, head: &Head, payload: View<'_>) -> Result<(), &'static str> {
        if head.flags != Flags::ID {
            return Err("a frame about direct access without a number");
        }
        if self.pending_frames.0.len() >= PENDING_LIMIT {
            return Err("too many requests about regions");
        }
        let initiator = self.initiator.as_mut().ok_or("unexpected reply about direct access");
        match (head.kind, head.id, head.tag) {
            (FrameKind::QueuePair, ASKS, _) => {
                let peer = offered(payload)?.map_err(|_| "request to connect an invalid queue pair")?;
                let target = self.target.get_or_insert_default();
                target.handle_request(self.keys.is_some(), wire, peer, &mut self.pending_frames)
            }
            (FrameKind::QueuePair, ANSWERS, _) => initiator?.answered(wire, offered(payload)?),
            (FrameKind::Locate, ..) => {
                let target = self.target.as_mut().ok_or("a question about a region without a queue pair")?;
                let located = target.locate(self.keys.as_deref(), self.via, head.data);
                self.pending_frames
                    .push(Head { kind: FrameKind::Located, id: head.id, ..Head::default() }, located.as_bytes());
                Ok(())
            }
            (FrameKind::Located, ..) => initiator?.located(head.id, payload),
            (FrameKind::Revoked, _, GONE) => initiator?.revoked(head.id, head.data),
            (FrameKind::Revoked, 0, OVER) if head.data == 0 => {
                initiator?.over();
                Ok(())
            }
            (FrameKind::Revoked, _, FORGOTTEN) => {
                let target = self.target.as_mut().ok_or("acknowledgement for an unknown grant")?;
                target.forgotten(head.id)
            }
            _ => Err("unknown frame about direct access"),
        }
    }

    /// Processes completions, advances the creation of queue pairs, and sends the frames that are due. Returns whether
    /// anything happened.
    ///
    /// # Errors
    /// If the connection cannot continue.
    #[inline]
    pub(super) fn progress(
        &mut self,
        wire: &WireParts,
        me: ConnectionId,
        frames: &mut StreamLink<Wire>,
        sink: &mut impl Sink,
    ) -> Result<bool, Broken> {
        if self.initiator.is_none() && self.target.is_none() {
            return Ok(false);
        }
        self.progress_slowly(wire, me, frames, sink)
    }

    #[inline(never)]
    fn progress_slowly(
        &mut self,
        wire: &WireParts,
        me: ConnectionId,
        frames: &mut StreamLink<Wire>,
        sink: &mut impl Sink,
    ) -> Result<bool, Broken> {
        let mut any = false;
        self.gave_back = false;
        if let Some(initiator) = &mut self.initiator {
            any |= initiator.completions(me, frames.stream_mut(), sink)?;
            initiator.retire();
            self.gave_back = initiator.give_back(me, sink);
            any |= self.gave_back | initiator.advance(&mut self.pending_frames);
        }
        if let Some(target) = &mut self.target {
            any |= target.advance(wire, &mut self.pending_frames);
        }
        Ok(any | self.pending_frames.send(frames))
    }

    /// Returns whether there is work that continues only in calls to [`progress`](Self::progress): a queue pair that is
    /// being created, a device that does not accept requests, frames to send, or accesses that were returned to the
    /// engine.
    #[inline]
    pub(super) fn has_background_work(&self) -> bool {
        !self.pending_frames.0.is_empty()
            || self.gave_back
            || self.initiator.as_ref().is_some_and(|initiator| initiator.has_background_work())
            || self.target.as_ref().is_some_and(|target| target.has_background_work())
    }

    /// Returns whether there is no work and no outstanding access that needs this side.
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        !self.has_background_work() && self.initiator.as_ref().is_none_or(|initiator| initiator.is_calm())
    }

    /// Returns whether an access can be posted. Sends a request to the peer if there is no entry for the region.
    pub(super) fn reaches(&mut self, wire: &WireParts, remote: &RemoteMemory, writes: bool) -> bool {
        let initiator = self.initiator.get_or_insert_with(|| Box::new(Initiator::new(&self.pins)));
        initiator.reaches(wire, remote, writes, &mut self.pending_frames)
    }

    /// Posts an access, or a part of one, for which [`reaches`](Self::reaches) returned true. Its end is reported to
    /// the sink with `token`.
    pub(super) fn post(
        &mut self,
        writes: bool,
        remote: &RemoteMemory,
        local: &Segments,
        token: u32,
    ) -> Result<(), PostFailure> {
        self.initiator.as_mut().ok_or(PostFailure::Unreachable)?.post(writes, remote, local, token)
    }

    /// Returns the maximum number of bytes of one request.
    pub(super) fn longest(&self) -> u64 {
        self.initiator.as_ref().map_or(1, |initiator| initiator.longest())
    }

    /// Describes as text how the peer's regions and local regions are accessed.
    pub(super) fn describe(&self) -> String {
        let ours = self.initiator.as_ref().map_or_else(|| "no accesses".to_owned(), |initiator| initiator.describe());
        match self.target.as_ref().and_then(|target| target.describe()) {
            Some(peers) => format!("{ours}; {peers}"),
            None => ours,
        }
    }

    #[cfg(all(any(test, feature = "testing"), not(loom)))]
    pub(super) fn fail_lane(&self) {
        self.initiator.as_ref().expect("an initiator").fail();
    }

    #[cfg(all(any(test, feature = "testing"), not(loom)))]
    pub(super) fn fail_granted(&self) {
        self.target.as_ref().expect("a target").fail();
    }
}

/// The parts of a wire that are needed to create queue pairs for accesses.
#[derive(Clone, Debug)]
pub(super) struct WireParts {
    pub(super) adapter: Arc<super::Adapter>,
    pub(super) queue: Arc<super::CompletionQueue>,
    /// The peer's address.
    pub(super) peer: Option<super::Gid>,
}

/// Decodes the payload of a frame about a queue pair.
fn offered(payload: View<'_>) -> Result<Offered, &'static str> {
    let mut bytes = [0; size_of::<OfferedBytes>()];
    if payload.len() != bytes.len() {
        return Err("queue pair without a description");
    }
    payload.read_into(&mut bytes);
    let read = OfferedBytes::read_from_bytes(&bytes).map_err(|_| "queue pair without a description")?;
    read.parse().map_err(|_| "invalid queue pair")
}
