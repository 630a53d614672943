//! The kernel monitor as used by caches. A process has only one, because each loaded copy of the programs slows down
//! the whole machine.

use std::sync::atomic::{AtomicU32, Ordering};

use super::{BpfUnavailable, Monitor as Reports, Slot, Watch};
use crate::access::Access;
use crate::journal::{JournalPage, MonitorDoorbell, PerProcess};
use crate::mapping::Mappings;
use crate::monitor::known_mapping::{KnownMapping, QueryPosition};
use crate::monitor::{MonitorBackend, Refusal, Watched, WatchedInode};
use crate::range::Range;

/// The monitor lives until the process exits, because hits read its page through a plain reference. A forked child
/// opens its own monitor, and a process opens a new monitor after the previous one has ended.
static REPORTS: PerProcess<Option<&'static Reports>> = PerProcess::new();

/// The number of misses between two checks for skipped programs.
const LOOK_EVERY: u32 = 256;

/// The monitor.
#[derive(Debug)]
pub(crate) struct BpfMonitor {
    reports: &'static Reports,
    /// The mappings of this process. They are queried before the programs, because a query of the programs takes a
    /// hundred times as long.
    mappings: Option<Mappings>,
    known: KnownMapping,
    misses: AtomicU32,
}

impl BpfMonitor {
    /// Opens the process's monitor.
    ///
    /// # Errors
    /// The reason why the kernel monitor is not available.
    pub(crate) fn open() -> Result<Self, BpfUnavailable> {
        let mut known = REPORTS.lock(|| None);
        let reports = match *known {
            Some(reports) if !reports.page().has_ended() => reports,
            _ => *known.insert(Box::leak(Box::new(Reports::open()?))),
        };
        Ok(Self { reports, mappings: Mappings::open().ok(), known: KnownMapping::default(), misses: AtomicU32::new(0) })
    }
}

impl MonitorBackend for BpfMonitor {
    fn name(&self) -> &'static str {
        "bpf"
    }

    fn page(&self) -> Option<&'static JournalPage> {
        Some(self.reports.page().journal())
    }

    fn doorbell(&self) -> Option<&dyn MonitorDoorbell> {
        Some(self.reports.doorbell())
    }

    fn watch(&self, range: Range, _access: Access) -> Result<Watched, Refusal> {
        // If two threads count at once, one of the two misses may not be counted. The count still takes every value, so
        // no check is skipped.
        let misses = self.misses.load(Ordering::Relaxed);
        self.misses.store(misses.wrapping_add(1), Ordering::Relaxed);
        if misses.is_multiple_of(LOOK_EVERY) && self.reports.check().is_err() {
            self.reports.end();
            return Err(Refusal::MonitorEnded);
        }
        // The records report every change of private anonymous memory.
        let now = QueryPosition::now(self.reports.page().journal());
        if self.reports.page().has_ended() {
            return Err(Refusal::MonitorEnded);
        }
        if self.known.has(range, now) {
            return Ok(Watched::default());
        }
        if let Some(mapping) = self.mappings.as_ref().and_then(|mappings| mappings.plain(range)) {
            self.known.learn(mapping, now);
            return Ok(Watched::default());
        }
        match self.reports.watch(range.start()..range.end()) {
            Ok(Watch::Records) => Ok(Watched::default()),
            Ok(Watch::Inode(slot)) => {
                let count = self.reports.page().inode(slot);
                let inode = Some(WatchedInode { slot: slot.index() as u32, count });
                Ok(Watched { inode, locked: None })
            }
            Err(_) => Err(Refusal::NotWatchable),
        }
    }

    fn unwatch(&self, inode: u32) {
        if let Some(slot) = Slot::new(inode as usize) {
            self.reports.unwatch(slot);
        }
    }
}
