//! Queue pairs of reliable connections.

#![expect(unsafe_code, reason = "calls of libibverbs; each block states its own reason")]

use std::ffi::c_int;
use std::ptr::null_mut;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::abi;
use super::completion::CompletionQueue;
use super::context::{ProtectionDomain, note};
use super::error::{Handle, VerbsError};
use super::region::{MemoryRegion, Rights, outside};
use crate::wire::queue_pair::{End, Gid};

/// How long an acknowledgement is waited for: 4.096 µs · 2 to this, half a second.
const TIMEOUT: u8 = 17;
/// How often a request is sent again before the connection counts as broken: with [`TIMEOUT`] after some 4 seconds. Not 7,
/// which soft-RoCE takes to mean for ever.
const RETRIES: u8 = 6;
/// How often a request is sent again if the receiver has no receive posted, which percale's credits rule out; 7 would mean for ever.
const RECEIVER_RETRIES: u8 = 6;
/// How long to wait then: 0.64 ms.
const RECEIVER_TIMER: u8 = 12;

/// How long a change of state that signals interrupt is tried again: a port is looked for up to a second.
const INTERRUPTED: Duration = Duration::from_secs(10);

/// How large a queue pair is.
#[derive(Clone, Copy, Debug)]
pub struct PairSize {
    /// Sends, accesses and binds that are under way at most.
    pub sends: u32,
    /// Receives that are posted at most.
    pub receives: u32,
    /// Bytes that a send may carry in its request; as a wish, the device may allow fewer.
    pub inline: u32,
    /// Pieces of memory that a send or an access is of at most.
    pub pieces: u32,
}

/// An access to a peer's memory.
#[derive(Clone, Copy, Debug)]
pub struct RemoteAccess {
    /// What the request is called.
    pub id: u64,
    /// Else it reads.
    pub writes: bool,
    /// Address and remote key.
    pub to: (u64, u32),
    /// It begins when the reads before it are over.
    pub fenced: bool,
}

/// The port that a queue pair uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// Its number.
    pub port: u8,
    /// Which of its addresses.
    pub gid_index: u8,
    /// Whether Ethernet is under it, so that a peer is always found by its address.
    pub ethernet: bool,
}

/// A queue pair. It keeps the region, of which it sends and into which it receives, and what else it is made of.
#[derive(Debug)]
pub struct QueuePair {
    ptr: Handle<abi::Qp>,
    domain: Arc<ProtectionDomain>,
    queue: Arc<CompletionQueue>,
    buffers: Arc<MemoryRegion>,
    inline: u32,
}

impl QueuePair {
    /// Makes a queue pair. Its requests and receives complete in `queue`.
    ///
    /// # Errors
    /// EINVAL if queue and buffers are of two devices; the error that the device reports.
    pub fn new(queue: &Arc<CompletionQueue>, buffers: &Arc<MemoryRegion>, size: PairSize) -> Result<Self, VerbsError> {
        let domain = buffers.domain();
        // A driver takes its word for it.
        if !Arc::ptr_eq(queue.context(), domain.context()) {
            return Err(VerbsError { call: "ibv_create_qp", errno: libc::EINVAL });
        }
        let mut attr = abi::QpInitAttr {
            qp_context: null_mut(),
            send_cq: queue.as_ptr(),
            recv_cq: queue.as_ptr(),
            srq: null_mut(),
            cap: abi::QpCap {
                max_send_wr: size.sends,
                max_recv_wr: size.receives,
                max_send_sge: size.pieces,
                max_recv_sge: 1,
                max_inline_data: size.inline,
            },
            qp_type: abi::QPT_RC,
            sq_sig_all: 1,
        };
        // SAFETY: domain and queue are alive and of one device, and this keeps them; the call changes the structure's sizes only.
        let ptr = unsafe { (domain.context().library().ibv_create_qp)(domain.as_ptr(), &raw mut attr) };
        Ok(Self {
            ptr: Handle::given("ibv_create_qp", ptr)?,
            domain: Arc::clone(domain),
            queue: Arc::clone(queue),
            buffers: Arc::clone(buffers),
            inline: attr.cap.max_inline_data,
        })
    }

    /// Its number.
    #[must_use]
    #[inline]
    pub fn number(&self) -> u32 {
        // SAFETY: the queue pair lives as long as this, and its number does not change.
        unsafe { (*self.as_ptr()).qp_num }
    }

    /// The queue in which its requests complete.
    #[must_use]
    #[inline]
    pub const fn queue(&self) -> &Arc<CompletionQueue> {
        &self.queue
    }

    /// What it sends from and receives into.
    #[must_use]
    #[inline]
    pub const fn buffers(&self) -> &Arc<MemoryRegion> {
        &self.buffers
    }

    #[inline]
    pub(super) const fn as_ptr(&self) -> *mut abi::Qp {
        self.ptr.as_ptr()
    }

    /// The protection domain of its buffers.
    #[must_use]
    #[inline]
    pub const fn domain(&self) -> &Arc<ProtectionDomain> {
        &self.domain
    }

    fn modify(&self, mut attr: abi::QpAttr, mask: c_int) -> Result<(), VerbsError> {
        let modify = self.domain.context().library().ibv_modify_qp;
        let begun = Instant::now();
        loop {
            // SAFETY: the queue pair is alive; the call reads the structure, of which the mask names fields.
            let modified = VerbsError::check("ibv_modify_qp", unsafe { modify(self.as_ptr(), &raw mut attr, mask) });
            // The kernel looks for the peer's port, and does not go on with that when the process was stopped meanwhile.
            let interrupted = matches!(&modified, Err(error) if error.errno == libc::EINTR);
            if !interrupted || begun.elapsed() > INTERRUPTED {
                return modified;
            }
        }
    }

    /// The first step of connecting: receives may be posted from here on. `rights` are what the peer may do to regions.
    ///
    /// # Errors
    /// The error that the device reports.
    pub fn prepare(&self, path: Path, rights: Rights) -> Result<(), VerbsError> {
        let attr = abi::QpAttr {
            qp_state: abi::QPS_INIT,
            port_num: path.port,
            qp_access_flags: rights.bits().cast_unsigned(),
            ..abi::QpAttr::default()
        };
        self.modify(attr, abi::QP_STATE | abi::QP_PKEY_INDEX | abi::QP_PORT | abi::QP_ACCESS_FLAGS)
    }

    /// Completes the connection: from here on the peer may send, and once it has done the same, so may we. `ours` is what was sent to the peer.
    ///
    /// # Errors
    /// The error that the device reports, which may be about the peer's address.
    pub fn connect(&self, path: Path, ours: &End, peer: &End) -> Result<(), VerbsError> {
        self.connect_reading(path, ours, peer, 1)
    }

    /// Like [`connect`](Self::connect), but up to `reads` reads may be under way at a time, on either side.
    ///
    /// # Errors
    /// As there.
    pub fn connect_reading(&self, path: Path, ours: &End, peer: &End, reads: u8) -> Result<(), VerbsError> {
        let is_global = path.ethernet || (peer.lid == 0 && peer.gid != Gid::default());
        let ready = abi::QpAttr {
            qp_state: abi::QPS_RTR,
            path_mtu: ours.mtu.min(peer.mtu).into(),
            dest_qp_num: peer.pair,
            rq_psn: peer.sequence,
            max_dest_rd_atomic: reads,
            min_rnr_timer: RECEIVER_TIMER,
            ah_attr: abi::AhAttr {
                grh: abi::GlobalRoute {
                    dgid: abi::AlignedGid { raw: peer.gid },
                    sgid_index: path.gid_index,
                    hop_limit: 64,
                    ..abi::GlobalRoute::default()
                },
                dlid: peer.lid,
                is_global: is_global.into(),
                port_num: path.port,
                ..abi::AhAttr::default()
            },
            ..abi::QpAttr::default()
        };
        self.modify(
            ready,
            abi::QP_STATE
                | abi::QP_AV
                | abi::QP_PATH_MTU
                | abi::QP_DEST_QPN
                | abi::QP_RQ_PSN
                | abi::QP_MAX_DEST_RD_ATOMIC
                | abi::QP_MIN_RNR_TIMER,
        )?;
        let sending = abi::QpAttr {
            qp_state: abi::QPS_RTS,
            sq_psn: ours.sequence,
            timeout: TIMEOUT,
            retry_cnt: RETRIES,
            rnr_retry: RECEIVER_RETRIES,
            max_rd_atomic: reads,
            ..abi::QpAttr::default()
        };
        self.modify(
            sending,
            abi::QP_STATE
                | abi::QP_SQ_PSN
                | abi::QP_TIMEOUT
                | abi::QP_RETRY_CNT
                | abi::QP_RNR_RETRY
                | abi::QP_MAX_QP_RD_ATOMIC,
        )
    }

    /// Ends the connection: everything posted completes in error.
    ///
    /// # Errors
    /// The error that the device reports.
    pub fn fail(&self) -> Result<(), VerbsError> {
        self.modify(abi::QpAttr { qp_state: abi::QPS_ERR, ..abi::QpAttr::default() }, abi::QP_STATE)
    }

    /// Receives into a part of its buffers.
    ///
    /// # Errors
    /// EFAULT if that is not all in them; the error that the device reports: ENOMEM if too many are posted.
    #[inline]
    pub fn post_receive(&self, id: u64, offset: usize, len: usize) -> Result<(), VerbsError> {
        let call = "ibv_post_recv";
        let mut part = self.buffers.part(offset, len).ok_or(outside(call))?;
        let mut request = abi::RecvWr { wr_id: id, next: null_mut(), sg_list: &raw mut part, num_sge: 1 };
        let mut bad = null_mut();
        let Some(post) = self.domain.context().ops().post_recv else { return Err(VerbsError::unsupported(call)) };
        // SAFETY: the queue pair is alive; the request and its list are read in the call; this keeps the memory that they name
        // until the queue pair is no more.
        VerbsError::check(call, unsafe { post(self.as_ptr(), &raw mut request, &raw mut bad) })
    }

    /// Sends a part of its buffers, which must not change until that completes; with immediate data, if there is some.
    ///
    /// # Errors
    /// EFAULT if that is not all in them; the error that the device reports: ENOMEM if too many are under way.
    #[inline]
    pub fn post_send(&self, id: u64, offset: usize, len: usize, immediate: Option<u32>) -> Result<(), VerbsError> {
        let mut part = self.buffers.part(offset, len).ok_or(outside(POST))?;
        let mut request = abi::SendWr::new(id, abi::WR_SEND);
        if let Some(data) = immediate {
            (request.opcode, request.imm_data) = (abi::WR_SEND_WITH_IMM, data.to_be());
        }
        if len <= self.inline as usize {
            request.send_flags |= abi::SEND_INLINE.cast_unsigned();
        }
        (request.sg_list, request.num_sge) = (&raw mut part, c_int::from(len > 0));
        // SAFETY: it names a part of our buffers, in a list that is here.
        unsafe { self.post(&mut request) }
    }

    /// Writes a part of its buffers to a peer's region or window.
    ///
    /// # Errors
    /// As [`post_send`](Self::post_send).
    #[inline]
    pub fn post_write(&self, id: u64, offset: usize, len: usize, to: (u64, u32)) -> Result<(), VerbsError> {
        self.post_access(id, abi::WR_RDMA_WRITE, (offset, len), to)
    }

    /// Reads a peer's region or window into a part of its buffers.
    ///
    /// # Errors
    /// As [`post_send`](Self::post_send).
    #[inline]
    pub fn post_read(&self, id: u64, offset: usize, len: usize, from: (u64, u32)) -> Result<(), VerbsError> {
        self.post_access(id, abi::WR_RDMA_READ, (offset, len), from)
    }

    fn post_access(
        &self,
        id: u64,
        opcode: c_int,
        (offset, len): (usize, usize),
        (remote_addr, rkey): (u64, u32),
    ) -> Result<(), VerbsError> {
        let mut part = self.buffers.part(offset, len).ok_or(outside(POST))?;
        let mut request = abi::SendWr::new(id, opcode);
        (request.sg_list, request.num_sge) = (&raw mut part, 1);
        request.wr = abi::Remote { rdma: abi::Rdma { remote_addr, rkey } };
        // SAFETY: it names a part of our buffers, in a list that is here.
        unsafe { self.post(&mut request) }
    }

    /// Reads or writes a peer's memory, into or from parts of any memory.
    ///
    /// # Safety
    /// The parts are registered with these keys, and until the request has completed, or the queue pair is no more, they are kept: the source of a
    /// write stays as it is, and nothing else touches the destination of a read.
    #[doc(hidden)]
    #[inline]
    pub unsafe fn post_remote(&self, access: &RemoteAccess, parts: &mut [abi::Sge]) -> Result<(), VerbsError> {
        let &RemoteAccess { id, writes, to: (remote_addr, rkey), fenced } = access;
        let mut request = abi::SendWr::new(id, if writes { abi::WR_RDMA_WRITE } else { abi::WR_RDMA_READ });
        if fenced {
            request.send_flags |= abi::SEND_FENCE.cast_unsigned();
        }
        (request.sg_list, request.num_sge) = (parts.as_mut_ptr(), parts.len() as c_int);
        request.wr = abi::Remote { rdma: abi::Rdma { remote_addr, rkey } };
        // SAFETY: passed on.
        unsafe { self.post(&mut request) }
    }

    /// Posts a request.
    ///
    /// # Safety
    /// The list that it names is readable during the call, and windows and registrations that it points to are alive in it. Memory that it
    /// names is kept until it has completed, or the queue pair is no more; that of this pair's own buffers always is. So is memory that it
    /// binds a window to, until that is bound no more.
    #[inline]
    pub(super) unsafe fn post(&self, request: &mut abi::SendWr) -> Result<(), VerbsError> {
        let Some(post) = self.domain.context().ops().post_send else { return Err(VerbsError::unsupported(POST)) };
        let mut bad = null_mut();
        // SAFETY: the queue pair is alive; request and list are read in the call; what they name is kept, as the caller promises.
        VerbsError::check(POST, unsafe { post(self.as_ptr(), &raw mut *request, &raw mut bad) })
    }
}

/// The call that the error of a failed request names.
const POST: &str = "ibv_post_send";

impl abi::SendWr {
    /// A request that names nothing yet.
    pub(super) const fn new(id: u64, opcode: c_int) -> Self {
        let atomic = abi::Atomic { remote_addr: 0, compare_add: 0, swap: 0, rkey: 0 };
        let bind_info = abi::MwBindInfo { mr: null_mut(), addr: 0, length: 0, mw_access_flags: 0 };
        Self {
            wr_id: id,
            next: null_mut(),
            sg_list: null_mut(),
            num_sge: 0,
            opcode,
            send_flags: abi::SEND_SIGNALED.cast_unsigned(),
            imm_data: 0,
            wr: abi::Remote { atomic },
            remote_srqn: 0,
            bind_mw: abi::BindMw { mw: null_mut(), rkey: 0, bind_info },
        }
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        if !self.domain.context().is_here() {
            return;
        }
        // SAFETY: windows that were bound over it hold it, so none is left; it is ended once, before what it is made of.
        let errno = unsafe { (self.domain.context().library().ibv_destroy_qp)(self.as_ptr()) };
        note("ibv_destroy_qp", errno);
    }
}
