//! Opening a cache.

use std::fmt;
use std::io;
use std::sync::Arc;

use super::entries::Entries;
use super::entry::Clock;
use super::front::Front;
use super::table::{CacheLimits, Table};
use super::{Aligned, Cache, Shared, barrier};
use crate::calls::errno_for;
use crate::journal::Journal;
use crate::monitor::{Choice, Unavailable};
use crate::registrar::Registrar;
use crate::sync::{AtomicU64, Mutex};

/// The default maximum number of registrations that a cache keeps.
const DEFAULT_COUNT: u32 = 1024;

/// The maximum of [`Builder::max_count`].
pub const MOST_REGISTRATIONS: u32 = Entries::MOST;

/// The configuration of a cache.
pub struct Builder<R: Registrar> {
    registrar: R,
    choice: Choice,
    /// Whether the cache is opened without keeping registrations if the chosen monitor is not available.
    or_none: bool,
    limits: CacheLimits,
    merging: bool,
}

/// The reasons why a cache cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The kernel rejected an allocation, a descriptor (eventfd2(2)), or membarrier(2), which the cache needs to detect
    /// that registrations are unused.
    #[error("a registration cache needs {what}: {source}")]
    Kernel {
        /// The rejected resource or call.
        what: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
    /// The requested monitor is not available.
    #[error(transparent)]
    Monitor(#[from] Unavailable),
    /// The maximum number of registrations exceeds the limit.
    #[error("{0} registrations exceed the maximum of {most}", most = Entries::MOST)]
    TooMany(u32),
}

impl OpenError {
    /// Returns the positive errno that corresponds to the error in C.
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
        let limits = CacheLimits { count: DEFAULT_COUNT, bytes: u64::MAX };
        Self { registrar, choice: best(), or_none: false, limits, merging: false }
    }

    /// Sets the monitor, which reports memory changes to the cache. Default: the best one that is available.
    #[must_use]
    pub fn monitor(mut self, choice: Choice) -> Self {
        self.choice = choice;
        self
    }

    /// Like [`Self::monitor`], but if that monitor is not available, the cache is opened and keeps no registrations,
    /// and [`Cache::explanation`] returns the reason.
    #[must_use]
    pub fn monitor_or_none(mut self, choice: Choice) -> Self {
        self.or_none = true;
        self.monitor(choice)
    }

    /// Sets the maximum number of registrations that are kept: 1,024 by default, 0 to keep none. When the cache is
    /// full, each kept registration takes about 1,500 bytes of memory, or less if the maximum is more than 8,192.
    #[must_use]
    pub fn max_count(mut self, count: u32) -> Self {
        self.limits.count = count;
        self
    }

    /// Sets the maximum number of bytes that are kept pinned. There is no limit by default.
    #[must_use]
    pub fn max_bytes(mut self, bytes: u64) -> Self {
        self.limits.bytes = bytes;
        self
    }

    /// Sets whether a miss merges the requested pages with kept registrations. It then makes one registration of the
    /// requested pages together with kept registrations of private memory that have the same rights and overlap or
    /// adjoin them. A merge registers a page again only in a registration of at least twice the size, and the size of a
    /// merged registration is at most 1 GiB and at most a quarter of [`Self::max_bytes`]. The registrations that the
    /// larger one contains are dropped, and unpinned when their uses have ended. If the larger one cannot be registered
    /// or watched, or there is no room for it, only the requested pages are registered.
    ///
    /// Fewer registrations then serve more look-ups. On the other hand, pages are registered again, at most about
    /// log2(number of pages) times each, and one change drops more of them. Off by default.
    #[must_use]
    pub fn merging(mut self, merging: bool) -> Self {
        self.merging = merging;
        self
    }

    /// Opens the cache.
    ///
    /// # Errors
    /// An [`OpenError`].
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
        let journal = Journal::new(monitor.page(), monitor.marks_first(), monitor.queried_uffd());
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
