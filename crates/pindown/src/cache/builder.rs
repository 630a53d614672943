//! How a cache is opened.

use std::fmt;
use std::io;
use std::sync::Arc;

use super::entries::Entries;
use super::entry::Clock;
use super::front::Front;
use super::table::{Limits, Table};
use super::{Aligned, Cache, Shared, barrier, errno};
use crate::journal::Journal;
use crate::monitor::{Choice, Unavailable};
use crate::registrar::Registrar;
use crate::sync::{AtomicU64, Mutex};

/// Registrations that a cache keeps unless told otherwise.
const DEFAULT_COUNT: u32 = 1024;

/// The most registrations that a cache can be told to keep.
pub const MOST_REGISTRATIONS: u32 = Entries::MOST;

/// How a cache is to be.
pub struct Builder<R: Registrar> {
    registrar: R,
    choice: Choice,
    /// Whether nothing is kept where the choice cannot work.
    or_none: bool,
    limits: Limits,
    merging: bool,
}

/// Why there is no cache.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The kernel refused memory, or membarrier(2), by which registrations are known to be unused.
    #[error("a registration cache needs {what}: {source}")]
    Kernel {
        /// What was refused.
        what: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// The monitor that was asked for cannot work here.
    #[error(transparent)]
    Monitor(#[from] Unavailable),
    /// More registrations than there can be.
    #[error("{0} registrations are more than the {most} that a cache can keep", most = Entries::MOST)]
    TooMany(u32),
}

impl OpenError {
    /// What stands for it in C: a positive errno.
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            Self::Kernel { source, .. } => errno(source),
            Self::Monitor(unavailable) => unavailable.errno(),
            Self::TooMany(_) => libc::EINVAL,
        }
    }
}

impl<R: Registrar> Builder<R> {
    pub(super) fn new(registrar: R) -> Self {
        let limits = Limits { count: DEFAULT_COUNT, bytes: u64::MAX };
        Self { registrar, choice: best(), or_none: false, limits, merging: false }
    }

    /// Who tells the cache what changed: the best that can work here, unless told otherwise.
    #[must_use]
    pub fn monitor(mut self, choice: Choice) -> Self {
        self.choice = choice;
        self
    }

    /// As [`Self::monitor`]; where that one cannot work, the cache keeps nothing, and [`Cache::explanation`] says so.
    #[must_use]
    pub fn monitor_or_none(mut self, choice: Choice) -> Self {
        self.or_none = true;
        self.monitor(choice)
    }

    /// Registrations that are kept at most (RCACHE-007): 1,024 unless told otherwise, 0 to keep none (RCACHE-009). Each that is kept
    /// takes some 1,500 bytes of memory, once so many are; less where there are more than 8,192.
    #[must_use]
    pub fn max_count(mut self, count: u32) -> Self {
        self.limits.count = count;
        self
    }

    /// Bytes that are kept pinned at most (RCACHE-005); no limit unless told otherwise (RCACHE-006).
    #[must_use]
    pub fn max_bytes(mut self, bytes: u64) -> Self {
        self.limits.bytes = bytes;
        self
    }

    /// Whether a miss registers, together with the pages that it is for, those that the cache keeps beside them: private
    /// memory with the same rights that overlaps or adjoins them, as long as each page is registered again only into
    /// a registration of at least twice the size, of 1 GiB and a quarter of [`Self::max_bytes`] at most. What the larger one holds
    /// is then dropped, and unpinned when its uses have ended. If the larger one cannot be registered or watched, the pages alone
    /// are.
    ///
    /// Fewer registrations serve more look-ups then, at the price of registering pages again, some log2 of their number
    /// of times at worst, and of losing more of them to one change. No, unless told otherwise.
    #[must_use]
    pub fn merging(mut self, merging: bool) -> Self {
        self.merging = merging;
        self
    }

    /// Opens the cache.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(self) -> Result<Cache<R>, OpenError> {
        let Self { registrar, choice, or_none, limits, merging } = self;
        if limits.count > Entries::MOST {
            return Err(OpenError::TooMany(limits.count));
        }
        barrier::register().map_err(|source| OpenError::Kernel { what: "membarrier(2)", source })?;
        let (monitor, worse) = match choice.open() {
            Err(unavailable) if or_none => Choice::nothing(unavailable),
            opened => opened?,
        };
        let no_memory = |source| OpenError::Kernel { what: "memory", source };
        let journal = Journal::new(monitor.page(), monitor.marks_first(), monitor.asked());
        Ok(Cache(Arc::new(Shared {
            entries: Entries::new(limits.count).map_err(no_memory)?,
            front: Front::new(limits.count).map_err(no_memory)?,
            journal: journal.map_err(no_memory)?,
            epoch: AtomicU64::new(0),
            clock: Clock::new(),
            table: Aligned(Mutex::new(Table::new(limits))),
            monitor,
            merging,
            unavailable: worse,
            interrupt: Shared::<R>::interrupt().map_err(|source| OpenError::Kernel { what: "a descriptor", source })?,
            registrar,
        })))
    }
}

impl<R: Registrar> fmt::Debug for Builder<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder").field("choice", &self.choice).field("limits", &self.limits).finish_non_exhaustive()
    }
}

#[cfg(not(loom))]
fn best() -> Choice {
    Choice::Best(crate::monitor::userfaultfd::Settings::default())
}

#[cfg(loom)]
fn best() -> Choice {
    Choice::None
}
