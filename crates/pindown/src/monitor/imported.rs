//! The application's own monitor: it knows by itself when its memory changes, and says so.
//!
//! An allocator that maps and unmaps its own arenas, a runtime that moves objects, or a test. For its word to be enough,
//! [`Notifier::changed`] must be called before memory at the changed addresses can be seen anew, and after the old pages
//! can no longer be pinned: between `munmap` and whatever maps the addresses again.

use std::fmt;
use std::io;
use std::sync::Arc;

use super::{Monitor, Refusal, Watched};
use crate::access::Access;
use crate::journal::{Bell, Change, EventBell, OfProcess, Page};
use crate::range::{Range, RangeError};

/// Tells caches what changed. Any thread may; no call allocates, locks or waits.
#[derive(Clone, Debug)]
pub struct Notifier(Arc<Lent>);

/// Decides which memory the application answers for.
type Answers = dyn Fn(Range, Access) -> bool + Send + Sync;

/// The caches' end of a [`Notifier`]: each clone is for another cache, and all are told.
#[derive(Clone)]
pub struct Imported {
    page: Arc<Lent>,
    answers: Arc<Answers>,
}

impl fmt::Debug for Imported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Imported").finish_non_exhaustive()
    }
}

impl Notifier {
    /// A notifier, and the monitor to open a cache with. `answers` says whether changes of a range will be told; what it
    /// denies is registered for one use.
    ///
    /// # Errors
    /// No descriptor for those who wait.
    pub fn new(answers: impl Fn(Range, Access) -> bool + Send + Sync + 'static) -> io::Result<(Self, Imported)> {
        let page = Arc::new(Lent::new()?);
        Ok((Self(Arc::clone(&page)), Imported { page, answers: Arc::new(answers) }))
    }

    /// The memory of these addresses is no longer what it was.
    pub fn changed(&self, range: Range) {
        self.0.page.emit(Change::Of(range));
        self.0.bell.ring();
    }

    /// As [`Self::changed`], for `length` bytes from `address` as a caller gave them who may be mistaken. Where there is no
    /// such range, something has changed and nobody knows what: then it is everything.
    ///
    /// # Errors
    /// Why there is no such range.
    pub fn changed_at(&self, address: u64, length: u64) -> Result<(), RangeError> {
        match Range::new(address, length) {
            Ok(range) => self.changed(range),
            Err(why) => {
                self.changed_everything();
                return Err(why);
            }
        }
        Ok(())
    }

    /// Nothing is known to be what it was.
    pub fn changed_everything(&self) {
        self.0.page.emit(Change::Everything);
        self.0.bell.ring();
    }
}

impl Monitor for Imported {
    fn name(&self) -> &'static str {
        "imported"
    }

    fn page(&self) -> Option<&'static Page> {
        Some(self.page.page)
    }

    fn bell(&self) -> Option<&dyn Bell> {
        Some(&self.page.bell)
    }

    fn watch(&self, range: Range, access: Access) -> Result<Watched, Refusal> {
        if (self.answers)(range, access) { Ok(Watched::default()) } else { Err(Refusal::NotWatchable) }
    }
}

/// A page that is given back when its last user has gone. Pages live for ever, so that hits may read them by a plain
/// reference.
#[derive(Debug)]
struct Lent {
    page: &'static Page,
    bell: EventBell,
}

/// Pages that nobody uses.
static FREE: OfProcess<Vec<&'static Page>> = OfProcess::new();

impl Lent {
    fn new() -> io::Result<Self> {
        let bell = EventBell::new()?;
        let free = FREE.lock(Vec::new).pop();
        Ok(Self { page: free.unwrap_or_else(|| Box::leak(Page::boxed())), bell })
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        // Loom's atomics belong to one run of a model.
        #[cfg(not(loom))]
        FREE.lock(Vec::new).push(self.page);
    }
}
