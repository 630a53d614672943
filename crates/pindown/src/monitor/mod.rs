//! Monitors, which report that memory changed under a registration.
//!
//! | monitor | what it can watch | cost of a hit |
//! |---|---|---|
//! | [`bpf`] | every kind of memory that can be pinned, with few exceptions; requires root, or its helper | a comparison |
//! | [`userfaultfd`] | sealed memory, and private anonymous memory if the program makes a promise | a system call |
//! | [`imported`] | the memory whose changes the application reports | a comparison |
//! | [`sealed`] | memory of [`sealed::Sealed`], which cannot change | a comparison |
//! | [`none`](Choice::None) | nothing: every registration is for one use | the registration |

#[cfg(not(loom))]
pub mod bpf;
pub mod imported;
#[cfg(not(loom))]
mod keeper;
#[cfg(any(not(loom), test))]
mod known_mapping;
#[cfg(not(loom))]
pub mod sealed;
#[cfg(not(loom))]
mod thread;
#[cfg(not(loom))]
pub mod userfaultfd;

use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;

use crate::access::Access;
use crate::journal::{JournalPage, MonitorDoorbell};
use crate::range::Range;

/// The monitor that a cache uses.
#[derive(Debug)]
#[non_exhaustive]
pub enum Choice {
    /// The first of [`Choice::Bpf`], [`Choice::Userfaultfd`] (if a promise lets it keep more than sealed memory) and
    /// [`Choice::Sealed`] that is available, otherwise [`Choice::None`].
    /// [`Cache::explanation`](crate::Cache::explanation) returns the selected one, and the reasons why better ones are
    /// not available.
    #[cfg(not(loom))]
    Best(userfaultfd::Settings),
    /// Programs in the kernel: see [`bpf`].
    #[cfg(not(loom))]
    Bpf,
    /// userfaultfd(2), which needs no privileges.
    #[cfg(not(loom))]
    Userfaultfd(userfaultfd::Settings),
    /// Only sealed memory is kept, which need not be watched.
    #[cfg(not(loom))]
    Sealed,
    /// Registrations are not kept: each is made for one use and removed after it.
    None,
    /// The application's own monitor, made by [`imported::Notifier::new`].
    Imported(imported::Imported),
}

/// The reason why a monitor is not available.
#[derive(Debug, thiserror::Error)]
#[error("the monitor {name} is not available: {source}")]
#[non_exhaustive]
pub struct Unavailable {
    /// The name of the monitor.
    pub name: &'static str,
    /// The error that it failed with.
    pub source: io::Error,
}

impl Unavailable {
    /// Returns the positive errno that corresponds to the error in C.
    #[must_use]
    pub fn errno(&self) -> i32 {
        #[cfg(not(loom))]
        if let Some(why) = self.source.get_ref().and_then(|inner| inner.downcast_ref::<bpf::BpfUnavailable>()) {
            return why.errno();
        }
        crate::calls::errno_for(&self.source)
    }
}

impl Choice {
    /// Opens the monitor. Returns it, and the reasons why better monitors are not available.
    ///
    /// # Errors
    /// The reason why the requested monitor is not available.
    #[cfg(not(loom))]
    pub(crate) fn open(self) -> Result<(Box<dyn MonitorBackend>, Vec<Unavailable>), Unavailable> {
        let named = |name| move |source| Unavailable { name, source };
        let bpf = || bpf::BpfMonitor::open().map_err(|why| named("bpf")(io::Error::other(why)));
        let userfaultfd = |settings| userfaultfd::UserfaultfdMonitor::open(settings).map_err(named("userfaultfd"));
        let sealed = || sealed::SealedMonitor::probe().map_err(named("sealed"));
        let found: Box<dyn MonitorBackend> = match self {
            Self::Bpf => Box::new(bpf()?),
            Self::Userfaultfd(settings) => Box::new(userfaultfd(settings)?),
            Self::Sealed => Box::new(sealed()?),
            Self::None => Box::new(NoMonitor),
            Self::Imported(imported) => Box::new(imported),
            Self::Best(settings) => {
                let mut worse = Vec::new();
                let found = bpf().map(boxed).or_else(|why| {
                    worse.push(why);
                    userfaultfd::useful(settings).map_err(named("userfaultfd"))?;
                    userfaultfd(settings).map(boxed)
                });
                let found = found.or_else(|why| {
                    worse.push(why);
                    sealed().map(boxed)
                });
                let found = found.unwrap_or_else(|why| {
                    worse.push(why);
                    Box::new(NoMonitor)
                });
                return Ok((found, worse));
            }
        };
        Ok((found, Vec::new()))
    }

    /// Returns the monitor that watches nothing, because this one is not available.
    pub(crate) fn nothing(unavailable: Unavailable) -> (Box<dyn MonitorBackend>, Vec<Unavailable>) {
        (Box::new(NoMonitor), vec![unavailable])
    }

    #[cfg(loom)]
    pub(crate) fn open(self) -> Result<(Box<dyn MonitorBackend>, Vec<Unavailable>), Unavailable> {
        match self {
            Self::Imported(imported) => Ok((Box::new(imported), Vec::new())),
            _ => Ok((Box::new(NoMonitor), Vec::new())),
        }
    }
}

#[cfg(not(loom))]
fn boxed(monitor: impl MonitorBackend + 'static) -> Box<dyn MonitorBackend> {
    Box::new(monitor)
}

/// The reasons why a registration was made for one use only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Refusal {
    /// The cache keeps no registration: it has no monitor, or its limits allow none. Or the kernel has rejected
    /// membarrier(2) since the cache was opened, and an unused lane prevents removed entries from being freed.
    NotCaching,
    /// The range alone is larger than the cache's limit of bytes, or ends above the addresses that an entry can store.
    TooLarge,
    /// The monitor cannot report all changes of this kind of memory.
    NotWatchable,
    /// The registrations in use leave no room within the cache's limits.
    InUse,
    /// The memory changed, or may have changed, while it was being registered.
    Changed,
    /// The monitor may have missed changes, so the cache no longer keeps registrations.
    MonitorEnded,
}

impl Refusal {
    /// All reasons, in the order of [`Refusal::index`].
    pub(crate) const ALL: [Self; 6] =
        [Self::NotCaching, Self::TooLarge, Self::NotWatchable, Self::InUse, Self::Changed, Self::MonitorEnded];

    pub(crate) fn index(self) -> usize {
        self as usize
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotCaching => "caching is off",
            Self::TooLarge => "larger than the limit of the cache",
            Self::NotWatchable => "memory that the monitor cannot watch",
            Self::MonitorEnded => "the monitor may have missed changes",
            Self::InUse => "the limit is reached and all cached registrations are in use",
            Self::Changed => "changed while it was being registered",
        })
    }
}

/// The watched file of a shared mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WatchedInode {
    /// The index of its counter in the monitor's page.
    pub(crate) slot: u32,
    /// The counter's value before the pages were pinned.
    pub(crate) count: u64,
}

/// The resources that a monitor uses for a range that is about to be registered.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Watched {
    /// The file of a shared mapping. Its pages are watched separately.
    pub(crate) inode: Option<WatchedInode>,
    /// The range that stays locked for as long as the registration is kept.
    pub(crate) locked: Option<Range>,
}

/// A monitor, as used by the cache. Hits call only [`MonitorBackend::checks_rights`] and [`MonitorBackend::allowed`].
pub(crate) trait MonitorBackend: fmt::Debug + Send + Sync {
    /// Returns the name of the monitor, for messages.
    fn name(&self) -> &'static str;

    /// Returns the page in which the monitor reports changes; `None` if it never reports any.
    fn page(&self) -> Option<&'static JournalPage>;

    /// Returns whether the monitor marks the page busy before it has read which addresses changed (see
    /// [`crate::journal`]).
    fn marks_first(&self) -> bool {
        false
    }

    /// Returns the userfaultfd that hits query for a change that is under way and not yet reported in the page.
    fn queried_uffd(&self) -> Option<BorrowedFd<'static>> {
        None
    }

    /// Returns whether hits call [`Self::allowed`], because the monitor does not report changes of rights.
    fn checks_rights(&self) -> bool {
        false
    }

    /// Returns whether the process now has, over the whole range, the rights that a registration with `_access`
    /// requires.
    fn allowed(&self, _range: Range, _access: Access) -> bool {
        true
    }

    /// Returns the doorbell that wakes threads that wait for changes; `None` if the monitor never reports any.
    fn doorbell(&self) -> Option<&dyn MonitorDoorbell>;

    /// Starts to watch the range: changes are reported from the moment when this function returns. Never called under a
    /// lock.
    ///
    /// # Errors
    /// The reason why the registration must not be kept.
    fn watch(&self, range: Range, access: Access) -> Result<Watched, Refusal>;

    /// Reverts one [`Self::watch`] that returned a file with this slot.
    fn unwatch(&self, _inode: u32) {}

    /// Reverts the lock of one [`Self::watch`] of this range, if there was one. The corresponding registration has been
    /// unpinned.
    fn unlock(&self, _range: Range) {}
}

/// A monitor that watches nothing: no registration is kept.
#[derive(Debug)]
pub(crate) struct NoMonitor;

impl MonitorBackend for NoMonitor {
    fn name(&self) -> &'static str {
        "none"
    }

    fn page(&self) -> Option<&'static JournalPage> {
        None
    }

    fn doorbell(&self) -> Option<&dyn MonitorDoorbell> {
        None
    }

    fn watch(&self, _range: Range, _access: Access) -> Result<Watched, Refusal> {
        Err(Refusal::NotCaching)
    }
}
