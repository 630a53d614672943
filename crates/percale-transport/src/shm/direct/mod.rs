//! Direct access: an initiator on the same machine reads and writes a target's regions itself.
//!
//! The initiator sends one request for each key ([`FrameKind::Resolve`]). The target *grants* the region to this peer:
//! it writes a generation to an entry of the *key page* that it shares with this peer, and its answer
//! ([`FrameKind::Resolved`]) describes how the memory is reached: in an arena that the peer maps, by CMA, or not at all
//! (in which case the target executes each access). From then on an access needs no request: the initiator checks
//! rights and range, announces the access, checks whether the entry is valid, copies, and ends the announcement
//! ([`rundown`](crate::local_memory::rundown)).
//!
//! * `resolution`: the answer as it is sent, and its checks
//! * `grantee`: the target's record of the peer, with its key page
//! * `target`: the target's answers to requests
//! * `grants`: the initiator's table of keys
//! * `access`: the initiator's operations. `link/regions.rs` contains the corresponding methods of the link.
//! * `path`: the check, the announcement and the copy of an access
//! * `assist`: long accesses with the help of the target
//!
//! Limits: a target keeps at most [`REQUEST_LIMIT`] pending requests, and grants at most [`ENTRIES`] regions to a peer
//! at a time. An initiator keeps at most 64 Ki keys.
//!
//! # Trust
//! Everything that the target sends is checked before it is used: ranges must lie within mappings of this process, and
//! entries within the page. Content that the target writes to the page or an arena is compared or copied, and never
//! used as an address. The initiator's checks of rights and ranges prevent mistakes, not attacks, because the
//! initiator's process could map the memory anyway. If peers may not write memory, they get a descriptor for it that
//! cannot be mapped for writing.

mod access;
mod assist;
mod error;
mod grantee;
mod grants;
mod path;
mod resolution;
mod target;

#[cfg(all(test, not(loom)))]
mod tests;

use std::sync::Arc;

pub(super) use self::access::Initiator;
use self::assist::AssistedAccess;
pub(super) use self::assist::AssistedRequest;
pub use self::assist::{ASSISTED, LongAccess};
pub use self::error::DirectError;
use self::grants::RequestNeeded;
pub use self::grants::{GrantIndex, Lookup};
use self::target::AccessTarget;
use super::connection_end::ConnectionEnd;
use super::pair::PairMemory;
use super::sender::{RingSender, SendError};
use super::transfer::{Arenas, Cma};
use crate::Refused;
use crate::local_memory::rundown::KeyPageEntry;
use crate::local_memory::volatile::{Segments, View};
use crate::peer_process::PeerProcess;
use crate::region::{AccessOrigin, Keys};
use crate::wire::head::{Flags, FrameKind, Head};

/// The number of requests of one peer that may be pending.
const REQUEST_LIMIT: usize = 64;
/// The size of a key page in bytes. Its memory is allocated as needed.
const PAGE_BYTES: usize = 64 << 10;
/// The number of regions that are granted to one peer at a time.
const ENTRIES: usize = PAGE_BYTES / size_of::<KeyPageEntry>();

/// Both sides of one link's direct accesses. A link without requests about keys allocates nothing here.
#[derive(Debug)]
pub(super) struct Direct {
    /// The regions of this domain, or `None` if peers must not reach them directly.
    keys: Option<Arc<Keys>>,
    /// The origin of the peer's accesses.
    via: AccessOrigin,
    /// The peer's process.
    process: Option<Arc<PeerProcess>>,
    target: Option<Box<AccessTarget>>,
    initiator: Option<Box<Initiator>>,
    /// A long access of this side that has not ended yet.
    assisted: Option<AssistedRequest>,
}

/// The parts of a link that its direct accesses need.
pub(super) struct LinkParts<'a> {
    pub(super) pair: &'a Arc<PairMemory>,
    pub(super) side: usize,
    pub(super) end: &'a Arc<ConnectionEnd>,
    pub(super) cma: Option<&'a Cma>,
    pub(super) arenas: &'a mut Arenas,
    pub(super) sender: &'a mut RingSender,
}

impl Direct {
    pub(super) const fn new(keys: Option<Arc<Keys>>, via: AccessOrigin, process: Option<Arc<PeerProcess>>) -> Self {
        Self { keys, via, process, target: None, initiator: None, assisted: None }
    }

    /// Returns whether there is nothing to do: all requests are answered, and no long access is in progress.
    #[inline]
    pub(super) fn is_settled(&self) -> bool {
        self.target.as_ref().is_none_or(|target| target.owed.is_empty() && target.help.is_none())
            && self.assisted.is_none()
    }

    /// Executes a long access ([`assist`]). Returns whether it has ended.
    #[inline(never)]
    pub(super) fn assisted(&mut self, long: &LongAccess<'_>, mut link: LinkParts<'_>) -> Result<bool, DirectError> {
        let initiator = self.initiator.as_mut().ok_or(DirectError::Stale)?;
        debug_assert!(self.assisted.is_none(), "one long access at a time");
        let pair = Arc::clone(link.pair);
        self.assisted = initiator.assisted(long, pair.claims(link.side), &mut link)?;
        Ok(self.assisted.is_none())
    }

    /// Returns whether a long access has not ended yet.
    pub(super) const fn is_assisted(&self) -> bool {
        self.assisted.is_some()
    }

    /// Returns the token and the result of the pending long access, once it has ended.
    pub(super) fn assisted_end(&mut self, pair: &PairMemory, side: usize) -> Option<(u32, Result<(), DirectError>)> {
        let assisted = self.assisted.as_ref()?;
        let end = (assisted.token(), assisted.end(pair.claims(side))?);
        self.assisted = None;
        Some(end)
    }

    /// Removes and returns the long access that has not ended yet, for a link that has ended. Returns `None` if the
    /// target has released it.
    pub(super) fn take_assisted(&mut self, pair: &PairMemory, side: usize) -> Option<AssistedRequest> {
        self.assisted.take().filter(|assisted| !assisted.has_released(pair, side))
    }

    /// Writes to an entry of the key page that this side shares with its peer. Returns whether there is a page.
    #[cfg(all(any(test, feature = "testing"), not(loom)))]
    pub(super) fn forge_entry(&self, entry: u32, generation: u64) -> bool {
        let grantee = self.target.as_ref().and_then(|target| target.grantee.as_ref());
        grantee.is_some_and(|grantee| grantee.forge_entry(entry, generation))
    }

    /// Returns the peer's process.
    pub(super) const fn process(&self) -> Option<&Arc<PeerProcess>> {
        self.process.as_ref()
    }

    /// Copies a chunk of the access for which the peer requested help. Returns false if no chunk was copied.
    pub(super) fn help(&mut self, pair: &PairMemory, side: usize) -> bool {
        let Some(target) = &mut self.target else { return false };
        let helped = target.help.as_ref().is_some_and(|help| help.step(pair.claims(1 - side)));
        if !helped {
            target.help = None;
        }
        helped
    }

    /// Returns the initiator's side with its grants, if this side has sent any request.
    #[inline]
    pub(super) fn initiator(&mut self) -> Option<&mut Initiator> {
        self.initiator.as_deref_mut()
    }

    /// Looks up a key, and sends a request to the target if there is no entry for it.
    #[inline(never)]
    pub(super) fn ask(&mut self, key: u64, link: LinkParts<'_>) -> Result<Lookup, SendError> {
        let initiator = self
            .initiator
            .get_or_insert_with(|| Box::new(Initiator::new(Arc::clone(link.pair), link.side, Arc::clone(link.end))));
        let id = match initiator.look_up(key) {
            RequestNeeded::Known(lookup) => return Ok(lookup),
            RequestNeeded::New(id) => id,
        };
        let head = Head { kind: FrameKind::Resolve, flags: Flags::DATA | Flags::ID, data: key, id, ..Head::default() };
        if let Err(error) = link.sender.send(&head, &Segments::EMPTY, false) {
            initiator.grants().answered(id);
            if error != SendError::Refused(Refused::Full) {
                return Err(error);
            }
        }
        Ok(Lookup::Unknown)
    }

    /// Handles a frame of direct access.
    ///
    /// # Errors
    /// If the peer violated the protocol.
    #[cold]
    pub(super) fn frame(&mut self, head: &Head, payload: View<'_>, link: LinkParts<'_>) -> Result<(), &'static str> {
        if !head.flags.contains(Flags::ID) {
            return Err("key request or reply without a number");
        }
        if head.kind == FrameKind::Assist {
            // A second request arrives only after the first access has ended.
            let target = self.target.get_or_insert_default();
            target.help = match (&self.keys, &target.grantee) {
                (Some(keys), Some(grantee)) => {
                    AssistedAccess::of(head, payload, (keys, self.via), grantee, link.cma, link.arenas)?
                }
                // Only a peer to which a region was granted makes direct accesses.
                _ => return Err("a request for help without a grant"),
            };
            return Ok(());
        }
        if head.kind == FrameKind::Resolve {
            let target = self.target.get_or_insert_default();
            if target.owed.len() >= REQUEST_LIMIT {
                return Err("too many key requests in progress");
            }
            target.owed.push_back((head.id, head.data));
            return Ok(());
        }
        let initiator = self.initiator.as_mut().ok_or("unexpected reply about a key")?;
        initiator.resolved(head.id, payload, link)
    }

    /// Sends the answers for which there is room. Returns whether any was sent.
    #[cold]
    pub(super) fn answer(&mut self, link: LinkParts<'_>) -> Result<bool, SendError> {
        match &mut self.target {
            Some(target) => target.answer(self.keys.as_deref(), self.via, self.process.as_ref(), link),
            None => Ok(false),
        }
    }
}
