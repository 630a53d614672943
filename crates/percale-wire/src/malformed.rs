//! The version of the protocol, and the reasons why bytes do not belong to it.

/// The version of all messages between peers.
pub const VERSION: u16 = 11;

/// The reason why received bytes are not a message of this protocol.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Malformed {
    /// The bytes do not belong to this protocol.
    #[error("not a percale endpoint")]
    Magic,
    /// The bytes belong to another version of this protocol.
    #[error("protocol version {0} is not supported (this is version {VERSION})")]
    Version(u16),
    /// A field has an invalid value.
    #[error("{0}")]
    Field(&'static str),
}

impl Malformed {
    /// Returns libfabric's positive code for this error, with which a connection attempt fails.
    #[must_use]
    #[inline]
    pub const fn errno(&self) -> i32 {
        match self {
            Self::Version(_) => libc::ENOPROTOOPT,
            Self::Magic | Self::Field(_) => libc::EREMOTEIO,
        }
    }
}
