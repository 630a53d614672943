//! What both kinds of regions can do: how they are named, and enabling, disabling and refreshing them (fi_mr(3), fi_mr_enable,
//! fi_mr_refresh).

use std::sync::Arc;

use super::{Access, CloseError, RawKey, RawRegion, Region, RemoteMemory};
use crate::completion::counter::Counter;

/// What both kinds of regions can do.
macro_rules! lifecycle {
    ($region:ty) => {
        impl $region {
            /// Its key.
            #[must_use]
            pub fn key(&self) -> u64 {
                self.handle.registered.key
            }

            /// Its raw key, for peers to map: 32 bytes if it was registered with one, else the 8 of its key (KEY-006, KEY-013).
            #[must_use]
            pub fn raw_key(&self) -> RawKey {
                self.handle.raw_key()
            }

            /// Its rights.
            #[must_use]
            pub fn access(&self) -> Access {
                self.handle.registered.access
            }

            /// All of it, as peers name it.
            #[must_use]
            pub fn remote(&self) -> RemoteMemory {
                self.handle.remote()
            }

            /// Whether peers may reach it.
            #[must_use]
            pub fn is_enabled(&self) -> bool {
                self.handle.is_enabled()
            }

            /// Lets peers in, as its rights say. Nothing happens to a region that is enabled (AMB-09).
            ///
            /// # Errors
            /// [`CloseError::Busy`] if a peer that was in the middle of an access before the region was disabled has not moved within the
            /// domain's [`revoke_timeout`](crate::domain::DomainBuilder::revoke_timeout). [`CloseError::Forked`] in a forked child.
            pub fn enable(&mut self) -> Result<(), CloseError<()>> {
                let timeout = self.handle.keys.revoke_timeout();
                self.handle.enable(Some(timeout))
            }

            /// Lets no peer in any more, and waits for those that are in the middle of an access. The key stays the region's: accesses that
            /// name it fail meanwhile as those that name an unknown one (BIND-006).
            ///
            /// # Errors
            /// [`CloseError::Windows`] if windows are bound to it; it stays as it is then. [`CloseError::Busy`] if a peer does not move; the
            /// region is disabled all the same. [`CloseError::Forked`] in a forked child.
            pub fn disable(&mut self) -> Result<(), CloseError<()>> {
                let timeout = self.handle.keys.revoke_timeout();
                self.handle.disable(Some(timeout))
            }

            /// Disables the region, runs `while_disabled`, and enables it again: accesses that come meanwhile fail, later ones find what is
            /// there then (BIND-014, BIND-018). A region that was disabled is enabled in the end.
            ///
            /// # Errors
            /// As of [`disable`](Self::disable); then nothing was run.
            pub fn refresh<R>(&mut self, while_disabled: impl FnOnce() -> R) -> Result<R, CloseError<()>> {
                self.disable()?;
                let result = while_disabled();
                self.enable()?;
                Ok(result)
            }

            /// Counts what peers write from now on, as [`Registration::counter`](super::Registration::counter) does. Peers may have used the
            /// region before; what one of them is writing meanwhile is counted or not. Nothing changes if the region has this counter.
            ///
            /// # Errors
            /// [`CloseError::Windows`] if windows are bound to it: what peers write through those would not be counted. Through windows that are
            /// bound later it is. [`CloseError::Forked`] in a forked child.
            pub fn count(&mut self, counter: &Arc<Counter>) -> Result<(), CloseError<()>> {
                let timeout = self.handle.keys.revoke_timeout();
                self.handle.count(counter, Some(timeout))
            }

            /// From when the region is enabled the next time, only accesses through this endpoint reach it, by its
            /// [id](crate::Endpoint::id) (BIND-011).
            pub fn restrict(&mut self, endpoint: u64) {
                self.handle.restrict(endpoint);
            }
        }
    };
}

lifecycle!(Region);
lifecycle!(RawRegion);
