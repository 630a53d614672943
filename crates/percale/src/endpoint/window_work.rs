//! What is posted for windows of type 2, and its raw face.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Endpoint;
use super::access::Access;
use super::work::{OpFlags, PostError};
use crate::address::PeerAddress;
use crate::completion::entry::{CompletionFlags, Entry};
use crate::memory::region::{Bindable, Keys, RemoteMemory};
use crate::memory::window::{Binding, Cell, Window, WindowAccess, WindowError};

/// How a window of type 2 is to be bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bind {
    /// The part of the region, counted from its first byte.
    pub range: Range<u64>,
    /// What the peer may do with it.
    pub access: WindowAccess,
    /// The lower 8 bits of the key (MW-035).
    pub key: u8,
}

/// A bind or an invalidation.
#[derive(Debug)]
pub(crate) enum WindowWork {
    Bind {
        peer: PeerAddress,
        keys: Arc<Keys>,
        cell: Arc<Cell>,
        binding: Binding,
        byte: u8,
        /// The key that it will have.
        key: u32,
        context: u64,
        flags: OpFlags,
        /// Since when it waits for the window's old key to retire.
        since: Option<Instant>,
    },
    Invalidate {
        peer: PeerAddress,
        key: u32,
        context: u64,
        flags: OpFlags,
    },
}

impl WindowWork {
    /// A bind, and how the peer will name what is bound.
    pub(crate) fn bind(
        peer: PeerAddress,
        window: &Window,
        region: &impl Bindable,
        bind: &Bind,
        context: u64,
        flags: OpFlags,
    ) -> Result<(Self, RemoteMemory), WindowError> {
        let (binding, mut remote) = window.binding(region, bind.range.clone(), bind.access)?;
        let (keys, cell, byte, key) =
            (Arc::clone(&window.keys), Arc::clone(&window.cell), bind.key, window.key_with(bind.key));
        remote.key = key.into();
        Ok((Self::Bind { peer, keys, cell, binding, byte, key, context, flags, since: None }, remote))
    }

    pub(crate) const fn peer(&self) -> PeerAddress {
        match self {
            Self::Bind { peer, .. } | Self::Invalidate { peer, .. } => *peer,
        }
    }

    pub(crate) const fn flags(&self) -> OpFlags {
        match self {
            Self::Bind { flags, .. } | Self::Invalidate { flags, .. } => *flags,
        }
    }

    pub(crate) const fn flags_mut(&mut self) -> &mut OpFlags {
        match self {
            Self::Bind { flags, .. } | Self::Invalidate { flags, .. } => flags,
        }
    }

    pub(crate) const fn context_mut(&mut self) -> &mut u64 {
        match self {
            Self::Bind { context, .. } | Self::Invalidate { context, .. } => context,
        }
    }

    /// What its completion says.
    pub(crate) fn entry(&self) -> Entry {
        let (flags, key, context) = match self {
            Self::Bind { key, context, .. } => (CompletionFlags::BIND, *key, *context),
            Self::Invalidate { key, context, .. } => (CompletionFlags::INVALIDATED, *key, *context),
        };
        Entry { context, flags, data: key.into(), ..Entry::default() }
    }

    /// Whether a bind has waited for so long.
    pub(crate) fn is_late(&mut self, timeout: Duration) -> bool {
        let Self::Bind { since, .. } = self else { return false };
        since.get_or_insert_with(Instant::now).elapsed() > timeout
    }
}

impl<A: Access> Endpoint<A> {
    /// Posts the bind of a window of type 2 for a peer, in order with the messages to it (MW-026): a message posted later carries
    /// the key, if need be, to a peer that can use it. Sends nothing. One completion, if asked for, with
    /// [`CompletionFlags::BIND`] and the key in `data`; what is wrong with the bind is reported there. Returns the name that the peer
    /// will use.
    ///
    /// # Errors
    /// As [`PostError`] says; then nothing was done. [`PostError::Window`] if the range is backwards, or the region is of another
    /// domain than the window.
    pub fn post_bind(
        &self,
        peer: PeerAddress,
        window: &Window,
        region: &impl Bindable,
        bind: &Bind,
        context: u64,
        flags: OpFlags,
    ) -> Result<RemoteMemory, PostError> {
        let (work, remote) = WindowWork::bind(peer, window, region, bind, context, flags)?;
        self.access.with(|engine| engine.post_raw(flags, |engine, notify| engine.post_window(work, notify)))?;
        Ok(remote)
    }

    /// Posts the invalidation of a key of a window of type 2 that was bound through this endpoint, in order with the messages to
    /// `peer` (MW-044). Sends nothing. When it completes, with [`CompletionFlags::INVALIDATED`] and the key in `data`, nobody uses the
    /// key any more. It fails as [`Busy`](crate::ErrorCode::Busy) if a peer that is in the middle of an access does not move within the
    /// domain's [`revoke_timeout`](crate::DomainBuilder::revoke_timeout); the key is dead then too, and it may be posted again.
    ///
    /// # Errors
    /// As [`PostError`] says; then nothing was done.
    pub fn post_invalidate(&self, peer: PeerAddress, key: u32, context: u64, flags: OpFlags) -> Result<(), PostError> {
        let work = WindowWork::Invalidate { peer, key, context, flags };
        self.access.with(|engine| engine.post_raw(flags, |engine, notify| engine.post_window(work, notify)))
    }
}

#[cfg(test)]
impl Endpoint {
    /// Through whom the endpoint's accesses to itself come.
    pub(crate) fn via_for_test(&self) -> crate::memory::region::Via {
        use super::access::reach::Reach as _;
        self.access.with(|engine| engine.core.via(0))
    }
}
