//! Packets with descriptors over a Unix socket, and the checks that received descriptors have to pass.
//!
//! A peer may pass anything. The checks guarantee the following for everything that is used afterwards: the number of
//! descriptors is as expected (all others are closed at once), memory cannot change its size and can be mapped
//! writable, and wake-ups do not block, unless the peer changes that later (see `doorbell`).

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{OFlags, SealFlags};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::degraded::Degraded;
use crate::system::interrupted::uninterrupted;
use crate::wire::refusal_reason::RefusalReason;

/// The largest number of descriptors in a packet.
const MOST: usize = 3;

/// Sends a packet.
pub(super) fn send<T: IntoBytes + Immutable>(
    socket: BorrowedFd<'_>,
    packet: &T,
    descriptors: &[BorrowedFd<'_>],
) -> Result<(), Degraded> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(Degraded::from(Errno::MSGSIZE));
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    let bytes = [IoSlice::new(packet.as_bytes())];
    let sent = uninterrupted(|| rustix::net::sendmsg(socket, &bytes, &mut control, flags))?;
    if sent == size_of::<T>() { Ok(()) } else { Err(Degraded::from(Errno::MSGSIZE)) }
}

/// Receives a packet with its descriptors, which are close-on-exec. Returns `None` if none has arrived yet.
pub(super) fn receive<T: FromBytes + IntoBytes>(socket: BorrowedFd<'_>) -> Result<Option<(T, Vec<OwnedFd>)>, Degraded> {
    let mut packet = T::new_zeroed();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    // An interrupted call is repeated: the socket is watched edge-triggered, so there is no second event for the same
    // packet.
    let mut receive =
        || rustix::net::recvmsg(socket, &mut [IoSliceMut::new(packet.as_mut_bytes())], &mut control, flags);
    let got = match uninterrupted(&mut receive) {
        Ok(got) => got,
        Err(Errno::AGAIN) => return Ok(None),
        Err(errno) => return Err(errno.into()),
    };
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            descriptors.extend(received);
        }
    }
    if got.bytes == 0 && descriptors.is_empty() {
        return Err(Degraded { why: RefusalReason::MeetingFailed, errno: Errno::CONNRESET.raw_os_error() });
    }
    if got.flags.contains(ReturnFlags::CTRUNC) {
        // Either more descriptors arrived than expected, or this process has no room for descriptors. Determine which
        // of these is the case.
        return Err(match rustix::io::fcntl_dupfd_cloexec(socket, 0) {
            Err(errno) => errno.into(),
            Ok(_) => Degraded { why: RefusalReason::BadResources, errno: Errno::MSGSIZE.raw_os_error() },
        });
    }
    if got.bytes != size_of::<T>() || got.flags.contains(ReturnFlags::TRUNC) {
        return Err(Degraded { why: RefusalReason::BadResources, errno: Errno::BADMSG.raw_os_error() });
    }
    Ok(Some((packet, descriptors)))
}

const BAD: Degraded = Degraded { why: RefusalReason::BadResources, errno: Errno::INVAL.raw_os_error() };

/// Checks memory that a peer passed. It has to be a memfd of exactly `bytes` bytes, of fixed size, and writable.
pub(super) fn check_memory(fd: BorrowedFd<'_>, bytes: u64) -> Result<(), Degraded> {
    let seals = rustix::fs::fcntl_get_seals(fd).map_err(|_| BAD)?;
    let size = rustix::fs::fstat(fd).map_err(|_| BAD)?.st_size;
    let mode = rustix::fs::fcntl_getfl(fd).map_err(|_| BAD)? & OFlags::ACCMODE;
    let sound = seals.contains(SealFlags::SHRINK | SealFlags::GROW)
        && !seals.intersects(SealFlags::WRITE | SealFlags::FUTURE_WRITE)
        && u64::try_from(size) == Ok(bytes)
        && mode == OFlags::RDWR;
    sound.then_some(()).ok_or(BAD)
}

/// Checks a wake-up descriptor that a peer passed. It has to be an eventfd that does not block.
pub(super) fn check_event(fd: &OwnedFd) -> Result<(), Degraded> {
    let kind = rustix::fs::readlink(format!("/proc/self/fd/{}", fd.as_raw_fd()), Vec::new()).map_err(|_| BAD)?;
    let flags = rustix::fs::fcntl_getfl(fd.as_fd()).map_err(|_| BAD)?;
    let sound = kind.as_bytes() == b"anon_inode:[eventfd]" && flags.contains(OFlags::NONBLOCK);
    sound.then_some(()).ok_or(BAD)
}
