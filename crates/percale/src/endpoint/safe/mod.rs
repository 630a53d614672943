//! Safe operations, which own their buffers and return them.
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let domain = percale::Info::discover()?.best()?.open()?;
//! # let vector = domain.address_vector().build()?;
//! # let endpoint = domain.endpoint().vector(&vector).bind("127.0.0.1:0")?;
//! # let peer = vector.insert("127.0.0.1:7471")?;
//! let mut receive = endpoint.recv(vec![0; 4096]).from(peer).start()?;     // posted now
//! let sent = endpoint.send(peer, vec![1, 2, 3]).wait()?;              // posted, and waited for
//! let got = receive.wait()?;
//! println!("{} bytes", got.len);
//! # Ok(()) }
//! ```
//!
//! A request ([`SendRequest`], [`ReceiveRequest`], [`AccessRequest`], [`WindowRequest`], [`CollectiveRequest`]) is
//! posted by `start`, `wait` or `.await`. All posted operations have the same type of handle, [`Operation`], except a
//! receive of many messages ([`ReceivingMany`]). The handle can be waited for, with or without a timeout, and it is a
//! future for any runtime. A wait that times out leaves the operation in progress, and the handle can be waited for
//! again. The handle of an operation of a [`SharedEndpoint`](crate::SharedEndpoint) borrows nothing, so a task that a
//! runtime spawns can own it.
//!
//! Dropping the handle cancels the operation if the receive has no message yet, or if nothing of the send was passed to
//! the connection yet. Otherwise its buffer is kept until the peer no longer uses it, and the message of a receive is
//! lost. A failed operation returns its buffer in the [`OperationError`].
//!
//! An [`OperationSet`] keeps many operations in flight and returns their results as they end. [`wait_any`] and
//! [`wait_all`] wait for a few operations.

// The modules are in the order of the documentation of `Endpoint`: messages, remote access, and then the others.
mod request;

mod remote;

mod collective;
mod error;
mod future;
mod many;
mod operation;
mod operation_set;
mod outcome;
mod wait;
mod when;
mod windows;

pub use self::collective::{CollectiveRequest, Group};
pub use self::error::{Cause, OperationError};
pub use self::future::Started;
pub use self::many::{Finished, Part, Parts, ReceivingMany};
pub use self::operation::Operation;
pub use self::operation_set::{NextEnded, OperationSet, PushCause, PushError};
pub use self::outcome::Outcome;
pub use self::remote::{AccessRequest, Element};
pub use self::request::{ReceiveRequest, SendRequest};
pub use self::wait::{EndedOperation, TimedOut, wait_all, wait_all_until, wait_any, wait_any_until};
pub use self::windows::WindowRequest;
use crate::completion::entry::{CompletionFlags, Entry};
use crate::local_memory::buffer::Buffer;
use crate::types::PeerAddress;

/// A received message.
pub struct Received {
    /// The buffer that holds the message.
    pub buffer: Buffer,
    /// The length of the message in bytes.
    pub len: usize,
    /// The tag of the message (0 if it is untagged).
    pub tag: u64,
    /// The remote completion data that the message carries, if any.
    pub data: Option<u64>,
    /// The key of a window of this process that the message invalidated, if any. No peer uses that key any more.
    pub invalidated: Option<u64>,
    /// The sender of the message, to which an answer can be sent. If the sender is not in the endpoint's address vector,
    /// this address is valid at this endpoint until the sender's connection ends, and an answer uses that connection.
    /// After that, operations fail with [`PostError::ConnectionEnded`](crate::PostError::ConnectionEnded).
    /// [`Endpoint::network_address`](crate::Endpoint::network_address) returns the address to insert in the vector.
    /// `None` only if the endpoint was opened without
    /// [`connection_addresses`](crate::EndpointBuilder::connection_addresses), or if another endpoint reported a message
    /// of a shared receive.
    pub source: Option<PeerAddress>,
}

crate::short_debug!(Received, "Received", len: |this| this.len, tag: |this| this.tag, source: |this| this.source);

impl Received {
    /// Returns the bytes of the message, or `None` if it was received into an [`Allocation`](crate::Allocation). Peers
    /// may be writing an allocation, so its bytes have to be copied ([`to_vec`](Self::to_vec),
    /// [`Buffer::copy_to`]).
    #[must_use]
    #[inline]
    pub fn as_slice(&self) -> Option<&[u8]> {
        self.buffer.as_slice()?.get(..self.len)
    }

    /// Converts the message to a vector of its bytes. This is the vector that was passed to the receive, shortened to
    /// the length of the message, or a copy if the message was received into an [`Allocation`](crate::Allocation).
    #[must_use]
    pub fn into_vec(self) -> Vec<u8> {
        if self.buffer.as_slice().is_none() {
            return self.to_vec();
        }
        let mut bytes = self.buffer.into_vec();
        bytes.truncate(self.len);
        bytes
    }

    /// Returns a copy of the bytes of the message.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len];
        self.buffer.copy_to(0, &mut bytes);
        bytes
    }

    #[inline(always)]
    pub(super) fn new(buffer: Buffer, entry: &Entry) -> Self {
        Self {
            buffer,
            len: entry.len as usize,
            tag: entry.tag,
            data: entry.flags.contains(CompletionFlags::REMOTE_DATA).then_some(entry.data),
            invalidated: entry.flags.contains(CompletionFlags::INVALIDATED).then_some(entry.data),
            source: (entry.source != PeerAddress::UNSPECIFIED).then_some(entry.source),
        }
    }
}
