//! Failure: what each error means, and what to do next.
//!
//! An operation never hangs because its peer is gone: it ends exactly once, with an error. percale does not repeat
//! operations, because a repeated operation may take effect twice.
//!
//! # When a peer is lost
//! | what happened to the peer | how it is detected | when | operations to it end with |
//! |---|---|---|---|
//! | closed its endpoint, or exited normally and dropped it | the peer announces it | at once | [`Closed`](ErrorCode::Closed) |
//! | killed or crashed, on this machine or another | its descriptors are closed by the kernel | within milliseconds; tested: 1,000 operations end within 100 ms on one machine | [`PeerDied`](ErrorCode::PeerDied) |
//! | its machine or the network is down | it answers no probes | [`peer_timeout`](DomainBuilder::peer_timeout), 20 s by default | [`TimedOut`](ErrorCode::TimedOut) |
//! | restarted at the same address | the old connection has ended, or another process answers at the address | when the old process ends, or when the new one answers | as above |
//! | stopped (`SIGSTOP`, a debugger) or busy | not an error: its host still answers | | no error: operations wait, and complete when it continues |
//! | unreachable from the start | the connection attempt fails | at once, or after [`connect_timeout`](DomainBuilder::connect_timeout) | [`Refused`](ErrorCode::Refused), [`Unreachable`](ErrorCode::Unreachable), [`TimedOut`](ErrorCode::TimedOut) |
//!
//! An endpoint detects these losses only while it makes progress ([chapter 9](super::_09_progress)). Treat `Closed` and
//! `PeerDied` alike: `PeerDied` means that the connection ended without a closing message, and a peer that closes its
//! endpoint before it has used the connection is reported in this way.
//!
//! When a connection ends:
//! 1. Complete messages that had arrived can still be received.
//! 2. Sends, reads, writes, atomic operations and window operations under way to the peer fail. A failed write or
//!    atomic operation *may have taken effect*. Over shared memory, short sends and accesses have usually completed
//!    before the loss is detected, so often only receives fail. To know what the peer has processed, count its
//!    acknowledgements.
//! 3. Receives with `.from(peer)` fail. Receives from any sender continue to wait. (A receive from a peer that has not
//!    been connected yet also continues to wait.)
//! 4. Groups with that member fail ([chapter 8](super::_08_collectives)).
//! 5. Keys of the peer's regions are invalid if its process has ended. Regions of this process stay registered.
//! 6. The event queue reports [`Event::PeerDown`], or [`Event::PeerReplaced`] (another process now answers at the
//!    address) and then `PeerDown`. `PeerDown` contains the [`ErrorCode`] with which the operations end, and a text.
//! 7. The address stays in the vector. The next operation to it connects again.
//!
//! A message may be lost without an error after its send has completed: see "What a completed send means" in
//! [chapter 3](super::_03_messages).
//!
//! A peer that is killed during a write may leave any part of the bytes in the target's memory. An atomic operation
//! changes each element completely or not at all. If it has several elements, only some of them may be changed.
//! [Chapter 4](super::_04_remote_memory) shows how a reader detects an incomplete write.
//!
//! # Recovering
//! * **The peer came back at the same address.** Nothing has to be inserted. Send again: the endpoint connects to the
//!   new process. That process has no state of the earlier one, so repeat the setup: exchange addresses, send the
//!   descriptions of regions again, join groups again. To wait for the new process, post a receive without `.from` and
//!   let the new process send first. After a connection to the peer has ended, a receive with `.from(peer)` tries to
//!   connect, and fails with `Refused` while no process listens at the address.
//! * **Messages of both processes have the same source.** Messages of the former process that have arrived completely
//!   come before those of the new one, and its other messages are lost. To distinguish the processes, put a run number
//!   into the messages.
//! * **The peer has a new address.** Insert it, use the new number, and [`remove`](AddressVector::remove) the old one.
//! * **The peer does not come back.** Remove it.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use percale::{ErrorCode, Event, EventQueue, Info};
//!
//! # let domain = Info::discover()?.best()?.open()?;
//! # let vector = domain.address_vector().build()?;
//! let events = EventQueue::default();
//! let endpoint = domain.endpoint().vector(&vector).event_queue(&events).bind("127.0.0.1:0")?;
//! # let other = domain.endpoint().vector(&vector).bind("127.0.0.1:0")?;
//! # let address = other.address();
//! let peer = vector.insert(address)?;
//! endpoint.send(peer, "one").wait()?;
//! # other.recv(vec![0; 64]).wait()?;
//!
//! let mut answer = endpoint.recv(vec![0; 64]).from(peer).start()?;
//! # drop(other);
//! let error = answer.wait().unwrap_err(); // the peer has closed its endpoint
//! assert_eq!(error.code(), Some(ErrorCode::Closed));
//! let buffer = error.into_buffer().expect("an error returns the buffer");
//! assert!(matches!(events.read(), Some(Event::Connected { .. })));
//! let Some(Event::PeerDown { peer: lost, error, .. }) = events.read() else { panic!("the peer was connected") };
//! assert_eq!((lost, error), (peer, ErrorCode::Closed));
//!
//! let error = endpoint.send(peer, "two").wait().unwrap_err(); // no process has the address
//! assert_eq!(error.code(), Some(ErrorCode::Refused));
//! let error = endpoint.recv(buffer).from(peer).wait().unwrap_err(); // the same holds for a receive from it
//! assert_eq!(error.code(), Some(ErrorCode::Refused));
//!
//! # let other = domain.endpoint().vector(&vector).bind(address.to_string())?;
//! endpoint.send(peer, "three").wait()?; // the peer was started again at its address
//! # assert_eq!(other.recv(vec![0; 64]).wait()?.to_vec(), b"three");
//! # Ok(()) }
//! ```
//!
//! To make sure that a message is received, send it with `delivered()`, and send it again after an error. Number the
//! messages so that the receiver can detect duplicates.
//!
//! # Errors of completed operations
//! [`OperationError::cause`](crate::endpoint::safe::OperationError::cause) is a
//! [`Cause`]: `Post` (not posted), `Completion` (failed), `TimedOut` (the timeout of a
//! wait has expired, and the operation is still in progress), or `Taken` (the handle has returned the result before). A
//! `Completion` has an [`ErrorCode`], which [`code()`](crate::OperationError::code) returns, and a text with details.
//! [`errno()`](crate::endpoint::safe::OperationError::errno) of each error is the number that libfabric uses. The error
//! also contains the buffer ([`buffer`](crate::endpoint::safe::OperationError::buffer),
//! [`into_buffer`](crate::endpoint::safe::OperationError::into_buffer),
//! [`into_parts`](crate::endpoint::safe::OperationError::into_parts)), unless the operation is still in progress or a
//! peer may still access the buffer.
//!
//! Three methods answer what programs decide on. The code states why the operation failed.
//! [`is_retriable()`](crate::endpoint::safe::OperationError::is_retriable) is true if the same call may succeed later:
//! after [`PostError::Again`] and the end of a wait's timeout, and for the codes that [`ErrorCode::is_retriable`] lists.
//! Add a delay, and limit the number of attempts. [`peer()`](crate::endpoint::safe::OperationError::peer) is the peer
//! that the failure concerns, if it is in the endpoint's vector.
//!
//! The text of an error is complete. [`source()`](std::error::Error::source) returns an error only if its text is not
//! part of the error's own text, so a report of the whole chain repeats nothing.
//!
//! The second column states what is affected: this *operation* alone, or the *connection* to the peer and with it all
//! operations under way to the peer.
//!
//! | [`ErrorCode`] | affects | cause | next step |
//! |---|---|---|---|
//! | `Truncated` | operation | the message was longer than the receive's buffer | post larger buffers, or send the length first; the bytes that fit are in the buffer |
//! | `Canceled` | operation | it was canceled, or its endpoint or the region of its memory was closed | none |
//! | `NoMessage` | operation | a peek found no matching message (raw API) | look again later |
//! | `PeerDied` | connection | the connection ended without a closing message: the peer's process ended without closing its endpoint, the peer called [`disconnect`](Endpoint::disconnect), or the connection was reset | start it again; send again to reconnect |
//! | `Closed` | connection | the peer closed its endpoint or shut the connection down; or this process called `disconnect` | as above |
//! | `TimedOut` | connection; attempt | the peer's machine does not answer; or the peer's process did not answer a connection attempt in time | check the network, and whether the peer makes progress; send again to reconnect |
//! | `Protocol` | connection; group | the peer sent bytes that percale never sends, or has another version; or members of a group posted different operations | run the same release on both sides; check that the address is an endpoint of percale |
//! | `NoMemory` | operation or connection | out of memory, here or at the peer | raise the limit, use smaller messages |
//! | `Io` | operation or connection | a system call failed; the text names it | see the text |
//! | `Refused` | attempt | no endpoint listens at the address, or it has no such context, or it rejected the request | start the peer, correct the address; retry with a delay |
//! | `Unreachable` | attempt | no route, or a firewall | check routes, firewalls and interfaces |
//! | `NotConnected` | attempt | the two sides allow no common transport; or the endpoint only accepts connections, and the peer has not connected | allow a common transport; wait for the peer |
//! | `NoDescriptors` | attempt | the limit of open files was reached, here or at the peer | `ulimit -n`; use fewer peers |
//! | `Denied` | operation; attempt | a right is missing, or the access exceeds the region; for an attempt: the authorization keys differ | correct rights, ranges or keys |
//! | `KeyRejected` | operation | no region or window has the key: it was closed, revoked, or belongs to a process that has ended | get a new description from the owner |
//! | `Misaligned` | operation | the target of an atomic operation is not aligned to its size | align it ([chapter 4](super::_04_remote_memory)) |
//! | `Fault` | operation | memory of the operation is not mapped (raw API, device memory) | correct the address; keep the memory until the operation has completed |
//! | `Busy` | operation | a window is bound, or a peer that was stopped is accessing it | try again later |
//! | `Invalid` | operation | invalid arguments of a window operation | correct them |
//! | `UnknownAddress` | operation | the peer was removed from the vector before triggered work started | insert it, post again |
//!
//! *Attempt*: the connection could not be established. All operations that waited for it fail, and [`Event::Failed`]
//! reports it with the same code. The next operation tries again without a delay, so a program that retries in a loop should add one.
//!
//! # Errors of posting
//! The operation was not started and will not complete. The error returns the buffer.
//!
//! | [`PostError`] | cause | next step |
//! |---|---|---|
//! | `Again` | no room in a queue (raw API and `inject`) | make progress, then post again; or use `send`, which waits until there is room |
//! | `UnknownPeer` | the number is not in the endpoint's vector | insert the peer |
//! | `ConnectionEnded` | the number was the source of messages over a connection that has ended | wait for the peer's next message, or insert its address before the connection ends |
//! | `NoVector` | the endpoint was bound without a vector | pass one to the builder |
//! | `NotConnected` | an endpoint for one connection, which is not established yet or has ended | [`wait_connected`](Endpoint::wait_connected); after its end, open another endpoint |
//! | `InjectTooLong` | more than 2,048 bytes | `send` |
//! | `TooLong` | more than 2^63 - 1 bytes | split the message |
//! | `Flags`, `Device`, `NotClaimed` | contradictory flags, device memory that cannot be used here, a claim without a peek (raw API) | see the text |
//! | `ReadOnly` | a buffer that cannot be received into: static or shared | use a `Vec` or an allocation |
//! | `Lengths` | local and remote memory differ in length | slice the remote memory |
//! | `NoSuchAtomic` | no such operation for this type | see [`is_valid`](crate::memory::atomic::is_valid) |
//! | `NotMapped` | a raw key was not mapped, or is no longer mapped | [`Domain::map_raw`] |
//! | `Window` | see [chapter 5](super::_05_windows) | |
//! | `NoGroup`, `Collective` | the group was not joined, or the buffer cannot be divided into equal blocks of whole elements | see the text |
//! | `HasCounter`, `Counter` | a second counter for one kind of operation; no descriptor could be created | see the text |
//! | `Forked` | the process is a fork of the one that opened the endpoint | open a domain in the child |
//! | `Closed` | the endpoint was closed through another handle | open another one |
//!
//! # Errors of opening
//! | error | cause | next step |
//! |---|---|---|
//! | [`OpenError::NoTransport`](crate::domain::OpenError::NoTransport) | none of the allowed transports works here | the text states the reason for each; see [chapter 11](super::_11_clusters) |
//! | [`OpenError::Transport`](crate::domain::OpenError::Transport) | an unknown or unsuitable name, in the program or in `PERCALE_TRANSPORT` | correct it |
//! | [`OpenError::System`](crate::domain::OpenError::System) | the system could not provide a thread, a descriptor or memory | `ulimit -n`, `-u`, `-v` |
//! | [`BindError::Address`] | the text is not an address, or the name does not resolve | use `HOST:PORT` |
//! | [`BindError::Bind`] | the port is in use, or the address belongs to no interface | use port 0 or another address |
//! | [`BindError::NotShared`] | automatic progress with [`bind`](EndpointBuilder::bind) | use [`bind_shared`](EndpointBuilder::bind_shared) |
//! | [`BindError::System`] | no descriptors or memory | `ulimit -n` |
//! | [`BindError::NoContext`], [`ContextOpen`](crate::endpoint::BindError::ContextOpen), [`Contexts`](crate::endpoint::BindError::Contexts) | a context of a scalable endpoint that does not exist or is already open; an invalid number of contexts | correct the index |
//! | [`BindError::Forked`] | the process is a fork of the one that opened the domain | open a domain in the child |
//!
//! # Errors of closing
//! An object that cannot be closed is not lost: the error contains it, and `into_inner()` returns it.
//!
//! | error | of | cause | next step |
//! |---|---|---|---|
//! | [`endpoint::EndpointCloseError`] | [`Endpoint::close`] | windows of type 2A are bound through the endpoint | invalidate or deallocate them, then close it; or [`shut`](Endpoint::shut) it |
//! | [`memory::region::CloseError`] | [`Region::close`], [`RawRegion::close`], [`Window::close`] | `Busy`: a peer was stopped in the middle of an access; `Windows`: windows are bound to the region | close it again later; close the windows first |
//! | [`memory::region::PendingError`] | [`PendingRegion::finish`](memory::region::PendingRegion::finish) | the event of the registration was not read | read it, then finish |
//!
//! All of them convert to `Box<dyn Error + Send + Sync>` by `?`. Dropping such an error drops the object.
//!
//! # When this program ends
//! [`Endpoint::close`], and dropping the endpoint, first send pending data, for at most one second. Then all operations
//! under way end with `Canceled`. A process that is killed sends nothing more. Data that its transports had already
//! accepted is still delivered.

// Imported for the links in this text.
use crate::*;
