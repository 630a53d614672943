//! Who tells that memory changed under a registration.
//!
//! | monitor | what it can watch | a hit costs |
//! |---|---|---|
//! | [`userfaultfd`] | sealed memory, and private anonymous memory where no guard pages are | a system call |
//! | [`imported`] | what its author says | a comparison |
//! | [`sealed`] | memory that it allocated itself, which cannot change | a comparison |
//! | [`none`](Choice::None) | nothing: every registration is for one use | the registration |

pub mod imported;
#[cfg(not(loom))]
pub mod sealed;
#[cfg(not(loom))]
pub mod userfaultfd;

use std::fmt;
use std::os::fd::BorrowedFd;

use crate::access::Access;
use crate::cache::entry::WatchedInode;
use crate::journal::{Bell, Page};
use crate::range::Range;

/// Which monitor a cache is to have.
#[derive(Debug, Default)]
#[non_exhaustive]
pub enum Choice {
    /// Registrations are not kept: each is made for one use and undone after it.
    #[default]
    None,
    /// userfaultfd(2), which needs no privileges.
    #[cfg(not(loom))]
    Userfaultfd(userfaultfd::GuardPages),
    /// Only sealed memory is kept, which needs no watching.
    Sealed,
    /// The application's own, made by [`imported::Notifier::new`].
    Imported(imported::Imported),
}

/// Why a registration was made for one use only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Refusal {
    /// The cache keeps nothing: no monitor, or no room by its limits.
    NotCaching,
    /// The range alone is larger than the cache's limit of bytes.
    TooLarge,
    /// The monitor cannot tell all changes of this kind of memory.
    NotWatchable,
    /// So many registrations that were taken out are still in use that the limit of their count leaves no room.
    InUse,
    /// The memory changed, or may have, while it was being registered.
    Changed,
}

impl Refusal {
    /// Every reason, in the order of [`Refusal::index`].
    pub(crate) const ALL: [Self; 5] =
        [Self::NotCaching, Self::TooLarge, Self::NotWatchable, Self::InUse, Self::Changed];

    pub(crate) fn index(self) -> usize {
        self as usize
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotCaching => "the cache keeps nothing",
            Self::TooLarge => "larger than the cache",
            Self::NotWatchable => "memory that the monitor cannot watch",
            Self::InUse => "all that may be kept is in use",
            Self::Changed => "changed while it was being registered",
        })
    }
}

/// What a monitor says of a range that is about to be registered.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Watched {
    /// The file whose pages are watched apart, of a shared mapping.
    pub(crate) inode: Option<WatchedInode>,
}

/// A monitor, as the cache sees it. Called on misses only, never under a lock.
pub(crate) trait Monitor: fmt::Debug + Send + Sync {
    /// Its name, for people.
    fn name(&self) -> &'static str;

    /// Where it tells what changed; `None` if nothing ever does.
    fn page(&self) -> Option<&'static Page>;

    /// Whether it marks the page busy before it knows what changed (see [`crate::journal`]).
    fn marks_first(&self) -> bool {
        false
    }

    /// The userfaultfd that hits ask whether a change is under way that the page does not tell yet.
    fn asked(&self) -> Option<BorrowedFd<'static>> {
        None
    }

    /// What wakes those who wait for changes; `None` if nothing ever changes.
    fn bell(&self) -> Option<&Bell>;

    /// From when this returns, changes of the range are told.
    ///
    /// # Errors
    /// Why it must not be kept.
    fn watch(&self, range: Range, access: Access) -> Result<Watched, Refusal>;
}

/// Nothing is ever kept.
#[derive(Debug)]
pub(crate) struct NoMonitor;

impl Monitor for NoMonitor {
    fn name(&self) -> &'static str {
        "none"
    }

    fn page(&self) -> Option<&'static Page> {
        None
    }

    fn bell(&self) -> Option<&Bell> {
        None
    }

    fn watch(&self, _range: Range, _access: Access) -> Result<Watched, Refusal> {
        Err(Refusal::NotCaching)
    }
}
