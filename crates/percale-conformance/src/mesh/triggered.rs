//! Operations that wait for a counter or a variable.

#![expect(unsafe_code, reason = "posts through the raw API; each block states why it is sound")]

use percale::trigger::{RawOperation, Variable};
use percale::{AtomicWork, CollectiveWork, Counter, PostError, ReceiveWork, RmaWork, SendWork};

use super::{Mesh, Receive, Send};
use crate::fabric::Fabric;

impl<F: Fabric> Mesh<F> {
    /// Posts an operation that starts when the counter reaches the threshold. The context of the operation is replaced
    /// by a new one.
    #[track_caller]
    pub fn when(&self, from: usize, operation: RawOperation, counter: &Counter, threshold: u64) -> u64 {
        let (operation, context) = self.numbered(operation);
        // SAFETY: as in `try_send` and `try_receive`.
        unsafe { self.endpoint(from).post_when(&operation, counter, threshold) }
            .expect("the operation can be deferred");
        context
    }

    /// Posts an operation that waits for a variable to be written.
    pub fn when_written(&self, from: usize, operation: RawOperation, variable: &Variable) -> u64 {
        let (operation, context) = self.numbered(operation);
        // SAFETY: as in `try_send` and `try_receive`.
        unsafe { self.endpoint(from).post_when_written(&operation, variable) }.expect("the operation can be deferred");
        context
    }

    /// Returns the operation with a new context.
    fn numbered(&self, operation: RawOperation) -> (RawOperation, u64) {
        let context = self.context();
        let operation = match operation {
            RawOperation::Send(work) => RawOperation::Send(SendWork { context, ..work }),
            RawOperation::Receive(work) => RawOperation::Receive(ReceiveWork { context, ..work }),
            RawOperation::Read(work) => RawOperation::Read(RmaWork { context, ..work }),
            RawOperation::Write(work) => RawOperation::Write(RmaWork { context, ..work }),
            RawOperation::Atomic(work) => RawOperation::Atomic(AtomicWork { context, ..work }),
            RawOperation::Collective(work) => RawOperation::Collective(CollectiveWork { context, ..work }),
        };
        (operation, context)
    }

    /// Returns a send, for a test that posts it itself.
    #[must_use]
    pub fn sending(&self, to: usize, send: Send) -> RawOperation {
        let Send { segments, tag, data, flags } = send;
        RawOperation::Send(SendWork { peer: self.peer(to), segments, tag, data, context: 0, flags })
    }

    /// Returns a receive, for a test that posts it itself.
    #[must_use]
    pub fn receiving(&self, receive: Receive) -> RawOperation {
        let Receive { segments, tag, from, flags, .. } = receive;
        RawOperation::Receive(ReceiveWork { from, segments, tag, context: 0, flags })
    }
}

/// Like [`Mesh::when`], for operations that may be rejected.
///
/// # Errors
/// Returns the errors of the endpoint.
pub fn try_when<F: Fabric>(
    mesh: &Mesh<F>,
    from: usize,
    operation: &RawOperation,
    counter: &Counter,
) -> Result<(), PostError> {
    // SAFETY: as in `Mesh::try_send` and `Mesh::try_receive`.
    unsafe { mesh.endpoint(from).post_when(operation, counter, 1) }
}
