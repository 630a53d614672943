//! Work requests: one plain struct for each kind of operation. The raw API and the safe API both use them.

use crate::local_memory::volatile::Segments;
pub use crate::types::OpFlags;
use crate::types::PeerAddress;
pub use crate::wire::limits::INJECT_LIMIT;

/// The maximum length of a message in bytes, which is the maximum length of an object in memory.
pub const MESSAGE_LIMIT: usize = isize::MAX as usize;

/// A send.
#[derive(Clone, Copy, Debug)]
pub struct SendWork {
    /// The target.
    pub peer: PeerAddress,
    /// The message's memory.
    pub segments: Segments,
    /// The tag of a tagged message; `None` for an untagged one.
    pub tag: Option<u64>,
    /// Remote completion data: 8 bytes that the receiver's completion carries.
    pub data: Option<u64>,
    /// The context, which is returned in the completion.
    pub context: u64,
    /// The flags of the send.
    pub flags: OpFlags,
}

/// A receive.
#[derive(Clone, Copy, Debug)]
pub struct ReceiveWork {
    /// The sender; [`PeerAddress::UNSPECIFIED`] for any sender.
    pub from: PeerAddress,
    /// The memory that receives the message.
    pub segments: Segments,
    /// Tag and ignore mask of a tagged receive (a bit set in the mask is not compared); `None` for an untagged one.
    pub tag: Option<(u64, u64)>,
    /// The context, which is returned in the completion.
    pub context: u64,
    /// The flags of the receive.
    pub flags: OpFlags,
}

/// The reason why an operation was not posted. The operation was not started and will not complete.
#[non_exhaustive]
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
pub enum PostError {
    /// There is no room for the operation at the moment. Make progress, then post it again.
    #[error("no resources for the operation; make progress (poll) and post it again")]
    Again,
    /// The vector has no such address.
    #[error("{} is not in the endpoint's address vector; insert it first", PeerAddress(*.0))]
    UnknownPeer(u64),
    /// The endpoint is for one connection, which is not up yet or has ended.
    #[error("the endpoint is not connected: wait for Connected, and post nothing after Shutdown")]
    NotConnected,
    /// The address was the source of messages over a connection that has ended.
    #[error("the peer has disconnected, and its address was valid for that connection only; wait for its next message")]
    ConnectionEnded,
    /// The endpoint was bound without an address vector.
    #[error("the endpoint has no address vector; pass one to the builder")]
    NoVector,
    /// An injected message is too long.
    #[error("cannot inject {0} bytes (at most {INJECT_LIMIT}); use send for longer messages")]
    InjectTooLong(usize),
    /// The message is too long for any transport.
    #[error("{0} bytes exceed the maximum message length")]
    TooLong(usize),
    /// The flags contradict each other or the operation.
    #[error("{0}")]
    Flags(&'static str),
    /// No claimed message has this context.
    #[error("no message was claimed with this context; peek with CLAIM first")]
    NotClaimed,
    /// The buffer cannot be written (it is shared or static).
    #[error("the receive buffer is read-only")]
    ReadOnly,
    /// The local and the remote memory of a one-sided operation differ in length.
    #[error("local and remote length of the access differ ({local} and {remote} bytes)")]
    Lengths {
        /// The local length in bytes.
        local: u64,
        /// The remote length in bytes.
        remote: u64,
    },
    /// There is no such atomic operation or reduction.
    #[error("{0} is not supported for {1}")]
    NoSuchAtomic(crate::local_memory::atomic::AtomicOp, crate::local_memory::atomic::Datatype),
    /// The key belongs to a mapped raw key that is no longer mapped, or was never mapped.
    #[error("the key is not mapped; map the peer's raw key")]
    NotMapped(u64),
    /// A window cannot be bound with these parameters. Contains the reason.
    #[error(transparent)]
    Window(#[from] crate::region::window::WindowError),
    /// The endpoint is not a member of the group.
    #[error("the endpoint has not joined the group; join it and wait for the completion")]
    NoGroup,
    /// The group, or the collective operation, is invalid.
    #[error("{0}")]
    Collective(&'static str),
    /// The operation's memory is device memory, which this operation cannot use. Contains the libfabric code.
    #[error("{0}")]
    Device(&'static str, i32),
    /// The endpoint already has a counter for operations of this kind.
    #[error("the endpoint already has a counter for {0}")]
    HasCounter(&'static str),
    /// The counter could not be set up so that waiting for it drives the endpoint. Contains the system's error code.
    #[error("waiting for the counter cannot make progress on the endpoint: {}", std::io::Error::from_raw_os_error(*.0))]
    Counter(i32),
    /// The process is a fork of the process that opened the endpoint, or that created the counter for which the
    /// operation would wait.
    #[error("the endpoint or counter belongs to the parent process of this fork; open a domain in this process")]
    Forked,
    /// The endpoint was closed through another handle.
    #[error("the endpoint was closed; open another one")]
    Closed,
}

impl std::fmt::Debug for PostError {
    /// Formats the error like its `Display` output: keys are not written to logs.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PostError({self})")
    }
}

impl PostError {
    /// Returns whether the same call may succeed later although neither it nor the program is changed. This is the case
    /// for [`Again`](Self::Again), after progress was made, and for a window that is
    /// [busy](crate::region::window::WindowError::Busy).
    #[must_use]
    pub const fn is_retriable(&self) -> bool {
        match self {
            Self::Again => true,
            Self::Window(error) => error.is_retriable(),
            _ => false,
        }
    }

    /// Returns the peer that the failure concerns, which is known for [`UnknownPeer`](Self::UnknownPeer).
    #[must_use]
    pub const fn peer(&self) -> Option<PeerAddress> {
        match self {
            Self::UnknownPeer(address) => Some(PeerAddress(*address)),
            _ => None,
        }
    }

    /// Returns the libfabric code.
    #[must_use]
    pub const fn errno(&self) -> i32 {
        match self {
            Self::Again => 11, // EAGAIN
            Self::UnknownPeer(_) | Self::Flags(_) | Self::Lengths { .. } | Self::NoGroup | Self::Collective(_) => 22, // EINVAL
            Self::NoSuchAtomic(..) => 95,                    // EOPNOTSUPP
            Self::NoVector => 267,                           // FI_ENOAV
            Self::NotConnected => 258,                       // FI_EOPBADSTATE
            Self::ConnectionEnded => 107,                    // ENOTCONN
            Self::InjectTooLong(_) | Self::TooLong(_) => 90, // EMSGSIZE
            Self::NotClaimed => 42,                          // ENOMSG
            Self::ReadOnly => 13,                            // EACCES
            Self::NotMapped(_) => 129,                       // EKEYREJECTED
            Self::Window(error) => error.errno(),
            Self::HasCounter(_) => 22, // EINVAL
            Self::Device(_, errno) | Self::Counter(errno) => *errno,
            Self::Forked => 10,  // ECHILD
            Self::Closed => 108, // ESHUTDOWN
        }
    }
}
