//! Operations whose local memory is a device's, in part or in whole.
//!
//! The operation itself runs on pinned memory of the host. What it reads is copied there when it begins; what it brought is copied to the device
//! when it has ended, and then its end is told. In between it is one that has begun ([`Triggered`](super::triggered::Triggered)), so that nothing
//! on the way of other operations knows of it. Where the memory is was asked when it was posted ([`OpFlags::DEVICE`]).

use std::sync::Arc;

use super::Engine;
use super::core::Core;
use super::triggered::Triggered;
use super::types::{Identity, Notify, Side};
use crate::completion::entry::{Entry, ErrorCode, ErrorEntry};
use crate::device::{Arriving, CopyWay, Device, DeviceError, LONG, Pieces, Pinned};
use crate::endpoint::posted::{Constant, Posted};
use crate::endpoint::work::{INJECT_LIMIT, OpFlags, PostError};
use crate::memory::atomic::AtomicOp;
use crate::memory::volatile::Segments;
use crate::trigger::Operation;

/// Where an operation's memory is.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Located {
    /// What it reads: the payload, the operands.
    source: Option<Pieces>,
    /// What is compared.
    compare: Option<Pieces>,
    /// What it writes.
    result: Option<Pieces>,
}

/// The memory that such an operation runs on.
#[derive(Debug, Default)]
pub(crate) struct Staged {
    /// What it reads.
    _source: Option<Pinned>,
    /// The same, of a long message, which leaves as it gets here.
    arriving: Option<Arc<Arriving>>,
    _compare: Option<Pinned>,
    /// What it writes, and where that goes.
    result: Option<(Pinned, Segments, Pieces)>,
}

/// An operation's memory: what it reads, what it compares, what it writes.
type Memory<'a> = [Option<&'a mut Segments>; 3];

fn memory(operation: &mut Operation) -> Memory<'_> {
    match operation {
        Operation::Send(work) => [Some(&mut work.segments), None, None],
        Operation::Receive(work) if work.flags.contains(OpFlags::PEEK) => [None, None, None],
        Operation::Receive(work) => [None, None, Some(&mut work.segments)],
        Operation::Write(work) => [Some(&mut work.local), None, None],
        Operation::Read(work) => [None, None, Some(&mut work.local)],
        Operation::Atomic(work) => {
            let operand = (work.op != AtomicOp::Read).then_some(&mut work.operand);
            [operand, work.compare.as_mut(), work.result.as_mut()]
        }
        // Asked apart: it is no list of segments.
        Operation::Collective(_) => [None, None, None],
    }
}

const fn flags(operation: &mut Operation) -> &mut OpFlags {
    match operation {
        Operation::Send(work) => &mut work.flags,
        Operation::Receive(work) => &mut work.flags,
        Operation::Read(work) | Operation::Write(work) => &mut work.flags,
        Operation::Atomic(work) => &mut work.flags,
        Operation::Collective(work) => &mut work.flags,
    }
}

impl Operation {
    /// The devices that have some of its memory, if its flags ask for that ([`OpFlags::DEVICE`]).
    ///
    /// # Errors
    /// What their drivers say.
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

impl Located {
    /// Finds out where an operation's memory is, if its flags ask for that, and takes the question out of them. `None`: all is the host's.
    pub(crate) fn find(operation: &mut Operation) -> Result<Option<Box<Self>>, PostError> {
        let flags = flags(operation);
        if !flags.contains(OpFlags::DEVICE) {
            return Ok(None);
        }
        flags.remove(OpFlags::DEVICE);
        let flags = *flags;
        if let Operation::Collective(work) = operation {
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
            return Err(PostError::Device("a buffer for many messages cannot be a device's", libc::EOPNOTSUPP));
        }
        Ok(Some(Box::new(located)))
    }

    /// Puts pinned memory in the place of the operation's, and copies there what it reads.
    pub(super) fn stage(&self, operation: &mut Operation) -> Result<Staged, DeviceError> {
        let mut staged = Staged::default();
        if let (Operation::Send(work), Some(pieces)) = (&mut *operation, &self.source)
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
    /// What the payload of a long message is on its way to.
    pub(super) const fn arriving(&self) -> Option<&Arc<Arriving>> {
        self.arriving.as_ref()
    }

    /// Copies what the operation brought to where it goes; its result, or that it did not get there.
    pub(super) fn land(&self, side: Side, result: Result<Entry, ErrorEntry>) -> Result<Entry, ErrorEntry> {
        if let Some(arriving) = &self.arriving {
            arriving.end();
        }
        let Some((room, to, pieces)) = &self.result else { return result };
        let (entry, failed) = match &result {
            Ok(entry) => (*entry, false),
            Err(error) => (error.entry, true),
        };
        // Of a message, what came, also if there was more; of an access, all or nothing.
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

/// Why an operation is not posted.
pub(super) fn refused(error: DeviceError) -> PostError {
    crate::later::later!(warn: %error, "an operation on a device's memory was not posted");
    PostError::Device("the device's driver refused; the log says why", error.errno())
}

impl Engine {
    /// Posts an operation some of whose memory may be a device's, for whose result room was reserved.
    #[cold]
    pub(crate) fn post_located(&mut self, mut operation: Operation, notify: Notify) -> Result<(), PostError> {
        let Some(located) = Located::find(&mut operation)? else { return self.post_operation(&operation, notify) };
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
        // What it reads of the host's memory is copied too.
        let posted = match injected {
            true => Posted::injected(operation).map_err(PostError::InjectTooLong)?.map(Operation::not_injected),
            false => Posted::lent(operation),
        };
        let mut operation = *posted.work();
        let own = Identity::of(notify, operation.context());
        let id = self.core.triggered.insert(Triggered::staged(notify, posted, staged));
        operation.set_context(id.to_u64());
        let inner = Identity::of(Notify::Triggered, id.to_u64());
        if claimed {
            self.core.rename_claim(own, inner);
        }
        let result = self.post_operation(&operation, Notify::Triggered);
        if result.is_err() {
            if claimed {
                self.core.rename_claim(inner, own);
            }
            self.core.triggered.remove(id);
        }
        result
    }
}

impl Core {
    /// A message that one operation claimed is another's.
    fn rename_claim(&mut self, from: Identity, to: Identity) {
        if let Some(claim) = self.claims.remove(&from) {
            self.claims.insert(to, claim);
        }
    }
}
