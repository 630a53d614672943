//! Requests and answers: a server answers the requests of many clients, and each client has many calls in flight.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # use percale::Info;
//! use percale::rpc::{Client, Server, Service};
//!
//! # let domain = Info::discover()?.best()?.open()?;
//! # let vector = domain.address_vector().build()?;
//! # let at_server = domain.endpoint().bind_shared("127.0.0.1:0")?; // needs no address vector
//! # let at_client = domain.endpoint().vector(&vector).bind_shared("127.0.0.1:0")?;
//! # let peer = vector.insert(at_server.address())?;
//! let service = Service { number: 7, ..Service::default() };
//! # std::thread::scope(|scope| -> Result<(), Box<dyn std::error::Error>> {
//! # let server = scope.spawn(move || {
//! // In the server:
//! let mut server = Server::new(&at_server, service)?;
//! let request = server.next_request()?;
//! let answer: Vec<u8> = request.bytes().iter().rev().copied().collect();
//! request.reply(answer).wait()?;
//! # Ok::<(), percale::rpc::RpcError>(())
//! # });
//!
//! // In the client:
//! let client = Client::new(&at_client, service);
//! assert_eq!(client.call(peer, b"abc")?.wait()?, b"cba");
//! # server.join().expect("no panic")?;
//! # Ok(()) })?;
//! # Ok(()) }
//! ```
//!
//! * A request, and an answer of up to [`INLINE`] bytes, are messages. A longer answer needs memory of the client
//!   ([`Client::call_into`]): the client registers a buffer for this call, and the server writes the answer into it.
//!   The registration ends before the call returns the buffer or is dropped, so that no server writes there later.
//! * A server needs no addresses of its clients. An answer uses the connection of the request.
//! * Both sides are bounded: a client has at most [`Service::calls`] calls, and a server holds at most
//!   [`Service::requests`] requests that it has not returned yet, of up to [`Service::request_limit`] bytes each.
//!   Further requests wait at their clients or in the endpoint's limited memory for unexpected messages.
//! * Everything that the other side sends is checked. A server writes at most as many bytes as the client registered,
//!   and the client's transport checks the key and the range again.
//!
//! Requests and answers are tagged messages. A tag consists of the number of the service in the top 16 bits, a bit that
//! is set in answers, and the number of the call in the low 47 bits. Other tagged messages of the endpoint must not use
//! the tags of the service.

mod client;
mod message;
mod server;

pub use self::client::{Call, Client};
pub use self::server::{Reply, Request, Server};
use crate::completion::entry::ErrorCode;
use crate::endpoint::safe::{Cause, OperationError};
use crate::endpoint::work::PostError;
use crate::memory::region::RegisterError;
use crate::types::PeerAddress;

/// The maximum length in bytes of an answer that is sent as a message.
pub const INLINE: usize = 2032;

/// The parameters of a service. Clients and servers of one service have the same [`number`](Self::number).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Service {
    /// The number of the service, which selects its tags.
    pub number: u16,
    /// The maximum length of a request in bytes, at the server. Longer requests are rejected.
    pub request_limit: usize,
    /// The number of requests that a server receives in advance, at least 1.
    ///
    /// A request that is too long to arrive in one piece occupies one of them until its client has sent it all or its
    /// connection ends. Clients that stop in the middle of so many requests keep the server from receiving others.
    pub requests: usize,
    /// The maximum number of calls of a client that are in flight.
    pub calls: usize,
}

impl Default for Service {
    /// Service 0, with requests of up to 4 KiB, 64 of them received in advance, and 256 calls in flight.
    fn default() -> Self {
        Self { number: 0, request_limit: 4096, requests: 64, calls: 256 }
    }
}

/// The error of a call, or of a server.
#[non_exhaustive]
#[derive(Debug, thiserror::Error)]
pub enum RpcError {
    /// The client has as many calls in flight as the service permits. A call that was dropped counts until its answer
    /// arrives or the connection to its server ends.
    #[error("{0} calls are in flight, which is the limit of the service; wait for one of them")]
    TooManyCalls(usize),
    /// There was no answer before the deadline. The server may have carried out the request.
    #[error("the call was not answered within the given time")]
    TimedOut,
    /// The result of the call was taken before.
    #[error("the result of the call was already taken")]
    Taken,
    /// The answer is longer than the memory for it.
    #[error("the answer has {len} bytes, but the call has room for {room}; pass a longer buffer to call_into")]
    AnswerTooLong {
        /// The length of the answer in bytes.
        len: u64,
        /// The bytes that the call has room for.
        room: u64,
    },
    /// The server does not accept requests of this length.
    #[error("the request is too long: the server accepts at most {0} bytes")]
    RequestTooLong(u64),
    /// The server could not write the answer into the memory of the client.
    #[error("the server could not write the answer into the memory of the client")]
    NotWritten,
    /// The other side did not follow the protocol.
    #[error("the server sent an invalid answer: {0}")]
    Protocol(&'static str),
    /// A message or a write failed, for example because the connection ended.
    #[error(transparent)]
    Operation(OperationError),
    /// The buffer for the answer could not be registered.
    #[error(transparent)]
    Register(#[from] RegisterError),
}

impl From<OperationError> for RpcError {
    fn from(error: OperationError) -> Self {
        match error.cause() {
            Cause::TimedOut => Self::TimedOut,
            Cause::Taken => Self::Taken,
            _ => Self::Operation(error),
        }
    }
}

impl RpcError {
    /// Returns whether the same call may succeed later although neither it nor the program is changed. This is the case
    /// for [`TooManyCalls`](Self::TooManyCalls), for [`TimedOut`](Self::TimedOut), and for
    /// [`Operation`](Self::Operation) as stated by [`OperationError::is_retriable`]. The server may have carried out a
    /// request that failed.
    #[must_use]
    pub fn is_retriable(&self) -> bool {
        match self {
            Self::TooManyCalls(_) | Self::TimedOut => true,
            Self::Operation(error) => error.is_retriable(),
            Self::Taken
            | Self::AnswerTooLong { .. }
            | Self::RequestTooLong(_)
            | Self::NotWritten
            | Self::Protocol(_)
            | Self::Register(_) => false,
        }
    }

    /// Returns the peer that the failure concerns, if it is known ([`OperationError::peer`]).
    #[must_use]
    pub fn peer(&self) -> Option<PeerAddress> {
        match self {
            Self::Operation(error) => error.peer(),
            _ => None,
        }
    }

    /// Returns the error code of the operation that failed, if there is one ([`OperationError::code`]).
    #[must_use]
    pub fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Operation(error) => error.code(),
            _ => None,
        }
    }

    /// Returns the libfabric code (positive).
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            Self::TooManyCalls(_) => PostError::Again.errno(),
            Self::TimedOut => Cause::TimedOut.errno(),
            Self::Taken => Cause::Taken.errno(),
            Self::AnswerTooLong { .. } | Self::RequestTooLong(_) => libc::EMSGSIZE,
            Self::NotWritten => libc::EIO,
            Self::Protocol(_) => libc::EPROTO,
            Self::Operation(error) => error.errno(),
            Self::Register(error) => error.errno(),
        }
    }
}
