//! Collective operations that own their buffers.
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # use percale::{AddressSet, AtomicOp, Datatype};
//! # let domain = percale::Info::discover()?.best()?.open()?;
//! # let vector = domain.address_vector().build()?;
//! # let endpoint = domain.endpoint().vector(&vector).bind("127.0.0.1:0")?;
//! # let (me, peer) = (vector.insert(endpoint.address())?, vector.insert("127.0.0.1:7471")?);
//! let members: AddressSet = [me, peer].into_iter().collect();           // in the same order everywhere
//! let group = endpoint.join(&members)?.wait()?;
//! group.barrier().wait()?;
//! let sum = group.allreduce(AtomicOp::Sum, Datatype::U64, 7_u64.to_ne_bytes().to_vec()).wait()?;
//! assert_eq!(sum.into_vec(), 14_u64.to_ne_bytes());
//! # Ok(()) }
//! ```

use std::future::IntoFuture;

use super::OperationError;
use super::future::Started;
use super::operation::Operation;
use super::outcome::{Outcome, sealed};
use super::request::posted;
use super::when::StartCondition;
use crate::collective::{AddressSet, Collective, CollectiveWork, GroupId};
use crate::completion::counter::Counter;
use crate::completion::entry::Entry;
use crate::endpoint::Endpoint;
use crate::endpoint::engine::types::Notify;
use crate::endpoint::operation::RawOperation as Work;
use crate::endpoint::ownership::reach::EngineAccess as _;
use crate::endpoint::ownership::{EndpointHandle, Ownership};
use crate::endpoint::work::{OpFlags, PostError};
use crate::local_memory::atomic::{AtomicOp, Datatype};
use crate::local_memory::buffer::{Buffer, BufferExt as _};

/// The operation and type of collectives that do not combine elements.
const BYTES: (AtomicOp, Datatype) = (AtomicOp::Sum, Datatype::U8);

/// A group of endpoints that perform collective operations. Dropping it leaves the group when the posted operations
/// have ended.
pub struct Group<H: EndpointHandle> {
    access: H,
    id: GroupId,
    rank: usize,
    size: usize,
}

crate::short_debug!(for [H: EndpointHandle] Group<H>, "Group", rank: |this| this.rank, size: |this| this.size);

/// A collective operation that is not posted yet.
#[must_use = "nothing is done before start, wait or await"]
pub struct CollectiveRequest<H: EndpointHandle> {
    access: H,
    group: GroupId,
    /// This member's rank, and the number of members.
    place: (usize, usize),
    what: Collective,
    elements: (AtomicOp, Datatype),
    buffer: Buffer,
    when: Option<Box<StartCondition>>,
}

crate::short_debug!(for [H: EndpointHandle] CollectiveRequest<H>, "CollectiveRequest");

impl<A: Ownership> Endpoint<A> {
    /// Joins a group that consists of these members, including this endpoint. All members join it with the same
    /// addresses, which are the addresses that the members advertise, in the same order. An endpoint can join the same
    /// list several times and is then in that many groups: its first join belongs to the first joins of the other
    /// members, and so on. If a join fails, it fails for all members that have joined. A member that tries again is
    /// grouped with the other members that try again, even if a member has been replaced by another process meanwhile.
    ///
    /// # Errors
    /// If a group of these members is not possible.
    pub fn join(&self, members: &AddressSet) -> Result<Operation<A::Handle<'_>, Group<A::Handle<'_>>>, OperationError> {
        let (mut group, mut rank) = (GroupId { index: 0, stamp: 0 }, 0);
        let id = self.access.with(|engine| {
            let id = engine.core.operations.start(Buffer::from(Vec::new()));
            posted(engine, id, |engine| {
                group = engine.join_group(members.members(), id.to_u64(), Notify::Operation)?;
                rank = engine.core.groups.rank(group).map_or(0, |(rank, _)| rank);
                Ok(())
            })
        })?;
        let group = Group { access: self.access.handle(), id: group, rank, size: members.len() };
        Ok(Operation::in_progress(self.access.handle(), id, Some(group)))
    }
}

impl<H: EndpointHandle + Clone> Group<H> {
    /// Returns the identifier of the group in the raw API.
    #[must_use]
    pub const fn id(&self) -> GroupId {
        self.id
    }

    /// Returns this member's rank, which is its index in the group's address set.
    #[must_use]
    pub const fn rank(&self) -> usize {
        self.rank
    }

    /// Returns the number of members.
    #[must_use]
    pub const fn size(&self) -> usize {
        self.size
    }

    /// Creates a barrier, which completes after every member has begun it.
    pub fn barrier(&self) -> CollectiveRequest<H> {
        self.request(Collective::Barrier, BYTES, Buffer::from(Vec::new()))
    }

    /// Copies the bytes of the member with the rank `root` to all members. The buffers of all members have the same
    /// length.
    pub fn broadcast(&self, root: usize, buffer: impl Into<Buffer>) -> CollectiveRequest<H> {
        self.request(Collective::Broadcast { root }, BYTES, buffer.into())
    }

    /// Combines the elements of all members and stores the result at every member. The buffer holds this member's
    /// elements before the operation and the result after it.
    pub fn allreduce(&self, op: AtomicOp, datatype: Datatype, buffer: impl Into<Buffer>) -> CollectiveRequest<H> {
        self.request(Collective::Allreduce, (op, datatype), buffer.into())
    }

    /// Like [`allreduce`](Self::allreduce), but only the member with the rank `root` gets the result. The contents of
    /// the buffers of the other members are then unspecified.
    pub fn reduce(
        &self,
        root: usize,
        op: AtomicOp,
        datatype: Datatype,
        buffer: impl Into<Buffer>,
    ) -> CollectiveRequest<H> {
        self.request(Collective::Reduce { root }, (op, datatype), buffer.into())
    }

    /// Combines the elements of all members and stores one block of the result at each member. The buffer holds as many
    /// equal blocks as there are members. Afterwards block number [`rank`](Self::rank) holds this member's block of the
    /// result, and the contents of the other blocks are unspecified.
    pub fn reduce_scatter(&self, op: AtomicOp, datatype: Datatype, buffer: impl Into<Buffer>) -> CollectiveRequest<H> {
        self.request(Collective::ReduceScatter, (op, datatype), buffer.into())
    }

    /// Gathers the blocks of all members at every member. The buffer holds as many equal blocks as there are members.
    /// This member's block is number [`rank`](Self::rank); the operation fills in the other blocks.
    pub fn allgather(&self, buffer: impl Into<Buffer>) -> CollectiveRequest<H> {
        self.request(Collective::Allgather, BYTES, buffer.into())
    }

    /// Sends a block from each member to each member. The buffer holds as many equal blocks as there are members. Block
    /// `n` is sent to the member with the rank `n`, and is replaced by the block from that member.
    pub fn alltoall(&self, buffer: impl Into<Buffer>) -> CollectiveRequest<H> {
        self.request(Collective::Alltoall, BYTES, buffer.into())
    }

    /// Sends each member a block of the buffer of the member with the rank `root`. That buffer holds as many equal
    /// blocks as there are members, and block `n` is sent to the member with the rank `n`. The buffers of the other
    /// members hold one block.
    pub fn scatter(&self, root: usize, buffer: impl Into<Buffer>) -> CollectiveRequest<H> {
        self.request(Collective::Scatter { root }, BYTES, buffer.into())
    }

    /// Collects a block of each member in the buffer of the member with the rank `root`. That buffer holds as many
    /// equal blocks as there are members, with the root's own block as number `root`. The buffers of the other members
    /// hold one block, which stays unchanged.
    pub fn gather(&self, root: usize, buffer: impl Into<Buffer>) -> CollectiveRequest<H> {
        self.request(Collective::Gather { root }, BYTES, buffer.into())
    }

    fn request(&self, what: Collective, elements: (AtomicOp, Datatype), buffer: Buffer) -> CollectiveRequest<H> {
        let (access, group, place) = (self.access.clone(), self.id, (self.rank, self.size));
        CollectiveRequest { access, group, place, what, elements, buffer, when: None }
    }
}

impl<H: EndpointHandle> Drop for Group<H> {
    fn drop(&mut self) {
        let id = self.id;
        self.access.access().with(|engine| engine.leave_group(id));
    }
}

impl<H: EndpointHandle> sealed::Sealed for Group<H> {}
impl<H: EndpointHandle> Outcome for Group<H> {
    type Known = Option<Self>;
    type AtOnce = std::convert::Infallible;

    fn of_at_once(never: std::convert::Infallible) -> Self {
        match never {}
    }

    fn of(_: &Entry, _: Buffer, group: &mut Option<Self>) -> Option<Self> {
        group.take()
    }
}

impl<H: EndpointHandle> CollectiveRequest<H> {
    /// Delays the operation until `counter` has counted `threshold` successes (FI_TRIGGER_THRESHOLD); see
    /// [`trigger`](crate::trigger). The operation takes its place in the order of the group's operations when it
    /// begins.
    pub fn when(mut self, counter: &Counter, threshold: u64) -> Self {
        self.when = Some(StartCondition::once(self.when.take(), counter, threshold));
        self
    }

    /// Makes the operation deferred work. It waits for successes *and errors* of its counter ([`when`](Self::when)),
    /// and `counter` counts its end. From now on a shared endpoint makes progress without calls by the application.
    pub fn counting(mut self, counter: &Counter) -> Self {
        self.when = Some(StartCondition::counting(self.when.take(), counter));
        self
    }

    /// Posts the collective.
    ///
    /// # Errors
    /// If the operation cannot be posted.
    pub fn start(self) -> Result<Operation<H, Buffer>, OperationError> {
        let Self { access, group, place, what, elements: (op, datatype), mut buffer, when } = self;
        let refused = |cause: PostError, buffer| OperationError::new(cause, Some(buffer));
        let Some(segment) = buffer.segment_for_receive() else {
            return Err(refused(PostError::ReadOnly, buffer));
        };
        let (rank, members) = place;
        let (given, got) = what.blocks(members, rank);
        let blocks = given.max(got).max(1);
        let count = segment.len() / datatype.size() / blocks;
        let block = count * datatype.size();
        if block * blocks != segment.len() {
            let why = "the buffer must consist of whole elements, in blocks of equal length";
            return Err(refused(PostError::Collective(why), buffer));
        }
        // If only one of the two buffers holds all blocks, the other buffer is this member's block among them.
        let part = |number: usize| if number == 1 { segment.slice(rank % blocks * block, block) } else { segment };
        let (source, result) = (part(given), part(got));
        let flags = OpFlags::COMPLETION;
        let work = CollectiveWork { group, what, op, datatype, count, source, result, context: 0, flags };
        let id = match when {
            Some(when) => {
                when.start(access.access(), buffer, |context, _| Work::Collective(CollectiveWork { context, ..work }))?
            }
            None => access.access().with(|engine| {
                let id = engine.core.operations.start(buffer);
                let work = CollectiveWork { context: id.to_u64(), ..work };
                posted(engine, id, |engine| engine.post_collective(&work, Notify::Operation))
            })?,
        };
        Ok(Operation::in_progress(access, id, ()))
    }

    /// Posts the collective and waits for it. Returns the buffer.
    ///
    /// # Errors
    /// If the operation cannot be posted, or fails.
    pub fn wait(self) -> Result<Buffer, OperationError> {
        self.start()?.wait()
    }
}

impl<H: EndpointHandle> IntoFuture for CollectiveRequest<H> {
    type Output = Result<Buffer, OperationError>;
    type IntoFuture = Started<Operation<H, Buffer>>;

    fn into_future(self) -> Self::IntoFuture {
        Started::new(self.start())
    }
}
