//! Registration with the rights of verbs. Local rights are checked too.

use bitflags::bitflags;

use super::{Access, RawRegion, Region, RegisterError, Registration};
use crate::domain::Domain;
use crate::local_memory::buffer::Buffer;

bitflags! {
    /// The rights to a region, with the names and values of verbs. Local reads are always allowed.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct VerbsAccess: u32 {
        /// This process may write to the memory, as the destination of receives and reads.
        const LOCAL_WRITE = 1;
        /// Peers may write to the memory, and change it with atomic operations. Requires `LOCAL_WRITE`.
        const REMOTE_WRITE = 2;
        /// Peers may read the memory.
        const REMOTE_READ = 4;
        /// Peers may change and fetch the memory with atomic operations. Requires `LOCAL_WRITE`.
        const REMOTE_ATOMIC = 8;
        /// Windows may be bound to the region.
        const MW_BIND = 16;
    }
}

impl Domain {
    /// Registers memory with the rights of verbs. The region owns the memory until it is closed.
    ///
    /// # Errors
    /// See [`RegisterError`]; [`LocalWrite`](RegisterError::LocalWrite) if peers could write to the memory and this
    /// process could not.
    pub fn register_verbs(&self, memory: impl Into<Buffer>, access: VerbsAccess) -> Result<Region, RegisterError> {
        self.verbs_registration(access)?.own(memory)
    }

    /// Creates a registration with the rights of verbs. It has more options than
    /// [`register_verbs`](Self::register_verbs).
    ///
    /// # Errors
    /// [`RegisterError::LocalWrite`] if peers could write to the memory and this process could not.
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
    /// Returns the key that work requests of this process use for the memory (L_Key): see
    /// [`LocalPiece`](crate::LocalPiece).
    ///
    /// # Errors
    /// [`RegisterError::LocalKeys`] if all local keys are in use.
    pub fn local_key(&self) -> Result<u32, RegisterError> {
        self.handle.keys().local_key(self.handle.registered())
    }

    /// Returns the address of the first byte in this process.
    #[must_use]
    pub fn local_address(&self) -> u64 {
        let first = self.handle.registered().place().as_slice().first();
        first.map_or(0, |piece| piece.as_ptr().expose_provenance() as u64)
    }
}

impl RawRegion {
    /// Returns the key that work requests of this process use for the memory; see [`Region::local_key`].
    ///
    /// # Errors
    /// Like [`Region::local_key`].
    pub fn local_key(&self) -> Result<u32, RegisterError> {
        self.handle.keys().local_key(self.handle.registered())
    }
}
