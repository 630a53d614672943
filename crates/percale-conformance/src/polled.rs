//! Futures that a test polls in the loop that drives their endpoints.

use std::future::IntoFuture;
use std::task::{Context, Poll, Waker};

/// Returns a function that polls an operation, and returns the result once the operation has completed.
pub fn polled<T>(operation: impl IntoFuture<Output = T>) -> impl FnMut() -> Option<T> {
    let mut operation = Box::pin(operation.into_future());
    move || match operation.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => Some(result),
        Poll::Pending => None,
    }
}
