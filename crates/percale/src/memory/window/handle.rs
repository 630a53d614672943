//! The application's handle of a window.

use std::ops::Range;
use std::sync::Arc;

use super::{TypeTwo, WindowAccess, WindowError, WindowType};
use crate::domain::Domain;
use crate::memory::region::Bindable;
use crate::memory::region::Parts;
use crate::region::window::{WindowBinding, WindowCell};
use crate::region::{CloseError, Keys, RemoteMemory};

/// A memory window: see the [module](super). It is deallocated by [`close`](Self::close), or when it is dropped.
pub struct Window {
    pub(crate) keys: Arc<Keys>,
    pub(crate) cell: Arc<WindowCell>,
    /// Whether the window was deallocated.
    closed: bool,
}

crate::short_debug!(Window, "Window", kind: |this| this.kind());

/// The state of a window.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum WindowState {
    /// The window is not bound. No key gives access.
    Unbound,
    /// The window is bound. Peers access it with this key.
    Bound(u64),
    /// This key is invalid, but a peer that used it may still be accessing the memory.
    Revoking(u64),
}

impl std::fmt::Debug for WindowState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Unbound => "Unbound",
            Self::Bound(_) => "Bound(..)",
            Self::Revoking(_) => "Revoking(..)",
        })
    }
}

impl Domain {
    /// Allocates a window, which is not bound. Type 1 is always available. Of type 2, the kind with which the domain
    /// was opened is available ([`DomainBuilder::windows`](crate::DomainBuilder::windows)).
    ///
    /// # Errors
    /// [`NoSuchType`](WindowError::NoSuchType), [`Exhausted`](WindowError::Exhausted), [`Forked`](WindowError::Forked).
    pub fn window(&self, kind: WindowType) -> Result<Window, WindowError> {
        if kind != WindowType::One && kind != self.type_two().into() {
            return Err(WindowError::NoSuchType(kind));
        }
        let keys = Arc::clone(&self.inner.keys);
        let cell = keys.allocate_window(kind)?;
        Ok(Window { keys, cell, closed: false })
    }

    /// Returns the kind of type 2 windows that the domain supports.
    #[must_use]
    pub fn type_two(&self) -> TypeTwo {
        self.inner.settings.type_two
    }
}

impl Window {
    /// Returns the type of the window.
    #[must_use]
    pub fn kind(&self) -> WindowType {
        self.cell.kind()
    }

    /// Returns the state of the window. In a forked child this is [`Unbound`](WindowState::Unbound).
    #[must_use]
    pub fn state(&self) -> WindowState {
        if !self.keys.is_here() {
            return WindowState::Unbound;
        }
        match self.cell.query() {
            (key, true, _) => WindowState::Bound(self.keys.long_key(key)),
            (key, _, true) => WindowState::Revoking(self.keys.long_key(key)),
            _ => WindowState::Unbound,
        }
    }

    /// Returns the key of the last bind, valid or not. Before the first bind this is an invalid key with the window's
    /// index. In a forked child the lower 8 bits are 0.
    #[must_use]
    pub fn key(&self) -> u64 {
        if self.keys.is_here() { self.keys.long_key(self.cell.query().0) } else { self.key_with(0) }
    }

    /// Returns the key that the window has when it is bound with these 8 bits (type 2).
    #[must_use]
    pub fn key_with(&self, byte: u8) -> u64 {
        self.keys.long_key(self.cell.index() << 8 | u32::from(byte))
    }

    /// Returns whether the window was allocated in this domain.
    #[must_use]
    pub fn is_of(&self, domain: &Domain) -> bool {
        Arc::ptr_eq(&self.keys, &domain.inner.keys)
    }

    /// Binds a window of type 1 to a range of a region, with a new key. An empty range unbinds it. When this returns
    /// `Ok`, no access with the old key is in progress, and none will begin.
    ///
    /// # Errors
    /// See [`WindowError`]. The window is unchanged, except that after [`Busy`](WindowError::Busy) and
    /// [`Closed`](WindowError::Closed) its old key is invalid.
    pub fn bind(
        &mut self,
        region: &impl Bindable,
        range: Range<u64>,
        access: WindowAccess,
    ) -> Result<RemoteMemory, WindowError> {
        if !self.keys.is_here() {
            return Err(WindowError::Forked);
        }
        let (binding, mut remote) = self.binding(region, range, access)?;
        remote.key = self.keys.long_key(self.cell.rebind(&self.keys, region.known().region, &binding)?);
        Ok(remote)
    }

    /// Returns the part of the region to which the window is to be bound, and the description for peers without the
    /// key.
    pub(crate) fn binding(
        &self,
        region: &impl Bindable,
        range: Range<u64>,
        access: WindowAccess,
    ) -> Result<(WindowBinding, RemoteMemory), WindowError> {
        let Parts { region, keys } = region.known();
        if !Arc::ptr_eq(keys, &self.keys) {
            return Err(WindowError::Domain);
        }
        let len = range.end.checked_sub(range.start).ok_or(WindowError::Range)?;
        let remote = RemoteMemory { key: 0, address: region.base().wrapping_add(range.start), len };
        let binding = WindowBinding { offset: range.start, len, access: access.remote() };
        Ok((binding, remote))
    }

    /// Deallocates the window, and unbinds it if it is bound. When this returns `Ok`, no peer is accessing it.
    ///
    /// # Errors
    /// [`CloseError::Busy`] if a peer that is in the middle of an access does not finish within the domain's
    /// [`revoke_timeout`](crate::DomainBuilder::revoke_timeout); the window's key is then invalid.
    /// [`CloseError::Forked`] in a forked child, where the key still belongs to the parent. The error contains the
    /// window.
    pub fn close(mut self) -> Result<(), CloseError<Self>> {
        if !self.keys.is_here() {
            return Err(CloseError::Forked(self));
        }
        if self.cell.close(&self.keys).is_err() {
            return Err(CloseError::Busy(self));
        }
        self.end();
        Ok(())
    }

    fn end(&mut self) {
        if !self.closed {
            self.closed = true;
            self.keys.free_window(self.cell.index(), self.cell.query().0);
        }
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        if !self.closed && self.keys.is_here() {
            self.cell.abandon(&self.keys);
            self.end();
        }
    }
}
