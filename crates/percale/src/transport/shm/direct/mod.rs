//! Direct access: an initiator on the same machine reads and writes a target's regions by itself.
//!
//! The initiator asks once for each key ([`Kind::Resolve`]); the target *grants* the region to this peer: it puts a generation
//! into an entry of the *key page* that it shows this peer, and answers how the memory is reached ([`Kind::Resolved`]): in an
//! arena that the peer maps, by CMA, or not at all (then the target executes each access). From then on an access asks nobody:
//! it checks right and range, announces itself, looks whether the entry holds, copies, and leaves
//! ([`rundown`](crate::memory::rundown)).
//!
//! * `resolution`: the answer as it travels, and its checks
//! * `grantee`: the target's record of the peer, with its key page; `target`: answers
//! * `grants`: what the initiator knows, by key; `access`: its operations; `path`: how their bytes move; `face`: what a link's
//!   owner calls
//! * `assist`: long accesses that the target helps with
//!
//! Bounds: a target answers at most [`ASKED`] questions that are under way, and grants at most [`ENTRIES`] regions to a peer at a
//! time; an initiator keeps at most 64 Ki keys.
//!
//! # Trust
//! What the target says is checked before it is believed: ranges lie within mappings of ours, entries within the page. What it
//! writes into the page or an arena is compared or copied, never followed. The initiator's checks of rights and ranges stop
//! mistakes, not attackers: they are made by whoever could map the memory anyhow. Memory that peers may not write is given by
//! descriptors that cannot be mapped for writing.

mod access;
mod assist;
mod face;
mod grantee;
mod grants;
mod path;
mod resolution;
mod target;

#[cfg(all(test, not(loom)))]
mod tests;

use std::sync::Arc;

pub(crate) use self::access::DirectError;
pub(super) use self::access::Initiator;
use self::assist::Help;
pub(crate) use self::assist::{ASSISTED, LongAccess};
pub(super) use self::assist::{Assisted, Claims};
use self::grants::Asked;
pub(crate) use self::grants::{GrantIndex, Lookup};
use self::target::Target;
use super::connection_end::ConnectionEnd;
use super::pair::Pair;
use super::sender::{SendError, Sender};
use super::transfer::{Arenas, Cma};
use crate::memory::region::{Keys, Via};
use crate::memory::rundown::Entry;
use crate::memory::volatile::{Segments, View};
use crate::transport::Refused;
use crate::transport::peer_process::PeerProcess;
use crate::wire::head::{Flags, Head, Kind};

/// Questions of one peer that may be under way.
const ASKED: usize = 64;
/// Bytes of a key page. Its pages come as they are needed.
const PAGE_BYTES: usize = 64 << 10;
/// Regions that are granted to one peer at a time.
const ENTRIES: usize = PAGE_BYTES / size_of::<Entry>();

/// Both sides of one link's direct accesses. A link whose peers never ask has nothing allocated here.
#[derive(Debug)]
pub(super) struct Direct {
    /// Our regions; `None` if peers must not reach them by themselves.
    keys: Option<Arc<Keys>>,
    /// Through whom the peer's accesses come.
    via: Via,
    /// The peer's process.
    process: Option<Arc<PeerProcess>>,
    target: Option<Box<Target>>,
    initiator: Option<Box<Initiator>>,
    /// A long access of ours that has yet to end.
    assisted: Option<Assisted>,
}

/// What of a link its direct accesses need.
pub(super) struct Side<'a> {
    pub(super) pair: &'a Arc<Pair>,
    pub(super) side: usize,
    pub(super) end: &'a Arc<ConnectionEnd>,
    pub(super) cma: Option<&'a Cma>,
    pub(super) arenas: &'a mut Arenas,
    pub(super) sender: &'a mut Sender,
}

impl Direct {
    pub(super) const fn new(keys: Option<Arc<Keys>>, via: Via, process: Option<Arc<PeerProcess>>) -> Self {
        Self { keys, via, process, target: None, initiator: None, assisted: None }
    }

    /// Whether there is nothing to do: no answer waits for room, no long access goes on.
    #[inline]
    pub(super) fn is_settled(&self) -> bool {
        self.target.as_ref().is_none_or(|target| target.owed.is_empty() && target.help.is_none())
            && self.assisted.is_none()
    }

    /// Makes a long access ([`assist`]). Whether it is over.
    #[inline(never)]
    pub(super) fn assisted(&mut self, long: &LongAccess<'_>, mut link: Side<'_>) -> Result<bool, DirectError> {
        let initiator = self.initiator.as_mut().ok_or(DirectError::Stale)?;
        debug_assert!(self.assisted.is_none(), "one long access at a time");
        let pair = Arc::clone(link.pair);
        self.assisted = initiator.assisted(long, pair.claims(link.side), &mut link)?;
        Ok(self.assisted.is_none())
    }

    /// Whether a long access has yet to end.
    pub(super) const fn is_assisted(&self) -> bool {
        self.assisted.is_some()
    }

    /// The end of a long access that had yet to come.
    pub(super) fn assisted_end(&mut self, pair: &Pair, side: usize) -> Option<(u32, Result<(), DirectError>)> {
        let assisted = self.assisted.as_ref()?;
        let end = (assisted.token(), assisted.end(pair.claims(side))?);
        self.assisted = None;
        Some(end)
    }

    /// The link is over: a long access that has yet to end.
    pub(super) fn take_assisted(&mut self, pair: &Pair, side: usize) -> Option<Assisted> {
        self.assisted.take().filter(|assisted| !assisted.has_let_go(pair, side))
    }

    /// The peer's process.
    pub(super) const fn process(&self) -> Option<&Arc<PeerProcess>> {
        self.process.as_ref()
    }

    /// Copies a chunk of what the peer asked us to help with. Whether there was one.
    pub(super) fn help(&mut self, pair: &Pair, side: usize) -> bool {
        let Some(target) = &mut self.target else { return false };
        let helped = target.help.as_ref().is_some_and(|help| help.step(pair.claims(1 - side)));
        if !helped {
            target.help = None;
        }
        helped
    }

    /// The grants that we were given, if we ever asked.
    #[inline]
    pub(super) fn initiator(&mut self) -> Option<&mut Initiator> {
        self.initiator.as_deref_mut()
    }

    /// What is known of a key; asks the target, if nothing is.
    #[inline(never)]
    pub(super) fn ask(&mut self, key: u64, link: Side<'_>) -> Result<Lookup, SendError> {
        let initiator = self
            .initiator
            .get_or_insert_with(|| Box::new(Initiator::new(Arc::clone(link.pair), link.side, Arc::clone(link.end))));
        let id = match initiator.look_up(key) {
            Asked::Known(lookup) => return Ok(lookup),
            Asked::New(id) => id,
        };
        let head = Head { kind: Kind::Resolve, flags: Flags::DATA | Flags::ID, data: key, id, ..Head::default() };
        if let Err(error) = link.sender.send(&head, &Segments::EMPTY, false) {
            initiator.grants().answered(id);
            if error != SendError::Refused(Refused::Full) {
                return Err(error);
            }
        }
        Ok(Lookup::Unknown)
    }

    /// A frame of direct access.
    ///
    /// # Errors
    /// What the peer did wrong.
    #[cold]
    pub(super) fn frame(&mut self, head: &Head, payload: View<'_>, link: Side<'_>) -> Result<(), &'static str> {
        if !head.flags.contains(Flags::ID) {
            return Err("a question about a key, or its answer, without a number");
        }
        if head.kind == Kind::Assist {
            // A second request comes when the first is over.
            let target = self.target.get_or_insert_default();
            target.help = match (&self.keys, &target.grantee) {
                (Some(keys), Some(grantee)) => {
                    Help::of(head, payload, (keys, self.via), grantee, link.cma, link.arenas)?
                }
                _ => None,
            };
            return Ok(());
        }
        if head.kind == Kind::Resolve {
            let target = self.target.get_or_insert_default();
            if target.owed.len() >= ASKED {
                return Err("more questions about keys than may be under way");
            }
            target.owed.push_back((head.id, head.data));
            return Ok(());
        }
        let initiator = self.initiator.as_mut().ok_or("an answer about a key that nobody asked for")?;
        initiator.resolved(head.id, payload, link)
    }

    /// Sends the answers that there is room for. Whether any was sent.
    #[cold]
    pub(super) fn answer(&mut self, link: Side<'_>) -> Result<bool, SendError> {
        match &mut self.target {
            Some(target) => target.answer(self.keys.as_deref(), self.via, self.process.as_ref(), link),
            None => Ok(false),
        }
    }
}
