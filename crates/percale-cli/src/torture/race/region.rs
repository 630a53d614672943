//! Memory that threads change and use.

use std::io;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use pindown::Registrar;

use super::mix::Mix;
use super::pending::Pending;
use crate::fixed_buffers::ACCESS;
use crate::torture::dice::Dice;
use crate::torture::kinds::{MemoryKind, Trait};
use crate::torture::memory::{Memory, MemoryShape};
use crate::torture::monitors::Monitor;
use crate::torture::operations::{self, Operation};
use crate::torture::oracle::Oracle;

/// Numbers in [`Region::last`] for changes that are not operations.
pub(super) const MADE_ANEW: usize = usize::MAX;
pub(super) const BETWEEN: usize = usize::MAX - 1;
pub(super) const SUBMITTED_BEFORE: usize = usize::MAX - 2;
pub(super) const NOTHING: usize = usize::MAX - 3;

/// Memory that threads change and use.
pub(super) struct Region {
    pub(super) kind: &'static MemoryKind,
    /// The operations that may be executed on it.
    pub(super) operations: Vec<&'static Operation>,
    memory: Mutex<Memory>,
    /// A request that will change the memory. The memory keeps its addresses until then.
    pending: Mutex<Option<Pending>>,
    /// The first address of the registered part.
    pub(super) start: AtomicU64,
    /// The number of changes that have begun plus the number of changes that have ended.
    pub(super) counted: AtomicU64,
    /// The number of the last change.
    pub(super) last: AtomicUsize,
}

impl Region {
    pub(super) fn new(kind: &'static MemoryKind, monitor: &Monitor, mix: &Mix) -> io::Result<Self> {
        let memory = (kind.make)()?;
        let races = |operation: &&Operation| {
            operation.suits(kind) && mix.ways.contains(&operation.way) && monitor.exception(operation.name).is_none()
        };
        Ok(Self {
            kind,
            operations: operations::all().filter(races).collect(),
            start: AtomicU64::new(memory.registered.start()),
            memory: Mutex::new(memory),
            pending: Mutex::new(None),
            counted: AtomicU64::new(0),
            last: AtomicUsize::new(MADE_ANEW),
        })
    }

    pub(super) fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn pending(&self) -> MutexGuard<'_, Option<Pending>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Submits, for some regions, a request that will change the memory later.
    pub(super) fn submit(&self, dice: &mut Dice) -> io::Result<()> {
        let memory = self.memory();
        if self.moves() && dice.once_in(2) {
            memory.touch()?;
            let cut = memory.file.is_some() && dice.once_in(2);
            *self.pending() = Some(Pending::submit(&memory, cut)?);
        }
        Ok(())
    }

    /// Returns whether the memory can be made again at other addresses.
    pub(super) fn moves(&self) -> bool {
        self.kind.traits.contains(&Trait::Mapped)
    }

    /// Kills the forks of this process that are still running.
    pub(super) fn end_children(&self) {
        self.memory().children.clear();
    }

    pub(super) fn name_of_last(&self) -> String {
        let name = match self.last.load(Ordering::Acquire) {
            MADE_ANEW => "recreated",
            BETWEEN => "munmap all, mapped again by another thread before it returned",
            NOTHING => "nothing",
            SUBMITTED_BEFORE => "an io_uring change submitted before the cache was opened",
            number => self.operations.get(number).map_or("", |operation| operation.name),
        };
        format!("{}, {name}", self.kind.name)
    }

    /// Returns the number of changes that have ended.
    pub(super) fn changes(&self) -> u64 {
        self.counted.load(Ordering::Acquire) / 2
    }

    /// Counts the beginning or the end of a change.
    pub(super) fn count(&self) {
        self.counted.fetch_add(1, Ordering::AcqRel);
    }
}

/// Returns whether memory of this kind can be pinned, and can be made again at the same address. If `sealed` is set,
/// memory that never changes is also permitted. Memory larger than the usual shape is excluded: a hole in it would have
/// room for other new mappings.
pub(super) fn races(kind: &MemoryKind, oracle: &Oracle, sealed: bool) -> bool {
    let is_sealed = sealed && kind.traits.contains(&Trait::Sealed);
    let pinned = || -> io::Result<bool> {
        let memory = (kind.make)()?;
        // Without privileges, the file of some kinds of memory cannot be opened.
        if !is_sealed {
            memory.establish(0)?;
        }
        memory.touch()?;
        oracle.unpin(oracle.pin(memory.registered, ACCESS)?.pin);
        Ok(memory.registered.len() == MemoryShape::small().registered * MemoryShape::small().unit)
    };
    (kind.traits.contains(&Trait::Mapped) || is_sealed) && pinned().unwrap_or(false)
}
