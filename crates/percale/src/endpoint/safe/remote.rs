//! One-sided operations that own their buffers.
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let domain = percale::Info::discover()?.best()?.open()?;
//! # let vector = domain.address_vector().build()?;
//! # let endpoint = domain.endpoint().vector(&vector).bind("127.0.0.1:0")?;
//! # let peer = vector.insert("127.0.0.1:7471")?;
//! # let remote = percale::RemoteMemory::default(); // as the peer sent it
//! let bytes = endpoint.read(peer, remote.slice(0..4096), vec![0; 4096]).wait()?;
//! endpoint.write(peer, bytes, remote.slice(4096..8192)).wait()?;
//! let before: u64 = endpoint.fetch_add(peer, remote.slice(8192..8200), 1).wait()?;
//! # drop(before); Ok(()) }
//! ```

use std::future::{Future, IntoFuture};
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use super::OperationError;
use super::future::Started;
use super::request::posted;
use super::under_way::UnderWay;
use super::when::StartCondition;
use crate::completion::counter::Counter;
use crate::conditions::variable::Variable;
use crate::endpoint::Endpoint;
use crate::endpoint::engine::types::Notify;
use crate::endpoint::operation::Operation;
use crate::endpoint::ownership::Ownership;
use crate::endpoint::remote_work::{AtomicWork, RemotePieces, RmaWork};
use crate::endpoint::work::{OpFlags, PostError};
use crate::local_memory::atomic::{AtomicOp, Datatype, Kind};
use crate::local_memory::buffer::{Buffer, BufferExt as _};
use crate::local_memory::volatile::Segments;
use crate::region::RemoteMemory;
use crate::types::PeerAddress;

/// A number that atomic operations can work on.
pub trait Element: Copy + private::Bytes {
    /// The data type of the number.
    const DATATYPE: Datatype;
}

mod private {
    /// The representation of a number in memory.
    pub trait Bytes {
        fn to_bytes(self) -> [u8; 8];
        fn from_bytes(bytes: [u8; 8]) -> Self;
    }
}

macro_rules! element {
    ($($type:ty => $datatype:ident),*) => {$(
        impl private::Bytes for $type {
            fn to_bytes(self) -> [u8; 8] {
                let mut bytes = [0; 8];
                bytes[..size_of::<Self>()].copy_from_slice(&self.to_ne_bytes());
                bytes
            }

            fn from_bytes(bytes: [u8; 8]) -> Self {
                let mut own = [0; size_of::<Self>()];
                own.copy_from_slice(&bytes[..size_of::<Self>()]);
                Self::from_ne_bytes(own)
            }
        }

        impl Element for $type {
            const DATATYPE: Datatype = Datatype::$datatype;
        }
    )*};
}

element!(i8 => I8, u8 => U8, i16 => I16, u16 => U16, i32 => I32, u32 => U32, i64 => I64, u64 => U64, f32 => F32, f64 => F64);

/// The result of a one-sided operation.
pub trait Outcome: Sized {
    /// Creates the result from the operation's buffer.
    fn of(buffer: Buffer) -> Self;
}

impl Outcome for Buffer {
    fn of(buffer: Buffer) -> Self {
        buffer
    }
}

/// The result of an atomic operation is the previous value of the number.
impl<T: Element> Outcome for T {
    fn of(buffer: Buffer) -> Self {
        let mut bytes = [0; 8];
        buffer.copy_to(RESULT, &mut bytes);
        Self::from_bytes(bytes)
    }
}

/// Offsets of the operand, the compare value and the result of an atomic operation in its buffer.
const OPERAND: usize = 0;
const COMPARE: usize = 8;
const RESULT: usize = 16;

#[derive(Clone, Copy, Debug)]
enum AccessDetails {
    Read,
    Write,
    Atomic(Kind, AtomicOp, Datatype),
}

/// A one-sided operation that is not posted yet. Its result has the type `R`.
#[must_use = "nothing is done before start, wait or await"]
pub struct AccessRequest<'e, A: Ownership, R> {
    endpoint: &'e Endpoint<A>,
    peer: PeerAddress,
    remote: RemoteMemory,
    buffer: Buffer,
    what: AccessDetails,
    data: Option<u64>,
    flags: OpFlags,
    when: Option<StartCondition>,
    outcome: PhantomData<R>,
}

crate::short_debug!(for [A: Ownership, R] AccessRequest<'_, A, R>, "AccessRequest");

/// A one-sided operation in progress. Wait for it, or await it, to get its result. Dropping it cancels it if no part of
/// it was carried out. Its buffer is kept until the peer no longer uses it.
#[must_use = "dropping it cancels the operation if possible"]
pub struct Accessing<'e, A: Ownership, R> {
    under_way: UnderWay<'e, A>,
    outcome: PhantomData<R>,
}

crate::short_debug!(for [A: Ownership, R] Accessing<'_, A, R>, "Accessing");

impl<A: Ownership> Endpoint<A> {
    /// Creates a read of a peer's memory into the buffer, which has the same length. The result is the buffer.
    pub fn read(&self, peer: PeerAddress, from: RemoteMemory, into: impl Into<Buffer>) -> AccessRequest<'_, A, Buffer> {
        self.access_request(peer, from, into.into(), AccessDetails::Read)
    }

    /// Creates a write of the buffer to a peer's memory, which has the same length. It completes when the bytes have
    /// arrived. The result is the buffer.
    pub fn write(
        &self,
        peer: PeerAddress,
        buffer: impl Into<Buffer>,
        to: RemoteMemory,
    ) -> AccessRequest<'_, A, Buffer> {
        self.access_request(peer, to, buffer.into(), AccessDetails::Write)
    }

    /// Creates an operation that adds to a number in a peer's memory. Its result is the previous value. Integers wrap
    /// on overflow.
    pub fn fetch_add<T: Element>(&self, peer: PeerAddress, word: RemoteMemory, value: T) -> AccessRequest<'_, A, T> {
        self.fetch_atomic(peer, AtomicOp::Sum, word, value)
    }

    /// Creates an operation that writes `new` to a number in a peer's memory if the number equals `expected`. Its
    /// result is the previous value.
    pub fn compare_swap<T: Element>(
        &self,
        peer: PeerAddress,
        word: RemoteMemory,
        expected: T,
        new: T,
    ) -> AccessRequest<'_, A, T> {
        self.compare_atomic(peer, AtomicOp::Cswap, word, expected, new)
    }

    /// Creates an atomic operation on a number in a peer's memory. Its result is the previous value.
    pub fn fetch_atomic<T: Element>(
        &self,
        peer: PeerAddress,
        op: AtomicOp,
        word: RemoteMemory,
        operand: T,
    ) -> AccessRequest<'_, A, T> {
        self.atomic_request(peer, word, Kind::Fetch, op, operand, operand)
    }

    /// Creates an atomic operation that compares: a masked swap or one of the conditional swaps. Its result is the
    /// previous value.
    pub fn compare_atomic<T: Element>(
        &self,
        peer: PeerAddress,
        op: AtomicOp,
        word: RemoteMemory,
        compare: T,
        operand: T,
    ) -> AccessRequest<'_, A, T> {
        self.atomic_request(peer, word, Kind::Compare, op, operand, compare)
    }

    fn atomic_request<T: Element>(
        &self,
        peer: PeerAddress,
        word: RemoteMemory,
        kind: Kind,
        op: AtomicOp,
        operand: T,
        compare: T,
    ) -> AccessRequest<'_, A, T> {
        let mut bytes = vec![0; RESULT + 8];
        bytes[OPERAND..COMPARE].copy_from_slice(&operand.to_bytes());
        bytes[COMPARE..RESULT].copy_from_slice(&compare.to_bytes());
        self.access_request(peer, word, bytes.into(), AccessDetails::Atomic(kind, op, T::DATATYPE))
    }

    fn access_request<R>(
        &self,
        peer: PeerAddress,
        remote: RemoteMemory,
        buffer: Buffer,
        what: AccessDetails,
    ) -> AccessRequest<'_, A, R> {
        let (data, flags) = (None, OpFlags::empty());
        AccessRequest { endpoint: self, peer, remote, buffer, what, data, flags, when: None, outcome: PhantomData }
    }
}

impl<'e, A: Ownership, R: Outcome> AccessRequest<'e, A, R> {
    /// Sets 8 bytes that the peer's completion queue reports after the data has arrived. Not available for reads.
    pub fn data(mut self, data: u64) -> Self {
        self.data = Some(data);
        self
    }

    /// Makes the operation start only after all earlier operations to this peer have completed.
    pub fn fenced(mut self) -> Self {
        self.flags |= OpFlags::FENCE;
        self
    }

    super::request::begins_later!();

    /// Posts the operation.
    ///
    /// # Errors
    /// If the operation cannot be posted.
    pub fn start(self) -> Result<Accessing<'e, A, R>, OperationError> {
        let Self { endpoint, peer, remote, mut buffer, what, data, flags, when, .. } = self;
        let segment = match what {
            AccessDetails::Write => Some(buffer.segment_for_send()),
            AccessDetails::Read | AccessDetails::Atomic(..) => buffer.segment_for_receive(),
        };
        let Some(segment) = segment else {
            return Err(OperationError { cause: PostError::ReadOnly.into(), buffer: Some(buffer) });
        };
        let rma = |context| {
            let (local, remote) = (Segments::one(segment), RemotePieces::one(remote));
            RmaWork { peer, local, remote, data, context, flags }
        };
        let operation = |context| match what {
            AccessDetails::Read => Operation::Read(rma(context)),
            AccessDetails::Write => Operation::Write(rma(context)),
            AccessDetails::Atomic(kind, op, datatype) => {
                let part = |offset| Segments::one(segment.slice(offset, datatype.size()));
                let compare = (kind == Kind::Compare).then(|| part(COMPARE));
                let (operand, result) = (part(OPERAND), Some(part(RESULT)));
                Operation::Atomic(AtomicWork {
                    peer,
                    op,
                    datatype,
                    operand,
                    compare,
                    result,
                    remote,
                    data,
                    context,
                    flags,
                })
            }
        };
        let id = match when {
            Some(when) => when.start(endpoint, buffer, |context, _| operation(context))?,
            None => endpoint.access.with(|engine| {
                let id = engine.core.operations.start(buffer);
                posted(engine, id, |engine| engine.post_operation(&operation(id.to_u64()), Notify::Operation))
            })?,
        };
        Ok(Accessing { under_way: UnderWay::new(endpoint, id), outcome: PhantomData })
    }

    /// Posts the operation and waits for it.
    ///
    /// # Errors
    /// If the operation cannot be posted, or fails.
    pub fn wait(self) -> Result<R, OperationError> {
        self.start()?.wait()
    }
}

impl<A: Ownership, R: Outcome> Accessing<'_, A, R> {
    /// Waits until the operation has completed.
    ///
    /// # Errors
    /// If the operation fails.
    pub fn wait(mut self) -> Result<R, OperationError> {
        self.under_way.wait(None).map(|(_, buffer)| R::of(buffer))
    }

    /// Returns whether the operation has ended. Makes progress, but does not wait.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.under_way.is_ready()
    }

    /// Like [`wait`](Self::wait), but for at most `timeout`. After that the operation continues without its handle.
    ///
    /// # Errors
    /// If the operation fails, or the timeout expires.
    pub fn wait_for(mut self, timeout: Duration) -> Result<R, OperationError> {
        self.under_way.wait(Some(timeout)).map(|(_, buffer)| R::of(buffer))
    }
}

impl<A: Ownership, R: Outcome + Unpin> Future for Accessing<'_, A, R> {
    type Output = Result<R, OperationError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.under_way.poll(context).map_ok(|(_, buffer)| R::of(buffer))
    }
}

impl<'e, A: Ownership, R: Outcome + Unpin> IntoFuture for AccessRequest<'e, A, R> {
    type Output = Result<R, OperationError>;
    type IntoFuture = Started<Accessing<'e, A, R>>;

    fn into_future(self) -> Self::IntoFuture {
        Started::new(self.start())
    }
}
