//! What is to be accessed, and how far it has got.

use super::super::counting::counts_of_atomic;
use super::PART_LIMIT;
use crate::completion::entry::{CompletionFlags, Entry};
use crate::endpoint::remote_work::{AtomicWork, RmaWork};
use crate::endpoint::work::{INJECT_LIMIT, OpFlags, PostError};
use crate::memory::atomic::AtomicOp;
use crate::memory::buffer::Buffer;
use crate::memory::region::{Keyring, RemoteMemory, is_mapped};
use crate::memory::volatile::Segments;
use crate::trigger::Operation;
use crate::wire::head::Counts;

/// What to do.
#[derive(Clone, Copy, Debug)]
pub(crate) enum What {
    /// Write to the peer's memory.
    Write(RmaWork),
    /// Read it.
    Read(RmaWork),
    /// Change it atomically.
    Atomic(AtomicWork),
}

impl From<What> for Operation {
    fn from(what: What) -> Self {
        match what {
            What::Write(work) => Self::Write(work),
            What::Read(work) => Self::Read(work),
            What::Atomic(work) => Self::Atomic(work),
        }
    }
}

impl What {
    /// How.
    pub(crate) const fn flags(&self) -> OpFlags {
        match self {
            Self::Write(work) | Self::Read(work) => work.flags,
            Self::Atomic(work) => work.flags,
        }
    }

    /// What the completion says.
    #[inline]
    pub(in super::super) fn entry(&self) -> Entry {
        match self {
            Self::Write(work) => rma_entry(true, work.context, work.remote.len()),
            Self::Read(work) => rma_entry(false, work.context, work.remote.len()),
            Self::Atomic(work) => atomic_entry(work),
        }
    }

    /// The peer's memory.
    pub(in super::super) fn pieces(&self) -> &[RemoteMemory] {
        match self {
            Self::Write(work) | Self::Read(work) => work.remote.as_slice(),
            Self::Atomic(work) => std::slice::from_ref(&work.remote),
        }
    }

    /// The same, with peers' own keys in the place of mapped ones.
    pub(in super::super) fn translated(self, mapped: &Keyring) -> Result<Self, PostError> {
        let own = |piece: RemoteMemory| -> Result<RemoteMemory, PostError> {
            match piece.key {
                key if is_mapped(key) => {
                    let key = mapped.find(key).filter(|own| !is_mapped(*own)).ok_or(PostError::NotMapped(key))?;
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

    /// What the target reports: the data, if it is to report the access at all, and the length.
    #[inline]
    pub(in super::super) fn told(&self) -> Option<Told> {
        self.data().map(|data| Told { data, len: self.entry().len })
    }

    /// The part with this number: the peer's memory, and where ours starts.
    pub(super) fn part(&self, number: u64) -> Option<(RemoteMemory, u64)> {
        self.part_of(number, PART_LIMIT)
    }

    /// The same of parts of so many bytes at most.
    pub(super) fn part_of(&self, number: u64, limit: u64) -> Option<(RemoteMemory, u64)> {
        let (mut left, mut local) = (number, 0);
        for piece in self.pieces() {
            let parts = piece.len.div_ceil(limit).max(1);
            if left < parts {
                let start = left * limit;
                let part = piece.slice(start..(start + limit).min(piece.len));
                return Some((part, local + start));
            }
            left -= parts;
            local += piece.len;
        }
        None
    }

    /// Whether the access changes the peer's memory.
    pub(in super::super) fn changes(&self) -> bool {
        match self {
            Self::Write(_) => true,
            Self::Read(_) => false,
            Self::Atomic(work) => work.op != AtomicOp::Read,
        }
    }

    /// What counts the access at its target.
    #[inline]
    pub(in super::super) fn counts(&self) -> Counts {
        match self {
            Self::Write(_) => Counts::REGION | Counts::WRITES,
            Self::Read(_) => Counts::READS,
            Self::Atomic(work) => counts_of_atomic(work.op, super::atomic_kind(work)),
        }
    }

    /// What the target is told once the access has ended: what it has yet to count, and the data.
    pub(super) fn tell(&self, counts: Counts) -> Tell {
        let mut tell = Tell { keys: [0; crate::memory::volatile::IOV_LIMIT], count: 0, counts, told: self.told() };
        for piece in self.pieces() {
            if !tell.keys[..tell.count].contains(&piece.key) {
                tell.keys[tell.count] = piece.key;
                tell.count += 1;
            }
        }
        tell
    }
}

/// What the completion of a read or a write says.
#[inline]
pub(in super::super) fn rma_entry(write: bool, context: u64, len: u64) -> Entry {
    let kind = if write { CompletionFlags::WRITE } else { CompletionFlags::READ };
    Entry { context, flags: CompletionFlags::RMA | kind, len, ..Entry::default() }
}

/// What the completion of an atomic operation says that fetches a word.
#[inline]
pub(in super::super) fn word_entry(context: u64) -> Entry {
    Entry { context, flags: CompletionFlags::ATOMIC | CompletionFlags::READ, len: 8, ..Entry::default() }
}

/// What the completion of an atomic operation says.
#[inline]
pub(in super::super) fn atomic_entry(work: &AtomicWork) -> Entry {
    let kind = if work.result.is_some() { CompletionFlags::READ } else { CompletionFlags::WRITE };
    let (context, flags, len) = (work.context, CompletionFlags::ATOMIC | kind, work.remote.len);
    Entry { context, flags, len, ..Entry::default() }
}

/// An access that waits for its turn, or some parts of which do.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(super) what: What,
    /// Its entry in `accesses`, once a part has left.
    pub(super) started: Option<u32>,
    /// Parts that have left.
    pub(super) sent: u64,
    /// We make it by ourselves, as far as it has left.
    pub(super) direct: bool,
    /// That cannot be: the target executes it.
    pub(super) executed_only: bool,
}

impl Waiting {
    pub(in super::super) fn new(what: What) -> Self {
        Self { what, started: None, sent: 0, direct: false, executed_only: false }
    }

    /// Nothing of it counts that has left: it begins anew.
    pub(super) const fn begin_anew(&mut self) {
        (self.started, self.sent, self.direct) = (None, 0, false);
    }

    pub(crate) fn flags(&self) -> OpFlags {
        self.what.flags()
    }

    /// Nothing of it has left.
    pub(crate) const fn is_untouched(&self) -> bool {
        self.started.is_none()
    }

    pub(crate) fn entry(&self) -> Entry {
        self.what.entry()
    }

    pub(in super::super) const fn what(&self) -> &What {
        &self.what
    }

    pub(in super::super) const fn what_mut(&mut self) -> &mut What {
        &mut self.what
    }
}

/// What the target's completion says of an access that brings data.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Told {
    pub(in super::super) data: u64,
    /// The bytes that were accessed.
    pub(in super::super) len: u64,
}

/// What the target is told of an access that it could not count or report by itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tell {
    pub(super) keys: [u64; crate::memory::volatile::IOV_LIMIT],
    pub(super) count: usize,
    pub(super) counts: Counts,
    pub(super) told: Option<Told>,
}

impl Waiting {
    /// Copies what an injected access sends; its length if that is too long.
    pub(in super::super) fn inject(&mut self) -> Result<Option<Buffer>, usize> {
        let copy = |segments: &mut Segments| {
            if segments.len() > INJECT_LIMIT {
                return Err(segments.len());
            }
            let buffer = Buffer::from(segments.to_vec());
            *segments = Segments::one(buffer.segment_for_send());
            Ok(Some(buffer))
        };
        match self.what_mut() {
            What::Write(work) => copy(&mut work.local),
            What::Atomic(work) => copy(&mut work.operand),
            What::Read(_) => Ok(None),
        }
    }
}
