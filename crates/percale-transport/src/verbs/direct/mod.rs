//! Direct access: an initiator reads and writes a target's regions by RDMA, and the target's processor takes no part.
//!
//! What travels names percale's keys. The first access by a key is executed by the target; meanwhile the initiator has a queue pair
//! made for its accesses ([`Kind::QueuePair`]) and asks where the region lies ([`Kind::Locate`]). The target *grants* the region to this
//! peer: it registers the memory with the device, with the region's rights, and answers how the device names it
//! ([`Kind::Located`]). From then on the initiator posts RDMA reads and writes by itself.
//!
//! * `initiator`, with `grants` (what it knows, by key), `lane` (its queue pair, and what was posted there) and `local` (registrations of
//!   operations' own memory)
//! * `target`: answers; `grantee`: what is granted to a peer, and how; `record`: what was, by number, and its end; `windows`: those of the device
//! * `making`: queue pairs, which are made and ended by threads of their own (`makers`)
//!
//! # Revocation
//! A grant is a registration in a *protection domain that this peer's queue pair alone is in*. Revoking it ends the registration:
//! when ibv_dereg_mr has returned, the device lets no access through, so revoking waits for no peer, dead or alive. A remote key has
//! 32 bits and can be guessed: in a protection domain of its own it is worth nothing to other peers.
//!
//! A window is granted by binding one of the device's over that queue pair, to a registration without rights; revoking that takes the device's window
//! back, and waits for this device alone (`windows`). With its queue pair it ends, too.
//!
//! A late access, through a key that is gone, is refused by the device, which puts that queue pair in error. Nothing else uses that queue pair: each
//! direction has one of its own, apart from the one of the frames. A refusal implies that what was posted before was done and what was posted after
//! was not; so the refused access and those behind it are then executed by the target, in their order, which gives each access the right result. A
//! new queue pair is made for later accesses. The target also reports that a grant is gone ([`Kind::Revoked`]), so that late accesses are rare.
//!
//! **A target's end in error** answers nothing. The target detects this when it takes a window back, or it puts its end in error itself because
//! something does not end. In both cases it notifies the initiator. The initiator then posts nothing more to that end, and asks for another one as
//! soon as what is under way is over. What was acknowledged has been done. Reads, and accesses by grants that are gone, are executed by the target,
//! because it cannot be observed that such an access is made twice. A write by a grant that stands fails, because it is unknown whether it was made.
//! The connection goes on.
//!
//! **The device reuses keys.** A late access must not find its key valid for another region. So the target grants nothing under a key that it has
//! used for this peer before, until the peer has confirmed that nothing it posted names the old one any more. For a window of type 2 this is checked
//! before it is bound, because its next key is known. In all other cases the driver chooses the key, and it is checked a moment after it becomes
//! valid.
//!
//! # Trust
//! Everything that either side sends is checked. A hostile target's grant can make the initiator's accesses to that target fail, and nothing else. A
//! hostile initiator reaches what it was granted, as far as rights and range go, until it is revoked: the device checks.

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
pub use self::local::Registers;
use self::target::Target;
use super::Wire;
use crate::local_memory::volatile::{Segments, SegmentsExt as _, View, ViewExt as _};
use crate::region::{Keys, RemoteMemory, Via};
use crate::tcp::StreamLink;
use crate::wire::head::{Flags, Head, Kind};
use crate::wire::queue_pair::{Offered, OfferedBytes};
use crate::{Broken, Connection, Link, Refused, Sink};

/// The most frames that may wait for room: more than there can be grants to report in both directions. A peer that asks and never reads is
/// disconnected.
const OWED: usize = 3 * record::GRANTS;

/// In the `id` of a frame about a queue pair.
const ASKS: u32 = 0;
const ANSWERS: u32 = 1;
/// In the `tag` of a frame about a grant that is gone, or about the queue pair.
const GONE: u64 = 0;
const FORGOTTEN: u64 = 1;
const OVER: u64 = 2;

/// Why an access was not posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unposted {
    /// No room now.
    Full,
    /// The grant is gone, or the queue pair, or the memory of the operation cannot be registered.
    Unreachable,
    /// The device refuses. The connection ends.
    Broken,
}

/// Both sides of a link's direct accesses. Nothing is allocated here for a link without accesses to regions.
#[derive(Debug)]
pub(super) struct Direct {
    /// Our regions; `None` if peers must not reach them by themselves.
    keys: Option<Arc<Keys>>,
    /// The origin of the peer's accesses.
    via: Via,
    pins: Pins,
    initiator: Option<Box<Initiator>>,
    target: Option<Box<Target>>,
    /// Frames that have to be sent.
    owed: Owed,
    /// Accesses were given back just now.
    gave_back: bool,
}

/// Frames that wait for room in the link, in order.
#[derive(Debug, Default)]
pub(super) struct Owed(VecDeque<(Head, Vec<u8>)>);

impl Owed {
    fn push(&mut self, head: Head, payload: &[u8]) {
        let head = Head { flags: head.flags | Flags::ID, len: payload.len() as u32, ..head };
        self.0.push_back((head, payload.to_vec()));
    }

    /// Queues the name of a queue pair of ours, or the reason why there is none.
    fn offer(&mut self, id: u32, offered: &Offered) {
        self.push(Head { kind: Kind::QueuePair, id, ..Head::default() }, OfferedBytes::of(offered).as_bytes());
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
    pub(super) fn new(keys: Option<Arc<Keys>>, via: Via, pins: Pins) -> Self {
        Self { keys, via, pins, initiator: None, target: None, owed: Owed::default(), gave_back: false }
    }

    /// Returns whether a frame of this kind is for [`frame`](Self::frame).
    #[inline]
    pub(super) const fn takes(kind: Kind) -> bool {
        matches!(kind, Kind::QueuePair | Kind::Locate | Kind::Located | Kind::Revoked)
    }

    /// A frame of direct access.
    ///
    /// # Errors
    /// What the peer did wrong.
    #[cold]
    pub(super) fn frame(&mut self, wire: &WireParts, head: &Head, payload: View<'_>) -> Result<(), &'static str> {
        if head.flags != Flags::ID {
            return Err("a frame about direct access without a number");
        }
        if self.owed.0.len() >= OWED {
            return Err("more questions about regions than answers are taken");
        }
        let initiator = self.initiator.as_mut().ok_or("an answer about direct access that nobody asked for");
        match (head.kind, head.id, head.tag) {
            (Kind::QueuePair, ASKS, _) => {
                let peer =
                    offered(payload)?.map_err(|_| "it asks for the other end of a queue pair that it does not have")?;
                let target = self.target.get_or_insert_default();
                target.asked(self.keys.is_some(), wire, peer, &mut self.owed)
            }
            (Kind::QueuePair, ANSWERS, _) => initiator?.answered(wire, offered(payload)?),
            (Kind::Locate, ..) => {
                let target = self.target.as_mut().ok_or("a question about a region without a queue pair")?;
                let located = target.locate(self.keys.as_deref(), self.via, head.data);
                self.owed.push(Head { kind: Kind::Located, id: head.id, ..Head::default() }, located.as_bytes());
                Ok(())
            }
            (Kind::Located, ..) => initiator?.located(head.id, payload),
            (Kind::Revoked, _, GONE) => initiator?.revoked(head.id, head.data),
            (Kind::Revoked, 0, OVER) if head.data == 0 => {
                initiator?.over();
                Ok(())
            }
            (Kind::Revoked, _, FORGOTTEN) => {
                let target = self.target.as_mut().ok_or("it forgets what was never granted")?;
                target.forgotten(head.id)
            }
            _ => Err("a frame about direct access that does not exist"),
        }
    }

    /// Takes completions, advances queue pairs being made, and sends the frames that are due. Returns whether anything happened.
    ///
    /// # Errors
    /// If the connection cannot go on.
    #[inline]
    pub(super) fn progress(
        &mut self,
        wire: &WireParts,
        me: Connection,
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
        me: Connection,
        frames: &mut StreamLink<Wire>,
        sink: &mut impl Sink,
    ) -> Result<bool, Broken> {
        let mut any = false;
        self.gave_back = false;
        if let Some(initiator) = &mut self.initiator {
            any |= initiator.completions(me, frames.stream_mut(), sink)?;
            initiator.retire();
            self.gave_back = initiator.give_back(me, sink);
            any |= self.gave_back | initiator.go_on(&mut self.owed);
        }
        if let Some(target) = &mut self.target {
            any |= target.go_on(wire, &mut self.owed);
        }
        Ok(any | self.owed.send(frames))
    }

    /// Returns whether there is work that only continues with calls to [`progress`](Self::progress): a queue pair being made, or dead, frames to be
    /// sent, accesses that were given back.
    #[inline]
    pub(super) fn has_chores(&self) -> bool {
        !self.owed.0.is_empty()
            || self.gave_back
            || self.initiator.as_ref().is_some_and(|initiator| initiator.has_chores())
            || self.target.as_ref().is_some_and(|target| target.has_chores())
    }

    /// Returns whether nothing is under way that needs this side.
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        !self.has_chores() && self.initiator.as_ref().is_none_or(|initiator| initiator.is_calm())
    }

    /// Returns whether an access can be posted. If the peer was never asked about the region, it is.
    pub(super) fn reaches(&mut self, wire: &WireParts, remote: &RemoteMemory, writes: bool) -> bool {
        let initiator = self.initiator.get_or_insert_with(|| Box::new(Initiator::new(&self.pins)));
        initiator.reaches(wire, remote, writes, &mut self.owed)
    }

    /// Posts an access, or a part of one, to what is [reached](Self::reaches). The sink reports its end, with `token`.
    pub(super) fn post(
        &mut self,
        writes: bool,
        remote: &RemoteMemory,
        local: &Segments,
        token: u32,
    ) -> Result<(), Unposted> {
        self.initiator.as_mut().ok_or(Unposted::Unreachable)?.post(writes, remote, local, token)
    }

    /// Bytes of one request at most.
    pub(super) fn longest(&self) -> u64 {
        self.initiator.as_ref().map_or(1, |initiator| initiator.longest())
    }

    /// In words, how accesses to the peer's regions are made, and those to ours.
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

/// What of a wire queue pairs for accesses are made with.
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
        return Err("a queue pair that is not described");
    }
    payload.read_into(&mut bytes);
    let read = OfferedBytes::read_from_bytes(&bytes).map_err(|_| "a queue pair that is not described")?;
    read.parse().map_err(|_| "a queue pair that does not exist")
}
