//! Operations on local memory that belongs to a device, in part or in whole.
//!
//! The operation itself runs on pinned memory of the host. The data that it reads is copied there when it begins. The
//! data that it received is copied to the device when it has ended, and then its end is reported. In between, the
//! operation is kept like one that a counter began ([`Triggered`](super::triggered::Triggered)), so the paths of other
//! operations need not handle it. The location of the memory was determined when the operation was posted
//! ([`OpFlags::DEVICE`]).

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use std::sync::Arc;

use super::Engine;
use super::triggered::Triggered;
use super::types::{Notify, OperationIdentity, Side};
use crate::completion::entry::{Entry, ErrorCode, ErrorEntry};
use crate::device::{Arriving, CopyWay, Device, DeviceError, LONG, Pieces, Pinned};
use crate::endpoint::operation::RawOperation;
use crate::endpoint::posted::{Constant, Posted};
use crate::endpoint::work::{INJECT_LIMIT, OpFlags, PostError};
use crate::local_memory::atomic::AtomicOp;
use crate::local_memory::volatile::Segments;

/// The location of an operation's memory.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct OperationLocation {
    /// The memory that the operation reads: the payload, or the operands.
    source: Option<Pieces>,
    /// The memory of the values that are compared.
    compare: Option<Pieces>,
    /// The memory that the operation writes.
    result: Option<Pieces>,
}

/// The host memory on which such an operation runs.
#[derive(Debug, Default)]
pub(crate) struct Staged {
    /// The memory that the operation reads.
    _source: Option<Pinned>,
    /// The memory that a send of a long message reads. The message is sent while it is still being copied here.
    arriving: Option<Arc<Arriving>>,
    _compare: Option<Pinned>,
    /// The memory that the operation writes, and the place to which its content is copied afterwards.
    result: Option<(Pinned, Segments, Pieces)>,
}

/// The memory of an operation: the part that it reads, the values to compare, and the part that it writes.
type Memory<'a> = [Option<&'a mut Segments>; 3];

fn memory(operation: &mut RawOperation) -> Memory<'_> {
    match operation {
        RawOperation::Send(work) => [Some(&mut work.segments), None, None],
        RawOperation::Receive(work) if work.flags.contains(OpFlags::PEEK) => [None, None, None],
        RawOperation::Receive(work) => [None, None, Some(&mut work.segments)],
        RawOperation::Write(work) => [Some(&mut work.local), None, None],
        RawOperation::Read(work) => [None, None, Some(&mut work.local)],
        RawOperation::Atomic(work) => {
            let operand = (work.op != AtomicOp::Read).then_some(&mut work.operand);
            [operand, work.compare.as_mut(), work.result.as_mut()]
        }
        // Its memory is located separately, because it is not a list of segments.
        RawOperation::Collective(_) => [None, None, None],
    }
}

const fn flags(operation: &mut RawOperation) -> &mut OpFlags {
    match operation {
        RawOperation::Send(work) => &mut work.flags,
        RawOperation::Receive(work) => &mut work.flags,
        RawOperation::Read(work) | RawOperation::Write(work) => &mut work.flags,
        RawOperation::Atomic(work) => &mut work.flags,
        RawOperation::Collective(work) => &mut work.flags,
    }
}

impl RawOperation {
    /// Returns the devices that have some of the operation's memory, if its flags request that ([`OpFlags::DEVICE`]).
    ///
    /// # Errors
    /// If a driver reports an error.
    pub fn devices(&self) -> Result<Vec<Device>, DeviceError> {
        let mut operation = *self;
        let mut all = Vec::new();
        if flags(&mut operation).contains(OpFlags::DEVICE) {
            for memory in memory(&mut operation).into_iter().flatten() {
                all.extend(Pieces::find(memory)?.iter().flat_map(Pieces::devices));
            }
        }
        Ok(all)
    }
}

impl OperationLocation {
    /// Determines the location of an operation's memory if the flag DEVICE requests that, and removes the flag. Returns
    /// `None` if all of the memory is host memory.
    pub(crate) fn find(operation: &mut RawOperation) -> Result<Option<Box<Self>>, PostError> {
        let flags = flags(operation);
        if !flags.contains(OpFlags::DEVICE) {
            return Ok(None);
        }
        flags.remove(OpFlags::DEVICE);
        let flags = *flags;
        if let RawOperation::Collective(work) = operation {
            for segment in [work.source, work.result] {
                if Pieces::find(&Segments::one(segment)).map_err(refused)?.is_some() {
                    return Err(PostError::Device("collectives on a device's memory are not supported", libc::ENOSYS));
                }
            }
            return Ok(None);
        }
        let find = |memory: Option<&mut Segments>| match memory {
            Some(memory) => Pieces::find(memory).map_err(refused),
            None => Ok(None),
        };
        let [source, compare, result] = memory(operation);
        let located = Self { source: find(source)?, compare: find(compare)?, result: find(result)? };
        if located.source.or(located.compare).or(located.result).is_none() {
            return Ok(None);
        }
        if flags.contains(OpFlags::MULTI_RECEIVE) {
            return Err(PostError::Device("multi-receive buffers cannot be device memory", libc::EOPNOTSUPP));
        }
        Ok(Some(Box::new(located)))
    }

    /// Replaces the operation's device memory with pinned host memory, and copies the data that it reads there.
    pub(super) fn stage(&self, operation: &mut RawOperation) -> Result<Staged, DeviceError> {
        let mut staged = Staged::default();
        if let (RawOperation::Send(work), Some(pieces)) = (&mut *operation, &self.source)
            && work.segments.len() > LONG
            && let Some(arriving) = Arriving::start(pieces, &work.segments)?
        {
            work.segments = Segments::one(arriving.segment());
            staged.arriving = Some(Arc::new(arriving));
            return Ok(staged);
        }
        let [source, compare, result] = memory(operation);
        let load = |pieces: Option<Pieces>, memory: Option<&mut Segments>| {
            let (Some(pieces), Some(memory)) = (pieces, memory) else { return Ok(None) };
            let copy = pieces.load(memory, 0)?;
            if let Some(copy) = &copy {
                *memory = Segments::one(copy.segment());
            }
            Ok::<_, DeviceError>(copy)
        };
        staged._source = load(self.source, source)?;
        staged._compare = load(self.compare, compare)?;
        if let (Some(pieces), Some(memory)) = (self.result, result)
            && let Some(room) = pieces.room(memory)?
        {
            let to = std::mem::replace(memory, Segments::one(room.segment()));
            staged.result = Some((room, to, pieces));
        }
        Ok(staged)
    }
}

impl Staged {
    /// Returns the memory to which the payload of a long message is being copied.
    pub(super) const fn arriving(&self) -> Option<&Arc<Arriving>> {
        self.arriving.as_ref()
    }

    /// Copies the data that the operation received to its destination. Returns the result of the operation, or an error
    /// if the copy failed.
    pub(super) fn land(&self, side: Side, result: Result<Entry, ErrorEntry>) -> Result<Entry, ErrorEntry> {
        if let Some(arriving) = &self.arriving {
            arriving.end();
        }
        let Some((room, to, pieces)) = &self.result else { return result };
        let (entry, failed) = match &result {
            Ok(entry) => (*entry, false),
            Err(error) => (error.entry, true),
        };
        // For a message, this covers the bytes that arrived, even if the message was longer. For an access, it covers
        // all bytes or none.
        let len = match side {
            Side::Receive => usize::try_from(entry.len).unwrap_or(usize::MAX),
            Side::Transmit if failed => 0,
            Side::Transmit => usize::MAX,
        };
        match pieces.copy(to, room.segment().slice(0, len), CopyWay::ToDevice) {
            Err(why) if !failed => {
                Err(ErrorEntry::new(entry, ErrorCode::Fault).with_text(format!("not copied to the device: {why}")))
            }
            _ => result,
        }
    }
}

/// Returns the error of an operation that is not posted.
pub(super) fn refused(error: DeviceError) -> PostError {
    crate::later::later!(warn: %error, "an operation on a device's memory was not posted");
    PostError::Device("the device driver returned an error; see the log", error.errno())
}

impl Engine {
    /// Posts an operation on memory that may belong to a device, in part or in whole. Room for its result was reserved,
    /// except for a collective operation.
    #[cold]
    pub(crate) fn post_located(&mut self, mut operation: RawOperation, notify: Notify) -> Result<(), PostError> {
        let Some(located) = OperationLocation::find(&mut operation)? else {
            return self.post_operation(&operation, notify);
        };
        if !self.process.is_here() {
            return Err(self.refusal());
        }
        self.watch_begun();
        let injected = flags(&mut operation).contains(OpFlags::INJECT);
        if injected
            && let Some(long) = operation.constant().into_iter().flatten().find(|list| list.len() > INJECT_LIMIT)
        {
            return Err(PostError::InjectTooLong(long.len()));
        }
        let claimed = flags(&mut operation).contains(OpFlags::CLAIM);
        let staged = located.stage(&mut operation).map_err(refused)?;
        // If the operation is injected, the data that it reads from host memory is copied too.
        let posted = match injected {
            true => Posted::injected(operation).map_err(PostError::InjectTooLong)?.map(RawOperation::not_injected),
            false => Posted::lent(operation),
        };
        let mut operation = *posted.work();
        let own = OperationIdentity::of(notify, operation.context());
        let id = self.core.triggered.add_begun(Triggered::staged(notify, posted, staged));
        operation.set_context(id.to_u64());
        let inner = OperationIdentity::of(Notify::Triggered, id.to_u64());
        if claimed {
            self.core.messages.rename_claim(own, inner);
        }
        let result = self.post_operation(&operation, Notify::Triggered);
        if result.is_err() {
            if claimed {
                self.core.messages.rename_claim(inner, own);
            }
            self.core.triggered.take_begun(id);
        }
        result
    }
}
