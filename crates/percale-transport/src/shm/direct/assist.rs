//! Long accesses with the help of the target.
//!
//! The initiator can execute the access alone, but two sides copy faster than one. So it announces the range to copy
//! ([`FrameKind::Assist`]), and both sides claim chunks: the initiator at once, and the target if it makes progress in
//! the meantime. Each side copies the chunks that it has claimed: the initiator under its announcement, the target
//! inside the pin of its region. A target that is busy does not claim any chunk, and the initiator copies everything.
//! At the end the initiator waits only for chunks that the target has claimed.
//!
//! A [`Claims`] line of the pair counts the chunks of both sides. Each count is stored together with the number of its
//! access, so a late claim finds a different number and fails. The initiator does not start a second access before the
//! first has ended.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use std::sync::Arc;

use zerocopy::IntoBytes;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, KnownLayout};

use super::access::Initiator;
use super::error::DirectError;
use super::grantee::ShmGrantee;
use super::{GrantIndex, LinkParts};
use crate::PullError;
use crate::local_memory::volatile::{Segments, SegmentsExt as _, View, ViewExt as _};
use crate::region::lease::Lease;
use crate::region::{Access, AccessOrigin, Keys};
use crate::shm::pair::{Claims, PairMemory};
use crate::shm::sync::Ordering;
use crate::shm::transfer::{Arenas, Cma, CopyFailure, ReportedLocation, TransferRoute};
use crate::wire::form::ASSIST_BYTES;
use crate::wire::head::{Flags, FrameKind, Head};

/// Accesses longer than this request help, because only then is the message to the target worth its cost.
pub const ASSISTED: usize = 128 << 10;

/// The number of bytes that one claim copies.
const CHUNK: usize = 64 << 10;

/// The number of checks for chunks that the target has claimed and not finished. After these checks the call returns,
/// and the access ends later.
const LOOKS: u32 = 256;

/// The count of the next chunk that means that no chunk can be claimed any more.
const STOP: u32 = u32::MAX;

/// The reasons, in [`Claims::failed`], why the target did not copy a chunk that it had claimed.
const REVOKED: u32 = 1;
const FAULT: u32 = 2;

/// The range to copy: the payload of a [`FrameKind::Assist`] frame. The key and the address are in the frame's head.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct AssistRequest {
    /// The length in bytes.
    len: U64,
    /// The location of the bytes at the initiator: an offset in an arena of its own, or an address.
    place: U64,
    /// The number of that arena, or 0.
    arena: U32,
    /// 1 if the region is written.
    writes: U32,
    /// The generation of the initiator's grant. The key may have been assigned to another region since then. In this
    /// case the target does not help.
    generation: U64,
}

const _: () = assert!(size_of::<AssistRequest>() == ASSIST_BYTES);

const fn word(number: u32, count: u32) -> u64 {
    (number as u64) << 32 | count as u64
}

/// An access of this side that waits for chunks that the target has claimed.
#[derive(Debug)]
pub(in super::super) struct AssistedRequest {
    token: u32,
    /// The value that `done` has when all awaited chunks are finished.
    awaited: u64,
    result: Result<(), DirectError>,
}

impl AssistedRequest {
    /// Returns the result, once the access has ended.
    pub(in super::super) fn end(&self, claims: &Claims) -> Option<Result<(), DirectError>> {
        if claims.done.load(Ordering::Acquire) != self.awaited {
            return None;
        }
        let failed = claims.failed.load(Ordering::Relaxed);
        let number = (self.awaited >> 32) as u32;
        Some(self.result.and(match failed {
            _ if failed == word(number, REVOKED) => Err(DirectError::Stale),
            _ if failed == word(number, FAULT) => Err(DirectError::Fault),
            _ => Ok(()),
        }))
    }

    /// Returns whether the target cannot have a copy for this access in progress.
    pub(in super::super) fn has_released(&self, pair: &PairMemory, side: usize) -> bool {
        self.end(pair.claims(side)).is_some() || pair.gone(side ^ 1).is_set()
    }

    /// Returns the token with which the access was started.
    pub(in super::super) const fn token(&self) -> u32 {
        self.token
    }
}

/// A long access, as requested by the engine.
#[derive(Clone, Copy, Debug)]
pub struct LongAccess<'a> {
    /// The grant of the region.
    pub grant: GrantIndex,
    /// The key of the region.
    pub key: u64,
    /// The address in the region.
    pub address: u64,
    /// The local memory.
    pub local: &'a Segments,
    /// Whether the region is written; otherwise it is read.
    pub writes: bool,
    /// Identifies the access if it does not end in the call that starts it.
    pub token: u32,
}

impl Initiator {
    /// Executes a long access, with the target's help if the target responds. Returns `Some` if the access will end
    /// later.
    pub(super) fn assisted(
        &mut self,
        long: &LongAccess<'_>,
        claims: &Claims,
        link: &mut LinkParts<'_>,
    ) -> Result<Option<AssistedRequest>, DirectError> {
        let wanted = if long.writes { Access::REMOTE_WRITE } else { Access::REMOTE_READ };
        let generation = self.check_standing(long.grant, long.address, long.local.len(), wanted)?;
        let number = self.next_assist();
        claims.failed.store(word(number, 0), Ordering::Relaxed);
        claims.done.store(word(number, 0), Ordering::Relaxed);
        claims.next.store(word(number, 0), Ordering::Release);
        ask(long, number, generation, link);
        let chunks = long.local.len().div_ceil(CHUNK) as u64;
        let mut ours = 0;
        let result = loop {
            let next = u64::from(claims.next.fetch_add(1, Ordering::AcqRel) as u32);
            if next >= chunks || ours >= chunks {
                break Ok(()); // Everything is claimed. (If the peer writes arbitrary counts, `ours` ends the loop.)
            }
            ours = ours.wrapping_add(1);
            let done = (next as usize).saturating_mul(CHUNK);
            let (at, part) = (long.address.wrapping_add(done as u64), long.local.slice(done, CHUNK));
            let copied = if long.writes { self.write(long.grant, at, &part) } else { self.read(long.grant, at, &part) };
            if copied.is_err() {
                break copied;
            }
        };
        // From here on no chunk can be claimed. All claimed chunks that are not this side's are the target's.
        let claimed = u64::from(claims.next.swap(word(number, STOP), Ordering::AcqRel) as u32).min(chunks);
        let theirs = claimed.saturating_sub(ours) as u32;
        let assisted = AssistedRequest { token: long.token, awaited: word(number, theirs), result };
        for _ in 0..LOOKS {
            if let Some(result) = assisted.end(claims) {
                return result.map(|()| None);
            }
            std::hint::spin_loop();
        }
        Ok(Some(assisted))
    }
}

/// Sends the request for help if the target is awake. Waking it up would take longer than the access.
fn ask(long: &LongAccess<'_>, number: u32, generation: u64, link: &mut LinkParts<'_>) {
    if !link.sender.peer_is_awake() {
        return;
    }
    let (arena, offset) = link.arenas.name(long.local);
    let place = match long.local.as_slice() {
        [_] if arena != 0 => offset,
        [only] => only.as_ptr().expose_provenance() as u64,
        _ => return,
    };
    let request = AssistRequest {
        len: (long.local.len() as u64).into(),
        place: place.into(),
        arena: arena.into(),
        writes: u32::from(long.writes).into(),
        generation: generation.into(),
    };
    let head = Head {
        kind: FrameKind::Assist,
        flags: Flags::DATA | Flags::ID,
        len: size_of::<AssistRequest>() as u32,
        tag: long.address,
        data: long.key,
        id: number,
    };
    // If there is no room or no link, the target does not help. The link reports its own errors.
    Segments::lend(request.as_bytes(), |payload| link.sender.send(&head, payload, false)).ok();
}

/// An access of the peer that this side helps with.
#[derive(Debug)]
pub(super) struct AssistedAccess {
    number: u32,
    region: Lease,
    way: TransferRoute,
    writes: bool,
}

impl AssistedAccess {
    /// Decodes the peer's request. Returns `None` if this side cannot or must not help.
    ///
    /// # Errors
    /// If the peer violated the protocol.
    pub(super) fn of(
        head: &Head,
        payload: View<'_>,
        (keys, via): (&Keys, AccessOrigin),
        grantee: &Arc<ShmGrantee>,
        cma: Option<&Cma>,
        arenas: &mut Arenas,
    ) -> Result<Option<Self>, &'static str> {
        let request = payload.read::<AssistRequest>(0).ok_or("a request for help that is too short")?;
        let (len, writes) = (request.len.get(), request.writes.get() != 0);
        if request.writes.get() > 1 {
            return Err("a malformed request for help");
        }
        let wanted = if writes { Access::REMOTE_WRITE } else { Access::REMOTE_READ };
        let Ok(region) = keys.find(head.data, via) else { return Ok(None) };
        if grantee.generation_of(&region) != Some(request.generation.get()) {
            return Ok(None);
        }
        // Memory that only the kernel may touch is refused here.
        let Ok(region) = region.lease(head.tag, len, wanted) else { return Ok(None) };
        let (arena, place) = (request.arena.get(), request.place.get());
        let reported =
            ReportedLocation { pieces: 1, arena, offset: place, address: if arena == 0 { place } else { 0 } };
        let way = TransferRoute::to(&reported, len, arenas, cma)?;
        Ok(way.exists().then_some(Self { number: head.id, region, way, writes }))
    }

    /// Claims a chunk and copies it. Returns false if there is nothing left for this side, or if the copy failed. After
    /// that this side does not claim any more chunks.
    pub(super) fn step(&self, claims: &Claims) -> bool {
        let next = claims.next.load(Ordering::Acquire);
        let offset = (next as u32 as usize).saturating_mul(CHUNK);
        if (next >> 32) as u32 != self.number || offset >= self.region.len() {
            return false;
        }
        if claims.next.compare_exchange(next, next.wrapping_add(1), Ordering::AcqRel, Ordering::Relaxed).is_err() {
            return true; // The initiator was faster; there may be more chunks.
        }
        let len = CHUNK.min(self.region.len().saturating_sub(offset));
        let copied = if self.writes {
            self.way.fetch(&self.region, offset, len)
        } else {
            self.way.store(&self.region, offset, len)
        };
        finish(claims, self.number, copied);
        copied.is_ok()
    }
}

/// Reports that the target has finished a chunk of the access with this number. If it could not copy the chunk, the
/// whole access fails, with the error that corresponds to the reason.
fn finish(claims: &Claims, number: u32, copied: Result<(), CopyFailure>) {
    if let Err(error) = copied {
        let why = if error == CopyFailure::Failed(PullError::Fault) { FAULT } else { REVOKED };
        claims.failed.store(word(number, why), Ordering::Relaxed);
    }
    claims.done.fetch_add(1, Ordering::Release);
}

#[cfg(all(test, not(loom)))]
#[path = "tests/assisted.rs"]
mod tests;

#[cfg(all(test, loom))]
mod model {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;
    use crate::shm::sync::{AtomicU64, explore};

    /// The initiator finds that the target has finished its chunks, the first of which it has copied. If it could not
    /// copy the second, the access fails.
    #[test]
    fn loom_access_with_a_failed_chunk_fails() {
        let [fault, revoked] = [PullError::Fault, PullError::Revoked].map(|error| Err(CopyFailure::Failed(error)));
        for (second, expected) in [
            (Ok(()), Ok(())),
            (fault, Err(DirectError::Fault)),
            (revoked, Err(DirectError::Stale)),
            (Err(CopyFailure::Closed), Err(DirectError::Stale)),
        ] {
            explore(None, 5, move || {
                let [next, done, failed] = [2, 0, 0].map(|count| AtomicU64::new(word(1, count)));
                let shared = Arc::new((Claims { next, done, failed }, AtomicU64::new(0)));
                let target = {
                    let shared = Arc::clone(&shared);
                    thread::spawn(move || {
                        let (claims, memory) = &*shared;
                        memory.store(7, Ordering::Relaxed);
                        finish(claims, 1, Ok(()));
                        finish(claims, 1, second);
                    })
                };
                let access = AssistedRequest { token: 1, awaited: word(1, 2), result: Ok(()) };
                let (claims, memory) = &*shared;
                if let Some(result) = access.end(claims) {
                    assert_eq!((result, memory.load(Ordering::Relaxed)), (expected, 7));
                }
                target.join().unwrap();
                assert_eq!(access.end(claims), Some(expected));
            });
        }
    }
}
