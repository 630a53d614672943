//! Windows: limited rights to a part of a region, which can be revoked without a system call.
//!
//! Registering and closing a region is the right way to share memory for a long time. A [`Window`] is for rights that
//! change often: a slice of a cache for one request, a buffer for one client. A window is allocated once and bound to
//! parts of regions as often as needed. Each bind creates a new key. The rights of a window do not depend on those of
//! the region: the region itself may grant no rights to peers.
//!
//! | | bound by | works for | revoked by |
//! |---|---|---|---|
//! | type 1 | [`Window::bind`], a call | every endpoint of the domain, and every peer that has the key | binding it again; an empty range unbinds it |
//! | type 2 | [`Endpoint::bind_window`], an operation in order with the messages to a peer | this peer through this endpoint | [`Endpoint::invalidate`], or a message of that peer |
//!
//! A domain supports type 1 and one kind of type 2 ([`DomainBuilder::windows`]). A window of type **2B**, the default,
//! is unbound when its endpoint is closed. The endpoint of a window of type **2A** cannot be closed while the window is
//! bound.
//!
//! **Revocation is synchronous.** When a rebind has returned, or an invalidation has completed, no access with the old
//! key is under way and none will begin. Later accesses fail with [`ErrorCode::KeyRejected`].
//!
//! # Type 1
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use percale::{Access, ErrorCode, Info, Progress, WindowAccess, WindowType};
//!
//! # let domain = Info::discover()?.best()?.progress(Progress::Automatic).open()?;
//! # let vector = domain.address_vector().build()?;
//! # let owner = domain.endpoint().vector(&vector).bind_shared("127.0.0.1:0")?;
//! # let peer = domain.endpoint().vector(&vector).bind_shared("127.0.0.1:0")?;
//! # let to_owner = vector.insert(owner.address())?;
//! // `peer` is the shared endpoint of another process. `to_owner` is the number that it got for the owner's address.
//! let region = domain.register(domain.allocate(1 << 20)?, Access::empty())?; // gives peers no rights
//! let mut window = domain.window(WindowType::One)?;
//! let name = window.bind(&region, 4096..8192, WindowAccess::READ)?; // peers may read these 4 KiB
//!
//! // A peer that got `name` in a message. Bytes of a window have the addresses of the region.
//! let bytes = peer.read(to_owner, name, vec![0; 4096]).wait()?;
//! let error = peer.write(to_owner, bytes, name).wait().unwrap_err();
//! assert_eq!(error.errno(), ErrorCode::Denied.errno());
//!
//! window.bind(&region, 0..0, WindowAccess::empty())?; // unbind: the key is invalid
//! let error = peer.read(to_owner, name, vec![0; 4096]).wait().unwrap_err();
//! assert_eq!(error.errno(), ErrorCode::KeyRejected.errno());
//! region.close()?; // possible because no window is bound to it
//! # Ok(()) }
//! ```
//!
//! # Type 2: leases
//! A server gives one client access to a slice, sends its description, and revokes the access when the time has
//! expired. A slow or malicious client cannot keep the access. The bind and the message are ordered: the client cannot
//! use the description before the window is bound. With `fenced()` the message is sent only after the bind has
//! succeeded.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use percale::{Access, Bind, ErrorCode, Info, Progress, RemoteMemory, WindowAccess, WindowType};
//!
//! # let domain = Info::discover()?.best()?.progress(Progress::Automatic).open()?;
//! # let vector = domain.address_vector().build()?;
//! # let server = domain.endpoint().vector(&vector).bind_shared("127.0.0.1:0")?;
//! # let client = domain.endpoint().vector(&vector).bind_shared("127.0.0.1:0")?;
//! # let (to_server, to_client) = (vector.insert(server.address())?, vector.insert(client.address())?);
//! // `server` and `client` are shared endpoints. `to_server` and `to_client` are the numbers of their addresses.
//! // The server:
//! let region = domain.register(domain.allocate(1 << 20)?, Access::empty())?;
//! let window = domain.window(WindowType::TwoB)?;
//! let bind = Bind { range: 0..4096, access: WindowAccess::WRITE, key: 1 }; // the program chooses the low 8 bits of the key
//! let lease = server.bind_window(to_client, &window, &region, bind).wait()?;
//! server.send(to_client, lease.to_bytes().to_vec()).fenced().wait()?;
//!
//! // The client:
//! let got = client.recv(vec![0; RemoteMemory::BYTES]).from(to_server).wait()?;
//! let name = RemoteMemory::from_bytes(&got.to_vec())?;
//! client.write(to_server, vec![1; 4096], name).wait()?;
//!
//! // The server, when the time has expired:
//! server.invalidate(to_client, lease.key).wait()?;
//! // Now the slice can be lent again. The client's late write has no effect:
//! let error = client.write(to_server, vec![2; 4096], name).wait().unwrap_err();
//! assert_eq!(error.errno(), ErrorCode::KeyRejected.errno());
//! # Ok(()) }
//! ```
//!
//! A client returns a lease early with [`SendRequest::invalidating`](crate::endpoint::safe::SendRequest::invalidating):
//! the server receives that message after the key has been invalidated, and
//! [`Received::invalidated`](crate::endpoint::safe::Received::invalidated) is the key. If the lease has already
//! expired, the send fails with `KeyRejected`, and the message is not received.
//!
//! # Errors
//! | error | cause | next step |
//! |---|---|---|
//! | [`Busy`](crate::memory::window::WindowError::Busy) | a peer was stopped in the middle of an access and did not finish within [`revoke_timeout`](DomainBuilder::revoke_timeout) | the key is already invalid, but do not use the memory yet; try again later |
//! | [`StillBound`](crate::memory::window::WindowError::StillBound) | a type 2 window is bound | invalidate its key first |
//! | [`WrongType`](crate::memory::window::WindowError::WrongType) | a posted bind of a type 1 window, or [`Window::bind`] of a type 2 window | use the other call |
//! | [`NoSuchType`](crate::memory::window::WindowError::NoSuchType) | the domain has the other kind of type 2 | see [`DomainBuilder::windows`] |
//! | [`Range`](crate::memory::window::WindowError::Range), [`ReadOnly`](crate::memory::window::WindowError::ReadOnly), [`NotAllowed`](crate::memory::window::WindowError::NotAllowed) | the region does not allow this bind | bind a part of the region, without rights that the region's memory cannot give |
//! | [`NotBound`](crate::memory::window::WindowError::NotBound), [`OtherPair`](crate::memory::window::WindowError::OtherPair) | the key is not bound, or is bound for another peer or through another endpoint | use the endpoint and the peer of the bind |
//!
//! A posted bind or invalidation reports these as completions: `Busy` and `StillBound` as [`ErrorCode::Busy`];
//! `OtherPair`, `ReadOnly` and `NotAllowed` as [`ErrorCode::Denied`]; `NotBound` as [`ErrorCode::KeyRejected`]; the
//! others as [`ErrorCode::Invalid`].

// Imported for the links in this text.
use crate::*;
