//! The helper's protocol, implemented by hand, so that its rules can be broken.

use std::io;
use std::mem;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

pub(crate) const HELLO: [u64; 4] = [1, 2, 0, 0];
pub(crate) const CHALLENGE: u64 = 2;
pub(crate) const DONE: [u64; 4] = [3, 0, 0, 0];
pub(crate) const GRANT: u64 = 4;
pub(crate) const WATCH: u64 = 5;
pub(crate) const WATCHED: u64 = 6;
pub(crate) const UNWATCH: u64 = 8;

/// The number of milliseconds after which a missing answer counts as lost. The tests do not check the helper's speed,
/// only that it answers.
const WAIT: i32 = 20_000;

/// An answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) words: [u64; 4],
    pub(crate) fds: Vec<OwnedFd>,
}

/// A connection.
#[derive(Debug)]
pub(crate) struct Link(pub(crate) OwnedFd);

impl Link {
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        connect(&socket, &SocketAddrUnix::new(path)?)?;
        Ok(Self(socket))
    }

    /// Sends these bytes as one message, with descriptors.
    pub(crate) fn send_bytes(&self, bytes: &[u8], fds: &[RawFd]) -> io::Result<()> {
        let mut space = [0_u64; 140];
        let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        // SAFETY: an all-zero header has no buffers.
        let mut header: libc::msghdr = unsafe { mem::zeroed() };
        header.msg_iov = &raw mut part;
        header.msg_iovlen = 1;
        if !fds.is_empty() {
            let len = mem::size_of_val(fds) as u32;
            header.msg_control = space.as_mut_ptr().cast();
            // SAFETY: the call only computes a length.
            header.msg_controllen = unsafe { libc::CMSG_SPACE(len) } as usize;
            assert!(header.msg_controllen <= size_of_val(&space));
            // SAFETY: the header has a control buffer.
            let control = unsafe { libc::CMSG_FIRSTHDR(&raw const header) };
            // SAFETY: the control buffer is large enough for the header, and belongs to this function.
            let control = unsafe { &mut *control };
            control.cmsg_level = libc::SOL_SOCKET;
            control.cmsg_type = libc::SCM_RIGHTS;
            // SAFETY: the call only computes a length.
            control.cmsg_len = unsafe { libc::CMSG_LEN(len) } as usize;
            // SAFETY: the call only computes the address of the data after the header.
            let data = unsafe { libc::CMSG_DATA(control) };
            // SAFETY: the control buffer has room for the descriptors, as asserted.
            unsafe { ptr::copy_nonoverlapping(fds.as_ptr().cast::<u8>(), data, len as usize) };
        }
        // SAFETY: the header describes buffers of this function.
        let sent = unsafe { libc::sendmsg(self.0.as_raw_fd(), &raw const header, libc::MSG_NOSIGNAL) };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    pub(crate) fn send(&self, words: [u64; 4]) -> io::Result<()> {
        self.send_bytes(&words.map(u64::to_le_bytes).concat(), &[])
    }

    /// Returns the next answer; `None` if the connection has ended, or no answer arrives for a long time.
    pub(crate) fn receive(&self) -> Option<Answer> {
        let mut waited = libc::pollfd { fd: self.0.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: the array has one descriptor.
        if unsafe { libc::poll(&raw mut waited, 1, WAIT) } <= 0 {
            return None;
        }
        let (mut words, mut space) = ([0_u64; 4], [0_u64; 64]);
        let mut part = libc::iovec { iov_base: words.as_mut_ptr().cast(), iov_len: 32 };
        // SAFETY: an all-zero header has no buffers.
        let mut header: libc::msghdr = unsafe { mem::zeroed() };
        header.msg_iov = &raw mut part;
        header.msg_iovlen = 1;
        header.msg_control = space.as_mut_ptr().cast();
        header.msg_controllen = size_of_val(&space);
        let mut receive = || {
            // SAFETY: the header describes buffers of this function.
            unsafe { libc::recvmsg(self.0.as_raw_fd(), &raw mut header, libc::MSG_CMSG_CLOEXEC) }
        };
        // If the helper closed the connection before it read the message, its answer follows the error.
        let got = match receive() {
            -1 if io::Error::last_os_error().kind() == io::ErrorKind::ConnectionReset => receive(),
            got => got,
        };
        if got != 32 {
            return None;
        }
        let mut fds = Vec::new();
        // SAFETY: the kernel has filled the header.
        let control = unsafe { libc::CMSG_FIRSTHDR(&raw const header) };
        // SAFETY: the pointer is null, or refers to a header in the control buffer.
        if let Some(control) = unsafe { control.as_ref() } {
            // SAFETY: the call only computes a length.
            let empty = unsafe { libc::CMSG_LEN(0) } as usize;
            for index in 0..(control.cmsg_len - empty) / 4 {
                // SAFETY: the call only computes the address of the data after the header.
                let data = unsafe { libc::CMSG_DATA(control) }.cast::<libc::c_int>();
                // SAFETY: the kernel wrote this number of descriptors.
                let fd = unsafe { data.wrapping_add(index).read_unaligned() };
                // SAFETY: the kernel has made the descriptor for this message.
                fds.push(unsafe { OwnedFd::from_raw_fd(fd) });
            }
        }
        Some(Answer { words, fds })
    }

    /// Sends a message, and returns the words of the answer; zeros if none arrives.
    pub(crate) fn ask(&self, words: [u64; 4]) -> [u64; 4] {
        // A helper that has rejected the client may have closed the connection before. Its answer can still be read.
        self.send(words).ok();
        self.receive().map_or([0; 4], |answer| answer.words)
    }

    /// Sends Hello and does the challenge. Returns the page, or the words of the answer if it is not the grant.
    pub(crate) fn join(&self) -> Result<ReportPage, [u64; 4]> {
        let challenge = self.ask(HELLO);
        if challenge[0] != CHALLENGE {
            return Err(challenge);
        }
        protect(challenge[1], challenge[2]);
        self.send(DONE).ok();
        match self.receive() {
            Some(Answer { words: [GRANT, ..], fds }) => Ok(ReportPage::open(fds)),
            answer => Err(answer.map_or([0; 4], |answer| answer.words)),
        }
    }
}

/// Makes the system call that the challenge requires.
pub(crate) fn protect(start: u64, len: u64) {
    // SAFETY: no process has memory at these addresses.
    unsafe { libc::syscall(libc::SYS_mprotect, start, len, libc::PROT_NONE) };
}

/// The page of reports, as mapped by a client, and all descriptors that came with it.
#[derive(Debug)]
pub(crate) struct ReportPage {
    pub(crate) fds: Vec<OwnedFd>,
    words: *const AtomicU64,
}

impl ReportPage {
    fn open(fds: Vec<OwnedFd>) -> Self {
        Self { words: Self::map(fds[0].as_raw_fd()), fds }
    }

    /// Maps the page of a descriptor that was kept.
    pub(crate) fn kept(fd: RawFd) -> Self {
        Self { words: Self::map(fd), fds: Vec::new() }
    }

    fn map(fd: RawFd) -> *const AtomicU64 {
        // SAFETY: a new mapping. Its first page is read, and it is never unmapped.
        let start = unsafe { libc::mmap(ptr::null_mut(), 4096, libc::PROT_READ, libc::MAP_SHARED, fd, 0) };
        assert_ne!(start, libc::MAP_FAILED);
        start.cast()
    }

    fn word(&self, index: usize) -> u64 {
        assert!(index < 512);
        // SAFETY: the word is aligned, and mapped permanently.
        unsafe { &*self.words.wrapping_add(index) }.load(Ordering::Acquire)
    }

    pub(crate) fn head(&self) -> u64 {
        self.word(0)
    }

    pub(crate) fn busy(&self) -> u64 {
        self.word(8)
    }

    /// Returns the word that identifies the ring.
    pub(crate) fn name(&self) -> u64 {
        self.word(12)
    }

    pub(crate) fn inode(&self, slot: u64) -> u64 {
        self.word(16 + slot as usize)
    }
}

/// A shared file of one page, and the address at which it is mapped.
#[derive(Debug)]
pub(crate) struct SharedFile {
    pub(crate) fd: RawFd,
    pub(crate) start: u64,
}

impl SharedFile {
    pub(crate) fn new() -> Self {
        // SAFETY: the name is a string.
        let fd = unsafe { libc::memfd_create(c"shared".as_ptr(), libc::MFD_CLOEXEC) };
        assert!(fd >= 0);
        // SAFETY: the call takes no pointers.
        assert_eq!(unsafe { libc::ftruncate(fd, 4096) }, 0);
        Self::of(fd)
    }

    pub(crate) fn of(fd: RawFd) -> Self {
        let start = crate::client::map(libc::MAP_SHARED, fd);
        // SAFETY: the memory was mapped above, and no reference to it exists.
        unsafe { start.cast::<u8>().write_volatile(1) };
        Self { fd, start: start as u64 }
    }

    pub(crate) fn watch(&self, link: &Link) -> [u64; 4] {
        link.ask([WATCH, self.start, self.start + 4096, 0])
    }

    pub(crate) fn truncate(&self) {
        // SAFETY: the call takes no pointers.
        assert_eq!(unsafe { libc::ftruncate(self.fd, 0) }, 0);
    }
}
