//! Sends and receives that a mesh can post.

use percale::address::PeerAddress;
use percale::{OpFlags, Segments};

#[cfg(doc)]
use super::Mesh;
use crate::memory::Memory;

/// A send for [`Mesh::send`].
#[derive(Clone, Copy, Debug)]
pub struct Send {
    pub(super) segments: Segments,
    pub(super) tag: Option<u64>,
    pub(super) data: Option<u64>,
    pub(super) flags: OpFlags,
}

impl Send {
    /// Makes an untagged send of all of this memory.
    #[must_use]
    pub fn of(memory: Memory) -> Self {
        Self::vector(memory.segments())
    }

    /// Makes an untagged send of several pieces.
    #[must_use]
    pub const fn vector(segments: Segments) -> Self {
        Self { segments, tag: None, data: None, flags: OpFlags::COMPLETION }
    }

    /// Sets the tag.
    #[must_use]
    pub const fn tag(mut self, tag: u64) -> Self {
        self.tag = Some(tag);
        self
    }

    /// Sets remote completion data.
    #[must_use]
    pub const fn data(mut self, data: u64) -> Self {
        self.data = Some(data);
        self
    }
}

/// A receive for [`Mesh::receive`].
#[derive(Clone, Copy, Debug)]
pub struct Receive {
    pub(super) segments: Segments,
    pub(super) tag: Option<(u64, u64)>,
    pub(super) from: PeerAddress,
    pub(super) flags: OpFlags,
    pub(super) context: Option<u64>,
}

impl Receive {
    /// Makes an untagged receive into all of this memory.
    #[must_use]
    pub fn into(memory: Memory) -> Self {
        Self::vector(memory.segments())
    }

    /// Makes an untagged receive into several pieces.
    #[must_use]
    pub const fn vector(segments: Segments) -> Self {
        let flags = OpFlags::COMPLETION;
        Self { segments, tag: None, from: PeerAddress::UNSPECIFIED, flags, context: None }
    }

    /// Makes a receive that reports a message without receiving it.
    #[must_use]
    pub fn peek(flags: OpFlags) -> Self {
        Self::vector(Segments::EMPTY).with(OpFlags::PEEK | flags)
    }

    /// Restricts the receive to messages with this tag, compared without the bits in `ignore`.
    #[must_use]
    pub const fn tag(mut self, tag: u64, ignore: u64) -> Self {
        self.tag = Some((tag, ignore));
        self
    }

    /// Restricts the receive to messages of this peer.
    #[must_use]
    pub const fn from(mut self, peer: PeerAddress) -> Self {
        self.from = peer;
        self
    }

    /// Sets the context. The default is a new one.
    #[must_use]
    pub const fn context(mut self, context: u64) -> Self {
        self.context = Some(context);
        self
    }
}

/// Implements the methods that change the flags of an operation.
macro_rules! flags {
    ($($operation:ty),*) => {$(
        impl $operation {
            /// Adds flags.
            #[must_use]
            pub fn with(mut self, flags: OpFlags) -> Self {
                self.flags |= flags;
                self
            }

            /// Removes the completion entry.
            #[must_use]
            pub fn silent(mut self) -> Self {
                self.flags.remove(OpFlags::COMPLETION);
                self
            }
        }
    )*};
}

flags!(Send, Receive);
