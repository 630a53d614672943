//! Sealed arenas: which of ours the peer has been given, and which of the peer's we have mapped.
//!
//! An arena's descriptor goes over the control socket (SCM_RIGHTS) before the first frame that names it, so who reads
//! that frame finds the descriptor waiting. A descriptor is mapped only if it is sealed against resizing and as large as
//! announced: then no access within it can fault. Before a new arena, those that were freed meanwhile are taken back, so
//! that a peer keeps their pages no longer than that.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::memory::mapping::Mapping;
use crate::memory::sealed::locate;
use crate::memory::volatile::Segments;

/// How many arenas each side hands out at a time; memory in more than that goes another way.
const LIMIT: usize = 1024;

/// What stands beside a descriptor; without one, and with a size of 0, the arena is taken back.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Announcement {
    arena: U32,
    reserved: U32,
    size: U64,
}

/// Both sides' arenas, as far as this link knows them.
#[derive(Debug)]
pub(super) struct Arenas {
    control: OwnedFd,
    given: Vec<(u32, Weak<OwnedFd>)>,
    /// `None`: it could not be mapped; other ways must do.
    mapped: Vec<(u32, Option<Arc<Mapping>>)>,
}

/// A range in an arena of the peer's, checked to lie within it.
#[derive(Clone, Debug)]
pub(super) struct Remote {
    mapping: Arc<Mapping>,
    offset: usize,
}

impl Remote {
    /// The range's first byte.
    pub(super) fn as_ptr(&self) -> *mut u8 {
        self.mapping.as_ptr().wrapping_add(self.offset)
    }
}

impl Arenas {
    pub(super) fn new(control: OwnedFd) -> Self {
        Self { control, given: Vec::new(), mapped: Vec::new() }
    }

    /// The arena that holds all of `memory` and the offset in it, once the peer has the arena; else (0, 0).
    pub(super) fn name(&mut self, memory: &Segments) -> (u32, u64) {
        let [only] = memory.as_slice() else { return (0, 0) };
        self.name_range(only.as_ptr(), only.len())
    }

    /// As [`name`](Self::name).
    pub(super) fn name_range(&mut self, ptr: *const u8, len: usize) -> (u32, u64) {
        let Some(located) = locate(ptr, len) else { return (0, 0) };
        if !self.given.iter().any(|(given, _)| *given == located.arena) {
            self.take_back();
            if self.given.len() >= LIMIT {
                return (0, 0);
            }
            if let Err(error) = self.announce(located.arena, located.size as u64, Some(located.fd.as_fd())) {
                // The next offer tries again; this one goes another way.
                tracing::debug!(%error, arena = located.arena, "cannot hand out an arena");
                return (0, 0);
            }
            self.given.push((located.arena, Arc::downgrade(&located.fd)));
        }
        (located.arena, located.offset)
    }

    /// Tells the peer which of the arenas that it was given are no more.
    fn take_back(&mut self) {
        let mut gone = Vec::new();
        self.given.retain(|(arena, fd)| {
            let stands = fd.strong_count() > 0;
            if !stands {
                gone.push(*arena);
            }
            stands
        });
        for arena in gone {
            if let Err(error) = self.announce(arena, 0, None) {
                // The peer keeps it until the link ends.
                tracing::debug!(%error, arena, "cannot take an arena back");
            }
        }
    }

    fn announce(&self, arena: u32, size: u64, fd: Option<BorrowedFd<'_>>) -> rustix::io::Result<usize> {
        let announcement = Announcement { arena: arena.into(), reserved: U32::ZERO, size: size.into() };
        let fds = fd.as_slice();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(fds));
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        rustix::net::sendmsg(&self.control, &[IoSlice::new(announcement.as_bytes())], &mut control, flags)
    }

    /// `len` bytes from `offset` in the peer's arena, if we can map that.
    ///
    /// # Errors
    /// If the peer never handed that arena over, or the range does not lie in it.
    pub(super) fn find(&mut self, arena: u32, offset: u64, len: u64) -> Result<Option<Remote>, &'static str> {
        if arena == 0 {
            return Ok(None);
        }
        let mapping = match self.known(arena) {
            Some(mapping) => mapping,
            None => {
                self.receive()?;
                self.known(arena).ok_or("an arena that was not handed over")?
            }
        };
        let Some(mapping) = mapping else { return Ok(None) };
        match offset.checked_add(len) {
            Some(end) if end <= mapping.len() as u64 => Ok(Some(Remote { mapping, offset: offset as usize })),
            _ => Err("a range beyond its arena"),
        }
    }

    fn known(&self, arena: u32) -> Option<Option<Arc<Mapping>>> {
        self.mapped.iter().find(|(known, _)| *known == arena).map(|(_, mapping)| mapping.clone())
    }

    /// Takes everything that waits on the control socket.
    fn receive(&mut self) -> Result<(), &'static str> {
        loop {
            let mut announcement = Announcement { arena: U32::ZERO, reserved: U32::ZERO, size: U64::ZERO };
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
            let bytes = {
                let mut into = [IoSliceMut::new(announcement.as_mut_bytes())];
                match rustix::net::recvmsg(&self.control, &mut into, &mut control, flags) {
                    Ok(received) => received.bytes,
                    Err(Errno::INTR) => continue,
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
            let arena = announcement.arena.get();
            if bytes != size_of::<Announcement>() || arena == 0 {
                return Err("a malformed message about an arena");
            }
            if announcement.size.get() == 0 {
                self.mapped.retain(|(known, _)| *known != arena);
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
                Mapping::of(fd.as_fd(), size)
                    .inspect_err(|error| tracing::warn!(%error, arena, "cannot map a peer's arena"))
                    .ok()
            });
            self.mapped.push((arena, mapping.map(Arc::new)));
        }
    }
}
