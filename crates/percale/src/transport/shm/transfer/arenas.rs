//! Sealed arenas: which of ours the peer has been given, and which of the peer's we have mapped.
//!
//! An arena's descriptor goes over the control socket (SCM_RIGHTS) before the first frame that names it, so who reads
//! that frame finds the descriptor waiting. A descriptor is mapped only if it is sealed against resizing and as large as
//! announced: then no access within it can fault.
//!
//! What is mapped of one peer's is bounded, in bytes ([`most_mapped`]) and in number ([`LIMIT`]), for a sealed file needs no memory to be large:
//! a mapping takes addresses of this process, of which there are 128 TiB, and one of its mappings, of which Linux allows 65,530. A mapping that
//! is still used when its arena has been taken back, by a grant or a transfer, counts until that is over. What is beyond is known, and reached
//! in other ways. Page tables, and pages of a sparse file, come only where this process touches the memory, which it does within the
//! operations that the application posts.
//!
//! A process never gives the same number to two arenas ([`new_number`](crate::memory::sealed::new_number)), so a number is its own
//! generation: one that is not known names an arena that is gone, or not yet here, and never another. That is no breach of protocol:
//! a frame may name an arena that was taken back while the frame waited to be read. Before a new arena, those that were freed meanwhile are taken back, so
//! that a peer keeps their pages no longer than that.

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

use crate::memory::interrupted::uninterrupted;
use crate::memory::kernel;
use crate::memory::mapping::Mapping;
use crate::memory::sealed::locate;
use crate::memory::volatile::Segments;
use crate::transport::process_socket::ProcessSocket;

/// How many arenas each side hands out at a time; memory in more than that goes another way.
const LIMIT: usize = 1024;
/// How many announcements are taken from the socket at a time: far more than one holds. Who sends faster than they are taken, and has
/// none of the arenas that are looked for, would keep us there.
const MESSAGES: usize = 64 << 10;

/// What a peer may do with an arena that it is given. The two are given, mapped and taken back apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Sharing {
    Writable,
    /// By a descriptor that cannot be mapped for writing.
    ReadOnly,
}

/// An arena of ours as a peer was given it, or the other way round.
type Identity = (u32, Sharing);

/// What stands beside a descriptor; without one, and with a size of 0, the arena is taken back.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Announcement {
    arena: U32,
    read_only: U32,
    size: U64,
}

/// Both sides' arenas, as far as this link knows them.
#[derive(Debug)]
pub(in super::super) struct Arenas {
    control: ProcessSocket,
    given: Vec<(Identity, Weak<OwnedFd>)>,
    /// `None`: it could not be mapped; other ways must do.
    mapped: Vec<(Identity, Option<Arc<Mapping>>)>,
    /// Mappings of arenas that the peer has taken back, while they are used, and their bytes.
    used_still: Vec<(Weak<Mapping>, u64)>,
    /// How many arenas the peer has taken back.
    taken_back: u64,
    /// Bytes of the peer's that may be mapped.
    most: u64,
}

/// A range in an arena of the peer's, checked to lie within it.
#[derive(Clone, Debug)]
pub(in super::super) struct Remote {
    mapping: Arc<Mapping>,
    offset: usize,
}

/// How an arena of the peer's can be reached.
#[derive(Debug)]
pub(in super::super) enum Given {
    Mapped(Arc<Mapping>),
    /// It was given, and could not be mapped.
    Unmapped,
    /// It is not here: it was taken back, or never given.
    Gone,
}

impl Remote {
    /// `len` bytes from `offset` in a mapping.
    ///
    /// # Errors
    /// If they do not all lie in it.
    pub(in super::super) fn within(mapping: Arc<Mapping>, offset: u64, len: u64) -> Result<Self, &'static str> {
        match offset.checked_add(len) {
            Some(end) if end <= mapping.len() as u64 => Ok(Self { mapping, offset: offset as usize }),
            _ => Err("a range beyond its arena"),
        }
    }

    /// The range's first byte.
    pub(in super::super) fn as_ptr(&self) -> *mut u8 {
        self.mapping.as_ptr().wrapping_add(self.offset)
    }

    /// What must live while it is used.
    pub(in super::super) fn into_mapping(self) -> Arc<Mapping> {
        self.mapping
    }
}

impl Arenas {
    pub(super) fn new(control: ProcessSocket) -> Self {
        let most = most_mapped();
        Self { control, given: Vec::new(), mapped: Vec::new(), used_still: Vec::new(), taken_back: 0, most }
    }

    /// The arena that holds all of `memory` and the offset in it, once the peer has the arena; else (0, 0).
    pub(in super::super) fn name(&mut self, memory: &Segments) -> (u32, u64) {
        let [only] = memory.as_slice() else { return (0, 0) };
        self.name_range(only.as_ptr(), only.len())
    }

    /// As [`name`](Self::name).
    pub(super) fn name_range(&mut self, ptr: *const u8, len: usize) -> (u32, u64) {
        let Some(located) = locate(ptr, len) else { return (0, 0) };
        if self.give((located.arena, Sharing::Writable), located.size, &located.fd) {
            (located.arena, located.offset)
        } else {
            (0, 0)
        }
    }

    /// Whether the peer has this arena, to which it is given now if need be: its number, size and memfd.
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
            // The next one that needs it tries again; this one goes another way.
            crate::later::later!(debug: %error, ?arena, "cannot hand out an arena");
            return false;
        }
        self.given.push((arena, Arc::downgrade(fd)));
        true
    }

    /// Tells the peer which of the arenas that it was given are no more. Of which it cannot be told now, it is told the next time: until
    /// then it has them, and they count.
    fn take_back(&mut self) {
        let Self { control, given, .. } = self;
        given.retain(|(arena, fd)| {
            if fd.strong_count() > 0 {
                return true;
            }
            let told = announce(control, *arena, 0, None);
            told.inspect_err(|error| crate::later::later!(debug: %error, ?arena, "cannot take an arena back yet"))
                .is_err()
        });
    }

    /// `len` bytes from `offset` in the peer's arena, if it is here and we can map it.
    ///
    /// # Errors
    /// If the range does not lie in it.
    pub(in super::super) fn find(&mut self, arena: u32, offset: u64, len: u64) -> Result<Option<Remote>, &'static str> {
        if arena == 0 {
            return Ok(None);
        }
        match self.mapping((arena, Sharing::Writable))? {
            Given::Mapped(mapping) => Remote::within(mapping, offset, len).map(Some),
            Given::Unmapped | Given::Gone => Ok(None),
        }
    }

    /// The peer's arena, as it was given to us.
    ///
    /// # Errors
    /// If the peer says something else than percale does on the control socket.
    pub(in super::super) fn mapping(&mut self, arena: Identity) -> Result<Given, &'static str> {
        if self.known(arena).is_none() {
            self.receive(MESSAGES)?;
        }
        Ok(match self.known(arena) {
            Some(Some(mapping)) => Given::Mapped(mapping),
            Some(None) => Given::Unmapped,
            None => Given::Gone,
        })
    }

    /// Goes up when the peer takes an arena back: who keeps its mapping keeps the peer's pages.
    pub(in super::super) const fn taken_back(&self) -> u64 {
        self.taken_back
    }

    /// Whether so many bytes more of the peer's may be mapped.
    fn may_map(&mut self, bytes: u64) -> bool {
        self.used_still.retain(|(mapping, _)| mapping.strong_count() > 0);
        let known = self.mapped.iter().filter_map(|(_, mapping)| mapping.as_ref()).map(|mapping| mapping.len() as u64);
        let all = known.chain(self.used_still.iter().map(|(_, bytes)| *bytes));
        let (count, sum) = all.fold((0, 0_u64), |(count, sum), bytes| (count + 1, sum.saturating_add(bytes)));
        count < LIMIT && bytes <= self.most.saturating_sub(sum)
    }

    /// The peer has taken an arena back. What uses its mapping may go on with that.
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

    /// Takes everything that waits on the control socket.
    ///
    /// # Errors
    /// If the peer says something else than percale does, or does not stop.
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
                    // Nothing more; a socket that was reset is the watcher's to report.
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
                _ => return Err("an arena that is shared in an unknown way"),
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
                return Err("an arena that was handed over twice");
            }
            if self.mapped.len() == LIMIT {
                return Err("more arenas than anyone has");
            }
            // Without a descriptor of our own left (or address space), the arena is known and not mapped.
            let mapping = fd.and_then(|fd: OwnedFd| {
                let size = usize::try_from(announcement.size.get()).ok()?;
                if !self.may_map(size as u64) {
                    crate::later::later!(warn: size, ?arena, "more of a peer's arenas than are mapped: its memory is reached in other ways");
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
        Err("more messages about arenas than anyone sends")
    }
}

/// Bytes of one peer's arenas that are mapped at a time, at most: twice the memory and swap of this machine, since an arena can be
/// given in two ways, but no more than a TiB, so that no few peers can use up the addresses of this process.
fn most_mapped() -> u64 {
    let memory = kernel::system_memory().map_or(u64::MAX, |(memory, swap)| memory.saturating_add(swap));
    memory.saturating_mul(2).min(1 << 40)
}

/// Tells a peer of an arena.
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

/// The same memory, not to be written.
fn read_only(fd: &OwnedFd) -> rustix::io::Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    uninterrupted(|| rustix::fs::open(path.as_str(), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()))
}

#[cfg(all(test, not(loom)))]
#[path = "arenas_tests.rs"]
mod tests;
