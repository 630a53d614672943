//! Operations as futures for any runtime. The engine wakes the task, or the reactor wakes it when the descriptor is
//! readable.

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::task::{Context, Poll};

use super::operation::Operation;
use super::{OperationError, ReceiveRequest, Received, SendRequest};
use crate::endpoint::ownership::Ownership;
use crate::local_memory::buffer::Buffer;

impl<'e, A: Ownership> IntoFuture for SendRequest<'e, A> {
    type Output = Result<Buffer, OperationError>;
    type IntoFuture = Started<Operation<A::Handle<'e>, Buffer>>;

    fn into_future(self) -> Self::IntoFuture {
        Started::new(self.start())
    }
}

impl<'e, A: Ownership> IntoFuture for ReceiveRequest<'e, A> {
    type Output = Result<Received, OperationError>;
    type IntoFuture = Started<Operation<A::Handle<'e>, Received>>;

    fn into_future(self) -> Self::IntoFuture {
        Started::new(self.start())
    }
}

/// The future of a request that is posted by awaiting it. It also represents a request that could not be posted. If it
/// is polled again after its end, it returns [`Cause::Taken`](super::Cause::Taken).
#[must_use = "futures do nothing unless polled"]
pub struct Started<F> {
    state: Option<Result<F, OperationError>>,
}

crate::short_debug!(for [F] Started<F>, "Started");

impl<F> Started<F> {
    pub(super) fn new(started: Result<F, OperationError>) -> Self {
        Self { state: Some(started) }
    }
}

#[cfg(feature = "futures")]
impl<F, R> futures_core::FusedFuture for Started<F>
where
    F: futures_core::FusedFuture<Output = Result<R, OperationError>> + Unpin,
{
    fn is_terminated(&self) -> bool {
        match &self.state {
            Some(Ok(future)) => future.is_terminated(),
            Some(Err(_)) => false,
            None => true,
        }
    }
}

impl<F, R> Future for Started<F>
where
    F: Future<Output = Result<R, OperationError>> + Unpin,
{
    type Output = Result<R, OperationError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.state.as_mut() {
            Some(Ok(future)) => Pin::new(future).poll(context),
            Some(Err(_)) | None => {
                let refused = self.state.take().and_then(Result::err);
                Poll::Ready(Err(refused.unwrap_or_else(OperationError::taken)))
            }
        }
    }
}
