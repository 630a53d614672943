//! Clients and their calls.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use super::message::{ANSWER_HEAD, Status, answer_tag, request, request_tag};
use super::{INLINE, RpcError, Service};
use crate::endpoint::safe::{Operation, OperationError, Received};
use crate::endpoint::work::PostError;
use crate::endpoint::{Shared, SharedEndpoint};
use crate::memory::buffer::Buffer;
use crate::memory::region::{Access, Region, RemoteMemory};
use crate::system::forked::ProcessMutex;
use crate::types::PeerAddress;

/// The number of the next call of this process.
static NEXT: AtomicU64 = AtomicU64::new(1);

/// A client of a service, at a shared endpoint. It calls any number of servers. It is cheap to clone, and many threads
/// and tasks can use it. Clients of one endpoint and service do not affect each other.
#[derive(Clone)]
pub struct Client {
    inner: Arc<ClientState>,
}

crate::short_debug!(Client, "Client", service: |this| this.inner.service.number);

struct ClientState {
    endpoint: SharedEndpoint,
    service: Service,
    calls: ProcessMutex<Calls>,
}

#[derive(Default)]
struct Calls {
    /// The number of calls in flight, without those in `abandoned`.
    count: usize,
    /// The receives of calls that were dropped before their answers arrived. Each receives its answer, so that no
    /// answer remains in the endpoint's memory for unexpected messages.
    abandoned: Vec<Operation<Shared, Received>>,
}

impl Client {
    /// Creates a client.
    #[must_use]
    pub fn new(endpoint: &SharedEndpoint, service: Service) -> Self {
        let calls = ProcessMutex::new(Calls::default());
        Self { inner: Arc::new(ClientState { endpoint: endpoint.clone(), service, calls }) }
    }

    /// Sends a request, whose answer has at most [`INLINE`] bytes.
    ///
    /// # Errors
    /// If too many calls are in flight, or if the request cannot be posted.
    pub fn call(&self, server: PeerAddress, request: &[u8]) -> Result<Call, RpcError> {
        self.start(server, request, None)
    }

    /// Sends a request, whose answer may be as long as `room`. The server writes a long answer into this buffer, which
    /// the call returns, cut to the length of the answer.
    ///
    /// # Errors
    /// If too many calls are in flight, if the buffer cannot be registered, or if the request cannot be posted.
    pub fn call_into(&self, server: PeerAddress, request: &[u8], room: impl Into<Buffer>) -> Result<Call, RpcError> {
        let region = self.inner.endpoint.domain().register(room, Access::REMOTE_WRITE)?;
        self.start(server, request, Some(region))
    }

    fn start(&self, server: PeerAddress, bytes: &[u8], region: Option<Region>) -> Result<Call, RpcError> {
        let ClientState { endpoint, service, .. } = &*self.inner;
        let place = self.reserve()?;
        let tag = request_tag(service.number, NEXT.fetch_add(1, Ordering::Relaxed));
        let answer = vec![0; ANSWER_HEAD + INLINE];
        let answer = endpoint.tagged_recv(answer_tag(tag), 0, answer).from(server).start()?;
        let room = region.as_ref().map_or_else(RemoteMemory::default, Region::remote);
        // If this fails, the receive is dropped, and so canceled: no request was sent.
        let sent = endpoint.tagged_send(server, tag, request(&room, bytes)).start()?;
        Ok(Call { region, sent, answer: Some(answer), deadline: None, place })
    }

    /// Counts a call, unless too many are in flight.
    fn reserve(&self) -> Result<Place, RpcError> {
        let limit = self.inner.service.calls;
        let forked = || OperationError::new(PostError::Forked, None);
        let mut calls = self.inner.calls.lock().ok_or_else(forked)?;
        if calls.count + calls.abandoned.len() >= limit && !calls.abandoned.is_empty() {
            let mut taken = TakenAnswers::new(&self.inner, &mut calls);
            // The application's wakers may run here, and may call this client.
            drop(calls);
            taken.answers.retain(|answer| !answer.is_ready());
            drop(taken);
            calls = self.inner.calls.lock().ok_or_else(forked)?;
        }
        if calls.count + calls.abandoned.len() >= limit {
            return Err(RpcError::TooManyCalls(limit));
        }
        calls.count += 1;
        Ok(Place(Arc::clone(&self.inner)))
    }
}

/// The receives of abandoned calls, while they are looked at without the lock. They still count.
struct TakenAnswers<'c> {
    client: &'c ClientState,
    answers: Vec<Operation<Shared, Received>>,
    counted: usize,
}

impl<'c> TakenAnswers<'c> {
    fn new(client: &'c ClientState, calls: &mut Calls) -> Self {
        let answers = std::mem::take(&mut calls.abandoned);
        let counted = answers.len();
        calls.count += counted;
        Self { client, answers, counted }
    }
}

impl Drop for TakenAnswers<'_> {
    fn drop(&mut self) {
        if let Some(mut calls) = self.client.calls.lock() {
            calls.count -= self.counted;
            calls.abandoned.append(&mut self.answers);
        }
    }
}

/// The place of a call among those in flight.
struct Place(Arc<ClientState>);

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(mut calls) = self.0.calls.lock() {
            calls.count -= 1;
        }
    }
}

/// A call in flight. It is a future of the answer for any runtime; it can also be waited for.
///
/// Dropping it ends the registration of the buffer for the answer. The call then counts among those of the client until
/// its answer arrives, which is discarded, or the connection to its server ends.
#[must_use = "dropping it discards the answer"]
pub struct Call {
    region: Option<Region>,
    sent: Operation<Shared, Buffer>,
    /// `None` if the result was taken.
    answer: Option<Operation<Shared, Received>>,
    deadline: Option<Instant>,
    place: Place,
}

crate::short_debug!(Call, "Call");

impl Call {
    /// Sets the time within which [`wait`](Self::wait) has to end, from now. A future has no deadline of its own: use a
    /// timer of the runtime, and drop the future.
    pub fn deadline(mut self, timeout: Duration) -> Self {
        // A deadline that the clock cannot express is none.
        self.deadline = Instant::now().checked_add(timeout);
        self
    }

    /// Waits for the answer until the deadline, and returns it. After [`RpcError::TimedOut`] the call continues: wait
    /// for it again, or drop it.
    ///
    /// # Errors
    /// If the deadline expires, if the connection to the server ends, if the server rejects the request, or if the
    /// answer was taken before.
    pub fn wait(&mut self) -> Result<Vec<u8>, RpcError> {
        if !self.sent.is_taken() {
            let end = self.sent.wait_until(self.deadline);
            self.unless_failed(end.map(drop))?;
        }
        let answer = self.answer.as_mut().ok_or(RpcError::Taken)?;
        let end = answer.wait_until(self.deadline);
        let received = self.unless_failed(end)?;
        self.answered(&received)
    }

    /// Ends the call unless the operation succeeded or continues.
    fn unless_failed<T>(&mut self, end: Result<T, OperationError>) -> Result<T, RpcError> {
        end.map_err(|error| {
            let error = error.into();
            if !matches!(error, RpcError::TimedOut) {
                self.answer = None;
            }
            error
        })
    }

    /// Returns the answer that the server sent or wrote.
    fn answered(&mut self, received: &Received) -> Result<Vec<u8>, RpcError> {
        self.answer = None;
        let message = received.to_vec();
        let room = self.region.as_ref().map_or(0, Region::len) as u64;
        match Status::parse(&message).ok_or(RpcError::Protocol("no valid head"))? {
            Status::Inline => {
                self.region = None;
                Ok(message[ANSWER_HEAD..].to_vec())
            }
            Status::Written(len) => {
                let region = self.region.take().filter(|_| len <= room);
                let region = region.ok_or(RpcError::Protocol("more was written than there is memory"))?;
                let len = len as usize; // at most the length of the region
                Ok(match region.close() {
                    Ok(buffer) => {
                        let mut bytes = buffer.into_vec();
                        bytes.truncate(len);
                        bytes
                    }
                    // A stopped process is in the middle of an access. The buffer is kept until it has ended.
                    Err(busy) => {
                        let mut bytes = vec![0; len];
                        busy.into_inner().read(0, &mut bytes);
                        bytes
                    }
                })
            }
            Status::AnswerTooLong(len) => Err(RpcError::AnswerTooLong { len, room: room.max(INLINE as u64) }),
            Status::RequestTooLong(limit) => Err(RpcError::RequestTooLong(limit)),
            Status::NotWritten => Err(RpcError::NotWritten),
        }
    }
}

impl Future for Call {
    type Output = Result<Vec<u8>, RpcError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if !self.sent.is_taken() {
            let Poll::Ready(end) = Pin::new(&mut self.sent).poll(context) else { return Poll::Pending };
            self.unless_failed(end.map(drop))?;
        }
        let Some(answer) = &mut self.answer else { return Poll::Ready(Err(RpcError::Taken)) };
        let Poll::Ready(end) = Pin::new(answer).poll(context) else { return Poll::Pending };
        let received = self.unless_failed(end)?;
        Poll::Ready(self.answered(&received))
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let Some(answer) = self.answer.take() else { return };
        // A request that was not sent has no answer.
        if self.sent.cancel() || answer.is_ready() {
            return;
        }
        if let Some(mut calls) = self.place.0.calls.lock() {
            calls.abandoned.push(answer);
        }
    }
}
