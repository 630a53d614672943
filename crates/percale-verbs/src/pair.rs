//! Reliable connected queue pairs.

#![expect(unsafe_code, reason = "calls to libibverbs; each block states its own reason")]

use std::ffi::c_int;
use std::ptr::null_mut;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::abi;
use super::completion::CompletionQueue;
use super::context::{ProtectionDomain, note};
use super::error::{ObjectPointer, VerbsError};
use super::region::{MemoryRegion, Rights, outside};
use crate::wire::queue_pair::{Gid, QueuePairEnd};

/// The timeout of an acknowledgement as an exponent: 4.096 µs · 2^17 is half a second.
const TIMEOUT: u8 = 17;
/// The number of retries before the connection is considered broken. With [`TIMEOUT`] this takes about 4 seconds. It is
/// not 7, which soft-RoCE interprets as infinite.
const RETRIES: u8 = 6;
/// The number of retries if the receiver has no receive posted, which percale's credits prevent. 7 would mean infinite.
const RECEIVER_RETRIES: u8 = 6;
/// The delay before such a retry. The value 12 means 0.64 ms.
const RECEIVER_TIMER: u8 = 12;

/// The time for which a change of state is tried again if signals interrupt it. The kernel may search for a port for up
/// to a second.
const INTERRUPTED: Duration = Duration::from_secs(10);

/// The capacity of a queue pair.
#[derive(Clone, Copy, Debug)]
pub struct PairSize {
    /// The maximum number of outstanding sends, accesses and binds.
    pub sends: u32,
    /// The maximum number of posted receives.
    pub receives: u32,
    /// The requested number of bytes that a send may carry inline in its request. The device may allow fewer.
    pub inline: u32,
    /// The maximum number of memory segments of a send or an access.
    pub pieces: u32,
}

/// An access to a peer's memory.
#[derive(Clone, Copy, Debug)]
pub struct RemoteAccess {
    /// The identifier of the request.
    pub id: u64,
    /// Whether the access writes. Otherwise it reads.
    pub writes: bool,
    /// The address and the remote key.
    pub to: (u64, u32),
    /// Whether the access starts only after the preceding reads have completed.
    pub fenced: bool,
}

/// The port that a queue pair uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// The number of the port.
    pub port: u8,
    /// The index of its address.
    pub gid_index: u8,
    /// Whether the link layer is Ethernet, so that a peer is always reached by its GID.
    pub ethernet: bool,
}

/// A queue pair. It keeps alive the region from which it sends and into which it receives, and the other objects that
/// it uses.
#[derive(Debug)]
pub struct QueuePair {
    ptr: ObjectPointer<abi::Qp>,
    domain: Arc<ProtectionDomain>,
    queue: Arc<CompletionQueue>,
    buffers: Arc<MemoryRegion>,
    inline: u32,
}

impl QueuePair {
    /// Creates a queue pair. Its requests and receives complete in `queue`.
    ///
    /// # Errors
    /// EINVAL if the queue and the buffers belong to two devices; otherwise the error that the device reports.
    pub fn new(queue: &Arc<CompletionQueue>, buffers: &Arc<MemoryRegion>, size: PairSize) -> Result<Self, VerbsError> {
        let domain = buffers.domain();
        // A driver does not check this.
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
        // SAFETY: the domain and the queue are alive and belong to one device, and `self` keeps them alive. The call
        // changes only the sizes in the structure.
        let ptr = unsafe { (domain.context().library().ibv_create_qp)(domain.as_ptr(), &raw mut attr) };
        Ok(Self {
            ptr: ObjectPointer::given("ibv_create_qp", ptr)?,
            domain: Arc::clone(domain),
            queue: Arc::clone(queue),
            buffers: Arc::clone(buffers),
            inline: attr.cap.max_inline_data,
        })
    }

    /// Returns the number of the queue pair.
    #[must_use]
    #[inline]
    pub fn number(&self) -> u32 {
        // SAFETY: the queue pair lives as long as `self`, and its number does not change.
        unsafe { (*self.as_ptr()).qp_num }
    }

    /// Returns the queue in which its requests complete.
    #[must_use]
    #[inline]
    pub const fn queue(&self) -> &Arc<CompletionQueue> {
        &self.queue
    }

    /// Returns the memory from which it sends and into which it receives.
    #[must_use]
    #[inline]
    pub const fn buffers(&self) -> &Arc<MemoryRegion> {
        &self.buffers
    }

    #[inline]
    pub(super) const fn as_ptr(&self) -> *mut abi::Qp {
        self.ptr.as_ptr()
    }

    /// Returns the protection domain of its buffers.
    #[must_use]
    #[inline]
    pub const fn domain(&self) -> &Arc<ProtectionDomain> {
        &self.domain
    }

    fn modify(&self, mut attr: abi::QpAttr, mask: c_int) -> Result<(), VerbsError> {
        let modify = self.domain.context().library().ibv_modify_qp;
        let begun = Instant::now();
        loop {
            // SAFETY: the queue pair is alive. The call only reads the fields of the structure that the mask selects.
            let modified = VerbsError::check("ibv_modify_qp", unsafe { modify(self.as_ptr(), &raw mut attr, mask) });
            // The kernel was searching for the peer's port. It aborts the search when a signal stops the process.
            let interrupted = matches!(&modified, Err(error) if error.errno == libc::EINTR);
            if !interrupted || begun.elapsed() > INTERRUPTED {
                return modified;
            }
        }
    }

    /// Executes the first step of connecting, after which receives may be posted. `rights` are the peer's rights to
    /// regions.
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

    /// Completes the connection. After that the peer may send. Once the peer has done the same, this side may send too.
    /// `ours` is the data that was sent to the peer.
    ///
    /// # Errors
    /// The error that the device reports, which may refer to the peer's address.
    pub fn connect(&self, path: Path, ours: &QueuePairEnd, peer: &QueuePairEnd) -> Result<(), VerbsError> {
        self.connect_reading(path, ours, peer, 1)
    }

    /// Like [`connect`](Self::connect), but at most `reads` reads may be outstanding at a time, on either side.
    ///
    /// # Errors
    /// Like [`connect`](Self::connect).
    pub fn connect_reading(
        &self,
        path: Path,
        ours: &QueuePairEnd,
        peer: &QueuePairEnd,
        reads: u8,
    ) -> Result<(), VerbsError> {
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

    /// Ends the connection. All posted requests and receives complete with an error.
    ///
    /// # Errors
    /// The error that the device reports.
    pub fn fail(&self) -> Result<(), VerbsError> {
        self.modify(abi::QpAttr { qp_state: abi::QPS_ERR, ..abi::QpAttr::default() }, abi::QP_STATE)
    }

    /// Posts a receive into a part of its buffers.
    ///
    /// # Errors
    /// EFAULT if the part is not within the buffers; otherwise the error that the device reports, for example ENOMEM if
    /// too many receives are posted.
    #[inline]
    pub fn post_receive(&self, id: u64, offset: usize, len: usize) -> Result<(), VerbsError> {
        let call = "ibv_post_recv";
        let mut part = self.buffers.part(offset, len).ok_or(outside(call))?;
        let mut request = abi::RecvWr { wr_id: id, next: null_mut(), sg_list: &raw mut part, num_sge: 1 };
        let mut bad = null_mut();
        let Some(post) = self.domain.context().ops().post_recv else { return Err(VerbsError::unsupported(call)) };
        // SAFETY: the queue pair is alive. The request and its list are read during the call. `self` keeps the memory
        // that they name until the queue pair is destroyed.
        VerbsError::check(call, unsafe { post(self.as_ptr(), &raw mut request, &raw mut bad) })
    }

    /// Sends a part of its buffers, with immediate data if given. The part must not change until the send completes.
    ///
    /// # Errors
    /// EFAULT if the part is not within the buffers; otherwise the error that the device reports, for example ENOMEM if
    /// too many requests are outstanding.
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
        // SAFETY: the request names a part of the pair's own buffers, in a local list.
        unsafe { self.post(&mut request) }
    }

    /// Writes a part of its buffers to a peer's region or window.
    ///
    /// # Errors
    /// Like [`post_send`](Self::post_send).
    #[inline]
    pub fn post_write(&self, id: u64, offset: usize, len: usize, to: (u64, u32)) -> Result<(), VerbsError> {
        self.post_access(id, abi::WR_RDMA_WRITE, (offset, len), to)
    }

    /// Reads a peer's region or window into a part of its buffers.
    ///
    /// # Errors
    /// Like [`post_send`](Self::post_send).
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
        // SAFETY: the request names a part of the pair's own buffers, in a local list.
        unsafe { self.post(&mut request) }
    }

    /// Reads a peer's memory into parts of any local memory, or writes it from there.
    ///
    /// # Safety
    /// The parts are registered with these keys. Until the request has completed, or the queue pair is destroyed, they
    /// stay valid, the source of a write does not change, and no other code accesses the destination of a read.
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
        // SAFETY: guaranteed by the caller.
        unsafe { self.post(&mut request) }
    }

    /// Posts a request.
    ///
    /// # Safety
    /// The list that the request names is readable during the call, and windows and registrations to which it points
    /// are alive during the call. Memory that it names stays valid until the request has completed, or the queue pair
    /// is destroyed. This is always the case for the queue pair's own buffers. Memory to which it binds a window stays
    /// valid until the window is unbound.
    #[inline]
    pub(super) unsafe fn post(&self, request: &mut abi::SendWr) -> Result<(), VerbsError> {
        let Some(post) = self.domain.context().ops().post_send else { return Err(VerbsError::unsupported(POST)) };
        let mut bad = null_mut();
        // SAFETY: the queue pair is alive, and request and list are read during the call. The caller guarantees that
        // the memory in them stays valid.
        VerbsError::check(POST, unsafe { post(self.as_ptr(), &raw mut *request, &raw mut bad) })
    }
}

/// The name of the call in the error of a failed request.
const POST: &str = "ibv_post_send";

impl abi::SendWr {
    /// Creates a request without memory.
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
        // SAFETY: windows that were bound over the queue pair keep it alive, so none is left. It is destroyed only
        // once, before the objects that it uses.
        let errno = unsafe { (self.domain.context().library().ibv_destroy_qp)(self.as_ptr()) };
        note("ibv_destroy_qp", errno);
    }
}
