//! The application's own monitor: the application knows when its memory changes, and reports it.
//!
//! An allocator that maps and unmaps its own arenas, a runtime that moves objects, or a test. For its reports to be
//! sufficient, [`Notifier::changed`] must be called before memory at the changed addresses can be seen anew, and after
//! the old pages can no longer be pinned: between `munmap` and whatever maps the addresses again.

use std::fmt;
use std::io;
use std::sync::Arc;

use super::{Monitor, Refusal, Watched};
use crate::access::Access;
use crate::journal::{Bell, Change, EventBell, OfProcess, Page};
use crate::range::{Range, RangeError};

/// Reports changes to caches. May be used by any thread; no call allocates, locks or waits.
#[derive(Clone, Debug)]
pub struct Notifier(Arc<Lent>);

/// Decides which memory the application answers for.
type Answers = dyn Fn(Range, Access) -> bool + Send + Sync;

/// The caches' end of a [`Notifier`]: each clone is for another cache, and changes are reported to all.
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
    /// Creates a notifier, and the monitor to open a cache with. `answers` returns whether changes of a range will be
    /// reported; a range for which it returns `false` is registered for one use.
    ///
    /// # Errors
    /// No descriptor for waiting threads.
    pub fn new(answers: impl Fn(Range, Access) -> bool + Send + Sync + 'static) -> io::Result<(Self, Imported)> {
        let page = Arc::new(Lent::new()?);
        Ok((Self(Arc::clone(&page)), Imported { page, answers: Arc::new(answers) }))
    }

    /// Reports that the memory of these addresses is no longer what it was.
    pub fn changed(&self, range: Range) {
        self.0.page.emit(Change::Of(range));
        self.0.bell.ring();
    }

    /// Like [`Self::changed`], but for `length` bytes from `address` that are not checked yet. If there is no such range,
    /// something has changed but it is not known what: then everything counts as changed.
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

    /// Reports that all memory may have changed.
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

/// Pages without a user.
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
