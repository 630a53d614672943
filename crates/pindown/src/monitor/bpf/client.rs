//! The client's side of the helper's socket.
#![expect(
    unsafe_code,
    reason = "two raw system calls without effects on memory, and a value of the process; each block states its reason"
)]

use std::ffi::OsString;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::fstat;
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use super::doorbell::RingDoorbell;
use super::page::{Page, Slot};
use super::refusal::{BpfUnavailable, Denial, Unwatchable};
use super::wire::{self, HelperMessage};

/// The maximum time that the helper may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Addresses at which no process has memory: they have a bit that no address of user memory has, and no bit of a tag,
/// which the kernel ignores. User memory has addresses of at most 56 bits on x86-64, where tags begin at bit 57 (LAM),
/// and of at most 52 bits on aarch64, where they begin at bit 56. The programs report changes of these addresses
/// (`ADDRESS_BITS` in bpf/x86_64.h and bpf/aarch64.h).
pub(super) const NOBODYS: Range<u64> = if cfg!(target_arch = "aarch64") { 1 << 54..1 << 55 } else { 1 << 56..1 << 57 };

/// Returns the path in the environment variable `PINDOWN_SOCKET`, if it is set and not empty. A program that runs with
/// the privileges of its file (set-user-ID and others) ignores the variable, because its user sets it.
pub(super) fn chosen_socket() -> Option<PathBuf> {
    // SAFETY: the call only reads a value that the kernel passed to the process.
    let has_privileges = unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
    chosen(std::env::var_os("PINDOWN_SOCKET"), has_privileges)
}

fn chosen(value: Option<OsString>, has_privileges: bool) -> Option<PathBuf> {
    value.filter(|path| !path.is_empty() && !has_privileges).map(PathBuf::from)
}

/// A connection to the helper.
#[derive(Debug)]
pub(super) struct Client {
    socket: OwnedFd,
    /// Distinguishes the socket from another file with the same number.
    inode: u64,
}

impl Client {
    /// Connects to the helper. Returns the connection, the page of reports, the doorbell that wakes waiting threads,
    /// and the descriptors that keep the programs attached.
    pub(super) fn connect(path: &Path) -> Result<(Self, Page, RingDoorbell, Vec<OwnedFd>), BpfUnavailable> {
        let nobody = |why: Errno| BpfUnavailable::NoHelper { path: path.display().to_string(), why: why.into() };
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .map_err(|why| BpfUnavailable::Helper(why.into()))?;
        // Set before connecting, because that blocks while the helper's queue of connections is full.
        for direction in [Timeout::Recv, Timeout::Send] {
            set_socket_timeout(&socket, direction, Some(ANSWER_TIMEOUT))
                .map_err(|why| BpfUnavailable::Helper(why.into()))?;
        }
        connect(&socket, &SocketAddrUnix::new(path).map_err(nobody)?).map_err(|why| match why {
            Errno::ACCESS => BpfUnavailable::NotAllowed { path: path.display().to_string() },
            why => nobody(why),
        })?;
        let user = wire::peer_user(socket.as_fd()).map_err(BpfUnavailable::Helper)?;
        if user != 0 && user != rustix::process::geteuid().as_raw() {
            return Err(BpfUnavailable::ForeignHelper(user));
        }
        let inode = fstat(&socket).map_err(|why| BpfUnavailable::Helper(why.into()))?.st_ino;
        let client = Self { socket, inode };
        let mut answer = client.ask(HelperMessage::Hello { version: wire::VERSION });
        if let Ok((HelperMessage::Challenge { start, len }, _)) = answer {
            if !NOBODYS.contains(&start) || len == 0 || len > NOBODYS.end - start {
                return Err(BpfUnavailable::Denied(Denial::Protocol));
            }
            protect_nothing(start, len);
            answer = client.ask(HelperMessage::Done);
        }
        match answer.map_err(BpfUnavailable::Helper)? {
            (HelperMessage::Grant, mut fds) if fds.len() > 1 => {
                let page = Page::open(fds.remove(0).as_fd()).map_err(BpfUnavailable::Helper)?;
                let doorbell = RingDoorbell::open(fds.remove(0)).map_err(BpfUnavailable::Helper)?;
                Ok((client, page, doorbell, fds))
            }
            (HelperMessage::Denied { why }, _) => Err(BpfUnavailable::Denied(Denial::from_number(why))),
            _ => Err(BpfUnavailable::Denied(Denial::Protocol)),
        }
    }

    fn ask(&self, message: HelperMessage) -> io::Result<(HelperMessage, Vec<OwnedFd>)> {
        // The program may have closed the socket, and opened another file with its number.
        if fstat(&self.socket).is_ok_and(|found| found.st_ino != self.inode) {
            return Err(io::ErrorKind::NotConnected.into());
        }
        // A helper that rejects the client may have closed the connection before it read this message. Its answer can
        // still be read.
        match wire::send(self.socket.as_fd(), message, &[], SendFlags::empty()) {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => return Err(error),
            _ => {}
        }
        match wire::receive(self.socket.as_fd(), RecvFlags::empty()) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {
                wire::receive(self.socket.as_fd(), RecvFlags::empty())
            }
            answer => answer,
        }
    }

    pub(super) fn watch(&self, range: &Range<u64>) -> Result<Option<Slot>, Unwatchable> {
        match self.ask(HelperMessage::Watch { start: range.start, end: range.end }) {
            Ok((HelperMessage::Watched { slot: None }, _)) => Ok(None),
            Ok((HelperMessage::Watched { slot: Some(slot) }, _)) => {
                Slot::new(slot as usize).map(Some).ok_or(Unwatchable::Gone)
            }
            Ok((HelperMessage::Unwatchable { why }, _)) => Err(Unwatchable::from_number(why)),
            _ => Err(Unwatchable::Gone),
        }
    }

    pub(super) fn unwatch(&self, slot: Slot) {
        // If the helper has exited, the slot no longer exists.
        self.ask(HelperMessage::Unwatch { slot: slot.index() as u64 }).ok();
    }
}

/// The challenge: a call that changes nothing, because no memory is mapped there, but that the programs report.
fn protect_nothing(start: u64, len: u64) {
    // SAFETY: no process has memory in NOBODYS, and the caller has checked that the range is within it.
    unsafe { libc::syscall(libc::SYS_mprotect, start, len, libc::PROT_NONE) };
}

/// Waits for the end of all changes that threads were making under the lock of the address space. Also passes the
/// current break to the programs.
pub(super) fn wait_for_older_changes() {
    // SAFETY: a break below the start of the heap is rejected, after the lock was taken.
    unsafe { libc::syscall(libc::SYS_brk, 0) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variable_chooses_the_socket_except_in_privileged_programs() {
        let path = |text: &str| Some(OsString::from(text));
        assert_eq!(chosen(path("/tmp/s"), false), Some(PathBuf::from("/tmp/s")));
        assert_eq!(chosen(path("/tmp/s"), true), None);
        assert_eq!(chosen(path(""), false), None);
        assert_eq!(chosen(None, false), None);
    }
}
