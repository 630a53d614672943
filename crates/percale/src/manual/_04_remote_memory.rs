//! Remote memory: regions, keys, rights, atomic operations, closing.
//!
//! # Registering memory
//! A [`Region`] is memory that peers may access. The owner registers it and sends its description ([`RemoteMemory`], 24
//! bytes: key, address, length) to the peers that may use it. These peers then read and write the memory. With
//! automatic progress at the owner, this needs no call in the owner's program. With manual progress, accesses over TCP
//! and a local peer's first access with a key wait until the owner's program makes progress ([chapter
//! 9](super::_09_progress)). Closing the region ends the access of all peers.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use percale::{Access, Info, Progress, RemoteMemory};
//!
//! # let domain = Info::discover()?.best()?.progress(Progress::Automatic).open()?;
//! # let vector = domain.address_vector().build()?;
//! # let owner = domain.endpoint().vector(&vector).bind_shared("127.0.0.1:0")?;
//! # let initiator = domain.endpoint().vector(&vector).bind_shared("127.0.0.1:0")?;
//! # let (to_owner, to_initiator) = (vector.insert(owner.address())?, vector.insert(initiator.address())?);
//! // `owner` and `initiator` are shared endpoints of two processes, with automatic progress. `to_owner` and
//! // `to_initiator` are the numbers that `insert` returned for their addresses.
//! // The owner:
//! let region = domain.register(domain.allocate(4096)?, Access::REMOTE_READ | Access::REMOTE_WRITE)?;
//! owner.send(to_initiator, region.remote().to_bytes().to_vec()).wait()?;
//!
//! // A peer:
//! let name = initiator.recv(vec![0; RemoteMemory::BYTES]).from(to_owner).wait()?;
//! let memory = RemoteMemory::from_bytes(&name.to_vec())?;
//! initiator.write(to_owner, "hello", memory.slice(0..5)?).wait()?;
//! let bytes = initiator.read(to_owner, memory.slice(0..5)?, vec![0; 5]).wait()?;
//! assert_eq!(bytes.into_vec(), b"hello");
//! let before: u64 = initiator.fetch_add(to_owner, memory.slice(8..16)?, 1).wait()?;
//! assert_eq!(before, 0);
//!
//! // The owner:
//! let mut text = [0; 5];
//! region.read(0, &mut text);
//! assert_eq!(&text, b"hello");
//! let memory = region.close()?; // no peer accesses it any more
//! # drop(memory); Ok(()) }
//! ```
//!
//! A write has completed when its bytes are in the target's memory. The local and the remote length must be equal;
//! otherwise the operation is not posted. [`RemoteMemory::slice`] returns an error if the
//! range is not within the memory. For a constant range in memory of a known length,
//! [`at`](RemoteMemory::at) panics in that case. Accesses of one endpoint to the same bytes take effect in the order in
//! which they were posted.
//!
//! # The owner's own access
//! [`Region::view`] gives the owner values, bytes and atomic integers of the memory while peers may access it. An atomic
//! integer is atomic with the atomic operations of peers, on every transport. [`MemoryView`] states which order accesses
//! have. [`Region::slice`] is a part of a region, with its description and its view.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # use percale::{Access, Info, Progress};
//! use std::sync::atomic::Ordering;
//!
//! # let domain = Info::discover()?.best()?.progress(Progress::Automatic).open()?;
//! # let vector = domain.address_vector().build()?;
//! # let owner = domain.endpoint().vector(&vector).bind_shared("127.0.0.1:0")?;
//! # let initiator = domain.endpoint().vector(&vector).bind_shared("127.0.0.1:0")?;
//! # let to_owner = vector.insert(owner.address())?;
//! # let region = domain.register(domain.allocate(4096)?, Access::REMOTE_READ | Access::REMOTE_WRITE)?;
//! # let memory = region.remote();
//! // A peer writes a record, waits, and then counts it:
//! initiator.write(to_owner, 2026_u32.to_ne_bytes().to_vec(), memory.slice(64..68)?).wait()?;
//! initiator.fetch_add(to_owner, memory.slice(0..8)?, 1_u64).wait()?;
//!
//! // The owner:
//! let view = region.view();
//! while view.atomic::<u64>(0)?.load(Ordering::Acquire) == 0 {
//!     std::thread::yield_now();
//! }
//! assert_eq!(view.read_at::<u32>(64)?, 2026); // the record is complete
//! # Ok(()) }
//! ```
//!
//! # Memory that can be registered
//! * Memory of [`Domain::allocate`]. Local peers map it, so accesses need no system call. Allocations of less than 512
//!   KiB share pages, and a local peer that maps one of them can access the whole pages. Keep secrets elsewhere, or in
//!   large allocations.
//! * Any [`Buffer`], such as a `Vec<u8>`. Local peers access it with one system call.
//! * Buffers of a pool ([`Domain::buffer_pool`]), which are parts of one allocation.
//! * Plain values: `Vec<T>`, `Box<[T]>`, or aligned memory of [`Domain::allocate_of`], with [`Domain::register_typed`].
//!   Closing the region returns the memory in its type.
//! * Borrowed memory, within [`Domain::scope`]: `&mut [u8]`, or `&[u8]` for peers that only read. All regions of a scope
//!   are closed before the call returns, also if it panics. A local peer that is stopped in the middle of an access delays
//!   the return until it continues or its process ends.
//! * Any other memory, including CUDA memory, with the `unsafe`
//!   [`Registration::raw`](crate::memory::region::Registration::raw).
//!
//! # Keys and rights
//! Each access is checked on every transport: the key, the range, and the right ([`Access::REMOTE_READ`],
//! [`Access::REMOTE_WRITE`], [`Access::REMOTE_ATOMIC`]). A rejected access changes nothing and fails with
//! [`ErrorCode::KeyRejected`] (no such key, or the region was closed) or [`ErrorCode::Denied`] (missing right, or a
//! byte outside of the region). The connection continues.
//!
//! The domain chooses keys that cannot be guessed. A region can be accessed through every endpoint of its domain,
//! unless [`Registration::endpoint`](crate::memory::region::Registration::endpoint) or
//! [`Registration::authorization_key`](crate::memory::region::Registration::authorization_key) restricts it. A key is
//! not bound to a peer: a peer can pass it on. [Windows](super::_05_windows) of type 2 are for one peer.
//!
//! # A read that overlaps a write may be torn
//! A read or write is not atomic. If a peer, or the owner, writes bytes while they are read, the reader may get any
//! mixture of old and new bytes, without an error. This holds for long and for short accesses, including accesses of 8
//! aligned bytes. Use one of these methods to prevent or detect it:
//!
//! 1. **Words: use atomic operations for the write and for the read.** An atomic operation changes or fetches each
//!    element as a whole. [`AtomicOp::Read`] fetches without changing memory, and [`AtomicOp::Write`] stores a value.
//!    An owner that must read or write whole words also uses atomic operations on its own memory: an endpoint can
//!    insert its own address and access itself. See "The owner as the writer" below.
//! 2. **Records: a version counter.** The writer makes the version odd, writes the record, and makes the version even
//!    again, each as a completed operation. A reader fetches the version, reads the record, and fetches the version
//!    again. If both values are equal and even, the record is consistent. Otherwise the reader tries again. If there
//!    are several writers, each acquires the version with a compare-and-swap from even to odd. If a writer dies, the
//!    version stays odd: limit the number of attempts.
//! 3. **Messages: transfer the ownership.** The writer sends a message after the write, and the reader reads only after
//!    it has received it. The message arrives after the bytes. This is the simplest method, and needs no polling.
//! 4. **Records: a version and a checksum in the record.** The writer increments the version, computes the checksum of
//!    the version and the data, and writes the whole record. A reader reads the whole record with one read, and reads
//!    it again if the checksum is wrong. The version shows whether the record is new. Readers need only `REMOTE_READ`.
//!    Limit the number of attempts: if the writer dies during a write, the checksum stays wrong.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use percale::{Access, AtomicOp, Info, Progress};
//!
//! # let domain = Info::discover()?.best()?.progress(Progress::Automatic).open()?;
//! # let vector = domain.address_vector().build()?;
//! # let owner = domain.endpoint().vector(&vector).bind_shared("127.0.0.1:0")?;
//! # let endpoint = domain.endpoint().vector(&vector).bind_shared("127.0.0.1:0")?;
//! # let peer = vector.insert(owner.address())?;
//! # let region = domain.register(domain.allocate(4096)?, Access::REMOTE_READ | Access::REMOTE_WRITE)?;
//! # let memory = region.remote();
//! // `endpoint` is an endpoint of this process, `peer` is the owner's number in its vector, and `memory` is the
//! // description of a region of 4,096 bytes.
//! let (version, record) = (memory.at(0..8), memory.at(64..1064));
//! // The writer:
//! let old: u64 = endpoint.fetch_add(peer, version, 1).wait()?; // odd: a write is under way
//! assert!(old % 2 == 0, "there is one writer");
//! endpoint.write(peer, vec![7; 1000], record).wait()?;
//! endpoint.fetch_add(peer, version, 1_u64).wait()?; // even: the record is whole
//!
//! // A reader:
//! let mut buffer = percale::Buffer::zeroed(1000);
//! let bytes = loop {
//!     let before: u64 = endpoint.fetch_atomic(peer, AtomicOp::Read, version, 0).wait()?;
//!     buffer = endpoint.read(peer, record, buffer).wait()?;
//!     let after: u64 = endpoint.fetch_atomic(peer, AtomicOp::Read, version, 0).wait()?;
//!     if before == after && before % 2 == 0 {
//!         break buffer.into_vec();
//!     }
//! };
//! assert!(bytes.iter().all(|&byte| byte == 7));
//! # Ok(()) }
//! ```
//!
//! # The owner as the writer
//! [`Region::write`] is an ordinary copy. A peer may read the bytes of one call in part, and in any order. percale does
//! not guarantee the order of two calls either: a peer may read bytes of the second call without those of the first. On
//! x86-64 the processor stores the bytes of two calls in order, but the compiler may merge or reorder the copies, and a
//! read may load its bytes in any order. Bytes that were written before a send are visible to the receiver of the
//! message ([chapter 3](super::_03_messages)). So use `Region::write` with methods 3 and 4. For methods 1 and 2, use
//! operations of the owner's endpoint on itself.
//!
//! Accesses of an endpoint to itself are checked like those of a peer: a write needs `REMOTE_WRITE` on the region. To
//! give clients the right to read only, do not send them the description of the region. Bind a window of type 1 with
//! [`WindowAccess::READ`] to the region, and send the description of the window ([chapter 5](super::_05_windows)).
//!
//! # Atomic operations
//! The supported types are integers of 1 to 8 bytes, `f32` and `f64` ([`Element`](crate::endpoint::safe::Element)). The
//! element must be **aligned to its size in the target's memory**. Otherwise the operation fails with
//! [`ErrorCode::Misaligned`] and changes nothing. Memory of [`Domain::allocate`] starts at a multiple of 64 bytes. A
//! `Vec<u8>` has no guaranteed alignment, so do not use it for atomic operations. An operation that changes memory
//! needs `REMOTE_WRITE` or `REMOTE_ATOMIC`. An operation that fetches needs `REMOTE_READ` or `REMOTE_ATOMIC`.
//! `fetch_add` and `compare_swap` do both. Any number of initiators, on all transports, may change one word at the same
//! time, and no change is lost.
//!
//! # Which accesses are reported to the owner
//! Ordinary reads and writes are not reported to the owner. The following accesses are reported: a write with
//! [`data`](crate::endpoint::safe::AccessRequest::data) (an entry in the completion queue of the target's endpoint,
//! read by [`Endpoint::poll`]), writes to a region with a [counter](crate::memory::region::Registration::counter), and
//! all accesses through an endpoint with [`remote_write_counter`](EndpointBuilder::remote_write_counter) or
//! [`remote_read_counter`](EndpointBuilder::remote_read_counter).
//!
//! # Getting the memory back
//! * [`Region::close`] is synchronous. When it returns the memory, no access is under way, and none will begin. Later
//!   accesses fail with `KeyRejected`. Accesses that were under way complete successfully or with that error.
//! * Closing waits for peers that are in the middle of an access, usually for microseconds. If a peer is stopped there
//!   (by a debugger, or `SIGSTOP`), closing returns [`CloseError::Busy`](crate::memory::region::CloseError::Busy) after
//!   [`revoke_timeout`](DomainBuilder::revoke_timeout), one second by default. The error contains the region, which
//!   still owns the memory. No new access begins. Close the region again later: closing succeeds after the peer has
//!   continued or died.
//! * While windows are bound to the region, closing returns
//!   [`CloseError::Windows`](crate::memory::region::CloseError::Windows) and changes nothing.
//! * Dropping a region never waits. Memory that a peer is still accessing is kept until the peer has finished or is
//!   dead, and is then freed.
//! * The buffer of a local operation is returned with its result, even if the operation fails. If the handle was
//!   dropped, the buffer is kept until no peer uses it.
//!
//! # Leases
//! To give memory to a peer for a limited time, bind a window of type 2 for that peer and invalidate it when the time
//! has expired, as [chapter 5](super::_05_windows) shows. Revocation does not need the peer's cooperation.
//! `crates/percale/examples/leases.rs` is a complete server.

// Imported for the links in this text.
use crate::*;
