//! Methods of both kinds of regions: their names, and enabling, disabling and refreshing them (fi_mr(3), fi_mr_enable,
//! fi_mr_refresh).

use std::sync::Arc;

use super::{Access, CloseError, RawKey, RawRegion, Region, RemoteMemory};
use crate::completion::counter::Counter;

/// Implements the methods of both kinds of regions.
macro_rules! lifecycle {
    ($region:ty) => {
        impl $region {
            /// Returns its key.
            #[must_use]
            pub fn key(&self) -> u64 {
                self.handle.registered().key()
            }

            /// Returns its raw key, for peers to map: 32 bytes if it was registered with one, else the 8 of its key (KEY-006, KEY-013).
            #[must_use]
            pub fn raw_key(&self) -> RawKey {
                self.handle.raw_key()
            }

            /// Returns its rights.
            #[must_use]
            pub fn access(&self) -> Access {
                self.handle.registered().access()
            }

            /// Returns the name by which peers access all of it.
            #[must_use]
            pub fn remote(&self) -> RemoteMemory {
                self.handle.remote()
            }

            /// Whether peers may access it.
            #[must_use]
            pub fn is_enabled(&self) -> bool {
                self.handle.is_enabled()
            }

            /// Enables the region: peers may access it within its rights. Has no effect on a region that is enabled (AMB-09).
            ///
            /// # Errors
            /// [`CloseError::Busy`] if a peer that was in the middle of an access before the region was disabled has not finished within the
            /// domain's [`revoke_timeout`](crate::domain::DomainBuilder::revoke_timeout), or if the region is being closed.
            /// [`CloseError::Forked`] in a forked child.
            pub fn enable(&mut self) -> Result<(), CloseError<()>> {
                let timeout = self.handle.keys().revoke_timeout();
                self.handle.enable(Some(timeout))
            }

            /// Disables the region: admits no more peers, and waits for those that are in the middle of an access. The key still belongs to the
            /// region: accesses that name it fail meanwhile like those that name an unknown key (BIND-006).
            ///
            /// # Errors
            /// [`CloseError::Windows`] if windows are bound to it; it is unchanged then. [`CloseError::Busy`] if a peer does not finish; the
            /// region is disabled nevertheless. [`CloseError::Forked`] in a forked child.
            pub fn disable(&mut self) -> Result<(), CloseError<()>> {
                let timeout = self.handle.keys().revoke_timeout();
                self.handle.disable(Some(timeout))
            }

            /// Disables the region, runs `while_disabled`, and enables it again: accesses meanwhile fail, later ones find the new content
            /// (BIND-014, BIND-018). A region that was disabled is enabled afterwards.
            ///
            /// # Errors
            /// As for [`disable`](Self::disable); then `while_disabled` was not run. Also [`CloseError::Busy`] if the region is being closed:
            /// then it may have been run.
            pub fn refresh<R>(&mut self, while_disabled: impl FnOnce() -> R) -> Result<R, CloseError<()>> {
                self.disable()?;
                let result = while_disabled();
                self.enable()?;
                Ok(result)
            }

            /// Counts the writes of peers from now on, like [`Registration::counter`](super::Registration::counter). Peers may have used the
            /// region before; a write that is under way meanwhile may or may not be counted. Has no effect if the region has this counter.
            ///
            /// # Errors
            /// [`CloseError::Windows`] if windows are bound to it: writes through those would not be counted. Writes through windows that are
            /// bound later are. [`CloseError::Forked`] in a forked child.
            pub fn count(&mut self, counter: &Arc<Counter>) -> Result<(), CloseError<()>> {
                let timeout = self.handle.keys().revoke_timeout();
                self.handle.count(counter, Some(timeout))
            }

            /// Restricts the region: from the next time that it is enabled, only accesses through this endpoint reach it, by its
            /// [id](crate::Endpoint::id) (BIND-011).
            pub fn restrict(&mut self, endpoint: u64) {
                self.handle.restrict(endpoint);
            }
        }
    };
}

lifecycle!(Region);
lifecycle!(RawRegion);
