//! Definitions of names of percale that the shared declarations of libibverbs' structures use.

pub(crate) mod queue_pair {
    /// The address of a port.
    pub(crate) type Gid = [u8; 16];
}
