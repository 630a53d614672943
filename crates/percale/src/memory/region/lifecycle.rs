//! The methods of both kinds of regions, which return keys and descriptions, and enable, disable and refresh regions
//! (fi_mr(3), fi_mr_enable, fi_mr_refresh).

use std::sync::Arc;

use super::{Access, CloseError, RawKey, RawRegion, Region, RemoteMemory};
use crate::completion::counter::Counter;

/// Implements the methods of both kinds of regions.
macro_rules! lifecycle {
    ($region:ty) => {
        impl $region {
            /// Returns the key.
            #[must_use]
            pub fn key(&self) -> u64 {
                self.handle.registered().key()
            }

            /// Returns the raw key, for peers to map. It has 32 bytes if the region was registered with one, otherwise
            /// it consists of the 8 bytes of the key.
            #[must_use]
            pub fn raw_key(&self) -> RawKey {
                self.handle.raw_key()
            }

            /// Returns the rights.
            #[must_use]
            pub fn access(&self) -> Access {
                self.handle.registered().access()
            }

            /// Returns the description that peers use to access the whole region.
            #[must_use]
            pub fn remote(&self) -> RemoteMemory {
                self.handle.remote()
            }

            /// Returns whether peers may access the region.
            #[must_use]
            pub fn is_enabled(&self) -> bool {
                self.handle.is_enabled()
            }

            /// Enables the region: peers may access it within its rights. Has no effect on a region that is enabled.
            ///
            /// # Errors
            /// [`CloseError::Busy`] if a peer that was in the middle of an access before the region was disabled has
            /// not finished within the domain's [`revoke_timeout`](crate::domain::DomainBuilder::revoke_timeout), or if
            /// the region is being closed. [`CloseError::Forked`] in a forked child.
            pub fn enable(&mut self) -> Result<(), CloseError<()>> {
                let timeout = self.handle.keys().revoke_timeout();
                self.handle.enable(Some(timeout))
            }

            /// Disables the region: admits no new accesses, and waits for peers that are in the middle of an access.
            /// The key still belongs to the region. Accesses with it fail like accesses with an unknown key.
            ///
            /// # Errors
            /// [`CloseError::Windows`] if windows are bound to the region, which is then unchanged.
            /// [`CloseError::Busy`] if a peer does not finish; the region is disabled nevertheless.
            /// [`CloseError::Forked`] in a forked child.
            pub fn disable(&mut self) -> Result<(), CloseError<()>> {
                let timeout = self.handle.keys().revoke_timeout();
                self.handle.disable(Some(timeout))
            }

            /// Disables the region, runs `while_disabled`, and enables the region again. Accesses in between fail, and
            /// later accesses find the new content. A region that was disabled before is enabled afterwards.
            ///
            /// # Errors
            /// Like [`disable`](Self::disable); in these cases `while_disabled` was not run. Also [`CloseError::Busy`]
            /// if the region is being closed; in this case it may have been run.
            pub fn refresh<R>(&mut self, while_disabled: impl FnOnce() -> R) -> Result<R, CloseError<()>> {
                self.disable()?;
                let result = while_disabled();
                self.enable()?;
                Ok(result)
            }

            /// Counts the writes of peers from now on, like [`Registration::counter`](super::Registration::counter).
            /// Peers may have used the region before. A write that is in progress during the call may or may not be
            /// counted. Has no effect if the region already has this counter.
            ///
            /// # Errors
            /// [`CloseError::Windows`] if windows are bound to the region, because writes through them would not be
            /// counted. Writes through windows that are bound later are counted. [`CloseError::Forked`] in a forked
            /// child.
            pub fn count(&mut self, counter: &Counter) -> Result<(), CloseError<()>> {
                let timeout = self.handle.keys().revoke_timeout();
                self.handle.count(Arc::new(counter.clone()), Some(timeout))
            }

            /// Restricts the region to accesses through the endpoint with this [id](crate::Endpoint::id), from the next
            /// time that the region is enabled.
            pub fn restrict(&mut self, endpoint: u64) {
                self.handle.restrict(endpoint);
            }
        }
    };
}

lifecycle!(Region);
lifecycle!(RawRegion);
