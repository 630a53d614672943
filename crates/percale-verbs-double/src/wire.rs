//! What the shared declarations of libibverbs' structures name of percale's.

pub(crate) mod queue_pair {
    /// A port's address.
    pub(crate) type Gid = [u8; 16];
}
