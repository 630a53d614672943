//! Waiting for any or all of a few operations. [`OperationSet`](super::OperationSet) is for many.

use std::future::Future as _;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Instant;

use super::OperationError;
use super::operation::Operation;
use super::outcome::Outcome;
use crate::endpoint::ownership::EndpointHandle;
use crate::endpoint::ownership::reach::EngineAccess as _;

/// The timeout or the deadline of a wait expired before an operation ended. The operations continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no operation ended within the given time")]
pub struct TimedOut;

impl TimedOut {
    /// Returns whether the same call may succeed later although neither it nor the program is changed. Always true:
    /// the operations continue, and can be waited for again.
    #[must_use]
    pub const fn is_retriable(&self) -> bool {
        true
    }

    /// Returns the libfabric code for this error (positive).
    #[must_use]
    pub const fn errno(&self) -> i32 {
        libc::ETIMEDOUT
    }
}

/// The key or the index of an operation that has ended, and its result.
pub type EndedOperation<K, R> = (K, Result<R, OperationError>);

/// Waits until any of these operations has ended, and returns its index and its result. Operations whose results were
/// taken are skipped. Returns `None` if there is no other.
///
/// Each look at the operations takes time that is proportional to their number, and an operation with a lower index is
/// preferred. Use an [`OperationSet`](super::OperationSet) for more than a few, or if new ones are started all the
/// time. The operations may belong to several endpoints; then the wait polls all of them, and sleeps until a descriptor
/// is readable.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let domain = percale::Info::discover()?.best()?.open()?;
/// # let vector = domain.address_vector().build()?;
/// # let endpoint = domain.endpoint().vector(&vector).bind("127.0.0.1:0")?;
/// let requests = endpoint.tagged_recv(1, 0, vec![0; 4096]).start()?;
/// let shutdown = endpoint.tagged_recv(2, 0, vec![0; 8]).start()?;
/// match percale::endpoint::safe::wait_any(&mut [requests, shutdown]) {
///     Some((0, request)) => println!("a request of {} bytes", request?.len),
///     Some((_, shutdown)) => println!("shut down by {:?}", shutdown?.source),
///     None => {} // All results were taken.
/// }
/// # Ok(()) }
/// ```
pub fn wait_any<H: EndpointHandle, R: Outcome>(operations: &mut [Operation<H, R>]) -> Option<EndedOperation<usize, R>> {
    // Without a deadline the wait does not time out.
    wait_any_until(operations, None).ok().flatten()
}

/// Like [`wait_any`], but with a deadline. `None`: no limit.
///
/// # Errors
/// If the deadline passes before an operation ends.
pub fn wait_any_until<H: EndpointHandle, R: Outcome>(
    operations: &mut [Operation<H, R>],
    deadline: Option<Instant>,
) -> Result<Option<EndedOperation<usize, R>>, TimedOut> {
    if let Some(index) = operations.iter().position(Operation::is_result_here) {
        return Ok(Some((index, operations[index].take_end(None))));
    }
    let mut left = operations.iter().filter(|operation| !operation.is_taken());
    let Some(first) = left.next().and_then(Operation::access) else { return Ok(None) };
    let others = left.filter_map(Operation::access);
    if !others.into_iter().all(|access| access.is_same(first)) {
        return poll_any(operations, deadline);
    }
    let access = first.access();
    let found = access.wait_until(deadline, |engine| {
        let has_ended =
            |operation: &Operation<H, R>| operation.slot().is_some_and(|id| engine.core.operations.has_result(id));
        operations.iter().position(has_ended)
    });
    match found {
        Some(index) => Ok(Some((index, operations[index].wait()))),
        // The operation cannot end: the endpoint was closed, or belongs to the parent of this process.
        None if !access.is_here() || access.with(|engine| engine.is_closed()) => {
            let index = operations.iter().position(|operation| !operation.is_taken());
            Ok(index.map(|index| (index, operations[index].take_end(deadline))))
        }
        None => Err(TimedOut),
    }
}

/// Wakes a thread that is parked.
struct Unparks {
    thread: Thread,
    woken: AtomicBool,
}

impl Wake for Unparks {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.woken.store(true, Ordering::Release);
        self.thread.unpark();
    }
}

/// Waits for any of the operations of several endpoints, as a task of this thread.
#[cold]
fn poll_any<H: EndpointHandle, R: Outcome>(
    operations: &mut [Operation<H, R>],
    deadline: Option<Instant>,
) -> Result<Option<EndedOperation<usize, R>>, TimedOut> {
    let unparks = Arc::new(Unparks { thread: std::thread::current(), woken: AtomicBool::new(false) });
    let waker = Waker::from(Arc::clone(&unparks));
    let mut context = Context::from_waker(&waker);
    loop {
        for (index, operation) in operations.iter_mut().enumerate().filter(|(_, operation)| !operation.is_taken()) {
            if let Poll::Ready(result) = Pin::new(operation).poll(&mut context) {
                return Ok(Some((index, result)));
            }
        }
        let rest = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        if rest.is_some_and(|rest| rest.is_zero()) {
            return Err(TimedOut);
        }
        match (unparks.woken.swap(false, Ordering::Acquire), rest) {
            (true, _) => std::thread::yield_now(),
            (false, Some(rest)) => std::thread::park_timeout(rest),
            (false, None) => std::thread::park(),
        }
    }
}

/// Waits until all of these operations have ended, and returns their results in the order of the slice.
///
/// The result of an operation whose result was taken before is [`Cause::Taken`](super::Cause::Taken).
pub fn wait_all<H: EndpointHandle, R: Outcome>(operations: &mut [Operation<H, R>]) -> Vec<Result<R, OperationError>> {
    wait_all_until(operations, None)
}

/// Like [`wait_all`], but with a deadline. `None`: no limit. The result of an operation that has not ended by then is
/// [`Cause::TimedOut`](super::Cause::TimedOut). It continues, and can be waited for again.
pub fn wait_all_until<H: EndpointHandle, R: Outcome>(
    operations: &mut [Operation<H, R>],
    deadline: Option<Instant>,
) -> Vec<Result<R, OperationError>> {
    operations.iter_mut().map(|operation| operation.wait_until(deadline)).collect()
}
