//! The messages between helper and client: four words of eight bytes, over a Unix socket that preserves message boundaries.
#![expect(unsafe_code, reason = "a socket option that rustix lacks; the block states its reason")]

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};

/// The version of the protocol, raised when a message changes.
pub(super) const VERSION: u64 = 2;
/// The maximum number of descriptors in one message.
pub(super) const DESCRIPTORS: usize = 12;

/// One message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HelperMessage {
    /// Client: requests a page.
    Hello { version: u64 },
    /// Helper: requests that the client removes the permissions of these bytes, which are at addresses where no process
    /// has memory.
    Challenge { start: u64, len: u64 },
    /// Client: the challenge is done.
    Done,
    /// Helper: grants the page. Carries descriptors: the page, the doorbell, then those that keep the programs
    /// attached.
    Grant,
    /// Client: requests that the pages of these addresses are watched.
    Watch { start: u64, end: u64 },
    /// Helper: returns the slot that watches them, or `None` if none is needed.
    Watched { slot: Option<u64> },
    /// Helper: the pages cannot be watched. Contains a number of [`super::Unwatchable`].
    Unwatchable { why: u64 },
    /// Client: a slot is no longer needed.
    Unwatch { slot: u64 },
    /// Helper: the slot is released.
    Unwatched,
    /// Helper: rejects the client, and closes the connection. Contains a number of [`super::Denial`].
    Denied { why: u64 },
}

/// The size of a message in bytes.
pub(super) const LEN: usize = 32;
const NONE: u64 = u64::MAX;

impl HelperMessage {
    fn words(self) -> [u64; 4] {
        match self {
            Self::Hello { version } => [1, version, 0, 0],
            Self::Challenge { start, len } => [2, start, len, 0],
            Self::Done => [3, 0, 0, 0],
            Self::Grant => [4, 0, 0, 0],
            Self::Watch { start, end } => [5, start, end, 0],
            Self::Watched { slot } => [6, slot.unwrap_or(NONE), 0, 0],
            Self::Unwatchable { why } => [7, why, 0, 0],
            Self::Unwatch { slot } => [8, slot, 0, 0],
            Self::Unwatched => [9, 0, 0, 0],
            Self::Denied { why } => [10, why, 0, 0],
        }
    }

    fn from_words([kind, a, b, c]: [u64; 4]) -> Option<Self> {
        let message = match kind {
            1 => Self::Hello { version: a },
            2 => Self::Challenge { start: a, len: b },
            3 => Self::Done,
            4 => Self::Grant,
            5 => Self::Watch { start: a, end: b },
            6 => Self::Watched { slot: (a != NONE).then_some(a) },
            7 => Self::Unwatchable { why: a },
            8 => Self::Unwatch { slot: a },
            9 => Self::Unwatched,
            10 => Self::Denied { why: a },
            _ => return None,
        };
        // Unused words must be zero.
        (message.words() == [kind, a, b, c]).then_some(message)
    }

    /// Parses a message. Returns `None` if it is invalid.
    pub(super) fn from_bytes(bytes: &[u8; LEN]) -> Option<Self> {
        let mut words = [0; 4];
        for (word, chunk) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *word = u64::from_le_bytes(*chunk);
        }
        Self::from_words(words)
    }
}

/// Sends a message with descriptors; `flags` determine whether the call may wait.
pub(super) fn send(
    to: BorrowedFd<'_>,
    message: HelperMessage,
    fds: &[BorrowedFd<'_>],
    flags: SendFlags,
) -> io::Result<()> {
    let mut bytes = [0; LEN];
    for (chunk, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(message.words()) {
        *chunk = word.to_le_bytes();
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "too many descriptors"));
    }
    sendmsg(to, &[IoSlice::new(&bytes)], &mut control, flags | SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives a message and its descriptors. Fails with `InvalidData` if the bytes are not a message.
pub(super) fn receive(from: BorrowedFd<'_>, flags: RecvFlags) -> io::Result<(HelperMessage, Vec<OwnedFd>)> {
    let mut bytes = [0; LEN];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let got = recvmsg(from, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags | RecvFlags::CMSG_CLOEXEC)?;
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            fds.extend(received);
        }
    }
    if got.bytes == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let cut = got.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC);
    match HelperMessage::from_bytes(&bytes) {
        Some(message) if got.bytes == LEN && !cut => Ok((message, fds)),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Returns the effective user of the process at the other end, as of when it connected or began to listen.
pub(super) fn peer_user(socket: BorrowedFd<'_>) -> io::Result<u32> {
    let mut found = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: `found` is valid for `len` bytes and every bit pattern is a ucred.
    let result = unsafe {
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED, (&raw mut found).cast(), &raw mut len)
    };
    if result == 0 { Ok(found.uid) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requirements: MON-034.
    #[test]
    fn helper_messages_round_trip() {
        let all = [
            HelperMessage::Hello { version: 1 },
            HelperMessage::Challenge { start: 1 << 56, len: 4096 },
            HelperMessage::Done,
            HelperMessage::Grant,
            HelperMessage::Watch { start: 1, end: 2 },
            HelperMessage::Watched { slot: None },
            HelperMessage::Watched { slot: Some(63) },
            HelperMessage::Unwatchable { why: 3 },
            HelperMessage::Unwatch { slot: 5 },
            HelperMessage::Unwatched,
            HelperMessage::Denied { why: 4 },
        ];
        for message in all {
            assert_eq!(HelperMessage::from_words(message.words()), Some(message));
        }
        assert_eq!(HelperMessage::from_words([0, 0, 0, 0]), None);
        assert_eq!(HelperMessage::from_words([3, 1, 0, 0]), None, "unused words must be zero");
        assert_eq!(HelperMessage::from_words([11, 0, 0, 0]), None);
    }
}
