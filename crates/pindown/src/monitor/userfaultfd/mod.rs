//! The monitor for processes without privileges: userfaultfd as an event channel only.
//!
//! Whole mappings are registered for asynchronous write protection, but never write-protected. The descriptor then
//! reports changes of the mappings (unmapped, moved, dropped) while the thread that makes the change waits until the
//! report is read, and no page fault is ever reported. One thread reads the reports. It marks the journal's page
//! *before* it reads, because reading lets the waiting thread continue, and afterwards reports the changes that it
//! read. A hit queries the kernel for a change that has not been read (an ioctl that fails with EAGAIN), and then
//! compares the journal, so no change is missed between the two.
//!
//! The following memory cannot be watched, and the cache registers it for one use:
//! * all memory except private anonymous memory that is writable and in pages of the ordinary size: without an event,
//!   files can be truncated by another process, System V segments can be detached, and shared memory can be remapped;
//! * also private anonymous memory, unless the program promises that no code in the process makes the two changes that
//!   are not reported by an event ([`Unseen::NeverMade`]): guard pages (MADV_GUARD_INSTALL, since Linux 6.13), and a
//!   System V segment attached over the memory (shmat with SHM_REMAP). Instead of the first promise the program may let
//!   the monitor lock the memory, because the kernel rejects guard pages in locked memory ([`Unseen::GuardsRefused`]).
//!   The memory is locked *before* it is pinned, so no guard page can be installed after the pin; a guard page that was
//!   there before causes the pin to fail;
//! * addresses at which pages were dropped once (MADV_DONTNEED): that event is sent before the pages are dropped, and
//!   no event is sent afterwards. Until the pages are dropped they could be pinned again, and the monitor cannot detect
//!   when they have been dropped.
//!
//! [`super::sealed`] memory need not be watched and can always be kept.
//!
//! A change of protection is not an event. A registration would keep rights that the process has lost until it is
//! dropped, unless each hit also queries the rights ([`Settings::check_rights`]). The query is made after the entry was
//! found and before the journal is compared. So a hit detects rights that mprotect(2) removed before the look-up began;
//! rights that are removed later need not be detected. If a mapping with the same rights and other pages was made there
//! in the meantime, the journal reports it as always.
//!
//! # Before Linux 6.7
//!
//! Without asynchronous write protection, mappings are registered for plain write protection. Its faults are reported
//! to the reading thread, and the faulting threads wait for that thread. For the memory that is kept, this mode is
//! equally sound:
//! * Faults do not occur, because a page faults only if UFFDIO_WRITEPROTECT has marked it, and the monitor marks none.
//!   (A mark made by other code, through PAGEMAP_SCAN since Linux 6.7, is removed when the fault is reported.) So
//!   threads of the program wait only for changes, as in the other mode.
//! * The events do not depend on the kind of protection: the kernel sends them for every mapping that is registered
//!   with this descriptor. The monitor uses no information from write protection itself in either mode. Asynchronous
//!   protection supports more kinds of memory (files), which are not kept in either mode.
//! * There are no additional changes without an event, because there are no guard pages before Linux 6.13.
//!   MADV_DONTNEED is reported before the pages are dropped, and pages that were dropped fault in again without a
//!   report, so in this mode, too, such addresses are registered for one use from then on. Plain write protection
//!   cannot detect that a pinned page was replaced (marks of absent pages, which would survive a drop, came with Linux
//!   6.4).
//! * Since Linux 5.15, the kernel answers a hit's query for a change that is under way from a *count* of changes. In
//!   earlier kernels this was a flag, which the end of one change cleared while another was under way. A program cannot
//!   query which of the two the kernel has, so the monitor requires UFFD_FEATURE_EXACT_ADDRESS, which was added later
//!   (5.18), and rejects older kernels.
//! * /proc/self/maps is read, because PROCMAP_QUERY was added in Linux 6.11. Each of its lines is correct at the time
//!   when it is generated. A change between two lines is reported, or was made before the mapping was registered. So
//!   the file is read and the mappings are registered twice.
//!
//! The reading thread does not allocate, free or map memory, takes no lock that other threads hold while they do this,
//! and runs no signal handlers of the program, because threads that change a mapping wait for it.

mod locked;
mod removed;
mod settings;
pub(crate) mod sys;

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::OnceLock;
use std::sync::atomic::Ordering;

use rustix::event::{PollFd, PollFlags};

use super::known_mapping::{KnownMapping, QueryPosition};
use super::sealed::SealedMonitor;
use super::{MonitorBackend, Refusal, Watched, keeper, thread};
use crate::access::Access;
use crate::journal::unread_changes::{UnreadChanges, ask};
use crate::journal::{ChangedAddresses, EventDoorbell, JournalPage, MonitorDoorbell, PerProcess};
use crate::mapping::{Backing, Mappings};
use crate::range::{Range, page_size};
use locked::Locked;
use removed::Removed;
pub use settings::{Settings, Unseen};
use sys::{Event, Mode, UffdMessage, Userfaultfd};

/// One monitor for each process and mode: a mapping can have only one userfaultfd. A forked child's memory is not
/// watched by its parent's monitor; the child starts its own.
static MONITORS: PerProcess<Vec<&'static Shared>> = PerProcess::new();

#[derive(Debug)]
struct Shared {
    uffd: Userfaultfd,
    mode: Mode,
    page: &'static JournalPage,
    doorbell: EventDoorbell,
    mappings: Mappings,
    known: KnownMapping,
    removed: Removed,
    locked: OnceLock<Locked>,
    /// Set to `Ok` when the thread is ready to read, or to the reason why it cannot read. Set after the allocations
    /// that the C library makes when a thread starts.
    reading: OnceLock<Result<(), String>>,
}

/// The monitor, as used by a cache.
#[derive(Debug)]
pub(crate) struct UserfaultfdMonitor {
    shared: &'static Shared,
    settings: Settings,
}

impl UserfaultfdMonitor {
    /// Opens the process's monitor.
    ///
    /// # Errors
    /// The reason why the monitor is not available.
    pub(crate) fn open(settings: Settings) -> io::Result<Self> {
        if settings.unseen == Unseen::GuardsRefused {
            sys::locked_memory_refuses_guards()?;
        }
        let shared = if settings.plain { start(Mode::Plain) } else { start(Mode::Asynchronous) };
        let shared = shared.or_else(|why| match why.kind() {
            io::ErrorKind::Unsupported if !settings.plain => start(Mode::Plain),
            _ => Err(why),
        });
        Ok(Self { shared: shared?, settings })
    }
}

/// Checks that the monitor would keep more memory than [`super::sealed`]. Otherwise its more expensive hits have no
/// benefit.
///
/// # Errors
/// The reason why the monitor would not keep more.
pub(crate) fn useful(settings: Settings) -> io::Result<()> {
    if settings.unseen == Unseen::Possible {
        let why = "without a promise (Unseen::NeverMade or Unseen::GuardsRefused) only sealed memory would be kept";
        return Err(io::Error::other(why));
    }
    Ok(())
}

fn start(mode: Mode) -> io::Result<&'static Shared> {
    let mut known = MONITORS.lock(Vec::new);
    let same = |shared: &&&Shared| shared.mode == mode && !shared.page.has_ended();
    if let Some(shared) = known.iter().find(same) {
        return Ok(shared);
    }
    // The objects below are never freed.
    thread::room()?;
    let shared: &'static Shared = Box::leak(Box::new(Shared {
        uffd: Userfaultfd::new(mode)?,
        mode,
        page: Box::leak(JournalPage::boxed()),
        doorbell: EventDoorbell::new()?,
        mappings: if mode == Mode::Plain { Mappings::open_to_read()? } else { Mappings::open()? },
        known: KnownMapping::default(),
        removed: Removed::new(),
        locked: OnceLock::new(),
        reading: OnceLock::new(),
    }));
    thread::start("pindown-monitor", move || shared.run_reader())?;
    // No mapping is registered before this, so no thread that holds the allocator's lock waits for the reading thread,
    // which needs that lock while it starts.
    shared.reading.wait().clone().map_err(io::Error::other)?;
    known.push(shared);
    Ok(shared)
}

/// A range at which nothing is ever mapped.
const NOWHERE: Range = match Range::new(0, 1) {
    Ok(range) => range,
    Err(_) => panic!("one byte is a range"),
};

/// The interval of checks for changes if the process is not allowed to call poll(2).
const LOOK: std::time::Duration = std::time::Duration::from_millis(1);

/// The bit of the page's busy word that is set while the thread is about to read and report.
const MARK: u64 = 1;

/// The number of messages that are read at a time.
const MESSAGES: usize = 64;

impl Shared {
    /// Runs the reading thread. It runs until the process exits, because threads that change a registered mapping wait
    /// for it.
    fn run_reader(&self) {
        let mut messages = [UffdMessage::default(); MESSAGES];
        // The descriptors that the thread reads and writes stay open even if the program closes its own.
        let mut kept = [self.uffd.as_fd(), self.doorbell.descriptor()].map(|kept| kept.as_raw_fd());
        let kept = keeper::keep_only(&mut kept).map_err(|why| why.to_string());
        let failed = kept.is_err();
        // Only this thread sets the value.
        self.reading.set(kept).ok();
        if failed {
            return;
        }
        loop {
            let mut fds = [PollFd::new(&self.uffd, PollFlags::IN)];
            match rustix::event::poll(&mut fds, None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                // poll(2) is rejected. Reading does not block, so the thread reads at intervals.
                Err(_) => std::thread::sleep(LOOK),
            }
            self.mark();
            match self.uffd.read(&mut messages) {
                Ok(read) => messages[..read].iter().for_each(|message| self.tell(message.event())),
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
                // Changes can no longer be reported, so no registration is kept from now on. The next look-up replaces
                // the descriptor.
                Err(_) => {
                    self.page.end();
                    return self.doorbell.ring();
                }
            }
            self.page.busy.fetch_and(!MARK, Ordering::Release);
            self.doorbell.ring();
        }
    }

    /// Prevents hits until the mark is cleared, because reading lets the changes continue.
    fn mark(&self) {
        self.page.busy.fetch_or(MARK, Ordering::AcqRel);
        self.page.emit(ChangedAddresses::Of(NOWHERE));
    }

    fn tell(&self, event: Event) {
        match event {
            Event::Unmapped(range) => self.page.emit(ChangedAddresses::Of(range)),
            Event::Removed(range) => {
                self.removed.add(range);
                self.page.emit(ChangedAddresses::Of(range));
            }
            Event::Moved(from, to) => {
                self.page.emit(ChangedAddresses::Of(from));
                self.page.emit(ChangedAddresses::Of(to));
            }
            Event::Fault(address) => {
                let page = address - address % page_size();
                Range::between(page, page + page_size()).into_iter().for_each(|page| self.uffd.let_write(page));
            }
            Event::Unknown => self.page.emit(ChangedAddresses::Everything),
        }
    }

    /// Returns the locked memory, for caches with [`Unseen::GuardsRefused`].
    fn locked(&self) -> &Locked {
        self.locked.get_or_init(Locked::new)
    }

    /// Registers the mappings of a range, if all of them are memory that can be watched.
    fn watch(&self, range: Range) -> Result<(), Refusal> {
        // A change that has not been read yet has not been reported yet.
        let settled = ask(self.uffd.as_fd()) == UnreadChanges::Settled;
        let now = settled.then(|| QueryPosition::now(self.page));
        if now.is_some_and(|now| self.known.has(range, now)) {
            return Ok(());
        }
        if !self.uffd.is_open() {
            self.page.end();
        }
        if self.page.has_ended() {
            self.uffd.give_up(self.doorbell.descriptor());
            return Err(Refusal::MonitorEnded);
        }
        let mapping = self.register(range)?;
        // The mappings that exist now are registered. Before the first call, other mappings may have existed there.
        self.register(range)?;
        if let (Some(mapping), Some(now)) = (mapping, now) {
            self.known.learn(mapping, now);
        }
        Ok(())
    }

    /// Registers the mappings of a range. Returns the mapping if there is only one.
    fn register(&self, range: Range) -> Result<Option<Range>, Refusal> {
        let mappings = self.mappings.of(range).ok().flatten().ok_or(Refusal::NotWatchable)?;
        let one = if let [mapping] = mappings.as_slice() { Some(mapping.range) } else { None };
        for mapping in mappings {
            let plain = mapping.backing == Backing::Anonymous && !mapping.shared && mapping.writable;
            if !plain || mapping.page_size.is_some_and(|size| size != page_size()) {
                return Err(Refusal::NotWatchable);
            }
            // EBUSY: another library, or a debugger, watches the mapping.
            self.uffd.register(mapping.range).map_err(|_| Refusal::NotWatchable)?;
        }
        Ok(one)
    }
}

impl MonitorBackend for UserfaultfdMonitor {
    fn name(&self) -> &'static str {
        match self.shared.mode {
            Mode::Asynchronous => "userfaultfd",
            Mode::Plain => "userfaultfd-plain",
        }
    }

    fn page(&self) -> Option<&'static JournalPage> {
        Some(self.shared.page)
    }

    fn doorbell(&self) -> Option<&dyn MonitorDoorbell> {
        Some(&self.shared.doorbell)
    }

    fn marks_first(&self) -> bool {
        true
    }

    fn queried_uffd(&self) -> Option<BorrowedFd<'static>> {
        Some(self.shared.uffd.as_fd())
    }

    fn checks_rights(&self) -> bool {
        self.settings.checks_rights
    }

    fn allowed(&self, range: Range, access: Access) -> bool {
        // Rights of sealed memory cannot be removed.
        SealedMonitor::holds(range) || self.shared.mappings.allow(range, access.writes())
    }

    fn watch(&self, range: Range, _access: Access) -> Result<Watched, Refusal> {
        if SealedMonitor::holds(range) {
            return Ok(Watched::default());
        }
        if self.settings.unseen == Unseen::Possible {
            return Err(Refusal::NotWatchable);
        }
        self.shared.watch(range)?;
        if self.settings.unseen == Unseen::GuardsRefused {
            // Locks the range each time, because another mapping, which is not locked, may have replaced the former.
            self.shared.locked().add(range, &self.shared.mappings).map_err(|_| Refusal::NotWatchable)?;
        }
        let locked = (self.settings.unseen == Unseen::GuardsRefused).then_some(range);
        if self.shared.removed.overlaps(range) {
            locked.into_iter().for_each(|range| self.unlock(range));
            return Err(Refusal::NotWatchable);
        }
        Ok(Watched { locked, ..Watched::default() })
    }

    fn unlock(&self, range: Range) {
        if self.settings.unseen == Unseen::GuardsRefused && !SealedMonitor::holds(range) {
            self.shared.locked().remove(range);
        }
    }
}

#[cfg(test)]
#[expect(unsafe_code, reason = "tests change the mappings of the process; each block states its own reason")]
mod tests;
