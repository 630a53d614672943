//! Sealed arenas: which of ours the peer has been given, and which of the peer's we have mapped.
//!
//! An arena's descriptor goes over the control socket (SCM_RIGHTS) before the first frame that names it, so who reads
//! that frame finds the descriptor waiting. A descriptor is mapped only if it is sealed against resizing and as large as
//! announced: then no access within it can fault.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::locate::locate;
use crate::memory::mapping::Mapping;
use crate::memory::volatile::Segments;

/// How many arenas a peer may hand us.
const LIMIT: usize = 1024;

/// What stands beside a descriptor.
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
    given: Vec<u32>,
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
        if !self.given.contains(&located.arena) {
            let announcement = Announcement {
                arena: U32::new(located.arena),
                reserved: U32::ZERO,
                size: U64::new(located.size as u64),
            };
            let fds = [located.fd.as_fd()];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            control.push(SendAncillaryMessage::ScmRights(&fds));
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            if let Err(error) =
                rustix::net::sendmsg(&self.control, &[IoSlice::new(announcement.as_bytes())], &mut control, flags)
            {
                // The next offer tries again; this one goes another way.
                tracing::debug!(%error, arena = located.arena, "cannot hand out an arena");
                return (0, 0);
            }
            self.given.push(located.arena);
        }
        (located.arena, located.offset)
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
            if bytes != size_of::<Announcement>() || arena == 0 || self.known(arena).is_some() {
                return Err("a malformed message about an arena");
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
