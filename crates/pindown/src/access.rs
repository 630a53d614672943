//! What a registration allows.

bitflags::bitflags! {
    /// Rights of a registration, as verbs names them. A device always may read the memory it sends from.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Access: u32 {
        /// The device of this process writes here (receives, reads of others' memory).
        const LOCAL_WRITE = 1 << 0;
        /// Peers read from here.
        const REMOTE_READ = 1 << 1;
        /// Peers write here; implies nothing else, devices may ask for [`Access::LOCAL_WRITE`] too.
        const REMOTE_WRITE = 1 << 2;
        /// Peers make atomic operations here.
        const REMOTE_ATOMIC = 1 << 3;
    }
}

impl Access {
    /// Whether the device writes the memory, for this process or for a peer: then the process must be allowed to write
    /// it.
    #[must_use]
    pub fn writes(self) -> bool {
        self.intersects(Self::LOCAL_WRITE | Self::REMOTE_WRITE | Self::REMOTE_ATOMIC)
    }
}
