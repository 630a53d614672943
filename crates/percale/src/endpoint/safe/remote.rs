//! One-sided operations that own their buffers.
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let domain = percale::Info::discover()?.best()?.open()?;
//! # let vector = domain.address_vector().build()?;
//! # let endpoint = domain.endpoint().vector(&vector).bind("127.0.0.1:0")?;
//! # let peer = vector.insert("127.0.0.1:7471")?;
//! # let remote = percale::RemoteMemory::default(); // as the peer sent it
//! let bytes = endpoint.read(peer, remote.at(0..4096), vec![0; 4096]).wait()?;
//! endpoint.write(peer, bytes, remote.at(4096..8192)).wait()?;
//! let before: u64 = endpoint.fetch_add(peer, remote.at(8192..8200), 1).wait()?;
//! # drop(before); Ok(()) }
//! ```

use std::future::IntoFuture;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;

use super::OperationError;
use super::future::Started;
use super::operation::Operation;
use super::outcome::{Outcome, sealed};
use super::request::posted;
use super::when::StartCondition;
use crate::completion::counter::Counter;
use crate::completion::entry::Entry;
use crate::conditions::variable::Variable;
use crate::endpoint::Endpoint;
use crate::endpoint::engine::Engine;
use crate::endpoint::engine::types::Notify;
use crate::endpoint::operation::RawOperation as Work;
use crate::endpoint::ownership::Ownership;
use crate::endpoint::ownership::reach::EngineCall;
use crate::endpoint::remote_work::{AtomicWork, RemotePieces, RmaOne, RmaWork, WordOne};
use crate::endpoint::work::{OpFlags, PostError};
use crate::local_memory::atomic::{AtomicKind, AtomicOp, Datatype};
use crate::local_memory::buffer::{Buffer, BufferExt as _, borrowed};
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
            #[inline(always)]
            fn to_bytes(self) -> [u8; 8] {
                let mut bytes = [0; 8];
                bytes[..size_of::<Self>()].copy_from_slice(&self.to_ne_bytes());
                bytes
            }

            #[inline(always)]
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

impl<T: Element> sealed::Sealed for T {}

/// The result is the previous value of the number.
impl<T: Element> Outcome for T {
    type Known = ();
    type AtOnce = Self;

    #[inline(always)]
    fn of_at_once(number: Self) -> Self {
        number
    }

    fn of(_: &Entry, buffer: Buffer, (): &mut ()) -> Option<Self> {
        let mut bytes = [0; 8];
        buffer.copy_to(RESULT, &mut bytes);
        spare_words::keep(buffer);
        Some(Self::from_bytes(bytes))
    }

    #[inline(always)]
    fn at_once(_: Buffer, word: [u8; 8]) -> Option<Self> {
        Some(Self::from_bytes(word))
    }
}

/// Offsets of the operand, the compare value and the result of an atomic operation that is under way, in its buffer.
const OPERAND: usize = 0;
const COMPARE: usize = 8;
const RESULT: usize = 16;
/// The length of that buffer.
const WORDS: usize = 24;

/// The memory of atomic operations that have ended. Each thread keeps a little, so that its next ones need no
/// allocation.
mod spare_words {
    use super::{Buffer, WORDS};
    use std::cell::RefCell;

    /// The maximum number of buffers that a thread keeps.
    const LIMIT: usize = 64;

    thread_local! {
        static SPARE: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
    }

    /// Returns memory with this content.
    pub(super) fn take(words: &[u8; WORDS]) -> Vec<u8> {
        // A thread that ends may have dropped its list already.
        match SPARE.try_with(|spare| spare.borrow_mut().pop()) {
            Ok(Some(mut bytes)) => {
                bytes.copy_from_slice(words);
                bytes
            }
            _ => words.to_vec(),
        }
    }

    /// Keeps the memory of an operation that has ended.
    pub(super) fn keep(buffer: Buffer) {
        let bytes = buffer.into_vec();
        let _kept: Result<(), _> = SPARE.try_with(|spare| {
            let mut spare = spare.borrow_mut();
            if spare.len() < LIMIT && bytes.len() == WORDS {
                spare.push(bytes);
            }
        });
    }
}

/// Makes a read or a write if it can be made at once. Returns false if it cannot.
struct AccessAtOnce(RmaOne);

impl EngineCall for AccessAtOnce {
    type Result = bool;
    const LOOKS_FOR_EVENTS: bool = false;

    #[inline(always)]
    fn call(self, engine: &mut Engine) -> bool {
        matches!(engine.access_in_place(&self.0), Some(Ok(())))
    }
}

/// Makes an atomic operation on a word if it can be made at once. Returns false, and does nothing, if it cannot.
struct WordAtOnce(WordOne);

impl EngineCall for WordAtOnce {
    type Result = bool;
    const LOOKS_FOR_EVENTS: bool = false;

    #[inline(always)]
    fn call(self, engine: &mut Engine) -> bool {
        matches!(engine.word_in_place(&self.0), Some(Ok(())))
    }
}

#[derive(Clone, Copy, Debug)]
enum AccessDetails {
    Read,
    Write,
    Atomic(Atomic),
}

/// An atomic operation on one number.
#[derive(Clone, Copy, Debug)]
struct Atomic {
    kind: AtomicKind,
    op: AtomicOp,
    datatype: Datatype,
    operand: [u8; 8],
    compare: [u8; 8],
}

impl Atomic {
    /// Returns whether the fast path may be able to make the operation.
    #[inline(always)]
    const fn is_plain(&self) -> bool {
        matches!(self.datatype, Datatype::U64 | Datatype::I64)
            && matches!(
                (self.kind, self.op),
                (AtomicKind::Fetch, AtomicOp::Sum) | (AtomicKind::Compare, AtomicOp::Cswap)
            )
    }

    /// Returns the memory of the operation while it is under way.
    fn to_buffer(self) -> Buffer {
        let mut words = [0; WORDS];
        words[OPERAND..COMPARE].copy_from_slice(&self.operand);
        words[COMPARE..RESULT].copy_from_slice(&self.compare);
        spare_words::take(&words).into()
    }
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
    when: Option<Box<StartCondition>>,
    outcome: PhantomData<R>,
}

crate::short_debug!(for [A: Ownership, R] AccessRequest<'_, A, R>, "AccessRequest");

impl<A: Ownership> Endpoint<A> {
    /// Creates a read of a peer's memory into the buffer, which has the same length. The result is the buffer.
    #[inline(always)]
    pub fn read(&self, peer: PeerAddress, from: RemoteMemory, into: impl Into<Buffer>) -> AccessRequest<'_, A, Buffer> {
        self.access_request(peer, from, into.into(), AccessDetails::Read)
    }

    /// Creates a write of the buffer to a peer's memory, which has the same length. It completes when the bytes have
    /// arrived. The result is the buffer.
    #[inline(always)]
    pub fn write(
        &self,
        peer: PeerAddress,
        buffer: impl Into<Buffer>,
        to: RemoteMemory,
    ) -> AccessRequest<'_, A, Buffer> {
        self.access_request(peer, to, buffer.into(), AccessDetails::Write)
    }

    #[inline(always)]
    /// Creates an operation that adds to a number in a peer's memory. Its result is the previous value. Integers wrap
    /// on overflow.
    pub fn fetch_add<T: Element>(&self, peer: PeerAddress, word: RemoteMemory, value: T) -> AccessRequest<'_, A, T> {
        self.fetch_atomic(peer, AtomicOp::Sum, word, value)
    }

    /// Creates an operation that writes `new` to a number in a peer's memory if the number equals `expected`. Its
    /// result is the previous value.
    #[inline(always)]
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
    #[inline(always)]
    pub fn fetch_atomic<T: Element>(
        &self,
        peer: PeerAddress,
        op: AtomicOp,
        word: RemoteMemory,
        operand: T,
    ) -> AccessRequest<'_, A, T> {
        self.atomic_request(peer, word, AtomicKind::Fetch, op, operand, operand)
    }

    /// Creates an atomic operation that compares: a masked swap or one of the conditional swaps. Its result is the
    /// previous value.
    #[inline(always)]
    pub fn compare_atomic<T: Element>(
        &self,
        peer: PeerAddress,
        op: AtomicOp,
        word: RemoteMemory,
        compare: T,
        operand: T,
    ) -> AccessRequest<'_, A, T> {
        self.atomic_request(peer, word, AtomicKind::Compare, op, operand, compare)
    }

    #[inline(always)]
    fn atomic_request<T: Element>(
        &self,
        peer: PeerAddress,
        word: RemoteMemory,
        kind: AtomicKind,
        op: AtomicOp,
        operand: T,
        compare: T,
    ) -> AccessRequest<'_, A, T> {
        let (operand, compare) = (operand.to_bytes(), compare.to_bytes());
        let atomic = Atomic { kind, op, datatype: T::DATATYPE, operand, compare };
        self.access_request(peer, word, Buffer::from(Vec::new()), AccessDetails::Atomic(atomic))
    }

    #[inline(always)]
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

impl<'e, A: Ownership, R: Outcome<Known = ()>> AccessRequest<'e, A, R> {
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
    #[inline(always)]
    pub fn start(self) -> Result<Operation<A::Handle<'e>, R>, OperationError> {
        let Self { endpoint, peer, remote, buffer, what, data, flags, when, outcome } = self;
        // As in `SendRequest::start`.
        let (mut buffer, when) = (ManuallyDrop::new(buffer), ManuallyDrop::new(when));
        let mut previous = [0; 8];
        let is_made = when.is_none()
            && data.is_none()
            && match what {
                AccessDetails::Read => match buffer.segment_for_receive() {
                    Some(local) => {
                        let one = RmaOne { write: false, peer, local, remote, context: 0, flags };
                        endpoint.access.run(AccessAtOnce(one))
                    }
                    None => false,
                },
                AccessDetails::Write => {
                    let local = buffer.segment_for_send();
                    let one = RmaOne { write: true, peer, local, remote, context: 0, flags };
                    endpoint.access.run(AccessAtOnce(one))
                }
                AccessDetails::Atomic(mut atomic) => {
                    atomic.is_plain() && {
                        let [operand, compare, result] =
                            [&mut atomic.operand, &mut atomic.compare, &mut previous].map(|word| borrowed(word));
                        let compare = (atomic.kind == AtomicKind::Compare).then_some(compare);
                        let one = WordOne { peer, operand, compare, result, remote, context: 0, flags };
                        endpoint.access.run(WordAtOnce(one))
                    }
                }
            };
        let (buffer, when) = (ManuallyDrop::into_inner(buffer), ManuallyDrop::into_inner(when));
        if is_made {
            // Every result of an access can be made at once.
            let result = R::at_once(buffer, previous).ok_or_else(OperationError::taken)?;
            return Ok(Operation::ended(endpoint.access.process(), result));
        }
        Self { endpoint, peer, remote, buffer, what, data, flags, when, outcome }.start_other()
    }

    /// Posts an access that cannot be made at once.
    #[inline(never)]
    fn start_other(self) -> Result<Operation<A::Handle<'e>, R>, OperationError> {
        let Self { endpoint, peer, remote, mut buffer, what, data, flags, when, .. } = self;
        let segment = match what {
            AccessDetails::Write => Some(buffer.segment_for_send()),
            AccessDetails::Read => buffer.segment_for_receive(),
            AccessDetails::Atomic(atomic) => {
                buffer = atomic.to_buffer();
                buffer.segment_for_receive()
            }
        };
        let Some(segment) = segment else {
            return Err(OperationError::new(PostError::ReadOnly, Some(buffer)));
        };
        let rma = |context| {
            let (local, remote) = (Segments::one(segment), RemotePieces::one(remote));
            RmaWork { peer, local, remote, data, context, flags }
        };
        let operation = |context| match what {
            AccessDetails::Read => Work::Read(rma(context)),
            AccessDetails::Write => Work::Write(rma(context)),
            AccessDetails::Atomic(Atomic { kind, op, datatype, .. }) => {
                let part = |offset| Segments::one(segment.slice(offset, datatype.size()));
                let compare = (kind == AtomicKind::Compare).then(|| part(COMPARE));
                let (operand, result) = (part(OPERAND), Some(part(RESULT)));
                Work::Atomic(AtomicWork { peer, op, datatype, operand, compare, result, remote, data, context, flags })
            }
        };
        let id = match when {
            Some(when) => when.start(&endpoint.access, buffer, |context, _| operation(context))?,
            None => endpoint.access.with(|engine| {
                let id = engine.core.operations.start(buffer);
                posted(engine, id, |engine| engine.post_operation(&operation(id.to_u64()), Notify::Operation))
            })?,
        };
        Ok(Operation::in_progress(endpoint.access.handle(), id, ()))
    }

    /// Posts the operation and waits for it.
    ///
    /// # Errors
    /// If the operation cannot be posted, or fails.
    #[inline(always)]
    pub fn wait(self) -> Result<R, OperationError> {
        self.start()?.wait()
    }
}

impl<'e, A: Ownership, R: Outcome<Known = ()>> IntoFuture for AccessRequest<'e, A, R> {
    type Output = Result<R, OperationError>;
    type IntoFuture = Started<Operation<A::Handle<'e>, R>>;

    fn into_future(self) -> Self::IntoFuture {
        Started::new(self.start())
    }
}
