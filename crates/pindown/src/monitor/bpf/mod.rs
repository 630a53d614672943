//! The kernel monitor: small programs at tracepoints of the kernel report which addresses changed.
//!
//! It covers every kind of memory that can be pinned, except the kinds that [`Unwatchable`] lists, and includes changes
//! by other processes (truncation of a shared file) and by io_uring workers. It does not intercept or delay the
//! program's calls, or cause them to fail.
//!
//! # Loading the programs
//! Loading requires root (CAP_BPF and CAP_PERFMON). A privileged process loads the programs for itself
//! ([`Monitor::in_process`]). Other processes use `pindown-helper` ([`Monitor::from_helper`]), which has loaded them
//! once for all processes. The helper passes a page that only the kernel writes, a ring that wakes threads that wait
//! for reports, and the descriptors that keep the programs attached. So reports continue when the helper exits. From
//! then on [`Monitor::watch`] fails (a cache still keeps further private anonymous memory, on Linux 6.11 and later),
//! and skipped programs are not detected.
//!
//! # Isolation of the helper's clients
//! A client gets no information about other processes and users, with two exceptions: that a limit of all users
//! together was reached (including that of one file's watchers, for a file that it may write), and the duration of its
//! own requests:
//! * Its page reports its own address space. The sender of each request is identified by a pidfd (SCM_PIDFD). The
//!   helper rejects a process that is not dumpable, or that has changed its user since it connected (it has executed a
//!   privileged program). It also requires the process to make a system call without effect, with random arguments,
//!   which must be reported in that page. This proves that the sender runs in the address space that is reported.
//! * The programs end the page when its address space ends, by exit or exec, before the kernel can reuse its mm_struct.
//!   So a page that was kept reports nothing about the next address space, even if the helper has exited.
//! * A page identifies its ring by a random number. It contains no other number of the helper, in particular not the
//!   number of clients.
//! * A client cannot write, replace or detach the page and the programs through the descriptors, and cannot find other
//!   pages or programs.
//! * An inode is identified by an address in the client's own memory, and only shared mappings that the client may
//!   write are accepted. So the client only gets the number of pages that were removed from the page cache of a file
//!   that it could truncate itself.
//! * A socket that is passed to another process, or kept across exec, cannot be used: a request from another address
//!   space ends the connection.
//! * A client trusts only a helper that runs as root or as the client's own user.
//!
//! The resources that a client takes are limited for its user: connections, address spaces, and watched files
//! ([`Limits`]). Of the 64 address spaces that may watch one file, 32 may belong to one user. Threads take no shared
//! resource, because the data of a thread is stored with the thread. A message with descriptors is rejected, from Linux
//! 6.16 on at the sender. The helper serves one request of each user at a time. The programs add a few nanoseconds to
//! each system call of a client's process, and a little for each address space to the truncation of a watched file. A
//! user is a user ID in the helper's user namespace: a user with a range of subordinate IDs counts as that many users.
//!
//! The reports on an address space stop when it ends. Closing the connection earlier does not affect them.
//!
//! # Use by a cache
//! *Hit*: see [`Page`]. *Drain*: under the cache's lock, process all changes since the cache's position, and remove the
//! entries that overlap them. *Miss*: [`Monitor::watch`]; drain; check that [`Page::busy`] is false; record
//! [`Page::inode`]; pin; insert; drain again. If the page is busy now, or the inode's count has changed, or a change
//! overlapped, remove the entry (its pin serves this use only). Call [`Monitor::check`] at intervals: after an error,
//! nothing may be cached. After fork(2) the child must not use its parent's cache.

#[cfg(feature = "bpf")]
mod attach;
mod btf;
mod cached;
mod client;
mod doorbell;
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
pub use refusal::{BpfUnavailable, Denial, Unwatchable};
pub use server::Helper;

use super::keeper::Keeper;
use crate::journal::WaitingThread;
use client::Client;
use doorbell::RingDoorbell;
use kernel::{Kernel, SpaceId};
use waiting::Published;

/// The default path of the helper's socket.
pub const SOCKET: &str = "/run/pindown.sock";

/// The requirements for watching a range, in addition to the records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watch {
    /// No additional requirement: the records report every change.
    Records,
    /// An entry is valid as long as [`Page::inode`] of this slot has the value that it had before pinning.
    /// [`Monitor::unwatch`] releases the slot, once for each [`Monitor::watch`].
    Inode(Slot),
}

/// The reports on this process's address space.
#[derive(Debug)]
pub struct Monitor {
    page: Page,
    doorbell: RingDoorbell,
    source: Mutex<Source>,
    /// Keeps the programs attached until it is dropped.
    keeper: Keeper,
}

#[derive(Debug)]
enum Source {
    /// Loaded by this process. Contains the programs, a pidfd of this process, and its address space.
    Here { kernel: Box<Kernel>, process: OwnedFd, space: SpaceId },
    /// Loaded by the helper.
    Helper(Client),
}

impl Monitor {
    /// Opens the monitor through the helper at [`SOCKET`], or otherwise by loading the programs.
    ///
    /// # Errors
    /// If no helper answers, the reason why loading failed; otherwise the helper's reason.
    pub fn open() -> Result<Self, BpfUnavailable> {
        match Self::from_helper(Path::new(SOCKET)) {
            Err(BpfUnavailable::NoHelper { .. }) => Self::in_process(),
            answer => answer,
        }
    }

    /// Loads the programs only for this process. Until it is dropped, each such monitor adds to the cost of the
    /// tracepoints for every process of the machine.
    ///
    /// # Errors
    /// The reason why the programs cannot be loaded.
    pub fn in_process() -> Result<Self, BpfUnavailable> {
        Self::with(Box::new(Kernel::load()?))
    }

    fn with(mut kernel: Box<Kernel>) -> Result<Self, BpfUnavailable> {
        let (process, space) = admit_this(&mut kernel)?;
        let keeper = Keeper::hold(kernel.take_links())
            .map_err(load::refused("starting a thread that keeps the programs attached"))?;
        let (_, map) = kernel.page(space).ok_or(BpfUnavailable::Denied(Denial::NoAddressSpace))?;
        let page = Page::open(map).map_err(load::refused("mapping the page of reports"))?;
        let ring = kernel.doorbell(space).and_then(|ring| ring.try_clone_to_owned().ok());
        let ring = ring.ok_or(BpfUnavailable::Denied(Denial::Kernel))?;
        let doorbell = RingDoorbell::open(ring).map_err(load::refused("mapping the doorbell"))?;
        Ok(Self::new(page, doorbell, Source::Here { kernel, process, space }, keeper))
    }

    /// Opens the monitor through a helper, without any privilege.
    ///
    /// # Errors
    /// [`BpfUnavailable::NoHelper`] if no process listens there. Other errors contain the reason why the helper is not
    /// trusted, or why it rejected the client.
    pub fn from_helper(socket: &Path) -> Result<Self, BpfUnavailable> {
        let (client, page, doorbell, links) = Client::connect(socket)?;
        let keeper =
            Keeper::hold(links).map_err(load::refused("starting a thread that keeps the programs attached"))?;
        Ok(Self::new(page, doorbell, Source::Helper(client), keeper))
    }

    fn new(page: Page, doorbell: RingDoorbell, source: Source, keeper: Keeper) -> Self {
        client::wait_for_older_changes();
        Self { page, doorbell, source: Mutex::new(source), keeper }
    }

    /// Returns whether this is the process that opened the monitor, and not a fork.
    pub(crate) fn is_here(&self) -> bool {
        self.keeper.is_here()
    }

    /// Ends the page, because reports may be missing from now on. Every cache of the process detects this at its next
    /// look-up, and keeps no registrations.
    pub(crate) fn end(&self) {
        if let Source::Here { kernel, space, .. } = &*self.source()
            && kernel.is_open()
        {
            kernel.end_reports(*space);
        }
        if !self.page.has_ended() {
            // If there is no memory for this, each cache detects the missing reports at a miss.
            self.page.end().ok();
        }
    }

    /// Returns the page of reports.
    #[inline]
    #[must_use]
    pub fn page(&self) -> &Page {
        &self.page
    }

    /// Returns the doorbell that wakes threads that wait for reports.
    pub(crate) fn doorbell(&self) -> &RingDoorbell {
        &self.doorbell
    }

    /// Waits until a change is reported after `seen`, a [`Page::head`] read earlier, or until the timeout expires.
    /// Returns whether a change was reported, or a watched inode lost pages. If several threads wait, at least one is
    /// woken.
    ///
    /// # Errors
    /// Errors of poll(2).
    pub fn wait(&self, seen: u64, timeout: Duration) -> std::io::Result<bool> {
        let waiting = WaitingThread::on(&self.doorbell);
        if self.page.head() != seen {
            return Ok(true);
        }
        let timeout = Timespec { tv_sec: timeout.as_secs().cast_signed(), tv_nsec: timeout.subsec_nanos().into() };
        let mut fds = [PollFd::from_borrowed_fd(waiting.descriptor(), PollFlags::IN)];
        Ok(poll(&mut fds, Some(&timeout))? != 0)
    }

    /// Starts to watch everything that can change at the addresses `range`. Called before each pinning.
    ///
    /// # Errors
    /// The reason why the range cannot be watched. It may then be pinned only for one use.
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

    /// Checks whether reports are complete so far, as far as this can be detected. Makes a system call for each
    /// program, so it is not for hits. With a helper, this function always succeeds: the helper makes the check and
    /// marks the pages, which [`Page::busy`] then reports.
    ///
    /// # Errors
    /// [`BpfUnavailable::Missed`], [`BpfUnavailable::Closed`], or an error of the system calls. From then on nothing
    /// may be cached.
    pub fn check(&self) -> Result<(), BpfUnavailable> {
        match &*self.source() {
            Source::Here { kernel, .. } => kernel.check(),
            Source::Helper(_) => Ok(()),
        }
    }

    fn source(&self) -> std::sync::MutexGuard<'_, Source> {
        self.source.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// All programs except those that report when calls begin, attached to report on this process. Used to measure the cost
/// of the excluded programs separately, which is the cost of the monitor on kernels that free page tables late. It
/// delivers no reports, so caches cannot use it.
#[derive(Debug)]
pub struct RecordsAlone {
    _attached: Box<Kernel>,
}

impl RecordsAlone {
    /// Attaches the programs. Returns `None` if this kernel needs no programs that report when calls begin.
    ///
    /// # Errors
    /// The reason why the programs cannot be loaded.
    pub fn attach() -> Result<Option<Self>, BpfUnavailable> {
        let Some(loaded) = object::load_records_alone()? else { return Ok(None) };
        let mut kernel = Box::new(Kernel::with(loaded));
        admit_this(&mut kernel)?;
        Ok(Some(Self { _attached: kernel }))
    }
}

/// The maximum time to wait for the end of a call, or of an io_uring request, that began before the page existed.
const QUIET: Duration = Duration::from_secs(2);

/// Makes the programs report on this process. Returns a pidfd of the process, and its address space.
fn admit_this(kernel: &mut Kernel) -> Result<(OwnedFd, SpaceId), BpfUnavailable> {
    let process = pidfd_open(getpid(), PidfdFlags::empty()).map_err(load::refused("a pidfd of this process"))?;
    let identify = |kernel: &Kernel| kernel.identify(process.as_fd()).map_err(BpfUnavailable::Denied);
    let caller = identify(kernel)?;
    let space = kernel.admit(&caller, None).map_err(BpfUnavailable::Denied)?;
    if kernel.progress(space) != Published::Done {
        kernel.end(&[space]);
        return Err(BpfUnavailable::Denied(Denial::Kernel));
    }
    let deadline = Instant::now() + QUIET;
    loop {
        let caller = identify(kernel)?;
        if kernel.is_quiet(&caller) {
            break;
        }
        if Instant::now() > deadline {
            if let Err(why) = kernel.accept_unquiet(space, &caller) {
                kernel.end(&[space]);
                return Err(BpfUnavailable::Denied(why));
            }
            break;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok((process, space))
}

/// [`Monitor::watch`] with programs that this process has loaded.
fn watch_here(
    kernel: &mut Kernel,
    process: &OwnedFd,
    space: SpaceId,
    range: &Range<u64>,
) -> Result<Option<Slot>, Unwatchable> {
    // The program only tries to take the lock, which a writer may hold for a short time.
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

/// Returns whether this kernel also requires reports when calls begin, because it frees page tables early.
///
/// # Errors
/// The reason why the programs cannot be loaded.
pub fn reports_beginnings() -> Result<bool, BpfUnavailable> {
    load::check().map(|hooks| hooks.starts)
}

/// Checks whether this process could load the programs.
///
/// # Errors
/// The reason why it could not.
pub fn loadable() -> Result<(), BpfUnavailable> {
    load::check().map(drop)
}

/// Checks whether the kernel, and this build, have what the programs need. Unlike [`loadable`], it does not check
/// whether this process may load them, so it also shows whether a helper could.
///
/// # Errors
/// The component that is missing.
pub fn supported() -> Result<(), BpfUnavailable> {
    load::supported()
}
