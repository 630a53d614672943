//! How a cache is opened.

use std::fmt;
use std::io;
use std::sync::Arc;

use super::entries::Entries;
use super::entry::Clock;
use super::front::Front;
use super::table::{Limits, Table};
use super::{Aligned, Cache, Shared, barrier};
use crate::calls::errno_for;
use crate::journal::Journal;
use crate::monitor::{Choice, Unavailable};
use crate::registrar::Registrar;
use crate::sync::{AtomicU64, Mutex};

/// Registrations that a cache keeps by default.
const DEFAULT_COUNT: u32 = 1024;

/// The maximum of [`Builder::max_count`].
pub const MOST_REGISTRATIONS: u32 = Entries::MOST;

/// The configuration of a cache.
pub struct Builder<R: Registrar> {
    registrar: R,
    choice: Choice,
    /// Whether nothing is kept where the choice cannot work.
    or_none: bool,
    limits: Limits,
    merging: bool,
}

/// Why a cache cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The kernel refused memory, or membarrier(2), by which registrations are known to be unused.
    #[error("a registration cache needs {what}: {source}")]
    Kernel {
        /// What was refused.
        what: &'static str,
        /// The kernel's error.
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
    /// The errno that stands for it in C, positive.
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            Self::Kernel { source, .. } => errno_for(source),
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

    /// Sets the monitor, which reports memory changes to the cache. Default: the best one that can work here.
    #[must_use]
    pub fn monitor(mut self, choice: Choice) -> Self {
        self.choice = choice;
        self
    }

    /// Like [`Self::monitor`], but if that monitor cannot work here, the cache opens, keeps nothing, and
    /// [`Cache::explanation`] returns the reason.
    #[must_use]
    pub fn monitor_or_none(mut self, choice: Choice) -> Self {
        self.or_none = true;
        self.monitor(choice)
    }

    /// Sets the maximum number of registrations that are kept (RCACHE-007): 1,024 by default, 0 to keep none (RCACHE-009). Each kept
    /// registration takes some 1,500 bytes of memory once that many are kept; less if the maximum is more than 8,192.
    #[must_use]
    pub fn max_count(mut self, count: u32) -> Self {
        self.limits.count = count;
        self
    }

    /// Sets the maximum number of bytes that are kept pinned (RCACHE-005); no limit by default (RCACHE-006).
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
    /// of times at worst, and of losing more of them to one change. Off by default.
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
