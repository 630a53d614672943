//! Sealed arenas: arenas of this process that were given to the peer, and arenas of the peer that are mapped here.
//!
//! A descriptor is sent over the control socket (SCM_RIGHTS) before the first frame that names its arena, so the
//! descriptor has arrived when that frame is read. It is mapped only if it is sealed against resizing and has the
//! announced size. So no access within the mapping can fault.
//!
//! The mappings of one peer's arenas are bounded in bytes ([`most_mapped`]) and in number ([`LIMIT`]), because a sealed
//! file can be large without using memory. Each mapping uses part of the address space of this process, which is 128
//! TiB, and is one of the 65,530 mappings that Linux by default allows for a process. If a grant or a transfer still
//! uses a mapping when its arena is taken back, the mapping counts until that use ends. Arenas beyond the bound are
//! recorded but not mapped, and are reached in other ways. Page tables, and pages of a sparse file, are allocated only
//! where this process touches the memory, and it touches the memory only within operations that the application posts.
//!
//! A process never gives the same number to two arenas ([`new_number`](crate::local_memory::sealed::new_number)), so a
//! number is also a generation. An unknown number identifies an arena that was taken back or has not arrived yet, and
//! never another arena. An unknown number is not a protocol violation: a frame may name an arena that was taken back
//! while the frame waited to be read. Before a new arena is announced, arenas that were freed in the meantime are taken
//! back, so that a peer does not keep their pages any longer.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};

use rustix::fs::{Mode, OFlags};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::local_memory::kernel;
use crate::local_memory::mapping::Mapping;
use crate::local_memory::sealed::locate;
use crate::local_memory::volatile::Segments;
use crate::system::interrupted::uninterrupted;
use crate::system::process_socket::ProcessSocket;

/// The number of arenas that each side gives to the other at a time. Memory in further arenas is reached in other ways.
const LIMIT: usize = 1024;
/// The number of announcements that are received from the socket at a time. It is far more than a socket can hold.
/// Without the limit, a peer that sends announcements faster than they are received, and never announces the required
/// arena, would keep this thread in the loop.
const MESSAGES: usize = 64 << 10;

/// The kind of access that a peer gets to an arena. The two kinds are given, mapped and taken back separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Sharing {
    Writable,
    /// Through a descriptor that cannot be mapped for writing.
    ReadOnly,
}

/// An arena and the kind of access that was given to it.
type Identity = (u32, Sharing);

/// The message that accompanies a descriptor. A message without a descriptor and with a size of 0 takes the arena back.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Announcement {
    arena: U32,
    read_only: U32,
    size: U64,
}

/// The arenas of both sides that this link has given or received.
#[derive(Debug)]
pub(in super::super) struct Arenas {
    control: ProcessSocket,
    given: Vec<(Identity, Weak<OwnedFd>)>,
    /// `None` if the arena could not be mapped; it is reached in other ways.
    mapped: Vec<(Identity, Option<Arc<Mapping>>)>,
    /// Mappings that are still in use although the peer has taken their arenas back, and their lengths in bytes.
    used_still: Vec<(Weak<Mapping>, u64)>,
    /// The number of arenas that the peer has taken back.
    taken_back: u64,
    /// The number of bytes of the peer's arenas that may be mapped.
    most: u64,
}

/// A range in an arena of the peer, checked to lie within it.
#[derive(Clone, Debug)]
pub(in super::super) struct RemoteRange {
    mapping: Arc<Mapping>,
    offset: usize,
}

/// How an arena of the peer can be reached.
#[derive(Debug)]
pub(in super::super) enum ArenaAccess {
    Mapped(Arc<Mapping>),
    /// The arena was given, but could not be mapped.
    Unmapped,
    /// The arena is not known: it was taken back, or never given.
    Gone,
}

impl RemoteRange {
    /// Returns the range of `len` bytes from `offset` in a mapping.
    ///
    /// # Errors
    /// If the range does not lie in the mapping.
    pub(in super::super) fn within(mapping: Arc<Mapping>, offset: u64, len: u64) -> Result<Self, &'static str> {
        match offset.checked_add(len) {
            Some(end) if end <= mapping.len() as u64 => Ok(Self { mapping, offset: offset as usize }),
            _ => Err("a range beyond its arena"),
        }
    }

    /// Returns the address of the range's first byte.
    pub(in super::super) fn as_ptr(&self) -> *mut u8 {
        self.mapping.as_ptr().wrapping_add(self.offset)
    }

    /// Returns the mapping, which must live as long as the range is used.
    pub(in super::super) fn into_mapping(self) -> Arc<Mapping> {
        self.mapping
    }
}

impl Arenas {
    pub(super) fn new(control: ProcessSocket) -> Self {
        let most = most_mapped();
        Self { control, given: Vec::new(), mapped: Vec::new(), used_still: Vec::new(), taken_back: 0, most }
    }

    /// Returns the socket over which descriptors are passed.
    #[cfg(all(any(test, feature = "testing"), not(loom)))]
    pub(super) fn control(&self) -> BorrowedFd<'_> {
        self.control.as_fd()
    }

    /// Returns the arena that contains all of `memory` and the offset in it, once the peer has the arena. Otherwise
    /// returns (0, 0).
    pub(in super::super) fn name(&mut self, memory: &Segments) -> (u32, u64) {
        let [only] = memory.as_slice() else { return (0, 0) };
        self.name_range(only.as_ptr(), only.len())
    }

    /// Like [`name`](Self::name), for `len` bytes at `ptr`.
    pub(super) fn name_range(&mut self, ptr: *const u8, len: usize) -> (u32, u64) {
        let Some(located) = locate(ptr, len) else { return (0, 0) };
        if self.give((located.arena, Sharing::Writable), located.size, &located.fd) {
            (located.arena, located.offset)
        } else {
            (0, 0)
        }
    }

    /// Gives this arena, of `size` bytes in the memfd `fd`, to the peer, unless the peer already has it. Returns
    /// whether the peer has it afterwards.
    pub(in super::super) fn give(&mut self, arena: Identity, size: usize, fd: &Arc<OwnedFd>) -> bool {
        if self.given.iter().any(|(given, _)| *given == arena) {
            return true;
        }
        self.take_back();
        if self.given.len() >= LIMIT {
            return false;
        }
        let announced = match arena.1 {
            Sharing::Writable => announce(&self.control, arena, size as u64, Some(fd.as_fd())),
            Sharing::ReadOnly => {
                read_only(fd).and_then(|fd| announce(&self.control, arena, size as u64, Some(fd.as_fd())))
            }
        };
        if let Err(error) = announced {
            // The next operation that needs the arena tries again. This one uses another way.
            crate::later::later!(debug: %error, ?arena, "cannot share an arena");
            return false;
        }
        self.given.push((arena, Arc::downgrade(fd)));
        true
    }

    /// Notifies the peer of arenas that it was given and that no longer exist. If this cannot be sent now, it is sent
    /// the next time. Until then the peer has the arena, and the arena counts.
    fn take_back(&mut self) {
        let Self { control, given, .. } = self;
        given.retain(|(arena, fd)| {
            if fd.strong_count() > 0 {
                return true;
            }
            let reported = announce(control, *arena, 0, None);
            reported
                .inspect_err(|error| crate::later::later!(debug: %error, ?arena, "cannot withdraw an arena yet"))
                .is_err()
        });
    }

    /// Returns the range of `len` bytes from `offset` in the peer's arena, if the arena is known and can be mapped.
    ///
    /// # Errors
    /// If the range does not lie in the arena.
    pub(in super::super) fn find(
        &mut self,
        arena: u32,
        offset: u64,
        len: u64,
    ) -> Result<Option<RemoteRange>, &'static str> {
        if arena == 0 {
            return Ok(None);
        }
        match self.mapping((arena, Sharing::Writable))? {
            ArenaAccess::Mapped(mapping) => RemoteRange::within(mapping, offset, len).map(Some),
            ArenaAccess::Unmapped | ArenaAccess::Gone => Ok(None),
        }
    }

    /// Returns the peer's arena in the form in which it was given to this side.
    ///
    /// # Errors
    /// If the peer sent an invalid message on the control socket, or does not stop sending.
    pub(in super::super) fn mapping(&mut self, arena: Identity) -> Result<ArenaAccess, &'static str> {
        if self.known(arena).is_none() {
            self.receive(MESSAGES)?;
        }
        Ok(match self.known(arena) {
            Some(Some(mapping)) => ArenaAccess::Mapped(mapping),
            Some(None) => ArenaAccess::Unmapped,
            None => ArenaAccess::Gone,
        })
    }

    /// Returns a count that increases when the peer takes an arena back. A mapping that is kept after that also keeps
    /// the peer's pages allocated.
    pub(in super::super) const fn taken_back(&self) -> u64 {
        self.taken_back
    }

    /// Returns whether this many more bytes of the peer's arenas may be mapped.
    fn may_map(&mut self, bytes: u64) -> bool {
        self.used_still.retain(|(mapping, _)| mapping.strong_count() > 0);
        let known = self.mapped.iter().filter_map(|(_, mapping)| mapping.as_ref()).map(|mapping| mapping.len() as u64);
        let all = known.chain(self.used_still.iter().map(|(_, bytes)| *bytes));
        let (count, sum) = all.fold((0, 0_u64), |(count, sum), bytes| (count + 1, sum.saturating_add(bytes)));
        count < LIMIT && bytes <= self.most.saturating_sub(sum)
    }

    /// Removes an arena that the peer has taken back. Users of its mapping may continue to use it.
    fn forget(&mut self, arena: Identity) {
        let gone = self.mapped.iter().position(|(known, _)| *known == arena).map(|at| self.mapped.swap_remove(at));
        if let Some((_, Some(mapping))) = gone {
            let left = (Arc::downgrade(&mapping), mapping.len() as u64);
            drop(mapping);
            self.used_still.retain(|(mapping, _)| mapping.strong_count() > 0);
            self.used_still.extend(Some(left).filter(|(mapping, _)| mapping.strong_count() > 0));
        }
        self.taken_back += 1;
    }

    fn known(&self, arena: Identity) -> Option<Option<Arc<Mapping>>> {
        self.mapped.iter().find(|(known, _)| *known == arena).map(|(_, mapping)| mapping.clone())
    }

    /// Receives at most `most` of the messages that wait on the control socket.
    ///
    /// # Errors
    /// If the peer sent an invalid message, or does not stop sending.
    fn receive(&mut self, most: usize) -> Result<(), &'static str> {
        for _ in 0..most {
            let mut announcement = Announcement { arena: U32::ZERO, read_only: U32::ZERO, size: U64::ZERO };
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
            let bytes = {
                let mut into = [IoSliceMut::new(announcement.as_mut_bytes())];
                match uninterrupted(|| rustix::net::recvmsg(&self.control, &mut into, &mut control, flags)) {
                    Ok(received) => received.bytes,
                    // There is nothing more to receive. If the socket was reset, the watcher reports this.
                    Err(_) => return Ok(()),
                }
            };
            let mut fd = None;
            for message in control.drain() {
                if let RecvAncillaryMessage::ScmRights(fds) = message {
                    fd = fds.last().or(fd);
                }
            }
            if bytes == 0 {
                return Ok(());
            }
            let sharing = match announcement.read_only.get() {
                0 => Sharing::Writable,
                1 => Sharing::ReadOnly,
                _ => return Err("unknown sharing method of an arena"),
            };
            let arena = (announcement.arena.get(), sharing);
            if bytes != size_of::<Announcement>() || arena.0 == 0 {
                return Err("a malformed message about an arena");
            }
            if announcement.size.get() == 0 {
                self.forget(arena);
                continue;
            }
            if self.known(arena).is_some() {
                return Err("an arena was shared twice");
            }
            if self.mapped.len() == LIMIT {
                return Err("too many arenas");
            }
            // If this process has no descriptors (or address space) left, the arena is recorded but not mapped.
            let mapping = fd.and_then(|fd: OwnedFd| {
                let size = usize::try_from(announcement.size.get()).ok()?;
                if !self.may_map(size as u64) {
                    crate::later::later!(warn: size, ?arena, "too many arenas of a peer: further ones are not mapped, and their memory is accessed in other ways");
                    return None;
                }
                let mapping = match sharing {
                    Sharing::Writable => Mapping::of(fd.as_fd(), size),
                    Sharing::ReadOnly => Mapping::read_only(fd.as_fd(), size),
                };
                mapping
                    .inspect_err(|error| crate::later::later!(warn: %error, ?arena, "cannot map a peer's arena"))
                    .ok()
            });
            self.mapped.push((arena, mapping.map(Arc::new)));
        }
        Err("too many messages about arenas")
    }
}

/// Returns the largest number of bytes of one peer's arenas that are mapped at a time. It is twice the memory and swap
/// space of this machine, because an arena can be given in two ways. It is at most 1 TiB, so that a few peers cannot
/// use up the address space of this process.
fn most_mapped() -> u64 {
    let memory = kernel::system_memory().map_or(u64::MAX, |(memory, swap)| memory.saturating_add(swap));
    memory.saturating_mul(2).min(1 << 40)
}

/// Announces an arena to the peer, or takes it back.
fn announce(
    control: &ProcessSocket,
    (arena, sharing): Identity,
    size: u64,
    fd: Option<BorrowedFd<'_>>,
) -> rustix::io::Result<usize> {
    let read_only = u32::from(sharing == Sharing::ReadOnly).into();
    let announcement = Announcement { arena: arena.into(), read_only, size: size.into() };
    let fds = fd.as_slice();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(fds));
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    let bytes = [IoSlice::new(announcement.as_bytes())];
    uninterrupted(|| rustix::net::sendmsg(control, &bytes, &mut ancillary, flags))
}

/// Opens the same memory only for reading.
fn read_only(fd: &OwnedFd) -> rustix::io::Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    uninterrupted(|| rustix::fs::open(path.as_str(), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()))
}

#[cfg(all(test, not(loom)))]
#[path = "arenas_tests.rs"]
mod tests;
