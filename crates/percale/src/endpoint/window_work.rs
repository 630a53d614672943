//! The operations on windows of type 2, and the raw API that posts them.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Endpoint;
use super::ownership::Ownership;
use super::work::{OpFlags, PostError};
use crate::completion::entry::{CompletionFlags, Entry};
use crate::memory::region::Bindable;
use crate::memory::window::Window;
use crate::region::window::{WindowAccess, WindowBinding, WindowCell, WindowError};
use crate::region::{Keys, Registered, RemoteMemory};
use crate::types::PeerAddress;

/// The parameters of a bind of a window of type 2.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bind {
    /// The bound part of the region, as offsets from the region's first byte.
    pub range: Range<u64>,
    /// The accesses that the peer may make.
    pub access: WindowAccess,
    /// The lower 8 bits of the key.
    pub key: u8,
}

/// A bind or an invalidation that borrows its window and region. [`keep`](Self::keep) converts it to a form that can
/// wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WindowPost<'a> {
    pub(crate) peer: PeerAddress,
    pub(crate) context: u64,
    pub(crate) flags: OpFlags,
    pub(crate) what: WindowAction<'a>,
}

/// The kind of a [`WindowPost`].
#[derive(Clone, Copy, Debug)]
pub(crate) enum WindowAction<'a> {
    Bind { window: WindowRef<'a>, region: &'a Arc<Registered>, binding: WindowBinding, key: u64 },
    Invalidate(u64),
}

/// A window and its domain's keys.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WindowRef<'a> {
    pub(crate) keys: &'a Arc<Keys>,
    pub(crate) cell: &'a Arc<WindowCell>,
}

/// Like [`WindowPost`], but owns everything that it needs, so that it can wait.
#[derive(Debug)]
pub(crate) struct WindowWork {
    pub(crate) peer: PeerAddress,
    pub(crate) context: u64,
    pub(crate) flags: OpFlags,
    what: OwnedWindowAction,
    /// The time at which it began to wait for the window's old key to become unused.
    since: Option<Instant>,
}

#[derive(Debug)]
enum OwnedWindowAction {
    Bind { keys: Arc<Keys>, cell: Arc<WindowCell>, region: Arc<Registered>, binding: WindowBinding, key: u64 },
    Invalidate(u64),
}

impl<'a> WindowPost<'a> {
    /// Creates a bind, and the name by which the peer accesses the bound memory.
    pub(crate) fn bind(
        peer: PeerAddress,
        window: &'a Window,
        region: &'a impl Bindable,
        bind: &Bind,
    ) -> Result<(Self, RemoteMemory), WindowError> {
        let (binding, mut remote) = window.binding(region, bind.range.clone(), bind.access)?;
        let key = window.key_with(bind.key);
        remote.key = key;
        let window = WindowRef { keys: &window.keys, cell: &window.cell };
        let what = WindowAction::Bind { window, region: region.known().region, binding, key };
        Ok((Self { peer, context: 0, flags: OpFlags::empty(), what }, remote))
    }

    pub(crate) const fn invalidate(peer: PeerAddress, key: u64) -> Self {
        Self { peer, context: 0, flags: OpFlags::empty(), what: WindowAction::Invalidate(key) }
    }

    /// Returns the entry of the operation's completion.
    pub(crate) fn entry(&self) -> Entry {
        let (flags, key) = match self.what {
            WindowAction::Bind { key, .. } => (CompletionFlags::BIND, key),
            WindowAction::Invalidate(key) => (CompletionFlags::INVALIDATED, key),
        };
        Entry { context: self.context, flags, data: key, ..Entry::default() }
    }

    /// Converts to a form that owns everything that it needs.
    pub(crate) fn keep(&self) -> WindowWork {
        let what = match self.what {
            WindowAction::Bind { window: WindowRef { keys, cell }, region, binding, key } => {
                let (keys, cell, region) = (Arc::clone(keys), Arc::clone(cell), Arc::clone(region));
                OwnedWindowAction::Bind { keys, cell, region, binding, key }
            }
            WindowAction::Invalidate(key) => OwnedWindowAction::Invalidate(key),
        };
        WindowWork { peer: self.peer, context: self.context, flags: self.flags, what, since: None }
    }
}

impl WindowWork {
    /// Returns the borrowed form, which can be posted.
    pub(crate) const fn post(&self) -> WindowPost<'_> {
        let what = match &self.what {
            OwnedWindowAction::Bind { keys, cell, region, binding, key } => {
                WindowAction::Bind { window: WindowRef { keys, cell }, region, binding: *binding, key: *key }
            }
            OwnedWindowAction::Invalidate(key) => WindowAction::Invalidate(*key),
        };
        WindowPost { peer: self.peer, context: self.context, flags: self.flags, what }
    }

    /// Returns whether a bind has waited for longer than `timeout`.
    pub(crate) fn is_late(&mut self, timeout: Duration) -> bool {
        self.since.get_or_insert_with(Instant::now).elapsed() > timeout
    }
}

impl<A: Ownership> Endpoint<A> {
    /// Posts the bind of a window of type 2 for a peer, in order with the messages to it. A message that is posted
    /// later can carry the key to the peer, which can then use it. The bind itself sends nothing. If requested, it has
    /// one completion with [`CompletionFlags::BIND`] and the key in `data`. A failed bind always has a completion,
    /// which reports the error. Returns the name by which the peer accesses the memory.
    ///
    /// # Errors
    /// See [`PostError`]. After an error, the operation was not started. [`PostError::Window`] if the range ends before
    /// it begins, or the region and the window belong to different domains.
    pub fn post_bind(
        &self,
        peer: PeerAddress,
        window: &Window,
        region: &impl Bindable,
        bind: &Bind,
        context: u64,
        flags: OpFlags,
    ) -> Result<RemoteMemory, PostError> {
        let (post, remote) = WindowPost::bind(peer, window, region, bind)?;
        let post = WindowPost { context, flags, ..post };
        self.access.with(|engine| engine.post_raw(flags, |engine, notify| engine.post_window(&post, notify)))?;
        Ok(remote)
    }

    /// Posts the invalidation of a key of a window of type 2 that was bound through this endpoint, in order with the
    /// messages to `peer`. Sends nothing. It completes with [`CompletionFlags::INVALIDATED`] and the key in `data` when
    /// no peer uses the key any more. It fails with [`Busy`](crate::ErrorCode::Busy) if a peer that is in the middle of
    /// an access makes no progress within the domain's [`revoke_timeout`](crate::DomainBuilder::revoke_timeout). The
    /// key is invalid in that case too, and the invalidation may be posted again.
    ///
    /// # Errors
    /// See [`PostError`]. After an error, the operation was not started.
    pub fn post_invalidate(&self, peer: PeerAddress, key: u64, context: u64, flags: OpFlags) -> Result<(), PostError> {
        let post = WindowPost { context, flags, ..WindowPost::invalidate(peer, key) };
        self.access.with(|engine| engine.post_raw(flags, |engine, notify| engine.post_window(&post, notify)))
    }
}

#[cfg(all(test, not(loom)))]
impl Endpoint {
    /// Returns the endpoint, peer and authority with which a peer's accesses arrive.
    pub(crate) fn via_for_test(&self, peer: PeerAddress) -> crate::region::AccessOrigin {
        use super::ownership::reach::EngineAccess as _;
        self.access.with_here(|engine| {
            let slot = engine.core.peers.resolve(peer).unwrap();
            engine.core.via(slot)
        })
    }
}
