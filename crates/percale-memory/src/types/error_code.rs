//! The reasons why an operation failed.

/// The reason why an operation failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum ErrorCode {
    /// The message was longer than the receive buffer.
    #[error("the message was longer than the buffer that it was received into")]
    Truncated,
    /// The operation was canceled, or its endpoint was closed.
    #[error("the operation was cancelled")]
    Canceled,
    /// A peek or claim found no such message.
    #[error("no matching message has arrived")]
    NoMessage,
    /// The connection ended without a closing message: the peer's process ended without closing its endpoint, the peer
    /// disconnected, or the connection was lost. A peer that closes its endpoint before it has used the connection is
    /// also reported in this way.
    #[error("the peer process exited or its connection was lost")]
    PeerDied,
    /// The peer closed its endpoint or shut the connection down, or this process ended the connection.
    #[error("the peer closed the connection")]
    Closed,
    /// There is no connection to the peer.
    #[error("the peer is not connected")]
    NotConnected,
    /// The peer refused the connection: no endpoint listens at its address, or the endpoint does not accept this peer.
    #[error("the connection was refused")]
    Refused,
    /// The peer cannot be reached from here.
    #[error("no route to the peer")]
    Unreachable,
    /// The peer did not answer in time.
    #[error("the peer did not answer in time")]
    TimedOut,
    /// The peer violated the protocol of this version.
    #[error("the peer violated the protocol")]
    Protocol,
    /// The operation's memory cannot be read or written.
    #[error("the operation's memory cannot be read or written")]
    Fault,
    /// The access is not allowed.
    #[error("the access is not allowed")]
    Denied,
    /// The target of an atomic operation is not aligned to its size.
    #[error("the target of an atomic operation is not aligned to its size")]
    Misaligned,
    /// The peer did not accept the key.
    #[error("the peer rejected the key")]
    KeyRejected,
    /// The address is not, or no longer, in the address vector.
    #[error("the address is not in the address vector")]
    UnknownAddress,
    /// The peer, or this process, was out of memory.
    #[error("out of memory")]
    NoMemory,
    /// The peer, or this process, has no descriptors left.
    #[error("no file descriptors left")]
    NoDescriptors,
    /// A resource of the operation is in use, such as a window that is still bound, or a window that a peer is
    /// accessing.
    #[error("the object is in use")]
    Busy,
    /// The operation's arguments are invalid, for example a range outside its region, or a window of the wrong type.
    #[error("invalid arguments")]
    Invalid,
    /// The system refused the operation with an error for which there is no code here.
    #[error("input/output error")]
    Io,
}

impl ErrorCode {
    /// Returns libfabric's positive code for this error.
    #[must_use]
    #[inline]
    pub const fn errno(self) -> i32 {
        match self {
            Self::Truncated => 265,
            Self::Canceled => libc::ECANCELED,
            Self::NoMessage => libc::ENOMSG,
            Self::PeerDied => libc::ECONNRESET,
            Self::Closed => libc::ESHUTDOWN,
            Self::NotConnected => libc::ENOTCONN,
            Self::Refused => libc::ECONNREFUSED,
            Self::Unreachable => libc::EHOSTUNREACH,
            Self::TimedOut => libc::ETIMEDOUT,
            Self::Protocol => libc::EPROTO,
            Self::Fault => libc::EFAULT,
            Self::Denied => libc::EACCES,
            Self::KeyRejected => libc::EKEYREJECTED,
            Self::Busy => libc::EBUSY,
            Self::UnknownAddress | Self::Misaligned | Self::Invalid => libc::EINVAL,
            Self::NoMemory => libc::ENOMEM,
            Self::NoDescriptors => libc::EMFILE,
            Self::Io => libc::EIO,
        }
    }

    /// Returns whether the same call may succeed later although neither it nor the program is changed. This is the case
    /// for [`TimedOut`](Self::TimedOut), [`Refused`](Self::Refused) (the peer may not have started yet),
    /// [`Unreachable`](Self::Unreachable), [`NoMessage`](Self::NoMessage), [`NoMemory`](Self::NoMemory),
    /// [`NoDescriptors`](Self::NoDescriptors) and [`Busy`](Self::Busy). Limit the number of attempts: the cause may be
    /// permanent.
    ///
    /// It is not the case for [`PeerDied`](Self::PeerDied) and [`Closed`](Self::Closed), because a process that is
    /// started later at the same address is a different peer, nor for [`NotConnected`](Self::NotConnected).
    ///
    /// A failed operation may have had an effect. After `TimedOut`, for example, a write may or may not have been
    /// carried out.
    #[must_use]
    pub const fn is_retriable(self) -> bool {
        matches!(
            self,
            Self::TimedOut
                | Self::Refused
                | Self::Unreachable
                | Self::NoMessage
                | Self::NoMemory
                | Self::NoDescriptors
                | Self::Busy
        )
    }
}
