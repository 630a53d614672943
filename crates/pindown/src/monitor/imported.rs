//! The application's own monitor: the application reports when its memory changes.
//!
//! Examples are an allocator that maps and unmaps its own arenas, a runtime that moves objects, and a test. For its
//! reports to be sufficient, [`Notifier::changed`] must be called after the old pages can no longer be pinned, and
//! before new memory at the changed addresses is visible: between `munmap` and the next mapping of these addresses.

use std::fmt;
use std::io;
use std::sync::Arc;

use super::{MonitorBackend, Refusal, Watched};
use crate::access::Access;
use crate::journal::{ChangedAddresses, EventDoorbell, JournalPage, MonitorDoorbell, PerProcess};
use crate::range::{Range, RangeError};

/// Reports changes to caches. May be used by any thread. No call allocates, locks or waits.
#[derive(Clone, Debug)]
pub struct Notifier(Arc<ReusedPage>);

/// A callback that returns whether the application reports changes of a range.
type ReportsFn = dyn Fn(Range, Access) -> bool + Send + Sync;

/// The monitor that belongs to a [`Notifier`]. Each clone is for one cache; changes are reported to all of these
/// caches.
#[derive(Clone)]
pub struct Imported {
    page: Arc<ReusedPage>,
    answers: Arc<ReportsFn>,
}

impl fmt::Debug for Imported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Imported").finish_non_exhaustive()
    }
}

impl Notifier {
    /// Creates a notifier, and the monitor with which caches are opened. `answers` returns whether changes of a range
    /// will be reported; a range for which it returns `false` is registered for one use.
    ///
    /// # Errors
    /// The descriptor for waiting threads could not be made.
    pub fn new(answers: impl Fn(Range, Access) -> bool + Send + Sync + 'static) -> io::Result<(Self, Imported)> {
        let page = Arc::new(ReusedPage::new()?);
        Ok((Self(Arc::clone(&page)), Imported { page, answers: Arc::new(answers) }))
    }

    /// Reports that the memory at these addresses has changed.
    pub fn changed(&self, range: Range) {
        self.0.page.emit(ChangedAddresses::Of(range));
        self.0.doorbell.ring();
    }

    /// Like [`Self::changed`], for `length` bytes from `address`, which are not validated yet. If they are not a valid
    /// range, all memory is reported as changed, because the changed addresses are unknown.
    ///
    /// # Errors
    /// The reason why they are not a valid range.
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
        self.0.page.emit(ChangedAddresses::Everything);
        self.0.doorbell.ring();
    }
}

impl MonitorBackend for Imported {
    fn name(&self) -> &'static str {
        "imported"
    }

    fn page(&self) -> Option<&'static JournalPage> {
        Some(self.page.page)
    }

    fn doorbell(&self) -> Option<&dyn MonitorDoorbell> {
        Some(&self.page.doorbell)
    }

    fn watch(&self, range: Range, access: Access) -> Result<Watched, Refusal> {
        if (self.answers)(range, access) { Ok(Watched::default()) } else { Err(Refusal::NotWatchable) }
    }
}

/// A page that is reused after its last user is dropped. Pages are never freed, so that hits can read them through a
/// plain reference.
#[derive(Debug)]
struct ReusedPage {
    page: &'static JournalPage,
    doorbell: EventDoorbell,
}

/// Pages without a user.
static FREE: PerProcess<Vec<&'static JournalPage>> = PerProcess::new();

impl ReusedPage {
    fn new() -> io::Result<Self> {
        let doorbell = EventDoorbell::new()?;
        let free = FREE.lock(Vec::new).pop();
        Ok(Self { page: free.unwrap_or_else(|| Box::leak(JournalPage::boxed())), doorbell })
    }
}

impl Drop for ReusedPage {
    fn drop(&mut self) {
        // Loom's atomics belong to one run of a model.
        #[cfg(not(loom))]
        FREE.lock(Vec::new).push(self.page);
    }
}
