//! The credentials of the process at the other end of a Unix socket, and the descriptor that becomes readable when that
//! process has ended.

#![expect(unsafe_code, reason = "getsockopt for two options that rustix lacks; each block states its own reason")]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags};

use crate::peer_process::{PeerProcess, ProcessEnded};
use crate::system::call::{call, named};
use crate::system::interrupted::uninterrupted;
use crate::system::process_socket::ProcessSocket;

/// The kernel's information about the process at the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Credentials {
    /// The process id in the pid namespace of this process, or 0 if it is not visible there.
    pub(super) pid: i32,
    /// The effective user of the process when it connected or began to listen.
    pub(super) uid: u32,
}

/// Returns the credentials of the process that connected, or that listens, at the other end.
pub(super) fn credentials(socket: BorrowedFd<'_>) -> io::Result<Credentials> {
    let mut found = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: `found` is valid for `len` bytes and every bit pattern is a ucred.
    let result = unsafe {
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED, (&raw mut found).cast(), &raw mut len)
    };
    if result != 0 {
        return Err(named("getsockopt")(last_errno()));
    }
    Ok(Credentials { pid: found.pid, uid: found.uid })
}

/// Returns a descriptor that becomes readable when the process at the other end has ended. Before Linux 6.5 it is
/// opened by process id. In this case the caller must verify afterwards that the peer is still alive.
pub(super) fn peer_pidfd(socket: BorrowedFd<'_>, pid: i32) -> io::Result<OwnedFd> {
    let mut fd: libc::c_int = -1;
    let mut len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: `fd` is valid for `len` bytes.
    let result = unsafe {
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERPIDFD, (&raw mut fd).cast(), &raw mut len)
    };
    if result == 0 && fd >= 0 {
        // SAFETY: the kernel just created this descriptor, and nothing else owns it.
        let owned = unsafe { OwnedFd::from_raw_fd(fd) };
        rustix::io::fcntl_setfd(&owned, rustix::io::FdFlags::CLOEXEC)?;
        return Ok(owned);
    }
    let errno = last_errno();
    if errno != Errno::NOPROTOOPT {
        return Err(named("getsockopt")(errno));
    }
    let pid = Pid::from_raw(pid).ok_or(io::ErrorKind::NotFound)?;
    call("pidfd_open", || rustix::process::pidfd_open(pid, PidfdFlags::empty()))
}

fn last_errno() -> Errno {
    Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// The objects of a local peer that are watched after the connection is established.
#[derive(Debug)]
pub(super) struct WatchedObjects {
    /// The process.
    pub(super) process: Arc<PeerProcess>,
    /// A duplicate of the control socket, which hangs up when the peer closes its end.
    pub(super) control: ProcessSocket,
}

impl WatchedObjects {
    /// Returns the reason why the peer is considered dead, or `None` if it is not.
    pub(super) fn end_reason(&self) -> Option<String> {
        use rustix::event::{PollFd, PollFlags, Timespec};
        match self.process.ended() {
            Some(ProcessEnded::Exited) => return Some(format!("process {} ended", self.process.pid())),
            Some(ProcessEnded::Executed) => {
                return Some(format!("process {} executed another program", self.process.pid()));
            }
            None => {}
        }
        let mut fds = [PollFd::from_borrowed_fd(self.control.as_fd(), PollFlags::RDHUP)];
        uninterrupted(|| rustix::event::poll(&mut fds, Some(&Timespec::default()))).ok()?;
        fds[0]
            .revents()
            .intersects(PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR)
            .then(|| "connection closed".into())
    }
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, SocketFlags, SocketType};

    use super::*;
    use crate::testing::sleeping_peer;

    #[test]
    fn socket_pair_reports_credentials_and_hang_up() {
        let (a, b) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let who = credentials(a.as_fd()).unwrap();
        assert_eq!(who.pid, std::process::id().cast_signed());
        assert_eq!(who.uid, rustix::process::geteuid().as_raw());
        let pidfd = peer_pidfd(a.as_fd(), who.pid).unwrap();
        let process = Arc::new(PeerProcess::new(who.pid, pidfd).unwrap());
        let watched = WatchedObjects { process, control: a.into() };
        assert_eq!(watched.end_reason(), None);
        drop(b);
        // A child that another test forked may hold the other end for a while.
        let is_open = |_: &u32| watched.end_reason().is_none();
        (0..30_000).take_while(is_open).for_each(|_| std::thread::sleep(std::time::Duration::from_millis(1)));
        assert_eq!(watched.end_reason().as_deref(), Some("connection closed"));
    }

    #[test]
    fn pidfd_reports_death_while_the_socket_is_held_elsewhere() {
        let (mut child, process) = sleeping_peer();
        let (a, _held) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let watched = WatchedObjects { process, control: a.into() };
        assert_eq!(watched.end_reason(), None);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(watched.end_reason(), Some(format!("process {} ended", child.id())));
    }
}
