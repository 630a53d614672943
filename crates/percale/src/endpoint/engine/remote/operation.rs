//! An access to the memory of a peer, and its progress while it waits.

use super::super::counting::counts_of_atomic;
use super::{Execution, PART_LIMIT};
use crate::completion::entry::{CompletionFlags, Entry};
use crate::endpoint::operation::RawOperation;
use crate::endpoint::posted::{Constant, Posted};
use crate::endpoint::remote_work::{AtomicWork, RmaWork};
use crate::endpoint::work::{OpFlags, PostError};
use crate::local_memory::atomic::{AtomicKind, AtomicOp};
use crate::local_memory::volatile::{IOV_LIMIT, Segments};
use crate::region::{MappedKeys, RemoteMemory};
use crate::table::Id;
use crate::types::PeerAddress;
use crate::wire::head::Counts;

/// The operation of an access.
#[derive(Clone, Copy, Debug)]
pub(crate) enum AccessOperation {
    /// Write to the peer's memory.
    Write(RmaWork),
    /// Read the peer's memory.
    Read(RmaWork),
    /// Read or change the peer's memory atomically.
    Atomic(AtomicWork),
}

impl From<AccessOperation> for RawOperation {
    fn from(what: AccessOperation) -> Self {
        match what {
            AccessOperation::Write(work) => Self::Write(work),
            AccessOperation::Read(work) => Self::Read(work),
            AccessOperation::Atomic(work) => Self::Atomic(work),
        }
    }
}

impl AccessOperation {
    /// Returns the flags of the operation.
    pub(crate) const fn flags(&self) -> OpFlags {
        match self {
            Self::Write(work) | Self::Read(work) => work.flags,
            Self::Atomic(work) => work.flags,
        }
    }

    /// Returns the completion of the operation.
    #[inline]
    pub(in super::super) fn entry(&self) -> Entry {
        match self {
            Self::Write(work) => rma_entry(true, work.context, work.remote.len()),
            Self::Read(work) => rma_entry(false, work.context, work.remote.len()),
            Self::Atomic(work) => atomic_entry(work),
        }
    }

    /// Returns the peer whose memory is accessed.
    pub(in super::super) const fn peer(&self) -> PeerAddress {
        match self {
            Self::Write(work) | Self::Read(work) => work.peer,
            Self::Atomic(work) => work.peer,
        }
    }

    /// Returns the pieces of the peer's memory.
    pub(in super::super) fn pieces(&self) -> &[RemoteMemory] {
        match self {
            Self::Write(work) | Self::Read(work) => work.remote.as_slice(),
            Self::Atomic(work) => std::slice::from_ref(&work.remote),
        }
    }

    /// Returns the same operation with mapped keys replaced by the peers' own keys.
    pub(in super::super) fn translated(self, mapped: &MappedKeys) -> Result<Self, PostError> {
        let own = |piece: RemoteMemory| -> Result<RemoteMemory, PostError> {
            match piece.key {
                key if mapped.gave(key) => {
                    let key = mapped.find(key).filter(|own| !mapped.gave(*own)).ok_or(PostError::NotMapped(key))?;
                    Ok(RemoteMemory { key, ..piece })
                }
                _ => Ok(piece),
            }
        };
        let all =
            |work: RmaWork| -> Result<RmaWork, PostError> { Ok(RmaWork { remote: work.remote.try_map(own)?, ..work }) };
        Ok(match self {
            Self::Write(work) => Self::Write(all(work)?),
            Self::Read(work) => Self::Read(all(work)?),
            Self::Atomic(work) => Self::Atomic(AtomicWork { remote: own(work.remote)?, ..work }),
        })
    }

    pub(in super::super) const fn data(&self) -> Option<u64> {
        match self {
            Self::Write(work) => work.data,
            Self::Read(_) => None,
            Self::Atomic(work) => work.data,
        }
    }

    /// Returns the data and the length that the target reports, if it has to report the access.
    #[inline]
    pub(in super::super) fn completion_data(&self) -> Option<RemoteWriteData> {
        self.data().map(|data| RemoteWriteData { data, len: self.entry().len })
    }

    /// Returns the part with this number: the peer's memory, and the offset of the part in the local memory.
    pub(in super::super) fn part(&self, number: u64) -> Option<(RemoteMemory, u64)> {
        self.part_of(number, PART_LIMIT)
    }

    /// Like [`part`](Self::part), but for parts of at most `limit` bytes.
    pub(in super::super) fn part_of(&self, number: u64, limit: u64) -> Option<(RemoteMemory, u64)> {
        let (mut left, mut local) = (number, 0);
        for piece in self.pieces() {
            let parts = piece.len.div_ceil(limit).max(1);
            if left < parts {
                let start = left.saturating_mul(limit);
                let part = piece.at(start..start.saturating_add(limit).min(piece.len));
                return Some((part, start.saturating_add(local)));
            }
            left = left.saturating_sub(parts);
            local = piece.len.saturating_add(local);
        }
        None
    }

    /// Returns whether the access changes the peer's memory.
    pub(in super::super) fn changes(&self) -> bool {
        match self {
            Self::Write(_) => true,
            Self::Read(_) => false,
            Self::Atomic(work) => work.op != AtomicOp::Read,
        }
    }

    /// Returns which counters count the access at its target.
    #[inline]
    pub(in super::super) fn counts(&self) -> Counts {
        match self {
            Self::Write(_) => Counts::REGION | Counts::WRITES,
            Self::Read(_) => Counts::READS,
            Self::Atomic(work) => counts_of_atomic(work.op, atomic_kind(work)),
        }
    }

    /// Returns the notice that the target gets when the access has ended: the counts that it has yet to make, and the
    /// data.
    pub(in super::super) fn notice(&self, counts: Counts) -> AccessNotice {
        let mut notice =
            AccessNotice { regions: [(0, 0); IOV_LIMIT], count: 0, counts, completion_data: self.completion_data() };
        for piece in self.pieces() {
            if !notice.regions().iter().any(|(key, _)| *key == piece.key) {
                notice.regions[notice.count] = (piece.key, 0);
                notice.count = notice.count.saturating_add(1);
            }
        }
        notice
    }
}

/// Returns the completion of a read or a write.
#[inline]
pub(in super::super) fn rma_entry(write: bool, context: u64, len: u64) -> Entry {
    let kind = if write { CompletionFlags::WRITE } else { CompletionFlags::READ };
    Entry { context, flags: CompletionFlags::RMA | kind, len, ..Entry::default() }
}

/// Returns the completion of an atomic operation that fetches a word.
#[inline]
pub(in super::super) fn word_entry(context: u64) -> Entry {
    Entry { context, flags: CompletionFlags::ATOMIC | CompletionFlags::READ, len: 8, ..Entry::default() }
}

/// Returns the completion of an atomic operation.
#[inline]
pub(in super::super) fn atomic_entry(work: &AtomicWork) -> Entry {
    let kind = if work.result.is_some() { CompletionFlags::READ } else { CompletionFlags::WRITE };
    let (context, flags, len) = (work.context, CompletionFlags::ATOMIC | kind, work.remote.len);
    Entry { context, flags, len, ..Entry::default() }
}

/// Returns the kind of an atomic operation.
#[inline]
pub(in super::super) fn atomic_kind(work: &AtomicWork) -> AtomicKind {
    match (work.compare.is_some(), work.result.is_some()) {
        (true, _) => AtomicKind::Compare,
        (false, true) => AtomicKind::Fetch,
        (false, false) => AtomicKind::Plain,
    }
}

/// An access with parts that have not left yet.
#[derive(Debug)]
pub(crate) struct PendingAccess {
    state: PendingAccessState,
    /// The number of parts that have left.
    sent: u64,
    /// Whether the target has to execute the access because the device cannot make it.
    executed_only: bool,
}

/// The progress of a waiting access.
#[derive(Debug)]
enum PendingAccessState {
    /// No part has left.
    Untouched(Box<Posted<AccessOperation>>),
    /// The access has begun, and its execution owns the memory that it uses.
    Started(Id<Execution>),
}

impl PendingAccess {
    pub(in super::super) const fn new(posted: Box<Posted<AccessOperation>>) -> Self {
        Self { state: PendingAccessState::Untouched(posted), sent: 0, executed_only: false }
    }

    /// Returns the number of parts that have left.
    pub(in super::super) const fn sent(&self) -> u64 {
        self.sent
    }

    /// Counts a part that has left.
    pub(in super::super) const fn part_sent(&mut self) {
        self.sent = self.sent.saturating_add(1);
    }

    /// Returns whether the target has to execute the access because the device cannot make it.
    pub(in super::super) const fn is_executed_only(&self) -> bool {
        self.executed_only
    }

    /// Records that the target has to execute the access.
    pub(in super::super) const fn execute_only(&mut self) {
        self.executed_only = true;
    }

    /// Returns the execution of the access, if it has begun.
    pub(in super::super) const fn started(&self) -> Option<Id<Execution>> {
        match self.state {
            PendingAccessState::Started(id) => Some(id),
            PendingAccessState::Untouched(_) => None,
        }
    }

    /// Begins the access as the execution with this number, which takes over the memory that it uses. Returns `None` if
    /// it had begun already.
    pub(super) fn start(&mut self, id: Id<Execution>) -> Option<Box<Posted<AccessOperation>>> {
        match std::mem::replace(&mut self.state, PendingAccessState::Started(id)) {
            PendingAccessState::Untouched(posted) => Some(posted),
            begun @ PendingAccessState::Started(_) => {
                self.state = begun;
                None
            }
        }
    }

    /// Restarts the access, with the memory of its execution, which has ended. The parts that have left no longer
    /// count.
    pub(in super::super) fn restart(&mut self, posted: Box<Posted<AccessOperation>>) {
        (self.state, self.sent) = (PendingAccessState::Untouched(posted), 0);
    }

    /// Returns the flags of the access while no part has left. After that, the flags do not delay it any more.
    pub(crate) fn flags(&self) -> OpFlags {
        self.what().map_or(OpFlags::empty(), AccessOperation::flags)
    }

    /// Returns the completion of the access while no part has left. After that, the access ends with its execution.
    pub(crate) fn entry(&self) -> Option<Entry> {
        self.what().map(AccessOperation::entry)
    }

    /// Returns the operation while no part has left.
    pub(in super::super) fn what(&self) -> Option<&AccessOperation> {
        match &self.state {
            PendingAccessState::Untouched(posted) => Some(posted.work()),
            PendingAccessState::Started(_) => None,
        }
    }
}

/// The content of the target's completion for an access that carries data.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct RemoteWriteData {
    pub(in super::super) data: u64,
    /// The bytes that were accessed.
    pub(in super::super) len: u64,
}

/// The notice to the target of an access that the target itself could not count or report.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct AccessNotice {
    /// The keys of the regions, with their generations if the target has sent them, otherwise 0.
    regions: [(u64, u64); IOV_LIMIT],
    count: usize,
    counts: Counts,
    completion_data: Option<RemoteWriteData>,
}

impl AccessNotice {
    /// Returns the keys of the regions, each once, and their generations.
    pub(in super::super) fn regions(&self) -> &[(u64, u64)] {
        &self.regions[..self.count]
    }

    /// Returns the counts that the target makes.
    pub(in super::super) const fn counts(&self) -> Counts {
        self.counts
    }

    /// Returns the content of the target's completion.
    pub(in super::super) const fn completion_data(&self) -> Option<RemoteWriteData> {
        self.completion_data
    }

    /// Records the generation of the region that was accessed by this key.
    pub(in super::super) fn learn(&mut self, key: u64, generation: u64) {
        for (_, known) in self.regions[..self.count].iter_mut().filter(|(its, _)| *its == key) {
            *known = generation;
        }
    }
}

impl Constant for AccessOperation {
    fn constant(&mut self) -> [Option<&mut Segments>; 2] {
        match self {
            Self::Write(work) => work.constant(true),
            Self::Read(work) => work.constant(false),
            Self::Atomic(work) => work.constant(),
        }
    }
}
