//! Messages and tags: matching, sources, delivery, sizes.
//!
//! # Which receive matches which message
//! 1. Tagged messages match tagged receives only, untagged messages match untagged receives only.
//! 2. A tagged receive has a tag and a mask of ignored bits. It matches a message whose tag is equal in all bits that
//!    are not ignored.
//! 3. A receive with `.from(peer)` matches messages of that peer only.
//! 4. Messages of one sender are matched in the order in which they were sent. If several receives match a message, the
//!    one that was posted first takes it.
//! 5. A message that arrives before its receive is kept until a matching receive is posted. It is never dropped. If
//!    such messages of one sender exceed [`unexpected_cap`](DomainBuilder::unexpected_cap) (64 MiB for each peer), that
//!    sender has to wait.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # use percale::Info;
//! # let domain = Info::discover()?.best()?.open()?;
//! # let vector = domain.address_vector().build()?;
//! # let sender = domain.endpoint().vector(&vector).bind("127.0.0.1:0")?;
//! # let endpoint = domain.endpoint().vector(&vector).bind("127.0.0.1:0")?;
//! # let receiver = vector.insert(endpoint.address())?;
//! # vector.insert(sender.address())?;
//! const ORDER: u64 = 1 << 32; // the program defines its tags: here a kind and a number
//! const ALARM: u64 = 2 << 32;
//! const ANY_NUMBER: u64 = u32::MAX as u64; // these bits are ignored
//!
//! sender.tagged_send(receiver, ORDER | 1, "first order").wait()?;
//! sender.tagged_send(receiver, ALARM | 7, "fire").data(2026).wait()?; // with 8 bytes for the receiver's completion
//!
//! let alarm = endpoint.tagged_recv(ALARM, ANY_NUMBER, vec![0; 64]).wait()?;
//! assert_eq!((alarm.tag, alarm.data, alarm.to_vec().as_slice()), (ALARM | 7, Some(2026), b"fire".as_slice()));
//! let order = endpoint.tagged_recv(ORDER | 1, 0, vec![0; 64]).wait()?;
//! assert_eq!(order.to_vec(), b"first order");
//! # Ok(()) }
//! ```
//!
//! # Sizes
//! | | limit |
//! |---|---|
//! | a message | [`MESSAGE_LIMIT`](crate::endpoint::work::MESSAGE_LIMIT) (2^63 - 1 bytes); it may be empty |
//! | an injected message ([`Endpoint::inject`], [`Endpoint::tagged_inject`]) | [`INJECT_LIMIT`](crate::endpoint::work::INJECT_LIMIT), 2,048 bytes |
//! | completion data (`.data(u64)`) | 8 bytes |
//! | memory segments of an operation (raw API) | [`IOV_LIMIT`](crate::memory::volatile::IOV_LIMIT) |
//!
//! `inject` copies the bytes, returns at once and reports no success. If it fails later, its error is in the endpoint's
//! completion queue ([`Endpoint::read_error`]). A message that is longer than its receive is *truncated*: the receive
//! fails with [`ErrorCode::Truncated`], and the error contains the buffer with the bytes that fit. The sender gets no
//! error. To receive messages of unknown length into one large buffer, use
//! [`many`](crate::endpoint::safe::ReceiveRequest::many).
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # use percale::{ErrorCode, Info, endpoint::safe::Cause};
//! # let domain = Info::discover()?.best()?.open()?;
//! # let vector = domain.address_vector().build()?;
//! # let endpoint = domain.endpoint().vector(&vector).bind("127.0.0.1:0")?;
//! # let me = vector.insert(endpoint.address())?;
//! endpoint.inject(me, b"0123456789")?; // an endpoint can send to itself
//! let error = endpoint.recv(vec![0; 4]).wait().unwrap_err();
//! let Cause::Completion(entry) = error.cause() else { panic!("the receive was posted") };
//! assert_eq!((entry.error, entry.overflow), (ErrorCode::Truncated, 6));
//! assert_eq!(error.into_buffer().expect("it comes back").into_vec(), b"0123");
//! # Ok(()) }
//! ```
//!
//! # The source of a message
//! [`Received::source`](crate::endpoint::safe::Received::source) is the address to which an answer is sent: the number
//! of the sender in the endpoint's address vector or, if the sender is not in the vector, the address of its
//! connection. A server therefore needs no addresses of its clients, not even a vector.
//!
//! The address of a connection is valid at this endpoint until that connection ends, and an operation that uses it takes
//! this connection: messages in both directions, directed receives, and accesses of the sender's memory. Afterwards
//! operations fail with [`PostError::ConnectionEnded`]. The address is never used
//! again, so an answer cannot reach another client. A server that wants to reach a client after that inserts the
//! address that [`Endpoint::network_address`](crate::Endpoint::network_address) returns. From then on the client's
//! messages have the new number as their source.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # use percale::{ErrorCode, Info};
//! # let domain = Info::discover()?.best()?.open()?;
//! # let (vector, clients) = (domain.address_vector().build()?, domain.address_vector().build()?);
//! # let server = domain.endpoint().vector(&clients).bind("127.0.0.1:0")?;
//! # let client = domain.endpoint().vector(&vector).bind("127.0.0.1:0")?;
//! # let to_server = vector.insert(server.address())?;
//! client.send(to_server, "request").wait()?;
//!
//! let request = server.recv(vec![0; 64]).wait()?;
//! let source = request.source.ok_or("a message has a source")?;
//! server.send(source, "answer").wait()?;
//! assert_eq!(client.recv(vec![0; 64]).wait()?.to_vec(), b"answer");
//!
//! let address = server.network_address(source).ok_or("the client is connected")?;
//! let number = clients.insert(address)?;
//! client.send(to_server, "another").wait()?;
//! assert_eq!(server.recv(vec![0; 64]).wait()?.source, Some(number));
//!
//! // A number that is neither in the vector nor the source of a message is refused: the operation is not posted.
//! let unknown = percale::PeerAddress(1_000);
//! assert!(server.recv(vec![0; 64]).from(unknown).start().is_err());
//! # Ok(()) }
//! ```
//!
//! [`rpc`] is built on this: requests and answers, with many calls in flight.
//!
//! # What a completed send means
//! | level | the send completes when | after that the message is lost if |
//! |---|---|---|
//! | default | the transport has the message, and the buffer can be used again | the receiver's process dies, or its machine is lost, before it receives the message |
//! | [`delivered()`](crate::endpoint::safe::SendRequest::delivered) | the message is in the buffer of a receive | the receiver dies before it acts on the message |
//!
//! The sender may close its endpoint afterwards: the message still arrives. A short message completes before the
//! receiver has posted a receive (up to 8 KiB over shared memory, 512 KiB over TCP). A longer one is offered to the
//! receiver and completes when the receiver has copied it. Programs should not depend on either of these. Use
//! `delivered()` to confirm that the message was received, and a reply to confirm that it was *processed*. With
//! `delivered()` the send fails if the peer dies first.
//!
//! The message of a default send can also be lost without an error: if a peer was restarted and the sender has not
//! detected this yet, the message is sent over the old connection. The next operations report the end of the connection
//! ([chapter 10](super::_10_failure)). A lost message is never delivered later, and a message is never delivered twice.
//!
//! # Waiting for a message or a lost peer
//! A receive from any sender does not end when a peer is lost, because another peer may still send. There are three
//! ways to wait for both:
//!
//! * Post a receive with `.from(peer)`. It ends with an error when the connection to that peer ends
//!   ([`ErrorCode::PeerDied`], [`ErrorCode::Closed`], [`ErrorCode::TimedOut`]). Messages that had arrived completely
//!   are still received. *If there was no connection yet*, such a receive neither connects nor fails: it waits until
//!   the peer connects. Send something first, or wait with a timeout. After a lost connection, a new receive of this
//!   kind connects again, or fails.
//! * Post several such receives and wait for them as futures (with the runtime's `select!`), or check them with
//!   [`is_ready`](crate::endpoint::safe::Operation::is_ready).
//! * Use an [event queue](EventQueue), which reports each lost peer. A [`WaitSet`] waits for events and messages at the
//!   same time ([chapter 6](super::_06_completion) shows a program).
//!
//! # Timeouts
//! [`wait_for`](crate::endpoint::safe::Operation::wait_for) and
//! [`wait_until`](crate::endpoint::safe::Operation::wait_until) limit the time of a wait. When the timeout expires, the
//! wait returns [`Cause::TimedOut`]. The receive or send stays in progress and
//! keeps its buffer, and the handle can be waited for again. To give up, drop the handle or call
//! [`cancel`](crate::endpoint::safe::Operation::cancel): a receive that no message has matched is then canceled. If a
//! message has matched and the handle is dropped, the message is lost. [Chapter 6](super::_06_completion) has the rules
//! for all operations.
//!
//! # Order of messages and accesses
//! A message that was sent after writes to the same peer's memory is received after the bytes of these writes have
//! arrived. So the initiator can write the data, and then send a short message that announces it. The owner of a region
//! can do the same: bytes that a thread wrote with [`Region::write`] before it posted a send are visible to all
//! accesses that the receiver posts after it has received the message.
//! [`fenced()`](crate::endpoint::safe::SendRequest::fenced) starts an operation only after all earlier operations to
//! that peer have completed. Use it after *reads*, for example for a message that allows the peer to change the memory
//! that was read.

// Imported for the links in this text.
use crate::*;
