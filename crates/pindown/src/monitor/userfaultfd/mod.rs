//! The monitor for processes without privileges: userfaultfd as a pure event channel.
//!
//! Whole mappings are registered for asynchronous write protection, and never write-protected: the descriptor then reports
//! what happens to them (unmapped, moved, dropped) while the caller of that change waits for it to be read, and no page
//! fault is ever reported. One thread reads. It marks the journal's page *before* it reads, since reading is what lets the
//! caller go on, and reports what it read afterwards. A hit asks the kernel whether a change is under way that has not been
//! read (an ioctl that answers EAGAIN), and then compares the journal: no change is missed between the two.
//!
//! The following memory cannot be watched, and the cache registers it for one use:
//! * anything but private anonymous memory: files can be truncated by another process, System V segments detached, shared
//!   memory remapped, without an event;
//! * private anonymous memory as well, unless the program promises that no code in the process makes the two changes of it that
//!   come without an event ([`Unseen::NeverMade`]): guard pages (MADV_GUARD_INSTALL, since Linux 6.13), and a System V segment
//!   attached over it (shmat with SHM_REMAP). Instead of the first promise it may have the memory locked, where the kernel
//!   refuses guard pages ([`Unseen::GuardsRefused`]): locked *before* it is pinned, so that no guard page can come after the
//!   pin; one that was there before makes the pin fail;
//! * addresses at which pages were dropped once (MADV_DONTNEED): that event comes before the pages are dropped, and no
//!   event comes after. Until then the old pages could be pinned again; when that is over cannot be known.
//!
//! Memory of [`super::sealed`] needs no watching and is always answered for.
//!
//! MON-014: a change of protection is not an event. Rights that the process lost would stay with a registration until it is
//! dropped, unless each hit asks for them as well ([`Settings::check_rights`]). The question comes after the entry was found
//! and before the journal is compared: what mprotect(2) took before the look-up began is missed, what it takes later is later.
//! A mapping that was put there meanwhile, with the rights and without the pages, is reported by the journal as always.
//!
//! # Before Linux 6.7
//!
//! There is no asynchronous write protection then, and mappings are registered for the plain one. Its faults are
//! reported to this thread, and wait for it. This mode is as sound, for the memory that is kept:
//! * No fault comes, since a page faults only if UFFDIO_WRITEPROTECT has marked it, and the monitor marks none. (A mark made by
//!   other code, by PAGEMAP_SCAN since Linux 6.7, is removed when the fault is reported.) So no thread of the program waits,
//!   except for changes, as in the other mode.
//! * The events do not depend on the kind of protection: the kernel sends them for whatever has this descriptor. Nothing
//!   is learnt from write protection itself, in either mode; what asynchronous protection adds is more kinds of memory
//!   (files), and those are not kept in either.
//! * What comes without an event is the same, or less: there are no guard pages before Linux 6.13. MADV_DONTNEED is reported
//!   before the pages go, and pages that were dropped fault in anew without any report, so such addresses are used once
//!   from then on in this mode too: a pinned page's successor is not to be seen by plain write protection (marks of absent
//!   pages, which would survive a drop, came with Linux 6.4).
//! * The question of a hit, whether a change is under way, is answered from a *count* of changes since Linux 5.15 only;
//!   before, it was a flag, which the end of one change took down while another was under way. There is no way to ask which
//!   it is, so UFFD_FEATURE_EXACT_ADDRESS is wanted, which is younger (5.18). Older kernels are refused.
//! * /proc/self/maps is read, since PROCMAP_QUERY came with 6.11. Its lines are each right when they are made; what changes
//!   between them is reported, or happened before the mapping was registered, and it is therefore read and registered
//!   twice.
//!
//! The reading thread allocates, frees and maps nothing, takes no lock that others hold while they do, and runs no signal
//! handler of the program's: threads that change a mapping wait for it.

mod locked;
mod removed;
mod settings;
pub(crate) mod sys;

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::OnceLock;
use std::sync::atomic::Ordering;

use rustix::event::{PollFd, PollFlags};

use super::known::{Known, Since};
use super::sealed::SealedMonitor;
use super::{Monitor, Refusal, Watched, keeper, thread};
use crate::access::Access;
use crate::journal::asked::{Asked, ask};
use crate::journal::{Bell, Change, EventBell, OfProcess, Page};
use crate::mapping::{Backing, Mappings};
use crate::range::{Range, page_size};
use locked::Locked;
use removed::Removed;
pub use settings::{Settings, Unseen};
use sys::{Event, Message, Mode, Userfaultfd};

/// One monitor for each process and mode: a mapping has one userfaultfd. A fork has none of its parent's memory
/// watched, and starts its own.
static MONITORS: OfProcess<Vec<&'static Shared>> = OfProcess::new();

#[derive(Debug)]
struct Shared {
    uffd: Userfaultfd,
    mode: Mode,
    page: &'static Page,
    bell: EventBell,
    mappings: Mappings,
    known: Known,
    removed: Removed,
    locked: OnceLock<Locked>,
    /// The thread reads, or why it does not. What the system's library allocates when a thread begins is behind it.
    reading: OnceLock<Result<(), String>>,
}

/// The monitor, as a cache has it.
#[derive(Debug)]
pub(crate) struct UserfaultfdMonitor {
    shared: &'static Shared,
    settings: Settings,
}

impl UserfaultfdMonitor {
    /// # Errors
    /// Why it cannot work here.
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

/// Checks that the monitor would keep more than [`super::sealed`] does: otherwise its more expensive hits are of no use.
///
/// # Errors
/// Why not.
pub(crate) fn useful(settings: Settings) -> io::Result<()> {
    if settings.unseen == Unseen::Possible {
        let why =
            "it would keep sealed memory only, for nobody promised that there are no changes which it does not see";
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
    // What is made below is never freed.
    thread::room()?;
    let shared: &'static Shared = Box::leak(Box::new(Shared {
        uffd: Userfaultfd::new(mode)?,
        mode,
        page: Box::leak(Page::boxed()),
        bell: EventBell::new()?,
        mappings: if mode == Mode::Plain { Mappings::open_to_read()? } else { Mappings::open()? },
        known: Known::default(),
        removed: Removed::new(),
        locked: OnceLock::new(),
        reading: OnceLock::new(),
    }));
    thread::start("pindown-monitor", move || shared.watch_for_ever())?;
    // Nothing is registered before, so that no thread that holds the allocator's lock waits for the reading thread,
    // which needs that lock while it starts.
    shared.reading.wait().clone().map_err(io::Error::other)?;
    known.push(shared);
    Ok(shared)
}

/// Where nothing is ever mapped.
const NOWHERE: Range = match Range::new(0, 1) {
    Ok(range) => range,
    Err(_) => panic!("one byte is a range"),
};

/// How often changes are looked for where the system does not let us wait for them.
const LOOK: std::time::Duration = std::time::Duration::from_millis(1);

/// The bit of the page's busy word that is set while the thread is about to read.
const MARK: u64 = 1;

/// Messages that are read at a time.
const MESSAGES: usize = 64;

impl Shared {
    /// Runs the reading thread. It lives as long as the process, since threads that change a registered mapping wait
    /// for it.
    fn watch_for_ever(&self) {
        let mut messages = [Message::default(); MESSAGES];
        // What it reads from and rings stays open, whatever the program closes.
        let mut kept = [self.uffd.as_fd(), self.bell.descriptor()].map(|kept| kept.as_raw_fd());
        let kept = keeper::keep_only(&mut kept).map_err(|why| why.to_string());
        let failed = kept.is_err();
        // Only this thread sets it.
        self.reading.set(kept).ok();
        if failed {
            return;
        }
        loop {
            let mut fds = [PollFd::new(&self.uffd, PollFlags::IN)];
            match rustix::event::poll(&mut fds, None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                // Refused: the descriptor does not block, so it is looked at now and then.
                Err(_) => std::thread::sleep(LOOK),
            }
            self.mark();
            match self.uffd.read(&mut messages) {
                Ok(read) => messages[..read].iter().for_each(|message| self.tell(message.event())),
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
                // Changes can no longer be reported, so nothing is kept from here on; the next look-up gives the descriptor up.
                Err(_) => return self.page.end(),
            }
            self.page.busy.fetch_and(!MARK, Ordering::Release);
            self.bell.ring();
        }
    }

    /// No hit until the mark is taken back: reading lets the changes go on.
    fn mark(&self) {
        self.page.busy.fetch_or(MARK, Ordering::AcqRel);
        self.page.emit(Change::Of(NOWHERE));
    }

    fn tell(&self, event: Event) {
        match event {
            Event::Unmapped(range) => self.page.emit(Change::Of(range)),
            Event::Removed(range) => {
                self.removed.add(range);
                self.page.emit(Change::Of(range));
            }
            Event::Moved(from, to) => {
                self.page.emit(Change::Of(from));
                self.page.emit(Change::Of(to));
            }
            Event::Fault(address) => {
                let page = address - address % page_size();
                Range::between(page, page + page_size()).into_iter().for_each(|page| self.uffd.let_write(page));
            }
            Event::Unknown => self.page.emit(Change::Everything),
        }
    }

    /// The locked memory, for caches with [`Unseen::GuardsRefused`].
    fn locked(&self) -> &Locked {
        self.locked.get_or_init(Locked::new)
    }

    /// Registers the mappings of a range, if all of them are memory that can be watched.
    fn watch(&self, range: Range) -> Result<(), Refusal> {
        // A change that has not been read yet is not reported yet.
        let settled = ask(self.uffd.as_fd()) == Asked::Settled;
        let now = settled.then(|| Since::now(self.page));
        if now.is_some_and(|now| self.known.has(range, now)) {
            return Ok(());
        }
        if !self.uffd.is_open() {
            self.page.end();
        }
        if self.page.has_ended() {
            self.uffd.give_up(self.bell.descriptor());
            return Err(Refusal::MonitorEnded);
        }
        let mapping = self.register(range)?;
        // What is mapped now is watched; before the first call something else may have been mapped.
        self.register(range)?;
        if let (Some(mapping), Some(now)) = (mapping, now) {
            self.known.learn(mapping, now);
        }
        Ok(())
    }

    /// Registers the mappings of a range. Returns the mapping, if there is only one.
    fn register(&self, range: Range) -> Result<Option<Range>, Refusal> {
        let mappings = self.mappings.of(range).ok().flatten().ok_or(Refusal::NotWatchable)?;
        let one = if let [mapping] = mappings.as_slice() { Some(mapping.range) } else { None };
        for mapping in mappings {
            let plain = mapping.backing == Backing::Anonymous && !mapping.shared && mapping.writable;
            if !plain || mapping.page_size.is_some_and(|size| size != page_size()) {
                return Err(Refusal::NotWatchable);
            }
            // Busy: another library, or a debugger, watches it.
            self.uffd.register(mapping.range).map_err(|_| Refusal::NotWatchable)?;
        }
        Ok(one)
    }
}

impl Monitor for UserfaultfdMonitor {
    fn name(&self) -> &'static str {
        match self.shared.mode {
            Mode::Asynchronous => "userfaultfd",
            Mode::Plain => "userfaultfd-plain",
        }
    }

    fn page(&self) -> Option<&'static Page> {
        Some(self.shared.page)
    }

    fn bell(&self) -> Option<&dyn Bell> {
        Some(&self.shared.bell)
    }

    fn marks_first(&self) -> bool {
        true
    }

    fn asked(&self) -> Option<BorrowedFd<'static>> {
        Some(self.shared.uffd.as_fd())
    }

    fn checks_rights(&self) -> bool {
        self.settings.checks_rights
    }

    fn allowed(&self, range: Range, access: Access) -> bool {
        // Rights of sealed memory cannot be taken away.
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
            // Each time: the mapping may have been unlocked by being another.
            self.shared.locked().add(range).map_err(|_| Refusal::NotWatchable)?;
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
