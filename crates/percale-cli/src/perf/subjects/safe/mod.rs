//! The same subjects by the safe API, whose operations own their buffers.
//!
//! An operation borrows the endpoint, so each round has a side of its own that borrows from the subject
//! ([`Lender`](crate::subject::Lender)). When an operation has ended, its buffer is used again.

use std::time::{Duration, Instant};

use percale::endpoint::safe::{Cause, Operation, OperationError, Outcome};
use percale::endpoint::{EndpointHandle, Owned};
use percale::{Buffer, Domain, Endpoint, PostError, TypedMemory as _};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::channel::watch::{Spin, Watch};
use crate::failure::{Failure, Result, percale};
use crate::pattern::Content;
use crate::row::MessageMemory;

pub(super) mod messages;
pub(super) mod one_sided;

/// An operation on an endpoint that one thread owns.
type OnEndpoint<'a, R> = Operation<&'a Owned, R>;

/// The time after which a wait checks the other process.
const LOOK: Duration = Duration::from_millis(10);

/// One page of memory of the program.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable)]
#[repr(C, align(4096))]
struct Page([u8; 4096]);

/// Allocates a buffer of `len` zeros. As with the raw API, whole pages are aligned to pages, because without
/// that a message of 4 KiB takes about 10 % longer.
fn buffer(domain: &Domain, memory: MessageMemory, len: usize) -> Result<Buffer> {
    match memory {
        MessageMemory::Ordinary | MessageMemory::Bounced if len.is_multiple_of(size_of::<Page>()) => {
            Ok(vec![Page([0; 4096]); len / size_of::<Page>()].into_buffer())
        }
        MessageMemory::Ordinary | MessageMemory::Bounced => Ok(Buffer::zeroed(len)),
        MessageMemory::Percale => Ok(domain.allocate(len).map_err(percale("allocating memory"))?.into()),
    }
}

/// Writes `content` to the first `len` bytes of the buffer.
#[inline]
fn fill(buffer: &mut Buffer, content: Content, len: usize) {
    content.write_to(len, |at, bytes| {
        let _copied: usize = buffer.copy_from(at, bytes);
    });
}

/// Waits for operations with a deadline, and then checks the other process. So every wait ends.
struct Waits {
    deadline: Instant,
}

impl Waits {
    fn new() -> Self {
        Self { deadline: Instant::now() + LOOK }
    }

    /// Waits for the end of the operation, and returns its result.
    #[inline]
    fn result<H: EndpointHandle, R: Outcome>(
        &mut self,
        operation: &mut Operation<H, R>,
        watch: &mut Watch,
    ) -> Result<R> {
        match operation.wait_until(Some(self.deadline)) {
            Ok(result) => Ok(result),
            Err(error) => self.later(operation, error, watch),
        }
    }

    /// Continues to wait after a timeout. Usually the deadline had passed already when the wait began.
    #[cold]
    fn later<H: EndpointHandle, R: Outcome>(
        &mut self,
        operation: &mut Operation<H, R>,
        mut error: OperationError,
        watch: &mut Watch,
    ) -> Result<R> {
        let mut spin = Spin::default();
        loop {
            if !matches!(error.cause(), Cause::TimedOut) {
                // If the other process has failed or ended, that is the reason.
                watch.control.check()?;
                return Err(percale("carrying messages")(error));
            }
            spin.check_time(watch)?;
            self.deadline = Instant::now() + LOOK;
            match operation.wait_until(Some(self.deadline)) {
                Ok(result) => return Ok(result),
                Err(again) => error = again,
            }
        }
    }
}

/// Makes progress if an operation could not be posted because there was no room. Returns its buffer, for the next
/// attempt.
#[cold]
fn make_room(
    what: &'static str,
    error: OperationError,
    endpoint: &Endpoint,
    spin: &mut Spin,
    watch: &mut Watch,
) -> Result<Option<Buffer>> {
    if !matches!(error.cause(), Cause::Post(PostError::Again)) {
        watch.control.check()?;
        return Err(percale(what)(error));
    }
    let _happened: bool = endpoint.progress();
    spin.polled(watch)?;
    Ok(error.into_buffer())
}

/// Posts an operation that owns a buffer. Repeats that until there is room.
#[inline]
fn post<'a, R: Outcome>(
    what: &'static str,
    endpoint: &'a Endpoint,
    mut buffer: Buffer,
    watch: &mut Watch,
    start: impl Fn(Buffer) -> Result<OnEndpoint<'a, R>, OperationError>,
) -> Result<OnEndpoint<'a, R>> {
    let mut spin = Spin::default();
    loop {
        match start(buffer) {
            Ok(operation) => return Ok(operation),
            Err(error) => buffer = make_room(what, error, endpoint, &mut spin, watch)?.ok_or_else(lost)?,
        }
    }
}

/// Returns the error for a buffer that a failed round has lost.
#[cold]
fn lost() -> Failure {
    Failure::Protocol("an earlier round has lost a buffer".into())
}
