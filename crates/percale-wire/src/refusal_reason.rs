//! The reason why a connection uses its transport, or why there is no connection. It is one byte on the wire.

use std::fmt;

/// The reason why a connection uses its transport, or why there is no connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum RefusalReason {
    /// Both endpoints have the same kernel, namespace and user.
    SameHost = 1,
    /// The other endpoint has another kernel.
    AnotherHost = 2,
    /// The other endpoint has the same kernel, but another network namespace.
    AnotherNamespace = 3,
    /// The other endpoint has the same kernel and namespace, but another user.
    AnotherUser = 4,
    /// One side does not allow shared memory.
    ShmNotAllowed = 5,
    /// The exchange of resources over the Unix socket failed.
    MeetingFailed = 6,
    /// No endpoint answered at the Unix socket.
    SocketUnreachable = 7,
    /// A descriptor limit is reached or near. The remaining descriptors are reserved for connections over TCP.
    Descriptors = 8,
    /// The resources that were passed at the meeting are not valid.
    BadResources = 9,
    /// The authorization keys do not match.
    Authorization = 10,
    /// No transport is allowed by both sides.
    NoTransport = 11,
    /// The identity of the process behind the Unix socket could not be verified.
    PeerUnknown = 12,
    /// All bits of one side's doorbell are in use.
    DoorbellFull = 13,
    /// There is no such context at the address.
    NoContext = 14,
    /// The address can have such a context, but it is not open yet, or is already closed.
    ContextClosed = 15,
    /// The queue pairs could not be connected.
    PairFailed = 16,
    /// The call arrived at a different address than the one that the caller used.
    NotItsAddress = 17,
    /// The caller advertises the called endpoint's address.
    OwnAddress = 18,
    /// The caller has the called endpoint's incarnation.
    OwnIncarnation = 19,
    /// The negative answer to a probe.
    NotKnown = 20,
}

impl RefusalReason {
    pub(super) const fn from_u8(value: u8) -> Option<Self> {
        Some(match value {
            1 => Self::SameHost,
            2 => Self::AnotherHost,
            3 => Self::AnotherNamespace,
            4 => Self::AnotherUser,
            5 => Self::ShmNotAllowed,
            6 => Self::MeetingFailed,
            7 => Self::SocketUnreachable,
            8 => Self::Descriptors,
            9 => Self::BadResources,
            10 => Self::Authorization,
            11 => Self::NoTransport,
            12 => Self::PeerUnknown,
            13 => Self::DoorbellFull,
            14 => Self::NoContext,
            15 => Self::ContextClosed,
            16 => Self::PairFailed,
            17 => Self::NotItsAddress,
            18 => Self::OwnAddress,
            19 => Self::OwnIncarnation,
            20 => Self::NotKnown,
            _ => return None,
        })
    }
}

impl fmt::Display for RefusalReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::SameHost => "same host, network namespace and user",
            Self::AnotherHost => "another host",
            Self::AnotherNamespace => "another network namespace",
            Self::AnotherUser => "another user",
            Self::ShmNotAllowed => "shared memory is not allowed by one side",
            Self::MeetingFailed => "set-up of shared memory failed",
            Self::SocketUnreachable => "the peer's Unix socket cannot be reached",
            Self::Descriptors => "one side is low on file descriptors (ulimit -n)",
            Self::BadResources => "the peer passed wrong file descriptors for shared memory",
            Self::Authorization => "the authorization keys do not match",
            Self::NoTransport => "the two sides allow no common transport",
            Self::PeerUnknown => "the process at the Unix socket could not be verified",
            Self::DoorbellFull => "the doorbell has no free slots",
            Self::NoContext => "the peer has no such receive context",
            Self::ContextClosed => "the peer's receive context is not open",
            Self::PairFailed => "the queue pairs could not be connected",
            Self::NotItsAddress => "the connection arrived at a different address than the one that was called",
            Self::OwnAddress => "the caller advertises the peer's own address",
            Self::OwnIncarnation => "the caller uses the incarnation of the peer",
            Self::NotKnown => "the peer does not have this connection",
        })
    }
}
