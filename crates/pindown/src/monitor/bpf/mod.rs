//! The kernel tier: small programs at the kernel's own tracepoints report which addresses changed.
//!
//! Every kind of memory that can be pinned is covered, changes by other processes (truncation of a shared file) and by
//! io_uring's workers included. No call of the program is slowed by waiting, none fails, none is intercepted.
//!
//! # Loading the programs
//! Loading takes root (CAP_BPF and CAP_PERFMON). A privileged process loads them for itself ([`Monitor::in_process`]); others ask
//! `pindown-helper` ([`Monitor::from_helper`]), which has loaded them once for all processes. The helper passes a page that only the
//! kernel writes, a ring that wakes threads that wait for reports, and the descriptors that keep the programs attached: reports go on
//! when the helper dies. What is lost then is the watching of further shared mappings, and the check for skipped programs.
//!
//! # What a client of the helper may learn and disturb
//! A client learns nothing of other processes and users, except that a limit of all users together was reached (also that of one file's
//! watchers, for a file that it may write), and how long its own requests take:
//! * Its page reports its own address space. Each request is that of the process which sent it, named by a pidfd (SCM_PIDFD).
//!   The helper refuses a process that is not dumpable or has another user than when it connected (it ran a privileged program),
//!   and demands a harmless system call with random arguments, which must be reported in that page: the sender must be running
//!   in the address space that is reported.
//! * The programs end the page when its address space ends, by exit or exec, before the kernel can use its mm_struct again. So a
//!   page that was kept shows nothing of the next address space, also when there is no helper any more.
//! * A page names its ring by a random number, and holds no other number of the helper's: not how many clients there are.
//! * The page and the programs cannot be written, replaced or detached through the descriptors, and no others be found.
//! * Inodes are named by an address in the client's own memory, and only shared mappings that it may write are accepted:
//!   it learns how many pages left the page cache of a file that it could truncate itself.
//! * A socket that is passed on, or kept over exec, is of no use: requests from another address space end the connection.
//! * A client trusts only a helper that runs as root or as the client's own user.
//!
//! What a client takes is limited for its user: connections, address spaces, and watched files ([`Limits`]); of the 64 address spaces that may
//! watch one file a user has 32. Threads take nothing that is shared: what is noted of a thread lies with the thread. A message with
//! descriptors is refused, at the sender from Linux 6.16 on. The helper serves one request of each user at a time. It costs each
//! system call of a client's own process some nanoseconds; a watched file's truncation a little for each address space. A user is a
//! user id of the helper's user namespace: one that was lent a range of subordinate ids counts as that many.
//!
//! An address space is given up when it ends; a connection may close earlier without harm.
//!
//! # How a cache uses it
//! *Hit*: see [`Page`]. *Drain*: under the cache's lock, all changes since its position; overlapping entries go.
//! *Miss*: [`Monitor::watch`]; drain; not [`Page::busy`]; note [`Page::inode`]; pin; insert; drain again: if busy, or the
//! inode's number moved, or a change overlapped, the entry goes (its pin serves this use only).
//! [`Monitor::check`] now and then: an error ends caching. After fork(2) the child must not use its parent's cache.

#[cfg(feature = "bpf")]
mod attach;
mod bell;
mod btf;
mod cached;
mod client;
mod kernel;
mod listen;
mod load;
mod object;
mod page;
mod publish;
mod quota;
mod refusal;
mod request;
mod server;
mod session;
mod signals;
mod sys;
#[cfg(all(test, pindown_bpf))]
mod tests;
mod waiting;
mod wire;

use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{PidfdFlags, getpid, pidfd_open};

pub(crate) use cached::BpfMonitor;
pub use page::{Change, Drain, Page, RECORDS, SLOTS, Slot};
pub use quota::Limits;
pub use refusal::{Denial, Unavailable, Unwatchable};
pub use server::Helper;

use super::keeper::Keeper;
use crate::journal::Waiting;
use bell::RingBell;
use client::Client;
use kernel::{Kernel, SpaceId};
use waiting::Published;

/// The path at which the helper listens by default.
pub const SOCKET: &str = "/run/pindown.sock";

/// What is needed besides the records to watch a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watch {
    /// Nothing: the records report every change.
    Records,
    /// An entry is valid while [`Page::inode`] of this slot is what it was before pinning.
    /// [`Monitor::unwatch`] gives the slot back, once for each [`Monitor::watch`].
    Inode(Slot),
}

/// Reports on this process's address space.
#[derive(Debug)]
pub struct Monitor {
    page: Page,
    bell: RingBell,
    source: Mutex<Source>,
    /// The programs stay attached while it is there.
    keeper: Keeper,
}

#[derive(Debug)]
enum Source {
    /// Loaded by this process: the programs, this process, and its address space.
    Here { kernel: Box<Kernel>, process: OwnedFd, space: SpaceId },
    /// Loaded by the helper.
    Helper(Client),
}

impl Monitor {
    /// From the helper at [`SOCKET`], or else by loading the programs.
    ///
    /// # Errors
    /// Why not: the reason that loading gave, if no helper answers; else the helper's.
    pub fn open() -> Result<Self, Unavailable> {
        match Self::from_helper(Path::new(SOCKET)) {
            Err(Unavailable::NoHelper { .. }) => Self::in_process(),
            answer => answer,
        }
    }

    /// Loads the programs for this process alone. Each monitor made this way adds to the cost of the hooks, for every
    /// process of the machine, until it is dropped.
    ///
    /// # Errors
    /// Why not, by name.
    pub fn in_process() -> Result<Self, Unavailable> {
        Self::with(Box::new(Kernel::load()?))
    }

    fn with(mut kernel: Box<Kernel>) -> Result<Self, Unavailable> {
        let (process, space) = admit_this(&mut kernel)?;
        let keeper = Keeper::hold(kernel.take_links()).map_err(load::refused("a thread that keeps it attached"))?;
        let (_, map) = kernel.page(space).ok_or(Unavailable::Denied(Denial::NoAddressSpace))?;
        let page = Page::open(map).map_err(load::refused("the page"))?;
        let ring = kernel.bell(space).and_then(|ring| ring.try_clone_to_owned().ok());
        let ring = ring.ok_or(Unavailable::Denied(Denial::Kernel))?;
        let bell = RingBell::open(ring).map_err(load::refused("the bell"))?;
        Ok(Self::new(page, bell, Source::Here { kernel, process, space }, keeper))
    }

    /// From a helper, without any privilege.
    ///
    /// # Errors
    /// [`Unavailable::NoHelper`] if no process listens there; the other errors give the reason why the helper is not
    /// trusted, or why it refused.
    pub fn from_helper(socket: &Path) -> Result<Self, Unavailable> {
        let (client, page, bell, links) = Client::connect(socket)?;
        let keeper = Keeper::hold(links).map_err(load::refused("a thread that keeps it attached"))?;
        Ok(Self::new(page, bell, Source::Helper(client), keeper))
    }

    fn new(page: Page, bell: RingBell, source: Source, keeper: Keeper) -> Self {
        client::wait_for_older_changes();
        Self { page, bell, source: Mutex::new(source), keeper }
    }

    /// Whether this is the process that opened it, and not a fork.
    pub(crate) fn is_here(&self) -> bool {
        self.keeper.is_here()
    }

    /// Reports may be missing from here on: every cache of the process finds out at its next look-up, and keeps nothing.
    pub(crate) fn end(&self) {
        if let Source::Here { kernel, space, .. } = &*self.source()
            && kernel.is_open()
        {
            kernel.end_reports(*space);
        }
        if !self.page.has_ended() {
            // Without memory each cache finds out by itself, at a miss.
            self.page.end().ok();
        }
    }

    /// The page of reports.
    #[inline]
    #[must_use]
    pub fn page(&self) -> &Page {
        &self.page
    }

    /// The bell that wakes threads that wait for reports.
    pub(crate) fn bell(&self) -> &RingBell {
        &self.bell
    }

    /// Waits until something is reported after `seen`, a [`Page::head`] read earlier, or the timeout has passed.
    /// Returns whether something was reported, or a watched inode lost pages. Of several threads that wait at least one
    /// is woken.
    ///
    /// # Errors
    /// Those of poll(2).
    pub fn wait(&self, seen: u64, timeout: Duration) -> std::io::Result<bool> {
        let waiting = Waiting::on(&self.bell);
        if self.page.head() != seen {
            return Ok(true);
        }
        let timeout = Timespec { tv_sec: timeout.as_secs().cast_signed(), tv_nsec: timeout.subsec_nanos().into() };
        let mut fds = [PollFd::from_borrowed_fd(waiting.descriptor(), PollFlags::IN)];
        Ok(poll(&mut fds, Some(&timeout))? != 0)
    }

    /// Starts to watch everything that can change under the addresses `range`: to be called before each pinning.
    ///
    /// # Errors
    /// Why it cannot be watched: pin it for one use.
    pub fn watch(&self, range: Range<u64>) -> Result<Watch, Unwatchable> {
        if !self.is_here() {
            return Err(Unwatchable::Gone);
        }
        let slot = match &mut *self.source() {
            Source::Here { kernel, process, space } => {
                if !kernel.is_open() {
                    return Err(Unwatchable::Gone);
                }
                watch_here(kernel, process, *space, &range)?
            }
            Source::Helper(client) => client.watch(&range)?,
        };
        Ok(slot.map_or(Watch::Records, Watch::Inode))
    }

    /// Releases the slot that one [`Self::watch`] returned.
    pub fn unwatch(&self, slot: Slot) {
        if !self.is_here() {
            return;
        }
        match &mut *self.source() {
            Source::Here { kernel, space, .. } if kernel.is_open() => kernel.unwatch(*space, slot),
            Source::Here { .. } => {}
            Source::Helper(client) => client.unwatch(slot),
        }
    }

    /// Whether reports are complete so far, as far as can be known. A system call for each program, so not for a hit.
    /// The helper checks by itself and marks the pages: this is then [`Page::busy`].
    ///
    /// # Errors
    /// [`Unavailable::Missed`], [`Unavailable::Closed`], or the kernel's refusal to answer: nothing may be cached any more.
    pub fn check(&self) -> Result<(), Unavailable> {
        match &*self.source() {
            Source::Here { kernel, .. } => kernel.check(),
            Source::Helper(_) => Ok(()),
        }
    }

    fn source(&self) -> std::sync::MutexGuard<'_, Source> {
        self.source.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The programs without those that report when calls begin, attached and reporting on this process: to measure what the others cost by
/// themselves, which is what the monitor costs on kernels that free page tables late. It delivers no reports, so no cache can use it.
#[derive(Debug)]
pub struct RecordsAlone {
    _attached: Box<Kernel>,
}

impl RecordsAlone {
    /// `None` where the monitor is just that.
    ///
    /// # Errors
    /// Why the programs cannot be loaded here, by name.
    pub fn attach() -> Result<Option<Self>, Unavailable> {
        let Some(loaded) = object::load_records_alone()? else { return Ok(None) };
        let mut kernel = Box::new(Kernel::with(loaded));
        admit_this(&mut kernel)?;
        Ok(Some(Self { _attached: kernel }))
    }
}

/// How long a call, or a request of io_uring, that began before the page was there may take to end.
const QUIET: Duration = Duration::from_secs(2);

/// Has the programs report on this process. Returns a pidfd of the process, and its address space.
fn admit_this(kernel: &mut Kernel) -> Result<(OwnedFd, SpaceId), Unavailable> {
    let process = pidfd_open(getpid(), PidfdFlags::empty()).map_err(load::refused("a pidfd of this process"))?;
    let identify = |kernel: &Kernel| kernel.identify(process.as_fd()).map_err(Unavailable::Denied);
    let who = identify(kernel)?;
    let space = kernel.admit(&who, None).map_err(Unavailable::Denied)?;
    if kernel.progress(space) != Published::Done {
        kernel.end(&[space]);
        return Err(Unavailable::Denied(Denial::Kernel));
    }
    let deadline = Instant::now() + QUIET;
    loop {
        let who = identify(kernel)?;
        if kernel.is_quiet(&who) {
            break;
        }
        if Instant::now() > deadline {
            if let Err(why) = kernel.accept_unquiet(space, &who) {
                kernel.end(&[space]);
                return Err(Unavailable::Denied(why));
            }
            break;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok((process, space))
}

/// [`Monitor::watch`] with programs of this process.
fn watch_here(
    kernel: &mut Kernel,
    process: &OwnedFd,
    space: SpaceId,
    range: &Range<u64>,
) -> Result<Option<Slot>, Unwatchable> {
    // The program only tries the lock: a writer may hold it for a moment.
    for _ in 0..200 {
        let mapping = kernel.mapping(process.as_fd(), range)?;
        if kernel.space_of(&mapping.identity) != Some(space) {
            return Err(Unwatchable::Gone);
        }
        if mapping.refused != Some(Unwatchable::Locked) {
            return kernel.watch(space, range, &mapping, |_| Ok(None));
        }
        std::thread::sleep(Duration::from_micros(100));
    }
    Err(Unwatchable::Locked)
}

/// Whether this kernel needs reports of when calls begin, too: it frees page tables early.
///
/// # Errors
/// Why the programs cannot be loaded here, by name.
pub fn reports_beginnings() -> Result<bool, Unavailable> {
    load::check().map(|hooks| hooks.starts)
}

/// Whether the programs could be loaded here by this process.
///
/// # Errors
/// Why not, by name.
pub fn loadable() -> Result<(), Unavailable> {
    load::check().map(drop)
}
