//! userfaultfd(2) and the few ioctls that a monitor needs: <linux/userfaultfd.h>.

#![expect(unsafe_code, reason = "system calls that rustix does not have; each block states its own reason")]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::io::Errno;
use rustix::ioctl::{Updater, opcode};
use rustix::mm::{MapFlags, MlockFlags, ProtFlags};

use crate::journal::unread_changes::{UffdioRange, UffdioWriteprotect, WRITEPROTECT};
use crate::range::Range;

const API: u64 = 0xAA;
const USER_MODE_ONLY: libc::c_int = 1;

const FEATURE_PAGEFAULT_FLAG_WP: u64 = 1 << 0;
const FEATURE_EVENT_REMAP: u64 = 1 << 2;
const FEATURE_EVENT_REMOVE: u64 = 1 << 3;
const FEATURE_EVENT_UNMAP: u64 = 1 << 6;
const FEATURE_EXACT_ADDRESS: u64 = 1 << 11;
const FEATURE_WP_ASYNC: u64 = 1 << 15;
const EVENTS: u64 = FEATURE_EVENT_REMAP | FEATURE_EVENT_REMOVE | FEATURE_EVENT_UNMAP;

const REGISTER_MODE_WP: u64 = 1 << 1;

const EVENT_PAGEFAULT: u8 = 0x12;
const EVENT_REMAP: u8 = 0x14;
const EVENT_REMOVE: u8 = 0x15;
const EVENT_UNMAP: u8 = 0x16;

#[repr(C)]
#[derive(Default)]
struct UffdioApi {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
#[derive(Default)]
struct UffdioRegister {
    start: u64,
    len: u64,
    mode: u64,
    ioctls: u64,
}

/// The mode in which ranges are registered. Pages are not write-protected in either mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// Ranges are registered for asynchronous write protection (Linux 6.7), with which the kernel resolves faults
    /// itself.
    Asynchronous,
    /// Ranges are registered for write protection with reported faults.
    Plain,
}

impl Mode {
    /// Returns the features that the kernel must have.
    fn features(self) -> u64 {
        EVENTS
            | match self {
                Self::Asynchronous => FEATURE_WP_ASYNC,
                Self::Plain => FEATURE_PAGEFAULT_FLAG_WP | FEATURE_EXACT_ADDRESS,
            }
    }

    /// Returns the message for a kernel that lacks these features.
    fn lack(self) -> &'static str {
        match self {
            Self::Asynchronous => {
                "the kernel's userfaultfd has no asynchronous write protection, which needs Linux 6.7"
            }
            Self::Plain => {
                "the kernel's userfaultfd has no write protection, or is older than Linux 5.18 and does not count changes \
                 in progress"
            }
        }
    }
}

/// `struct uffd_msg`: the event, and up to three words of data.
#[derive(Clone, Copy, Debug, Default, zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::KnownLayout)]
#[repr(C)]
pub(super) struct UffdMessage {
    event: u8,
    reserved: [u8; 7],
    words: [u64; 3],
}

/// The content of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// The addresses are no longer mapped.
    Unmapped(Range),
    /// The pages of the addresses are about to be dropped.
    Removed(Range),
    /// The memory at the first range is now mapped at the second.
    Moved(Range, Range),
    /// A thread waits to write to this address, which is write-protected.
    Fault(u64),
    /// Any other event, or an invalid range.
    Unknown,
}

impl UffdMessage {
    pub(super) fn event(&self) -> Event {
        let [one, two, three] = self.words;
        let known = match self.event {
            // The first word contains flags.
            EVENT_PAGEFAULT => Some(Event::Fault(two)),
            EVENT_UNMAP => Range::between(one, two).map(Event::Unmapped),
            EVENT_REMOVE => Range::between(one, two).map(Event::Removed),
            EVENT_REMAP => {
                Range::new(one, three).ok().zip(Range::new(two, three).ok()).map(|(f, t)| Event::Moved(f, t))
            }
            _ => None,
        };
        known.unwrap_or(Event::Unknown)
    }
}

/// A descriptor that reports only changes: the monitor does not write-protect pages, so it causes no page faults.
#[derive(Debug)]
pub(super) struct Userfaultfd {
    descriptor: OwnedFd,
    /// Distinguishes the descriptor from another one with the same number.
    inode: u64,
}

/// The lowest number for the descriptor. Numbers from here on are rarely used for other descriptors, so the number of a
/// closed descriptor usually stays unused.
const HIGH: u64 = 960;

/// Moves the descriptor to a high number, if the limit allows one.
fn moved_up(descriptor: OwnedFd) -> OwnedFd {
    let most = crate::calls::limit(libc::RLIMIT_NOFILE).map_or(u64::MAX, |limits| limits.rlim_cur);
    let high = HIGH.min(most.saturating_sub(64)) as i32;
    rustix::io::fcntl_dupfd_cloexec(&descriptor, high).unwrap_or(descriptor)
}

impl Userfaultfd {
    /// Creates a descriptor.
    ///
    /// # Errors
    /// `Unsupported` if the kernel lacks a feature that the monitor needs; otherwise errors of userfaultfd(2), which
    /// the system may forbid.
    pub(super) fn new(mode: Mode) -> io::Result<Self> {
        let flags = libc::O_CLOEXEC | libc::O_NONBLOCK | USER_MODE_ONLY;
        // SAFETY: the call takes flags and returns a new descriptor.
        let made = unsafe { libc::syscall(libc::SYS_userfaultfd, flags) };
        if made < 0 {
            return Err(crate::calls::last("userfaultfd"));
        }
        // SAFETY: the descriptor was just made, and no other code owns it.
        let uffd = unsafe { OwnedFd::from_raw_fd(made as i32) };
        let mut api = UffdioApi { api: API, features: mode.features(), ioctls: 0 };
        // SAFETY: the opcode is UFFDIO_API, which takes this structure.
        let update = unsafe { Updater::<{ opcode::read_write::<UffdioApi>(0xAA, 0x3F) }, _>::new(&mut api) };
        // SAFETY: the descriptor is a userfaultfd.
        match unsafe { rustix::ioctl::ioctl(&uffd, update) } {
            // The kernel returns the supported features; there are fewer on a processor without write protection.
            Ok(()) if api.features & mode.features() == mode.features() => {
                let descriptor = moved_up(uffd);
                let inode = rustix::fs::fstat(&descriptor).map_err(crate::calls::named("fstat"))?.st_ino;
                Ok(Self { descriptor, inode })
            }
            Ok(()) | Err(Errno::INVAL) => Err(io::Error::new(io::ErrorKind::Unsupported, mode.lack())),
            Err(error) => Err(crate::calls::named("ioctl")(error)),
        }
    }

    /// Returns whether, in the calling thread, the number still refers to this descriptor.
    pub(super) fn is_open(&self) -> bool {
        rustix::fs::fstat(&self.descriptor).is_ok_and(|found| found.st_ino == self.inode)
    }

    /// Registers a range of whole mappings: from now on its changes are reported.
    pub(super) fn register(&self, range: Range) -> rustix::io::Result<()> {
        let mut argument = UffdioRegister { start: range.start(), len: range.len(), mode: REGISTER_MODE_WP, ioctls: 0 };
        // SAFETY: the opcode is UFFDIO_REGISTER, which takes this structure.
        let update = unsafe { Updater::<{ opcode::read_write::<UffdioRegister>(0xAA, 0) }, _>::new(&mut argument) };
        // SAFETY: the descriptor is a userfaultfd; the monitor write-protects no page, so it causes no faults.
        unsafe { rustix::ioctl::ioctl(&self.descriptor, update) }
    }

    /// Lets threads that wait to write to this page continue: removes a write protection that the monitor has not set.
    pub(super) fn let_write(&self, page: Range) {
        let range = UffdioRange { start: page.start(), len: page.len() };
        let mut protect = UffdioWriteprotect { range, mode: 0 };
        // SAFETY: the opcode is UFFDIO_WRITEPROTECT, which takes this structure.
        let update = unsafe { Updater::<WRITEPROTECT, _>::new(&mut protect) };
        // SAFETY: the descriptor is a userfaultfd; the page gets the write permission of its mapping.
        if unsafe { rustix::ioctl::ioctl(&self.descriptor, update) }.is_err() {
            // The call fails while a change is under way: the waiting thread tries again, and its fault is reported
            // again after the change.
            let mut range = range;
            // SAFETY: the opcode is UFFDIO_WAKE, which takes this structure.
            let update = unsafe { Updater::<{ opcode::read::<UffdioRange>(0xAA, 2) }, _>::new(&mut range) };
            // SAFETY: the descriptor is a userfaultfd; a thread that is woken too early waits again.
            unsafe { rustix::ioctl::ioctl(&self.descriptor, update) }.ok();
        }
    }

    /// Reads pending messages without waiting. This wakes the threads that made the changes.
    pub(super) fn read(&self, messages: &mut [UffdMessage]) -> rustix::io::Result<usize> {
        let bytes = zerocopy::IntoBytes::as_mut_bytes(messages);
        let read = match rustix::io::read(&self.descriptor, &mut *bytes) {
            Err(error) if error != Errno::AGAIN && error != Errno::INTR => {
                // read(2) is rejected; readv(2) has the same effect.
                rustix::io::readv(&self.descriptor, &mut [io::IoSliceMut::new(bytes)])?
            }
            result => result?,
        };
        Ok(read / size_of::<UffdMessage>())
    }

    /// Replaces this descriptor by another, permanently, unless the program has closed it: its number may refer to a
    /// file of the program now. Called after the monitor has ended. The reading thread has the other copy. If that
    /// thread has ended too, the kernel ends the registrations, and all threads that wait for their changes to be read
    /// continue. A later [`ask`](crate::journal::unread_changes::ask) returns
    /// [`Unanswered`](crate::journal::unread_changes::UnreadChanges::Unanswered).
    pub(super) fn give_up(&self, other: BorrowedFd<'_>) {
        if !self.is_open() {
            return;
        }
        // SAFETY: both descriptors belong to this module; the number stays in use, for a descriptor that supports none
        // of the ioctls.
        unsafe { libc::dup3(other.as_raw_fd(), self.descriptor.as_raw_fd(), libc::O_CLOEXEC) };
    }
}

impl AsFd for Userfaultfd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// Locks whole pages: those that are present now, and others when they are faulted in.
pub(super) fn lock(pages: Range) -> rustix::io::Result<()> {
    let start = std::ptr::without_provenance_mut(pages.start() as usize);
    // SAFETY: locking does not change the memory; the call fails if a page is not mapped.
    unsafe { rustix::mm::mlock_with(start, pages.len() as usize, MlockFlags::ONFAULT) }
}

/// Unlocks whole pages.
pub(super) fn unlock(pages: Range) {
    let start = std::ptr::without_provenance_mut(pages.start() as usize);
    // SAFETY: unlocking does not change the memory; the call fails if a page is no longer mapped.
    unsafe { rustix::mm::munlock(start, pages.len() as usize) }.ok();
}

/// Returns whether some of these pages are locked. The kernel rejects the advice to age locked pages. The pages are not
/// moved.
pub(super) fn is_locked(pages: Range) -> bool {
    let start = std::ptr::without_provenance_mut(pages.start() as usize);
    // SAFETY: the advice changes no contents.
    let aged = unsafe { rustix::mm::madvise(start, pages.len() as usize, rustix::mm::Advice::LinuxCold) };
    aged == Err(Errno::INVAL)
}

/// Checks that no guard pages can be installed in locked memory.
///
/// # Errors
/// `Unsupported` if guard pages can be installed in locked memory, which no known kernel allows; or the reason why
/// memory cannot be locked.
pub(super) fn locked_memory_refuses_guards() -> io::Result<()> {
    const MADV_GUARD_INSTALL: libc::c_int = 102;
    let len = crate::range::page_size() as usize;
    let rights = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address that the kernel chooses.
    let page = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), len, rights, MapFlags::PRIVATE) }
        .map_err(crate::calls::named("mmap"))?;
    let locked = Range::new(page.addr() as u64, len as u64).map_err(io::Error::other).map(lock);
    // SAFETY: the page contains no object. Kernels without guard pages also reject the advice.
    let installed = unsafe { libc::madvise(page, len, MADV_GUARD_INSTALL) } == 0;
    // SAFETY: the page was mapped above, only for this check.
    unsafe { rustix::mm::munmap(page, len) }?;
    locked?.map_err(crate::calls::named("mlock2"))?;
    if installed {
        let why = "the kernel allows guard pages in locked memory, and reports no event for them";
        return Err(io::Error::new(io::ErrorKind::Unsupported, why));
    }
    Ok(())
}
