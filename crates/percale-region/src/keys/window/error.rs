//! The errors of window operations.

use super::WindowType;

/// The reason why a window operation failed. The state of the window is unchanged, unless the error states otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WindowError {
    /// The domain was opened with the other kind of type 2 windows.
    #[error("windows of {0:?} are not enabled in this domain: see DomainBuilder::windows")]
    NoSuchType(WindowType),
    /// The domain has 2^24 windows, or regions use the keys that are left.
    #[error("no window keys left in the domain")]
    Exhausted,
    /// A window of type 1 is bound by a call and never invalidated. A window of type 2 is bound by a posted operation.
    #[error(
        "type 1 windows are bound by a call and cannot be invalidated; type 2 windows are bound by a posted operation"
    )]
    WrongType,
    /// The window, the region and the endpoint do not belong to the same domain.
    #[error("the window, the region and the endpoint belong to different domains")]
    Domain,
    /// The range is not within the region.
    #[error("the range is outside the region")]
    Range,
    /// The range is empty. A window of type 2 must have at least one byte.
    #[error("a window of type 2 cannot be bound to zero bytes; invalidate it instead")]
    Empty,
    /// The window would allow peers to change memory that must not be changed.
    #[error("the region's memory is read-only: bind the window without WRITE and ATOMIC")]
    ReadOnly,
    /// The region was not registered for windows.
    #[error("the region was registered without the right to bind windows")]
    NotAllowed,
    /// The region was closed.
    #[error("the region was closed")]
    Closed,
    /// A window of type 2 must be invalidated before it is bound again.
    #[error("the window is still bound: invalidate its key first")]
    StillBound,
    /// No window is bound with this key.
    #[error("no window is bound with this key")]
    NotBound,
    /// The window is bound through another endpoint, or for another peer.
    #[error("the window is bound through another endpoint, or for another peer")]
    OtherPair,
    /// The window was deallocated before the operation was executed.
    #[error("the window was deallocated")]
    Deallocated,
    /// A peer that was in the middle of an access has not finished within the domain's `revoke_timeout`. The old key is
    /// invalid. The window's memory is in use until the peer finishes. The operation may be tried again.
    #[error("timeout: a peer has not finished its access (is it stopped?); try again later")]
    Busy,
    /// The process is a forked child of the process that opened the domain.
    #[error("the domain belongs to the parent process of this fork; open one in this process")]
    Forked,
}

impl WindowError {
    /// Returns whether the same call may succeed later although neither it nor the program is changed, which is the
    /// case for [`Busy`](Self::Busy).
    #[must_use]
    pub const fn is_retriable(&self) -> bool {
        matches!(self, Self::Busy)
    }

    /// Returns the libfabric error code (positive) of this error.
    #[must_use]
    pub const fn errno(&self) -> i32 {
        match self {
            Self::NoSuchType(_) => libc::EOPNOTSUPP,
            Self::Exhausted => libc::ENOSPC,
            Self::StillBound | Self::Busy => libc::EBUSY,
            Self::ReadOnly | Self::NotAllowed | Self::OtherPair | Self::Domain => libc::EACCES,
            Self::NotBound | Self::Deallocated | Self::Closed => libc::ENOKEY,
            Self::WrongType | Self::Range | Self::Empty => libc::EINVAL,
            Self::Forked => libc::ECHILD,
        }
    }
}
