//! Servers, requests and replies.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use super::message::{ANY_CALL, Status, answer_tag, parse_request, request_tag};
use super::{INLINE, RpcError, Service};
use crate::completion::entry::ErrorCode;
use crate::endpoint::safe::{Cause, Operation, OperationError, OperationSet, Received};
use crate::endpoint::work::PostError;
use crate::endpoint::{Shared, SharedEndpoint};
use crate::memory::buffer::Buffer;
use crate::memory::region::RemoteMemory;
use crate::types::PeerAddress;

/// The maximum number of rejections that wait to be sent. Beyond that the oldest is given up, so clients that read no
/// answers cannot use up the server's memory.
const REJECTIONS: usize = 1024;

/// A server of a service, at a shared endpoint. It receives the requests of all clients.
pub struct Server {
    endpoint: SharedEndpoint,
    service: Service,
    /// The posted receives. A request is returned when it has arrived completely, so a client that stops in the middle
    /// of a long one delays no other client.
    receives: OperationSet<Shared, Received>,
    /// The sends of rejections in progress. Dropping the handle of a send that has not left yet would cancel it.
    rejections: VecDeque<Operation<Shared, Buffer>>,
}

crate::short_debug!(Server, "Server", service: |this| this.service.number);

impl Server {
    /// Creates a server, and posts receives for the requests.
    ///
    /// # Errors
    /// If the receives cannot be posted.
    pub fn new(endpoint: &SharedEndpoint, service: Service) -> Result<Self, RpcError> {
        let receives = endpoint.operation_set(service.requests.max(1));
        let mut server = Self { endpoint: endpoint.clone(), service, receives, rejections: VecDeque::new() };
        while !server.receives.is_full() {
            server.post()?;
        }
        Ok(server)
    }

    fn post(&mut self) -> Result<(), OperationError> {
        let buffer = vec![0; RemoteMemory::BYTES.saturating_add(self.service.request_limit)];
        let receive = self.endpoint.tagged_recv(request_tag(self.service.number, 0), ANY_CALL, buffer).start()?;
        let pushed = self.receives.push(receive, ());
        debug_assert!(pushed.is_ok(), "the set is not full, and belongs to this endpoint");
        Ok(())
    }

    /// Posts a receive for each that has ended. If that is refused while others are posted, those suffice for now.
    fn replace(&mut self) -> Result<(), RpcError> {
        while !self.receives.is_full() {
            match self.post() {
                Err(error) if self.receives.is_empty() => return Err(error.into()),
                Err(_) => break,
                Ok(()) => {}
            }
        }
        Ok(())
    }

    /// Waits for a request, and returns it.
    ///
    /// # Errors
    /// If no more requests can be received, for example because the endpoint was closed. Errors that concern one
    /// request do not end the wait.
    pub fn next_request(&mut self) -> Result<Request, RpcError> {
        loop {
            if let Some(request) = self.next_request_until(None)? {
                return Ok(request);
            }
        }
    }

    /// Like [`next_request`](Self::next_request), but returns `None` at the deadline (`None`: no limit).
    ///
    /// # Errors
    /// As those of [`next_request`](Self::next_request).
    pub fn next_request_until(&mut self, deadline: Option<Instant>) -> Result<Option<Request>, RpcError> {
        loop {
            self.replace()?;
            match self.receives.next_until(deadline) {
                Ok(Some((_, end))) => {
                    if let Some(request) = self.received(end)? {
                        return Ok(Some(request));
                    }
                }
                // A wait at a closed endpoint ends at once.
                _ if self.endpoint.is_closed() => return Err(OperationError::new(PostError::Closed, None).into()),
                _ => return Ok(None),
            }
        }
    }

    /// Like [`next_request`](Self::next_request), but asynchronous. If the future is dropped, no request is lost.
    ///
    /// # Errors
    /// As those of [`next_request`](Self::next_request).
    pub async fn next_request_async(&mut self) -> Result<Request, RpcError> {
        poll_fn(|context| {
            loop {
                self.replace()?;
                match ready!(self.receives.poll_next(context)) {
                    Some((_, end)) => {
                        if let Some(request) = self.received(end)? {
                            return Poll::Ready(Ok(request));
                        }
                    }
                    None => return Poll::Ready(Err(OperationError::new(PostError::Closed, None).into())),
                }
            }
        })
        .await
    }

    /// Returns the request of a receive that has ended, if it is valid.
    fn received(&mut self, end: Result<Received, OperationError>) -> Result<Option<Request>, RpcError> {
        match end {
            Ok(message) => Ok(self.request(message)),
            Err(error) => match error.cause() {
                Cause::Completion(entry) if entry.error == ErrorCode::Truncated => {
                    let (client, tag) = (entry.entry.source, entry.entry.tag);
                    self.reject(client, tag, Status::RequestTooLong(self.service.request_limit as u64));
                    Ok(None)
                }
                // The client has died, or cancelled its request.
                Cause::Completion(_) => Ok(None),
                _ => Err(error.into()),
            },
        }
    }

    /// Sends a rejection in place of an answer.
    fn reject(&mut self, client: PeerAddress, request: u64, status: Status) {
        self.rejections.retain(|send| !send.is_ready());
        if self.rejections.len() >= REJECTIONS {
            self.rejections.pop_front();
        }
        // If the rejection cannot be sent, the connection has ended.
        self.rejections.extend(self.endpoint.tagged_send(client, answer_tag(request), status.to_message(&[])).start());
    }

    /// Returns the request in a message. Discards messages that are no requests, or that cannot be answered.
    fn request(&self, message: Received) -> Option<Request> {
        let client = message.source?;
        let bytes = message.buffer.as_slice()?.get(..message.len)?;
        let (room, offset) = parse_request(bytes)?;
        Some(Request { endpoint: self.endpoint.clone(), client, room, offset, message })
    }
}

/// A request of a client. If it is dropped without a reply, the client's call ends at its deadline.
pub struct Request {
    endpoint: SharedEndpoint,
    client: PeerAddress,
    /// The memory of the client for a long answer, as the client describes it.
    room: RemoteMemory,
    offset: usize,
    message: Received,
}

crate::short_debug!(Request, "Request", client: |this| this.client);

impl Request {
    /// Returns the bytes of the request.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        let message = self.message.buffer.as_slice().unwrap_or_default();
        message.get(self.offset..self.message.len).unwrap_or_default()
    }

    /// Returns the address of the client at this endpoint, as in [`Received::source`].
    #[must_use]
    pub const fn client(&self) -> PeerAddress {
        self.client
    }

    /// Returns the maximum length of the answer in bytes.
    #[must_use]
    pub fn answer_limit(&self) -> u64 {
        self.room.len.max(INLINE as u64)
    }

    /// Starts to send the answer. An answer of more than [`INLINE`] bytes is written into the memory of the client. If
    /// it is longer than [`answer_limit`](Self::answer_limit), the call ends with [`RpcError::AnswerTooLong`].
    pub fn reply(self, answer: impl Into<Buffer>) -> Reply {
        let Self { endpoint, client, room, message, .. } = self;
        let (answer, tag) = (answer.into(), answer_tag(message.tag));
        let len = answer.len() as u64;
        let mut reply = Reply { endpoint, client, tag, len, stage: Stage::Taken };
        if answer.len() <= INLINE {
            let mut bytes = vec![0; answer.len()];
            answer.copy_to(0, &mut bytes);
            reply.send(Status::Inline, &bytes);
            return reply;
        }
        match room.slice(0..len) {
            Ok(room) => match reply.endpoint.write(client, answer, room).start() {
                Ok(write) => reply.stage = Stage::Writing(write),
                Err(_) => reply.send(Status::NotWritten, &[]),
            },
            Err(_) => reply.send(Status::AnswerTooLong(len), &[]),
        }
        reply
    }
}

enum Stage {
    Writing(Operation<Shared, Buffer>),
    Sending(Operation<Shared, Buffer>),
    Failed(OperationError),
    Taken,
}

/// An answer that is being sent. It is a future for any runtime; it can also be waited for.
#[must_use = "dropping it may cancel the answer"]
pub struct Reply {
    endpoint: SharedEndpoint,
    client: PeerAddress,
    tag: u64,
    len: u64,
    stage: Stage,
}

crate::short_debug!(Reply, "Reply", len: |this| this.len);

impl Reply {
    /// Waits until the answer was sent. A client that disconnects, or that cancels its call, ends the wait.
    ///
    /// # Errors
    /// If the answer cannot be sent, for example because the client has disconnected, or if the result was taken.
    pub fn wait(&mut self) -> Result<(), RpcError> {
        loop {
            let end = match &mut self.stage {
                Stage::Writing(write) | Stage::Sending(write) => write.wait(),
                _ => return self.take(),
            };
            self.step(end);
            if matches!(self.stage, Stage::Taken) {
                return Ok(());
            }
        }
    }

    fn take(&mut self) -> Result<(), RpcError> {
        match std::mem::replace(&mut self.stage, Stage::Taken) {
            Stage::Failed(error) => Err(error.into()),
            _ => Err(RpcError::Taken),
        }
    }

    /// Continues after the end of the write or the send.
    fn step(&mut self, end: Result<Buffer, OperationError>) {
        match (&self.stage, end) {
            (Stage::Writing(_), Ok(_)) => self.send(Status::Written(self.len), &[]),
            // The client has cancelled its call, or described memory that does not exist.
            (Stage::Writing(_), Err(_)) => self.send(Status::NotWritten, &[]),
            (_, Ok(_)) => self.stage = Stage::Taken,
            (_, Err(error)) => self.stage = Stage::Failed(error),
        }
    }

    fn send(&mut self, status: Status, bytes: &[u8]) {
        let message = status.to_message(bytes);
        self.stage = match self.endpoint.tagged_send(self.client, self.tag, message).start() {
            Ok(send) => Stage::Sending(send),
            Err(error) => Stage::Failed(error),
        };
    }
}

impl Future for Reply {
    type Output = Result<(), RpcError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        loop {
            let end = match &mut self.stage {
                Stage::Writing(write) | Stage::Sending(write) => Pin::new(write).poll(context),
                _ => return Poll::Ready(self.take()),
            };
            let Poll::Ready(end) = end else { return Poll::Pending };
            self.step(end);
            if matches!(self.stage, Stage::Taken) {
                return Poll::Ready(Ok(()));
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::domain::DomainBuilder;
    use crate::transport::sim::{Network, SimOptions};

    #[test]
    fn rejections_that_a_client_does_not_read_are_bounded() {
        let network = Network::new(1, SimOptions::default());
        let domain = DomainBuilder::new(false, None, false, false, String::new()).simulated(&network).open().unwrap();
        let vector = domain.address_vector().build().unwrap();
        let at_server = domain.endpoint().vector(&vector).bind_shared("10.0.0.1:1").unwrap();
        // This endpoint makes no progress, so the connection takes only some of the rejections.
        let at_client = domain.endpoint().bind_shared("10.0.0.2:1").unwrap();
        let client = vector.insert(at_client.address()).unwrap();
        let mut server = Server::new(&at_server, Service::default()).unwrap();
        for call in 0..3 * REJECTIONS as u64 {
            server.reject(client, request_tag(0, call), Status::RequestTooLong(1));
            assert!(server.rejections.len() <= REJECTIONS, "{} rejections wait", server.rejections.len());
        }
        assert_eq!(server.rejections.len(), REJECTIONS);
    }
}
