//! The contents of a completion queue: one [`Entry`] for each operation that succeeded, and one [`ErrorEntry`] for each
//! that failed.
//!
//! Both are plain values. The narrower views ([`ContextEntry`], [`MessageEntry`], [`DataEntry`], [`TaggedEntry`]) are
//! libfabric's entry formats: each has a few more fields than the previous one.

use std::borrow::Cow;

use bitflags::bitflags;

pub use crate::types::ErrorCode;
use crate::types::PeerAddress;

bitflags! {
    /// The kind of operation that completed, and which fields of its entry are valid. The values are libfabric's.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct CompletionFlags: u64 {
        /// An untagged message.
        const MESSAGE = 1 << 1;
        /// Remote memory access.
        const RMA = 1 << 2;
        /// A tagged message: `tag` is valid.
        const TAGGED = 1 << 3;
        /// An atomic operation.
        const ATOMIC = 1 << 4;
        /// A collective operation.
        const COLLECTIVE = 1 << 6;
        /// A read that this process initiated.
        const READ = 1 << 8;
        /// A write that this process initiated.
        const WRITE = 1 << 9;
        /// A receive.
        const RECEIVE = 1 << 10;
        /// A send.
        const SEND = 1 << 11;
        /// A peer read memory of this process.
        const REMOTE_READ = 1 << 12;
        /// A peer wrote memory of this process.
        const REMOTE_WRITE = 1 << 13;
        /// The multi-receive buffer that holds this message is released. No more messages are put into it.
        const MULTI_RECEIVE = 1 << 16;
        /// `data` holds the remote completion data that the peer sent.
        const REMOTE_DATA = 1 << 17;
        /// The message continues in further entries.
        const MORE = 1 << 18;
        /// A window was bound, and `data` is its key. (Not defined by libfabric.)
        const BIND = 1 << 50;
        /// The key in `data` is invalid. It was invalidated by this operation or, for a receive, by this message. (Not
        /// defined by libfabric.)
        const INVALIDATED = 1 << 51;
        /// The message was only peeked at and claimed. A receive with the same flag fetches it.
        const CLAIM = 1 << 59;
    }
}

/// One completed operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// The context that was passed to the operation.
    pub context: u64,
    /// The kind of operation.
    pub flags: CompletionFlags,
    /// The number of bytes received; 0 for sends.
    pub len: u64,
    /// For a message in a multi-receive buffer, the address of its first byte, otherwise 0. It is a number and not a
    /// pointer, because the queue does not own the memory.
    pub buffer: u64,
    /// Remote completion data with [`CompletionFlags::REMOTE_DATA`], otherwise 0.
    pub data: u64,
    /// The message's tag with [`CompletionFlags::TAGGED`], otherwise 0.
    pub tag: u64,
    /// The sender of the message. If it is not in the endpoint's address vector, this is an address that is valid at this
    /// endpoint until the sender's connection ends
    /// ([`connection_addresses`](crate::EndpointBuilder::connection_addresses)). It is [`PeerAddress::UNSPECIFIED`] for
    /// this endpoint's own operations.
    pub source: PeerAddress,
}

/// One failed operation.
#[derive(Clone, PartialEq, Eq)]
pub struct ErrorEntry {
    /// The fields of the operation's entry, as far as they are known. `len` is the number of bytes that arrived.
    pub entry: Entry,
    /// The error code of the failure.
    pub error: ErrorCode,
    /// The number of bytes of the message that did not fit (with [`ErrorCode::Truncated`]).
    pub overflow: u64,
    /// Details of the failure as text, in addition to `error`. May be empty.
    pub text: Cow<'static, str>,
    /// The peer of the operation, if it is known and is not the entry's source.
    peer: PeerAddress,
}

crate::short_debug!(ErrorEntry, "ErrorEntry", context: |this| this.entry.context, error: |this| this.error, text: |this| crate::debug::cut(&this.text).to_owned());

/// The result of an operation. Errors are boxed, so that the fields that only errors need are not moved with every
/// success.
pub(crate) type OperationResult = Result<Entry, Box<ErrorEntry>>;

impl ErrorEntry {
    /// Creates the error of the operation that `entry` describes.
    #[must_use]
    pub const fn new(entry: Entry, error: ErrorCode) -> Self {
        Self { entry, error, overflow: 0, text: Cow::Borrowed(""), peer: PeerAddress::UNSPECIFIED }
    }

    /// Creates the error of a receive for a message that was `overflow` bytes too long.
    #[must_use]
    pub const fn truncated(entry: Entry, overflow: u64) -> Self {
        let mut error = Self::new(entry, ErrorCode::Truncated);
        error.overflow = overflow;
        error
    }

    /// Adds details of the failure as text.
    #[must_use]
    pub fn with_text(mut self, text: impl Into<Cow<'static, str>>) -> Self {
        self.text = text.into();
        self
    }

    /// Sets the peer of the operation. [`PeerAddress::UNSPECIFIED`] means that it is unknown.
    #[must_use]
    pub(crate) const fn with_peer(mut self, peer: PeerAddress) -> Self {
        self.peer = peer;
        self
    }

    /// Returns the peer that the failure concerns: the target of a send or of an access to remote memory, or the sender
    /// of the message that was being received. `None` if the peer is not in the endpoint's address vector, or if the
    /// failure concerns no particular peer, as for a canceled receive from any peer or an operation of a group.
    #[must_use]
    pub fn peer(&self) -> Option<PeerAddress> {
        [self.peer, self.entry.source].into_iter().find(|peer| peer.is_specified())
    }

    /// Returns whether the same call may succeed later although neither it nor the program is changed
    /// ([`ErrorCode::is_retriable`]).
    #[must_use]
    pub const fn is_retriable(&self) -> bool {
        self.error.is_retriable()
    }

    /// Returns the libfabric code for this error (positive).
    #[must_use]
    pub const fn errno(&self) -> i32 {
        self.error.errno()
    }
}

impl std::fmt::Display for ErrorEntry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let error = self.error.to_string();
        if self.text.starts_with(&error) {
            return f.write_str(&self.text);
        }
        f.write_str(&error)?;
        if self.overflow > 0 {
            write!(f, " by {} bytes", self.overflow)?;
        }
        if !self.text.is_empty() {
            write!(f, ": {}", self.text)?;
        }
        Ok(())
    }
}

impl std::error::Error for ErrorEntry {}

/// The context of a completed operation (`FI_CQ_FORMAT_CONTEXT`).
#[doc(hidden)] // For the crates of percale.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ContextEntry {
    /// The context that was passed to the operation.
    pub context: u64,
}

/// A completed message (`FI_CQ_FORMAT_MSG`).
#[doc(hidden)] // For the crates of percale.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MessageEntry {
    /// The context that was passed to the operation.
    pub context: u64,
    /// The kind of operation.
    pub flags: CompletionFlags,
    /// The number of bytes received.
    pub len: u64,
}

/// A completed message with data (`FI_CQ_FORMAT_DATA`).
#[doc(hidden)] // For the crates of percale.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DataEntry {
    /// The context that was passed to the operation.
    pub context: u64,
    /// The kind of operation.
    pub flags: CompletionFlags,
    /// The number of bytes received.
    pub len: u64,
    /// The address of the message in a multi-receive buffer.
    pub buffer: u64,
    /// Remote completion data.
    pub data: u64,
}

/// A completed tagged message (`FI_CQ_FORMAT_TAGGED`).
#[doc(hidden)] // For the crates of percale.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TaggedEntry {
    /// The context that was passed to the operation.
    pub context: u64,
    /// The kind of operation.
    pub flags: CompletionFlags,
    /// The number of bytes received.
    pub len: u64,
    /// The address of the message in a multi-receive buffer.
    pub buffer: u64,
    /// Remote completion data.
    pub data: u64,
    /// The message's tag.
    pub tag: u64,
}

impl From<Entry> for ContextEntry {
    fn from(entry: Entry) -> Self {
        Self { context: entry.context }
    }
}

impl From<Entry> for MessageEntry {
    fn from(entry: Entry) -> Self {
        Self { context: entry.context, flags: entry.flags, len: entry.len }
    }
}

impl From<Entry> for DataEntry {
    fn from(Entry { context, flags, len, buffer, data, .. }: Entry) -> Self {
        Self { context, flags, len, buffer, data }
    }
}

impl From<Entry> for TaggedEntry {
    fn from(Entry { context, flags, len, buffer, data, tag, .. }: Entry) -> Self {
        Self { context, flags, len, buffer, data, tag }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_codes_match_libfabric() {
        assert_eq!(ErrorCode::Truncated.errno(), 265);
        assert_eq!(ErrorCode::Canceled.errno(), 125);
        assert_eq!(ErrorCode::NoMessage.errno(), 42);
        assert_eq!(ErrorCode::PeerDied.errno(), 104);
        assert_eq!(ErrorCode::Fault.errno(), 14);
    }

    #[test]
    fn entry_views_keep_the_fields_of_their_format() {
        let entry = Entry { context: 1, len: 2, buffer: 3, data: 4, tag: 5, ..Entry::default() };
        assert_eq!(ContextEntry::from(entry).context, 1);
        assert_eq!(MessageEntry::from(entry).len, 2);
        assert_eq!(DataEntry::from(entry).data, 4);
        assert_eq!(TaggedEntry::from(entry).tag, 5);
        assert!(size_of::<Entry>() <= 64, "an entry fits in a cache line");
    }

    #[test]
    fn truncation_error_message_contains_length_and_text() {
        let error = ErrorEntry::truncated(Entry::default(), 7).with_text("from 10.0.0.1:5");
        let text = error.to_string();
        assert!(text.contains("7 bytes") && text.contains("10.0.0.1:5"), "{text}");
    }
}
