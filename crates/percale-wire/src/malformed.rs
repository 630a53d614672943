//! The version of the protocol, and the reasons why bytes are not of it.

/// The version of everything that peers send to each other.
pub const VERSION: u16 = 11;

/// The reason why received bytes are not a message of this protocol.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Malformed {
    /// Another protocol, or none.
    #[error("it does not speak percale's protocol")]
    Magic,
    /// Another version of this protocol.
    #[error("it speaks version {0} of the protocol, this is version {VERSION}")]
    Version(u16),
    /// A field has an invalid value.
    #[error("{0}")]
    Field(&'static str),
}

impl Malformed {
    /// The code that libfabric has for this error (positive), as connecting gives it.
    #[must_use]
    #[inline]
    pub const fn errno(&self) -> i32 {
        match self {
            Self::Version(_) => libc::ENOPROTOOPT,
            Self::Magic | Self::Field(_) => libc::EREMOTEIO,
        }
    }
}
