//! The target's answer that describes how a region is reached.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::ENTRIES;
use crate::region::Access;
use crate::wire::form::RESOLVED_BYTES;

/// The way in which a region is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Status {
    /// The region lies in an arena that was given to the peer.
    Mapped = 1,
    /// The region lies at an address in the owner, and the kernel copies.
    Cma = 2,
    /// The owner executes each access itself.
    Executed = 3,
    /// The owner has no region with this key.
    NoKey = 4,
}

/// The payload of a [`FrameKind::Resolved`](crate::wire::head::FrameKind::Resolved) frame: 48 bytes.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct Resolution {
    pub(super) status: u8,
    /// The peer's rights: 1 read, 2 write, 4 change by atomics, 8 fetch by atomics.
    pub(super) rights: u8,
    /// 1 if the owner counts writes and has to be notified of each write.
    pub(super) notify: u8,
    pub(super) reserved: u8,
    /// The grant's entry in the key page, and the region's generation, which the entry contains while the grant is
    /// valid. Notifications of accesses carry the generation.
    pub(super) entry: U32,
    pub(super) generation: U64,
    /// The address that accesses use for the first byte.
    pub(super) base: U64,
    pub(super) len: U64,
    /// The location of the first byte: its offset in the arena, or its address.
    pub(super) place: U64,
    pub(super) arena: U32,
    /// The number under which the key page was given to the peer.
    pub(super) page: U32,
}

const _: () = assert!(size_of::<Resolution>() == RESOLVED_BYTES);

impl Resolution {
    pub(super) fn of(status: Status) -> Self {
        Self { status: status as u8, ..Self::default() }
    }

    /// Returns whether the answer contains only this status.
    fn is_bare(&self, status: Status) -> bool {
        self.as_bytes() == Self::of(status).as_bytes()
    }

    /// Returns the status, if the answer is well-formed.
    ///
    /// # Errors
    /// The reason why the answer is malformed.
    pub(super) fn check(&self) -> Result<Status, &'static str> {
        let status = match self.status {
            1 => Status::Mapped,
            2 => Status::Cma,
            3 if self.is_bare(Status::Executed) => return Ok(Status::Executed),
            4 if self.is_bare(Status::NoKey) => return Ok(Status::NoKey),
            3 | 4 => return Err("a malformed answer about a key"),
            _ => return Err("unknown access method of a key"),
        };
        if !(1..=15).contains(&self.rights) || self.notify > 1 || self.reserved != 0 || self.page.get() == 0 {
            return Err("a malformed answer about a key");
        }
        if self.generation.get() == 0 || self.entry.get() as usize >= ENTRIES {
            return Err("invalid grant");
        }
        if self.len.get().checked_sub(1).and_then(|last| self.base.get().checked_add(last)).is_none() {
            return Err("invalid region");
        }
        Ok(status)
    }

    /// Returns the peer's rights.
    pub(super) fn access(&self) -> Access {
        let mut access = Access::empty();
        access.set(Access::REMOTE_READ, self.rights & 1 != 0);
        access.set(Access::REMOTE_WRITE, self.rights & 2 != 0);
        access.set(Access::REMOTE_ATOMIC, self.rights & 4 != 0);
        access.set(Access::REMOTE_FETCH, self.rights & 8 != 0);
        access
    }

    /// Returns the remote rights of a region as they are sent.
    pub(super) fn rights_of(access: Access) -> u8 {
        let bits = [Access::REMOTE_READ, Access::REMOTE_WRITE, Access::REMOTE_ATOMIC, Access::REMOTE_FETCH];
        (0..).zip(bits).map(|(shift, bit)| u8::from(access.contains(bit)) << shift).sum()
    }
}
