//! Regions, and the operations that read and write them.
//!
//! A region is divided into blocks. Only one operation at a time uses a block, so its expected contents are known. Each
//! of the last two blocks contains one word for atomic operations.

#![expect(unsafe_code, reason = "posts operations on memory that it keeps until they have ended")]

use std::collections::HashMap;

use percale::{
    Access, AtomicOp, AtomicWork, Buffer, Datatype, OpFlags, PeerAddress, PostError, RawRegion, Region, RemoteMemory,
    RemotePieces, RmaWork, Segments,
};

use super::handles::Handle;
use super::{Port, World, on};
use crate::search::ledger::{Fault, Life, Verdict};
use crate::search::lent::Lent;
use crate::search::payload;
use crate::search::step::{AccessBy, BLOCKS};

/// The size of a block in bytes.
pub(super) const BLOCK: usize = 600;
/// The number of blocks that contain words.
pub(super) const WORDS: usize = 2;

/// The expected contents of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Content {
    /// The data that this operation wrote.
    Of(u64),
    /// A word with this value.
    Word(u64),
    /// Unknown, because an operation failed.
    Unknown,
}

pub(super) enum AccessMemory {
    Safe(Region),
    Raw(RawRegion, Lent),
}

struct KnownRegion {
    place: usize,
    name: RemoteMemory,
    /// `None` after the region was closed.
    memory: Option<AccessMemory>,
    blocks: [Content; BLOCKS],
    used: [Option<u64>; BLOCKS],
}

/// The target of an operation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Target {
    pub(super) region: usize,
    pub(super) block: usize,
    pub(super) remote: RemoteMemory,
    /// The window through which it is accessed.
    pub(super) window: Option<usize>,
    /// Whether the access may be denied.
    pub(super) may: bool,
    /// Whether the access must be denied.
    pub(super) must: bool,
}

/// An outstanding operation.
#[derive(Clone, Copy, Debug)]
struct Accessing {
    region: usize,
    block: usize,
    window: Option<usize>,
    what: AccessKind,
    life: Life,
}

#[derive(Clone, Copy, Debug)]
enum AccessKind {
    Write,
    Read,
    /// The added number, and whether the previous value is fetched.
    Add(u64, bool),
    /// The compared value, and the value that is written if they are equal.
    Swap(u64, u64),
}

impl AccessKind {
    /// Returns the effect of operation `id` on a block with this content.
    fn drawn(id: u64, by: AccessBy, content: Content) -> Self {
        let value = match content {
            Content::Word(value) => value,
            _ => 0,
        };
        let operand = operand(id);
        match by {
            AccessBy::Write | AccessBy::WriteInject | AccessBy::SafeWrite => Self::Write,
            AccessBy::Read | AccessBy::SafeRead => Self::Read,
            AccessBy::Add | AccessBy::SafeAdd => Self::Add(operand, true),
            AccessBy::AddInject => Self::Add(operand, false),
            AccessBy::Swap(_) => Self::Swap(if id.is_multiple_of(3) { value ^ 1 } else { value }, operand),
        }
    }
}

/// Returns the number that an atomic operation adds, or writes if the comparison succeeds.
const fn operand(id: u64) -> u64 {
    id << 8
}

/// An access that is recorded in the ledger and is about to be posted.
#[derive(Clone, Copy, Debug)]
struct Entered {
    id: u64,
    life: Life,
    port: Port,
    peer: PeerAddress,
    remote: RemoteMemory,
    by: AccessBy,
    what: AccessKind,
}

impl Entered {
    /// Returns the number of accessed bytes.
    const fn bytes(&self) -> usize {
        self.by.len(BLOCK)
    }
}

/// The buffers of an access through the raw API.
#[derive(Default)]
struct AccessBuffers {
    /// Source buffers. An injected operation returns them immediately.
    sources: Vec<Lent>,
    /// Destination buffers.
    results: Vec<Lent>,
}

/// The regions of a run.
#[derive(Default)]
pub(super) struct Regions {
    known: Vec<KnownRegion>,
    under_way: HashMap<u64, Accessing>,
}

impl Regions {
    /// Records that an endpoint was closed. Its outstanding accesses may or may not have been executed.
    pub(super) fn closed(&mut self, life: Life) {
        let gone: Vec<u64> = self.under_way.iter().filter(|(_, one)| one.life == life).map(|(id, _)| *id).collect();
        for id in gone {
            self.lose(id);
        }
    }

    /// Returns the open regions of a place.
    pub(super) fn open_at(&self, place: usize) -> Vec<usize> {
        let is_open = |index: &usize| self.known[*index].place == place && self.known[*index].memory.is_some();
        (0..self.known.len()).filter(is_open).collect()
    }

    /// Returns the memory of a region, or `None` after it was closed.
    pub(super) fn memory(&self, region: usize) -> Option<&AccessMemory> {
        self.known.get(region)?.memory.as_ref()
    }

    /// Returns the outstanding operations through a window.
    pub(super) fn through(&self, window: usize) -> Vec<u64> {
        self.under_way.iter().filter(|(_, one)| one.window == Some(window)).map(|(id, _)| *id).collect()
    }

    /// Marks the block of an operation as unknown, because it cannot be determined whether and when the operation is
    /// executed. The block is not used again.
    pub(super) fn lose(&mut self, id: u64) {
        if let Some(one) = self.under_way.remove(&id) {
            self.known[one.region].blocks[one.block] = Content::Unknown;
        }
    }
}

impl World {
    pub(super) fn register(&mut self, at: usize, raw: bool) -> Verdict {
        if self.regions.known.iter().filter(|one| one.memory.is_some()).count() >= 6 {
            return Ok(());
        }
        let domain = self.seats[at].domain.clone();
        let len = BLOCK * BLOCKS;
        let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
        let id = self.ledger.number();
        let mut bytes = vec![0; len];
        for block in 0..BLOCKS - WORDS {
            payload::fill(id, &mut bytes[block * BLOCK..(block + 1) * BLOCK]);
        }
        let refused =
            |error: &dyn std::fmt::Display| Fault::new("refused without a cause", format!("a region: {error}"));
        let (memory, name) = if raw {
            let lent = self.lender.lend(len)?;
            lent.write(&bytes);
            // SAFETY: the memory is kept until the region is closed.
            let region = unsafe { domain.registration(access).raw(&[lent.segment()], true) };
            let region = region.map_err(|error| refused(&error))?;
            let name = region.remote();
            (AccessMemory::Raw(region, lent), name)
        } else {
            let region = domain.register(bytes, access).map_err(|error| refused(&error))?;
            let name = region.remote();
            (AccessMemory::Safe(region), name)
        };
        let mut blocks = [Content::Of(id); BLOCKS];
        blocks[BLOCKS - WORDS..].fill(Content::Word(0));
        self.regions.known.push(KnownRegion { place: at, name, memory: Some(memory), blocks, used: [None; BLOCKS] });
        Ok(())
    }

    /// Closes a region. If `forget` is set, its handle is forgotten instead, and its memory is leaked.
    pub(super) fn deregister(&mut self, at: usize, nth: usize, forget: bool) -> Verdict {
        let theirs: Vec<usize> = (0..self.regions.known.len())
            .filter(|index| self.regions.known[*index].place == at && self.regions.known[*index].memory.is_some())
            .collect();
        let Some(index) = theirs.get(nth).copied() else { return Ok(()) };
        for (id, one) in &self.regions.under_way {
            if one.region == index
                && let Some(operation) = self.ledger.operation_mut(*id)
            {
                operation.may_be_denied = true;
            }
        }
        let known = &mut self.regions.known[index];
        let id = index as u64 | 1 << 48;
        match known.memory.take() {
            None => Ok(()),
            Some(AccessMemory::Safe(region)) if forget => {
                drop(region);
                Ok(())
            }
            Some(AccessMemory::Safe(region)) => match region.close() {
                Ok(buffer) => {
                    let bytes = buffer.into_vec();
                    self.holds(index, &bytes)?;
                    self.returns.keep(id, bytes)
                }
                Err(error) => {
                    self.regions.known[index].memory = Some(AccessMemory::Safe(error.into_inner()));
                    Ok(())
                }
            },
            Some(AccessMemory::Raw(region, lent)) => match region.close() {
                Ok(()) => {
                    let bytes = lent.read(0, lent.len());
                    self.holds(index, &bytes)?;
                    let watch = self.watch();
                    self.lender.take_back(id, lent, watch)
                }
                Err(error) => {
                    self.regions.known[index].memory = Some(AccessMemory::Raw(error.into_inner(), lent));
                    Ok(())
                }
            },
        }
    }

    /// Checks that the memory of a region contains the data that was written to it.
    fn holds(&self, index: usize, bytes: &[u8]) -> Verdict {
        let known = &self.regions.known[index];
        for (block, content) in known.blocks.iter().enumerate() {
            if known.used[block].is_some() {
                continue;
            }
            let bytes = &bytes[block * BLOCK..(block + 1) * BLOCK];
            let wrong = match content {
                Content::Of(id) => payload::describe(*id, bytes),
                Content::Word(value) => {
                    let found = word(bytes);
                    (found != *value).then(|| format!("the word is {found:#x}, not {value:#x}"))
                }
                Content::Unknown => None,
            };
            if let Some(why) = wrong {
                return Err(Fault::new("wrong memory", format!("block {block} of region {index}: {why}")));
            }
        }
        Ok(())
    }

    pub(super) fn access(
        &mut self,
        at: usize,
        to: usize,
        block: usize,
        by: AccessBy,
        slot: usize,
        fenced: bool,
    ) -> Verdict {
        // Occasionally select a closed region. Its key is no longer valid.
        let theirs: Vec<usize> =
            (0..self.regions.known.len()).filter(|index| self.regions.known[*index].place == to).collect();
        let Some(region) = theirs.iter().rev().nth(block % 3).or(theirs.last()).copied() else { return Ok(()) };
        let block = if by.is_word() { BLOCKS - 1 - block % WORDS } else { block % (BLOCKS - WORDS) };
        let known = &self.regions.known[region];
        let (begin, is_dead) = ((block * BLOCK) as u64, known.memory.is_none());
        let remote = known.name.at(begin..begin + by.len(BLOCK) as u64);
        let target = Target { region, block, remote, window: None, may: is_dead, must: is_dead };
        self.access_target(at, to, target, by, slot, fenced)
    }

    /// Starts or posts an access, unless its block is in use or unknown, or its slot is taken.
    pub(super) fn access_target(
        &mut self,
        at: usize,
        to: usize,
        target: Target,
        by: AccessBy,
        slot: usize,
        fenced: bool,
    ) -> Verdict {
        let Some((life, port)) = self.port(at) else { return Ok(()) };
        let known = &self.regions.known[target.region];
        if known.used[target.block].is_some() || known.blocks[target.block] == Content::Unknown {
            return Ok(());
        }
        let is_safe = matches!(by, AccessBy::SafeWrite | AccessBy::SafeRead | AccessBy::SafeAdd);
        if is_safe && self.held[slot].is_some() {
            return Ok(());
        }
        let id = self.ledger.number();
        let what = AccessKind::drawn(id, by, known.blocks[target.block]);
        self.enter(id, if is_safe { "safe access" } else { "access" }, at, Some(to), true);
        self.enter_access(id, life, target, what);
        let entered = Entered { id, life, port, peer: self.name(to), remote: target.remote, by, what };
        if is_safe { self.start_access(&entered, slot) } else { self.post_access(&entered, fenced) }
    }

    /// Records an outstanding access, and whether it may or must be denied.
    fn enter_access(&mut self, id: u64, life: Life, target: Target, what: AccessKind) {
        let Target { region, block, window, may, must, .. } = target;
        self.regions.known[region].used[block] = Some(id);
        if let Some(operation) = self.ledger.operation_mut(id) {
            (operation.may_be_denied, operation.must_be_denied) = (may, must);
        }
        self.regions.under_way.insert(id, Accessing { region, block, window, what, life });
    }

    /// Starts an access through the safe API, and keeps its handle.
    fn start_access(&mut self, entered: &Entered, slot: usize) -> Verdict {
        let Entered { id, life, port, peer, remote, by, .. } = *entered;
        let len = entered.bytes();
        let read = matches!(by, AccessBy::SafeRead);
        let buffer = if read { vec![0; len] } else { payload::of(id, len) };
        // An operation that returns a number has an internal buffer.
        let is_theirs = matches!(by, AccessBy::SafeAdd);
        let place = if is_theirs { (0, 0) } else { (buffer.as_ptr().addr(), len) };
        let buffer = Buffer::from(buffer);
        let started: Result<Box<dyn Handle>, _> = match by {
            AccessBy::SafeRead => {
                on!(port, endpoint => endpoint.read(peer, remote, buffer).start().map(|one| Box::new(one) as Box<dyn Handle>))
            }
            AccessBy::SafeWrite => {
                on!(port, endpoint => endpoint.write(peer, buffer, remote).start().map(|one| Box::new(one) as Box<dyn Handle>))
            }
            _ => on!(port, endpoint => {
                endpoint.fetch_add(peer, remote, operand(id)).start().map(|one| Box::new(one) as Box<dyn Handle>)
            }),
        };
        if started.is_err() {
            self.never(id);
        }
        self.keep(id, Some(life), slot, place, started)
    }

    /// Posts an access through the raw API, and keeps the buffers that it uses until it has ended.
    fn post_access(&mut self, entered: &Entered, fenced: bool) -> Verdict {
        let id = entered.id;
        let mut flags = OpFlags::COMPLETION;
        flags.set(OpFlags::FENCE, fenced);
        let inject = matches!(entered.by, AccessBy::WriteInject | AccessBy::AddInject | AccessBy::Swap(true));
        flags.set(OpFlags::INJECT, inject);
        let (posted, AccessBuffers { mut sources, mut results }) = match entered.what {
            AccessKind::Write | AccessKind::Read => self.post_transfer(entered, flags)?,
            AccessKind::Add(..) | AccessKind::Swap(..) => self.post_atomic(entered, flags)?,
        };
        // If there is a result buffer, it is the first buffer.
        results.append(&mut if inject && posted.is_ok() { Vec::new() } else { std::mem::take(&mut sources) });
        self.lent.insert(id, results);
        for lent in sources {
            let watch = self.watch();
            self.lender.take_back(id, lent, watch)?;
        }
        posted.or_else(|error| {
            self.never(id);
            self.refused(id, &error)
        })
    }

    /// Posts a read or a write.
    fn post_transfer(&mut self, entered: &Entered, flags: OpFlags) -> Verdict<(Result<(), PostError>, AccessBuffers)> {
        let Entered { id, port, peer, remote, .. } = *entered;
        let lent = self.lend_filled(&payload::of(id, entered.bytes()))?;
        let (local, pieces) = (Segments::one(lent.segment()), RemotePieces::one(remote));
        let segment = lent.segment();
        let work = RmaWork { peer, local, remote: pieces, data: None, context: id, flags };
        let is_read = matches!(entered.what, AccessKind::Read);
        let mut buffers = AccessBuffers::default();
        if is_read {
            buffers.results.push(lent)
        } else {
            buffers.sources.push(lent)
        }
        let by_one = id.is_multiple_of(2);
        // The buffer is kept in `lent` until the operation has ended or, if it is injected, until it was posted.
        let posted = on!(port, endpoint => match (is_read, by_one) {
            // SAFETY: see above.
            (true, false) => unsafe { endpoint.post_read(&work) },
            // SAFETY: see above.
            (true, true) => unsafe { endpoint.post_read_one(peer, segment, remote, id, flags) },
            // SAFETY: see above.
            (false, false) => unsafe { endpoint.post_write(&work) },
            // SAFETY: see above.
            (false, true) => unsafe { endpoint.post_write_one(peer, segment, remote, id, flags) },
        });
        Ok((posted, buffers))
    }

    /// Posts an addition or a compare-and-swap.
    fn post_atomic(&mut self, entered: &Entered, flags: OpFlags) -> Verdict<(Result<(), PostError>, AccessBuffers)> {
        let Entered { id, port, peer, remote, what, .. } = *entered;
        let mut buffers = AccessBuffers::default();
        let operand = self.lend_filled(&operand(id).to_le_bytes())?;
        let result = self.lend_filled(&[0; 8])?;
        let mut work = AtomicWork {
            peer,
            op: AtomicOp::Sum,
            datatype: Datatype::U64,
            operand: Segments::one(operand.segment()),
            compare: None,
            result: matches!(what, AccessKind::Add(_, true) | AccessKind::Swap(..))
                .then(|| Segments::one(result.segment())),
            remote,
            data: None,
            context: id,
            flags,
        };
        buffers.sources.push(operand);
        buffers.results.push(result);
        if let AccessKind::Swap(expected, _) = what {
            let compare = self.lend_filled(&expected.to_le_bytes())?;
            (work.op, work.compare) = (AtomicOp::Cswap, Some(Segments::one(compare.segment())));
            buffers.sources.push(compare);
        }
        // SAFETY: the buffers are kept in `lent` until the operation has ended or, if it is injected, until it was
        // posted.
        let posted = on!(port, endpoint => unsafe { endpoint.post_atomic(&work) });
        Ok((posted, buffers))
    }

    /// Lends a buffer filled with these bytes.
    fn lend_filled(&mut self, bytes: &[u8]) -> Verdict<Lent> {
        let lent = self.lender.lend(bytes.len())?;
        lent.write(bytes);
        Ok(lent)
    }

    /// Records that an access was rejected.
    fn never(&mut self, id: u64) {
        if let Some(one) = self.regions.under_way.remove(&id) {
            self.regions.known[one.region].used[one.block] = None;
        }
    }

    /// Handles the end of an access. Checks the data that it read, and records the data that it wrote. `got` is the
    /// result of a safe operation.
    pub(super) fn accessed(&mut self, id: u64, is_good: bool, got: Option<&[u8]>) -> Verdict {
        let Some(one) = self.regions.under_way.remove(&id) else { return Ok(()) };
        let Accessing { region, block, what, .. } = one;
        let known = &mut self.regions.known[region];
        known.used[block] = None;
        if !is_good {
            // A key that was invalid before the access must not permit it, so the block must be unchanged.
            let was_kept_out = self.ledger.operation(id).is_some_and(|operation| operation.must_be_denied);
            if !matches!(what, AccessKind::Read) && !was_kept_out {
                known.blocks[block] = Content::Unknown;
            }
            return Ok(());
        }
        let lent = self.lent.get(&id).and_then(|lent| lent.first());
        let bytes = got.map_or_else(|| lent.map(|lent| lent.read(0, lent.len())).unwrap_or_default(), <[u8]>::to_vec);
        let content = known.blocks[block];
        let wrong = |why: String| {
            Err(Fault::new("wrong memory", format!("access {id} to block {block} of region {region}: {why}")))
        };
        match (what, content) {
            (AccessKind::Write, _) => known.blocks[block] = Content::Of(id),
            (AccessKind::Read, Content::Of(of)) => {
                if let Some(why) = payload::describe(of, &bytes) {
                    return wrong(why);
                }
            }
            (AccessKind::Add(operand, fetches), Content::Word(value)) => {
                known.blocks[block] = Content::Word(value.wrapping_add(operand));
                if fetches && word(&bytes) != value {
                    return wrong(format!("the operation fetched {:#x} instead of {value:#x}", word(&bytes)));
                }
            }
            (AccessKind::Swap(expected, new), Content::Word(value)) => {
                known.blocks[block] = Content::Word(if expected == value { new } else { value });
                if word(&bytes) != value {
                    return wrong(format!("the operation fetched {:#x} instead of {value:#x}", word(&bytes)));
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Closes every region.
    pub(super) fn close_regions(&mut self) -> Verdict {
        for place in 0..self.seats.len() {
            for _ in 0..8 {
                self.deregister(place, 0, false)?;
            }
        }
        match self.regions.known.iter().position(|one| one.memory.is_some()) {
            Some(index) => Err(Fault::new(
                "region never closed",
                format!("region {index} is reported as in use, but no access is outstanding"),
            )),
            None => Ok(()),
        }
    }
}

fn word(bytes: &[u8]) -> u64 {
    bytes.get(..8).and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_le_bytes)
}
