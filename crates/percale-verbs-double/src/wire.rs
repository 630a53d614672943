//! The names of percale that the shared declarations of libibverbs' structures use.

pub(crate) mod queue_pair {
    /// A port's address.
    pub(crate) type Gid = [u8; 16];
}
