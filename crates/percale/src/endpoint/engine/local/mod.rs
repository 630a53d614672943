//! The local regions that an endpoint's peers access: the domain's key table, the identity under which accesses are
//! made, and the windows that were bound through the endpoint.
//!
//! * `window_cache`: windows that were bound recently
//!
//! Invariants:
//! 1. Every access of a peer is checked with the number of this endpoint, the peer's incarnation, and the endpoint's
//!    authorization key ([`via`](LocalRegions::via)), regardless of how the access is made.
//! 2. A peer gets the key table, with which it reaches regions without the engine, only if the endpoint trusts peers of
//!    the same user.

#[cfg(all(test, not(loom)))]
mod tests;
mod window_cache;

use std::sync::Arc;
use std::time::Duration;

use self::window_cache::BoundWindowCache;
use crate::domain::Trust;
use crate::endpoint::window_work::WindowRef;
use crate::region::window::{Invalidator, WindowBinding, WindowCell, WindowError};
use crate::region::{AccessOrigin, Keyring, Keys, MappedKeys, Refusal, Registered};
use crate::transport::verbs::Pins;
use crate::types::PeerAddress;

/// The local regions that peers of one endpoint access.
#[derive(Debug)]
pub(crate) struct LocalRegions {
    /// This endpoint's number in the process.
    endpoint: u64,
    /// The domain's regions.
    keys: Arc<Keys>,
    /// The endpoint's authorization key ([`AccessOrigin::authority`]).
    authority: u64,
    /// Raw keys of peers.
    mapped: Keyring,
    /// The peers that may reach the local regions without the engine.
    trust: Trust,
    /// Registers memory of operations with a device.
    pins: Pins,
    /// Windows that were bound through this endpoint.
    windows: BoundWindowCache,
}

impl LocalRegions {
    /// Creates the view of a domain's regions. The endpoint has no number yet.
    pub(crate) fn new(keys: Arc<Keys>, authority: u64, mapped: Keyring, trust: Trust, pins: Pins) -> Self {
        Self { endpoint: 0, keys, authority, mapped, trust, pins, windows: BoundWindowCache::default() }
    }

    /// Sets the endpoint's number in the process.
    pub(super) const fn set_endpoint(&mut self, number: u64) {
        self.endpoint = number;
    }

    /// Returns the identity under which the accesses of the peer with this incarnation are made.
    #[inline]
    pub(super) const fn via(&self, peer: u128) -> AccessOrigin {
        AccessOrigin { endpoint: self.endpoint, peer, authority: self.authority }
    }

    /// Returns the region with this key, if the peer with this incarnation may access it.
    #[inline]
    pub(super) fn find(&self, key: u64, peer: u128) -> Result<Arc<Registered>, Refusal> {
        self.keys.find(key, self.via(peer))
    }

    /// Returns the local regions, if a peer may reach them without the engine, and the identity of the peer in these
    /// accesses.
    pub(super) fn granted(&self, peer: u128) -> (Option<Arc<Keys>>, AccessOrigin) {
        ((self.trust == Trust::SameUser).then(|| Arc::clone(&self.keys)), self.via(peer))
    }

    /// Returns the object that registers memory of operations with a device.
    #[cfg_attr(
        not(feature = "verbs"),
        allow(clippy::clone_on_copy, reason = "`Pins` is a unit type without the feature `verbs`")
    )]
    pub(super) fn pins(&self) -> Pins {
        self.pins.clone()
    }

    /// Sets the object that registers memory of operations with a device.
    #[cfg(all(test, feature = "verbs"))]
    pub(super) fn set_pins(&mut self, pins: Pins) {
        self.pins = pins;
    }

    /// Returns the raw keys of peers.
    #[inline]
    pub(super) fn mapped(&self) -> &MappedKeys {
        &self.mapped
    }

    /// Frees memory of regions that peers have released.
    pub(super) fn free_parked(&self) {
        self.keys.free_parked();
    }

    /// Returns how long an operation waits for peers that are using a key.
    pub(super) fn revoke_timeout(&self) -> Duration {
        self.keys.revoke_timeout()
    }

    /// Binds a window for a peer with this incarnation and this address.
    ///
    /// # Errors
    /// [`Busy`](WindowError::Busy) if an earlier key of the window is still in use. The caller may try the bind again.
    pub(super) fn bind(
        &mut self,
        window: WindowRef<'_>,
        region: (&Arc<Registered>, &WindowBinding),
        key: u64,
        (incarnation, peer): (u128, PeerAddress),
    ) -> Result<(), WindowError> {
        if !Arc::ptr_eq(window.keys, &self.keys) {
            return Err(WindowError::Domain);
        }
        let result = window.cell.bind(&self.keys, region, key as u8, (self.via(incarnation), peer.0));
        self.windows.note(window.cell);
        result.map(drop)
    }

    /// Makes a key invalid. Returns the window if some peer is still using the key.
    pub(super) fn invalidate(&self, key: u64, by: Invalidator) -> Result<Option<Arc<WindowCell>>, WindowError> {
        let key = self.keys.short_key(key).ok_or(WindowError::NotBound)?;
        let begin = |cell: &Arc<WindowCell>| {
            let over = cell.invalidate(&self.keys, key, by)?;
            Ok((!over).then(|| Arc::clone(cell)))
        };
        match self.windows.find(key).map(begin) {
            // The index may belong to another window by now.
            None | Some(Err(WindowError::NotBound)) => {
                self.keys.with_window(key, begin).unwrap_or(Err(WindowError::NotBound))
            }
            Some(result) => result,
        }
    }

    /// Returns whether windows are bound through the endpoint.
    pub(crate) fn has_windows(&self) -> bool {
        self.windows.any() && self.keys.any_bound_through(self.endpoint)
    }

    /// Unbinds the windows that are bound through the endpoint, because it is closed.
    pub(super) fn close(&self) {
        if self.windows.any() {
            self.keys.endpoint_gone(self.endpoint);
        }
    }
}
