//! The target's answers to a peer's requests for grants.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use std::collections::VecDeque;
use std::sync::Arc;

use zerocopy::IntoBytes;

use super::LinkParts;
use super::assist::AssistedAccess;
use super::grantee::{KeyPageFull, ShmGrantee};
use super::resolution::{Resolution, Status};
use crate::Refused;
use crate::local_memory::access::AccessExt as _;
use crate::local_memory::volatile::{Segments, SegmentsExt as _};
use crate::peer_process::PeerProcess;
use crate::region::{AccessOrigin, Keys, Registered};
use crate::shm::sender::SendError;
use crate::shm::transfer::{Arenas, Sharing};
use crate::wire::head::{Flags, FrameKind, Head};

/// The location of memory, as its status, its offset or address, and its arena.
type MemoryLocation = (Status, u64, u32);

/// The target's side of direct access: answers requests for grants.
#[derive(Debug, Default)]
pub(super) struct AccessTarget {
    /// The number and key of each request that has not been answered yet.
    pub(super) owed: VecDeque<(u32, u64)>,
    /// A long access of the peer that this side helps with.
    pub(super) help: Option<AssistedAccess>,
    pub(super) grantee: Option<Arc<ShmGrantee>>,
}

impl Drop for AccessTarget {
    fn drop(&mut self) {
        if let Some(grantee) = &self.grantee {
            grantee.end();
        }
    }
}

impl AccessTarget {
    /// Answers as many requests as there is room for. Returns whether any was answered.
    pub(super) fn answer(
        &mut self,
        keys: Option<&Keys>,
        via: AccessOrigin,
        process: Option<&Arc<PeerProcess>>,
        mut link: LinkParts<'_>,
    ) -> Result<bool, SendError> {
        let mut any = false;
        while let Some(&(id, key)) = self.owed.front() {
            let resolution = match keys.map(|keys| keys.find(key, via)) {
                None => Resolution::of(Status::Executed),
                Some(Err(_)) => Resolution::of(Status::NoKey),
                Some(Ok(region)) => self.resolve(&region, process, &mut link),
            };
            let len = size_of::<Resolution>() as u32;
            let head = Head { kind: FrameKind::Resolved, flags: Flags::ID, len, id, ..Head::default() };
            match Segments::lend(resolution.as_bytes(), |payload| link.sender.send(&head, payload, false)) {
                Ok(()) => {}
                // The region stays granted. The next attempt finds the grant.
                Err(SendError::Refused(Refused::Full)) => return Ok(any),
                Err(error) => return Err(error),
            }
            self.owed.pop_front();
            any = true;
        }
        Ok(any)
    }

    /// Grants a region, if the peer can reach it.
    fn resolve(
        &mut self,
        region: &Arc<Registered>,
        process: Option<&Arc<PeerProcess>>,
        link: &mut LinkParts<'_>,
    ) -> Resolution {
        let rights = Resolution::rights_of(region.rights());
        let (true, Some((status, place, arena))) = (rights != 0 && region.len() != 0, place(region, link.arenas))
        else {
            return Resolution::of(Status::Executed);
        };
        let Some(grantee) = self.grantee(process, link) else { return Resolution::of(Status::Executed) };
        match grantee.grant(region) {
            Err(KeyPageFull) => Resolution::of(Status::Executed),
            Ok(None) => Resolution::of(Status::NoKey),
            Ok(Some((entry, generation))) => Resolution {
                status: status as u8,
                rights,
                notify: (!region.counters().is_empty()).into(),
                reserved: 0,
                entry: entry.into(),
                generation: generation.into(),
                base: region.base().into(),
                len: region.len().into(),
                place: place.into(),
                arena: arena.into(),
                page: grantee.page().0.into(),
            },
        }
    }

    /// Returns the record of the peer, which is created on first use. Returns `None` if it cannot be created, or if its
    /// page cannot be given to the peer.
    fn grantee(&mut self, process: Option<&Arc<PeerProcess>>, link: &mut LinkParts<'_>) -> Option<&Arc<ShmGrantee>> {
        let grantee = match &mut self.grantee {
            Some(grantee) => grantee,
            none => {
                let made = ShmGrantee::new(link.pair, link.side, process).inspect_err(
                    |error| crate::later::later!(warn: %error, "cannot allocate a key page: accesses are executed by this process"),
                );
                none.insert(Arc::new(made.ok()?))
            }
        };
        let (number, size, fd) = grantee.page();
        link.arenas.give((number, Sharing::ReadOnly), size, fd).then_some(grantee)
    }
}

/// Returns how a peer can reach a region's memory.
fn place(region: &Registered, arenas: &mut Arenas) -> Option<MemoryLocation> {
    if region.device().is_some() {
        return None; // The driver of the device copies in this process.
    }
    let writable = region.rights().changes();
    if let Some(located) = region.located() {
        let sharing = if writable { Sharing::Writable } else { Sharing::ReadOnly };
        if arenas.give((located.arena, sharing), located.size, &located.fd) {
            return Some((Status::Mapped, located.offset, located.arena));
        }
    }
    match region.place().as_slice() {
        [only] => Some((Status::Cma, only.as_ptr().expose_provenance() as u64, 0)),
        _ => None,
    }
}
