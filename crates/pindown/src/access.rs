//! The access rights of a registration.

bitflags::bitflags! {
    /// Rights of a registration, named as in verbs. A device may always read the memory that it sends from.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Access: u32 {
        /// The device of this process writes the memory (receives, and reads of remote memory).
        const LOCAL_WRITE = 1 << 0;
        /// Peers read the memory.
        const REMOTE_READ = 1 << 1;
        /// Peers write the memory. Implies no other right; devices may also require [`Access::LOCAL_WRITE`].
        const REMOTE_WRITE = 1 << 2;
        /// Peers perform atomic operations on the memory.
        const REMOTE_ATOMIC = 1 << 3;
    }
}

impl Access {
    /// Returns whether the device writes the memory, for this process or for a peer. The process itself must then be
    /// allowed to write it.
    #[must_use]
    pub fn writes(self) -> bool {
        self.intersects(Self::LOCAL_WRITE | Self::REMOTE_WRITE | Self::REMOTE_ATOMIC)
    }
}
