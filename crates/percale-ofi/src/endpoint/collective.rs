//! Collectives (fi_collective(3)): barriers, broadcasts, reductions, exchanges.
//!
//! In collectives where each member has a block for each other member (all-gather, all-to-all, reduce-scatter, scatter,
//! gather), `count` is the number of elements of one block, as in libfabric's own all-gather and scatter. The manual
//! page does not define it.
//!
//! With FI_MR_COLLECTIVE and with FI_MR_LOCAL, the memory of collectives needs descriptors (see
//! [`described`](super::described)). With FI_MR_COLLECTIVE, they must be those of regions that were also registered
//! with FI_COLLECTIVE (MR-044, MR-045).

use std::ffi::{c_int, c_void};

use percale::collective::{MEMBER_LIMIT, combines};
use percale::trigger::RawOperation;
use percale::{AtomicOp, Collective, CollectiveWork, Datatype, GroupId, OpFlags, Segment};

use super::atomic_valid::AtomicParameters;
use super::calls::{Const, Void, calls, table};
use super::trigger::StartMode;
use super::{Endpoint, answer, described, local};
use crate::abi::{
    FI_ALLGATHER, FI_ALLREDUCE, FI_ALLTOALL, FI_BARRIER, FI_BROADCAST, FI_EBADFLAGS, FI_GATHER, FI_LOG_EP_DATA,
    FI_REDUCE, FI_REDUCE_SCATTER, FI_SCATTER, fi_addr_t, fi_atomic_attr, fi_collective_attr, fi_ops_collective,
    fid_domain,
};
use crate::log;

pub(super) static OPS: fi_ops_collective = table!(fi_ops_collective {
    barrier,
    broadcast,
    alltoall,
    allreduce,
    allgather,
    reduce_scatter,
    reduce,
    scatter,
    gather,
    barrier2;
    ..fi_ops_collective::REFUSING
});

const INVALID: isize = -(libc::EINVAL as isize);

/// A client's elements and their descriptor.
#[derive(Clone, Copy)]
struct Elements {
    buf: *const c_void,
    desc: *mut c_void,
}

impl Elements {
    const NONE: Self = Self { buf: std::ptr::null(), desc: std::ptr::null_mut() };

    /// Returns the elements if the member takes part in the transfer, and none otherwise.
    const fn given_if(self, takes_part: bool) -> Self {
        if takes_part { self } else { Self::NONE }
    }
}

/// The arguments of one collective call.
#[derive(Clone, Copy)]
struct CollectiveCall {
    group: fi_addr_t,
    what: Collective,
    elements: AtomicParameters,
    count: usize,
    source: Elements,
    result: Elements,
    flags: u64,
    context: *mut c_void,
}

impl Endpoint {
    /// Returns whether the endpoint was opened for collectives.
    pub(super) const fn has_groups(&self) -> bool {
        self.groups
    }

    /// Posts a collective.
    ///
    /// # Safety
    /// The memory meets the requirements of fi_collective(3) until the collective has completed.
    unsafe fn collective(&self, call: CollectiveCall) -> Result<isize, isize> {
        let CollectiveCall { group, what, elements, count, source, result, flags, context } = call;
        let begins = StartMode::of(flags);
        let flags = self.flags_for(&self.transmit, begins, flags)? & OpFlags::COMPLETION.union(OpFlags::DEVICE);
        let (rank, members) = match what {
            Collective::Barrier | Collective::Broadcast { .. } | Collective::Allreduce | Collective::Reduce { .. } => {
                // The number of blocks does not depend on the number of members. Memory that a member does not need is
                // not passed.
                (what.root().unwrap_or(0), 1)
            }
            _ => self.place(group)?,
        };
        let (given, got) = what.blocks(members, rank);
        let block = count.checked_mul(elements.datatype.size()).ok_or(INVALID)?;
        let bytes = |blocks: usize| block.checked_mul(blocks).filter(|bytes| isize::try_from(*bytes).is_ok());
        // In a broadcast, the root reads the data from the buffer into which the other members receive it.
        let broadcast = matches!(what, Collective::Broadcast { .. });
        let reads = broadcast && result.buf.is_null();
        let (given, got) = (bytes(given).ok_or(INVALID)?, bytes(got).ok_or(INVALID)?);
        let check = |elements: Elements, bytes, rights| {
            self.setup().domain().covers_collective(elements.desc, elements.buf.addr(), bytes, rights)
        };
        let sends = !source.buf.is_null() && (given > 0 || reads && got > 0);
        let takes = !result.buf.is_null() && got > 0;
        if sends && !check(source, if reads { got } else { given }, described::FROM)
            || takes && !check(result, got, described::INTO)
        {
            log::warning!(
                FI_LOG_EP_DATA,
                "a collective was not posted: desc must be the fi_mr_desc of a region that contains the memory and has \
                 the required rights"
            );
            return Err(INVALID);
        }
        // SAFETY: the caller guarantees this.
        let segment = |elements: Elements, bytes: usize, there: bool| unsafe {
            if there { local::piece(elements.buf, bytes) } else { Segment::EMPTY }
        };
        let work = CollectiveWork {
            group: GroupId::from_u64(group),
            what,
            op: elements.op,
            datatype: elements.datatype,
            count,
            source: segment(source, given, sends && !reads),
            result: segment(if reads { source } else { result }, got, takes || sends && reads),
            context: local::context(context),
            flags,
        };
        if begins == StartMode::Triggered {
            // SAFETY: the caller guarantees this.
            return Ok(unsafe { self.post_triggered(Ok(RawOperation::Collective(work)), context) });
        }
        // SAFETY: the caller guarantees this.
        Ok(answer(unsafe { self.port()?.collective(&work) }))
    }

    /// Returns the rank of a member from its address, and whether this endpoint has that rank.
    fn rank(&self, group: fi_addr_t, member: fi_addr_t) -> Result<(usize, bool), isize> {
        let port = self.port()?;
        let id = GroupId::from_u64(group);
        let (own, _) = port.rank_in(id).ok_or(INVALID)?;
        let root = port.rank_of(id, self.peer(member)).ok_or(INVALID)?;
        Ok((root, own == root))
    }

    /// Returns the endpoint's rank in a group and the number of members.
    fn place(&self, group: fi_addr_t) -> Result<(usize, usize), isize> {
        self.port()?.rank_in(GroupId::from_u64(group)).ok_or(INVALID)
    }
}

/// Returns the operation and the data type of a reduction.
fn reduction(datatype: u32, op: u32) -> Result<AtomicParameters, isize> {
    let what = AtomicParameters::of(datatype, op)?;
    if combines(what.op, what.datatype) { Ok(what) } else { Err(-(libc::EOPNOTSUPP as isize)) }
}

fn either(result: Result<isize, isize>) -> isize {
    result.unwrap_or_else(|refused| refused)
}

impl Endpoint {
    /// Posts a collective in which all members have the same role.
    #[inline(always)]
    fn together(&self, call: impl FnOnce() -> Result<CollectiveCall, isize>) -> isize {
        // SAFETY: the client passed valid memory.
        either(call().and_then(|call| unsafe { self.collective(call) }))
    }

    /// Posts a collective with a root. `call` takes the rank of the root and whether this endpoint is the root.
    #[inline(always)]
    fn rooted(
        &self,
        group: fi_addr_t,
        root: fi_addr_t,
        call: impl FnOnce(usize, bool) -> Result<CollectiveCall, isize>,
    ) -> isize {
        self.together(|| self.rank(group, root).and_then(|(root, ours)| call(root, ours)))
    }

    fn barrier(&self, group: fi_addr_t, flags: u64, context: *mut c_void) -> isize {
        let elements = AtomicParameters { op: AtomicOp::Sum, datatype: Datatype::U8 };
        let (source, result) = (Elements::NONE, Elements::NONE);
        let call =
            CollectiveCall { group, what: Collective::Barrier, elements, count: 0, source, result, flags, context };
        self.together(|| Ok(call))
    }
}

calls! { impl Endpoint {
    fn barrier(endpoint, group: fi_addr_t, context: Void) {
        endpoint.barrier(group, endpoint.transmit.defaults(), context)
    }

    fn barrier2(endpoint, group: fi_addr_t, flags: u64, context: Void) {
        endpoint.barrier(group, flags, context)
    }

    fn broadcast(
        endpoint, buf: Void, count: usize, desc: Void, group: fi_addr_t, root: fi_addr_t, datatype: u32, flags: u64,
        context: Void
    ) {
        endpoint.rooted(group, root, |root, ours| {
            let elements = AtomicParameters::of(datatype, 0)?;
            let given = Elements { buf, desc };
            let (source, result) = if ours { (given, Elements::NONE) } else { (Elements::NONE, given) };
            let what = Collective::Broadcast { root };
            Ok(CollectiveCall { group, what, elements, count, source, result, flags, context })
        })
    }

    fn allreduce(
        endpoint, buf: Const, count: usize, desc: Void, result: Void, result_desc: Void, group: fi_addr_t, datatype: u32,
        op: u32, flags: u64, context: Void
    ) {
        endpoint.together(|| {
            let (elements, what) = (reduction(datatype, op)?, Collective::Allreduce);
            let (source, result) = (Elements { buf, desc }, Elements { buf: result, desc: result_desc });
            Ok(CollectiveCall { group, what, elements, count, source, result, flags, context })
        })
    }

    fn reduce(
        endpoint, buf: Const, count: usize, desc: Void, result: Void, result_desc: Void, group: fi_addr_t,
        root: fi_addr_t, datatype: u32, op: u32, flags: u64, context: Void
    ) {
        endpoint.rooted(group, root, |root, ours| {
            let (elements, what) = (reduction(datatype, op)?, Collective::Reduce { root });
            let (source, result) = (Elements { buf, desc }, Elements { buf: result, desc: result_desc }.given_if(ours));
            Ok(CollectiveCall { group, what, elements, count, source, result, flags, context })
        })
    }

    fn alltoall(
        endpoint, buf: Const, count: usize, desc: Void, result: Void, result_desc: Void, group: fi_addr_t, datatype: u32,
        flags: u64, context: Void
    ) {
        endpoint.together(|| {
            let (elements, what) = (AtomicParameters::of(datatype, 0)?, Collective::Alltoall);
            let (source, result) = (Elements { buf, desc }, Elements { buf: result, desc: result_desc });
            Ok(CollectiveCall { group, what, elements, count, source, result, flags, context })
        })
    }

    fn allgather(
        endpoint, buf: Const, count: usize, desc: Void, result: Void, result_desc: Void, group: fi_addr_t, datatype: u32,
        flags: u64, context: Void
    ) {
        endpoint.together(|| {
            let (elements, what) = (AtomicParameters::of(datatype, 0)?, Collective::Allgather);
            let (source, result) = (Elements { buf, desc }, Elements { buf: result, desc: result_desc });
            Ok(CollectiveCall { group, what, elements, count, source, result, flags, context })
        })
    }

    fn reduce_scatter(
        endpoint, buf: Const, count: usize, desc: Void, result: Void, result_desc: Void, group: fi_addr_t, datatype: u32,
        op: u32, flags: u64, context: Void
    ) {
        endpoint.together(|| {
            let (elements, what) = (reduction(datatype, op)?, Collective::ReduceScatter);
            let (source, result) = (Elements { buf, desc }, Elements { buf: result, desc: result_desc });
            Ok(CollectiveCall { group, what, elements, count, source, result, flags, context })
        })
    }

    fn scatter(
        endpoint, buf: Const, count: usize, desc: Void, result: Void, result_desc: Void, group: fi_addr_t,
        root: fi_addr_t, datatype: u32, flags: u64, context: Void
    ) {
        endpoint.rooted(group, root, |root, ours| {
            let (elements, what) = (AtomicParameters::of(datatype, 0)?, Collective::Scatter { root });
            let (source, result) = (Elements { buf, desc }.given_if(ours), Elements { buf: result, desc: result_desc });
            Ok(CollectiveCall { group, what, elements, count, source, result, flags, context })
        })
    }

    fn gather(
        endpoint, buf: Const, count: usize, desc: Void, result: Void, result_desc: Void, group: fi_addr_t,
        root: fi_addr_t, datatype: u32, flags: u64, context: Void
    ) {
        endpoint.rooted(group, root, |root, ours| {
            let (elements, what) = (AtomicParameters::of(datatype, 0)?, Collective::Gather { root });
            let (source, result) = (Elements { buf, desc }, Elements { buf: result, desc: result_desc }.given_if(ours));
            Ok(CollectiveCall { group, what, elements, count, source, result, flags, context })
        })
    }
} }

/// Implements fi_query_collective(3).
pub(crate) unsafe extern "C" fn query(
    _domain: *mut fid_domain,
    coll: u32,
    attr: *mut fi_collective_attr,
    flags: u64,
) -> c_int {
    // SAFETY: the pointer is null or the client's attributes.
    let Some(attr) = (unsafe { attr.as_mut() }) else { return -libc::EINVAL };
    if flags != 0 {
        return -FI_EBADFLAGS;
    }
    let datatype = match coll {
        FI_BARRIER => Ok(None),
        FI_BROADCAST | FI_ALLTOALL | FI_ALLGATHER | FI_SCATTER | FI_GATHER => {
            AtomicParameters::of(attr.datatype, 0).map(Some)
        }
        FI_ALLREDUCE | FI_REDUCE | FI_REDUCE_SCATTER => reduction(attr.datatype, attr.op).map(Some),
        _ => Err(-(libc::ENOSYS as isize)),
    };
    match datatype {
        Ok(what) => {
            let size = what.map_or(0, |what| what.datatype.size());
            // The blocks of all members must fit into one address space.
            let blocks = if matches!(coll, FI_BROADCAST | FI_ALLREDUCE | FI_REDUCE) { 1 } else { MEMBER_LIMIT };
            let count = isize::MAX as usize / size.max(1) / blocks;
            attr.datatype_attr = fi_atomic_attr { count: if size == 0 { 0 } else { count }, size };
            attr.max_members = MEMBER_LIMIT;
            0
        }
        Err(code) => code as c_int,
    }
}
