//! Registration in verbs' terms: with rights of which the local ones are checked, too.

use bitflags::bitflags;

use super::{Access, RawRegion, Region, RegisterError, Registration};
use crate::domain::Domain;
use crate::local_memory::buffer::Buffer;

bitflags! {
    /// Rights to a region, in verbs' terms and values. Reading it locally is always allowed (MW-012).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct VerbsAccess: u32 {
        /// This process may write it: receive messages there, and read into it.
        const LOCAL_WRITE = 1;
        /// Peers may write, and change by atomics. With `LOCAL_WRITE` only (MW-013).
        const REMOTE_WRITE = 2;
        /// Peers may read.
        const REMOTE_READ = 4;
        /// Peers may change and fetch by atomics. With `LOCAL_WRITE` only (MW-013).
        const REMOTE_ATOMIC = 8;
        /// Windows may be bound to it (AMB-48).
        const MW_BIND = 16;
    }
}

impl Domain {
    /// Registers memory as a verbs program does. The region owns it until it is closed.
    ///
    /// # Errors
    /// See [`RegisterError`]; [`LocalWrite`](RegisterError::LocalWrite) if peers could write the memory and this process could not.
    pub fn register_verbs(&self, memory: impl Into<Buffer>, access: VerbsAccess) -> Result<Region, RegisterError> {
        self.verbs_registration(access)?.own(memory)
    }

    /// Like [`register_verbs`](Self::register_verbs), but with more options.
    ///
    /// # Errors
    /// [`RegisterError::LocalWrite`].
    pub fn verbs_registration(&self, access: VerbsAccess) -> Result<Registration<'_>, RegisterError> {
        let local = access.contains(VerbsAccess::LOCAL_WRITE);
        if !local && access.intersects(VerbsAccess::REMOTE_WRITE | VerbsAccess::REMOTE_ATOMIC) {
            return Err(RegisterError::LocalWrite);
        }
        let mut rights = Access::empty();
        rights.set(Access::REMOTE_READ, access.contains(VerbsAccess::REMOTE_READ));
        rights.set(Access::REMOTE_WRITE, access.contains(VerbsAccess::REMOTE_WRITE));
        rights.set(Access::REMOTE_ATOMIC, access.contains(VerbsAccess::REMOTE_ATOMIC));
        let mut registration = self.registration(rights).windows(access.contains(VerbsAccess::MW_BIND));
        registration.terms.local_write = Some(local);
        Ok(registration)
    }
}

impl Region {
    /// Returns the key by which work requests of this process name the memory (L_Key): see [`LocalPiece`](crate::LocalPiece).
    ///
    /// # Errors
    /// [`RegisterError::LocalKeys`] if all are in use.
    pub fn local_key(&self) -> Result<u32, RegisterError> {
        self.handle.keys().local_key(self.handle.registered())
    }

    /// Returns the address of its first byte in this process.
    #[must_use]
    pub fn local_address(&self) -> u64 {
        let first = self.handle.registered().place().as_slice().first();
        first.map_or(0, |piece| piece.as_ptr().expose_provenance() as u64)
    }
}

impl RawRegion {
    /// See [`Region::local_key`].
    ///
    /// # Errors
    /// The same.
    pub fn local_key(&self) -> Result<u32, RegisterError> {
        self.handle.keys().local_key(self.handle.registered())
    }
}
