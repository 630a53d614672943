//! Shared contexts: `fi_srx_context` and `fi_stx_context` (fi_endpoint(3)).
//!
//! A shared receive context wraps a percale object. The endpoint that received a message reports its completion, so a
//! completion queue for all receives must be bound to each endpoint. A shared transmit context is only a name, because
//! percale's endpoints have no transmit resources that they could share.

use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use percale::{Access, PeerAddress, ReceiveWork, Segments, SharedReceive};

use super::bare::bare;
use super::calls::{Descs, Iov, Void, calls, table};
use super::described::nth;
use super::flags::Direction;
use super::{answer, flags, local, unsupported};
use crate::abi::{
    FI_CLASS_SRX_CTX, FI_CLASS_STX_CTX, FI_DIRECTED_RECV, FI_ENABLE, FI_ETOOSMALL, FI_LOG_EP_CTRL, FI_LOG_EP_DATA,
    FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, fi_addr_t, fi_msg, fi_msg_tagged, fi_ops, fi_ops_ep, fi_ops_msg,
    fi_ops_tagged, fi_rx_attr, fi_tx_attr, fid_domain, fid_ep, fid_stx, fid_t,
};
use crate::domain::{self, Domain};
use crate::log;
use crate::object::{self, Object};
use crate::port::MULTI_MINIMUM;

impl Receives {
    pub(super) const fn domain(&self) -> &Arc<domain::DomainShared> {
        &self.domain
    }
}

/// The part of a shared receive context that its endpoints share.
pub(crate) struct Receives {
    domain: Arc<domain::DomainShared>,
    pub(super) percale: SharedReceive,
    /// Set if a receive matches only messages from the source that it names. Otherwise it matches messages from any
    /// peer.
    directed: bool,
    flags: Direction,
    multi_minimum: AtomicUsize,
}

object::object!(pub(super) ReceiveContext: FI_CLASS_SRX_CTX, fid_ep, Receives);

static FI: fi_ops = fi_ops { close: Some(close), control: Some(control), ..fi_ops::REFUSING };
static OPS: fi_ops_ep = fi_ops_ep {
    cancel: Some(cancel),
    getopt: Some(getopt),
    setopt: Some(setopt),
    rx_size_left: Some(size_left),
    ..fi_ops_ep::REFUSING
};
static MESSAGES: fi_ops_msg = table!(fi_ops_msg { recv, recvv, recvmsg; ..fi_ops_msg::REFUSING });
static TAGGED: fi_ops_tagged = table!(fi_ops_tagged {
    recv: tagged_recv,
    recvv: tagged_recvv,
    recvmsg: tagged_recvmsg;
    ..fi_ops_tagged::REFUSING
});

/// Opens a shared receive context.
pub(crate) unsafe extern "C" fn open_receive(
    domain: *mut fid_domain,
    attr: *mut fi_rx_attr,
    ep: *mut *mut fid_ep,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the pointer is a domain of this provider.
    let domain = unsafe { Domain::of(domain) }.shared();
    // SAFETY: the pointer is null or the client's attributes.
    let (caps, flags) = unsafe { attr.as_ref() }.map_or((0, 0), |attr| (attr.caps, attr.op_flags));
    if let Err(code) = flags::check("fi_srx_context: rx_attr->op_flags", flags) {
        return -code;
    }
    let flags = Direction::new(flags, domain.devices);
    flags.bind(true, false);
    let shared = Arc::new(Receives {
        domain: Arc::clone(domain),
        percale: domain.percale.shared_receive(),
        directed: caps & FI_DIRECTED_RECV != 0,
        flags,
        multi_minimum: AtomicUsize::new(MULTI_MINIMUM),
    });
    let fid = fid_ep {
        msg: std::ptr::from_ref(&MESSAGES).cast_mut(),
        tagged: std::ptr::from_ref(&TAGGED).cast_mut(),
        ..bare(FI_CLASS_SRX_CTX, context, &FI, &OPS)
    };
    // SAFETY: the client passed a writable location.
    unsafe { ReceiveContext { fid, shared }.give(ep) };
    0
}

unsafe extern "C" fn close(ep: fid_t) -> c_int {
    // SAFETY: the pointer is a context of this provider, and the client no longer uses it.
    unsafe { ReceiveContext::close(ep, ReceiveContext::shared) }
}

/// Implements FI_ENABLE, which has no effect because the context is enabled from the start.
unsafe extern "C" fn control(_ep: fid_t, command: c_int, _argument: *mut c_void) -> c_int {
    if command == FI_ENABLE { 0 } else { -libc::ENOSYS }
}

unsafe extern "C" fn cancel(ep: fid_t, context: *mut c_void) -> isize {
    // SAFETY: the pointer is a context of this provider.
    let canceled = unsafe { ReceiveContext::of(ep) }.shared.percale.cancel(local::context(context));
    if canceled { 0 } else { -(libc::ENOENT as isize) }
}

unsafe extern "C" fn size_left(_ep: *mut fid_ep) -> isize {
    super::control::DEPTH as isize
}

unsafe extern "C" fn getopt(ep: fid_t, level: c_int, option: c_int, value: *mut c_void, len: *mut usize) -> c_int {
    if (level, option) != (FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV) {
        return -libc::ENOPROTOOPT;
    }
    // SAFETY: the client passed the size of its buffer.
    if unsafe { len.read() } < size_of::<usize>() {
        return -FI_ETOOSMALL;
    }
    // SAFETY: the pointer is a context of this provider.
    let bytes = unsafe { ReceiveContext::of(ep) }.shared.multi_minimum.load(Ordering::Relaxed);
    // SAFETY: the client passed a writable location for a size_t.
    unsafe { value.cast::<usize>().write_unaligned(bytes) };
    // SAFETY: as above.
    unsafe { len.write(size_of::<usize>()) };
    0
}

unsafe extern "C" fn setopt(ep: fid_t, level: c_int, option: c_int, value: *const c_void, len: usize) -> c_int {
    if (level, option) != (FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV) {
        return -libc::ENOPROTOOPT;
    }
    if len < size_of::<usize>() {
        return -libc::EINVAL;
    }
    // SAFETY: the pointer is a context of this provider, and the client passed a size_t.
    let (shared, bytes) = unsafe { (&ReceiveContext::of(ep).shared, value.cast::<usize>().read_unaligned()) };
    shared.multi_minimum.store(bytes, Ordering::Relaxed);
    shared.percale.set_multi_receive_minimum(bytes);
    0
}

/// The parameters of a receive.
struct ReceiveParameters {
    from: fi_addr_t,
    tag: Option<(u64, u64)>,
    context: *mut c_void,
    /// The flags of the call, or `None` if it has no flags.
    flags: Option<u64>,
}

impl ReceiveContext {
    /// Posts a receive into one piece of memory.
    ///
    /// # Safety
    /// The buffer belongs to the client.
    unsafe fn post_one(&self, buf: Void, len: usize, mut desc: Void, what: &ReceiveParameters) -> isize {
        let iov = libc::iovec { iov_base: buf, iov_len: len };
        // SAFETY: the caller guarantees this.
        unsafe { self.post(&raw const iov, &raw mut desc, 1, what) }
    }

    /// Posts a receive.
    ///
    /// # Safety
    /// `iov` is readable for `count` pieces of the client's memory, and `descriptions` is null or readable for `count`
    /// descriptors.
    unsafe fn post(&self, iov: Iov, descriptions: Descs, count: usize, what: &ReceiveParameters) -> isize {
        let shared = &self.shared;
        // SAFETY: the caller guarantees this.
        let segments: Segments = match unsafe { local::several(iov, count) } {
            Ok(segments) => segments,
            Err(refused) => return refused,
        };
        if shared.domain.regions.local {
            let described = segments.as_slice().iter().enumerate().all(|(at, segment)| {
                // SAFETY: the caller guarantees this.
                let description = unsafe { nth(descriptions, at) };
                let rights = Access::RECEIVE | Access::READ;
                shared.domain.descriptions.cover(description, segment.as_ptr().addr(), segment.len(), rights)
            });
            if !described {
                log::warning!(
                    FI_LOG_EP_DATA,
                    "a receive was not posted: with FI_MR_LOCAL, desc must be the fi_mr_desc of a region that contains the memory"
                );
                return -(libc::EINVAL as isize);
            }
        }
        let flags = match what.flags.map_or(Some(shared.flags.own()), |flags| shared.flags.flags(flags)) {
            Some(flags) => flags,
            None => return unsupported(what.flags.unwrap_or(0)),
        };
        let from = if shared.directed { PeerAddress(what.from) } else { PeerAddress::UNSPECIFIED };
        let context = local::context(what.context);
        // SAFETY: the client keeps the memory valid until the operation has completed.
        answer(unsafe { shared.percale.post_recv(&ReceiveWork { from, segments, tag: what.tag, context, flags }) })
    }
}

calls! { impl ReceiveContext {
    fn recv(receives, buf: Void, len: usize, desc: Void, from: fi_addr_t, context: Void) {
        // SAFETY: the client passed a valid buffer.
        unsafe { receives.post_one(buf, len, desc, &ReceiveParameters { from, tag: None, context, flags: None }) }
    }

    fn recvv(receives, iov: Iov, desc: Descs, count: usize, from: fi_addr_t, context: Void) {
        // SAFETY: the client passed valid buffers.
        unsafe { receives.post(iov, desc, count, &ReceiveParameters { from, tag: None, context, flags: None }) }
    }

    fn recvmsg(receives, msg: *const fi_msg, flags: u64) {
        // SAFETY: the client passed a valid message structure.
        let msg = unsafe { &*msg };
        let what = ReceiveParameters { from: msg.addr, tag: None, context: msg.context, flags: Some(flags) };
        // SAFETY: as above.
        unsafe { receives.post(msg.msg_iov, msg.desc, msg.iov_count, &what) }
    }

    fn tagged_recv(
        receives, buf: Void, len: usize, desc: Void, from: fi_addr_t, tag: u64, ignore: u64, context: Void
    ) {
        // SAFETY: the client passed a valid buffer.
        unsafe { receives.post_one(buf, len, desc, &ReceiveParameters { from, tag: Some((tag, ignore)), context, flags: None }) }
    }

    fn tagged_recvv(
        receives, iov: Iov, desc: Descs, count: usize, from: fi_addr_t, tag: u64, ignore: u64, context: Void
    ) {
        // SAFETY: the client passed valid buffers.
        unsafe { receives.post(iov, desc, count, &ReceiveParameters { from, tag: Some((tag, ignore)), context, flags: None }) }
    }

    fn tagged_recvmsg(receives, msg: *const fi_msg_tagged, flags: u64) {
        // SAFETY: the client passed a valid message structure.
        let msg = unsafe { &*msg };
        let what = ReceiveParameters { from: msg.addr, tag: Some((msg.tag, msg.ignore)), context: msg.context, flags: Some(flags) };
        // SAFETY: as above.
        unsafe { receives.post(msg.msg_iov, msg.desc, msg.iov_count, &what) }
    }
} }

object::object!(
    pub(super) TransmitContext: FI_CLASS_STX_CTX, fid_stx,
    /// The shared part, which the bound endpoints also hold.
    Transmits
);

/// The shared part of a transmit context. It only keeps the domain open.
#[derive(Debug)]
pub(crate) struct Transmits {
    domain: Arc<domain::DomainShared>,
}

impl Transmits {
    pub(super) const fn domain(&self) -> &Arc<domain::DomainShared> {
        &self.domain
    }
}

static TRANSMIT_FI: fi_ops = fi_ops { close: Some(close_transmit), control: Some(control), ..fi_ops::REFUSING };
static TRANSMIT_OPS: fi_ops_ep = fi_ops_ep::REFUSING;

/// Opens a shared transmit context.
pub(crate) unsafe extern "C" fn open_transmit(
    domain: *mut fid_domain,
    _attr: *mut fi_tx_attr,
    stx: *mut *mut fid_stx,
    context: *mut c_void,
) -> c_int {
    let head = object::head(FI_CLASS_STX_CTX, context, &TRANSMIT_FI);
    let fid = fid_stx { fid: head, ops: std::ptr::from_ref(&TRANSMIT_OPS).cast_mut() };
    log::note!(FI_LOG_EP_CTRL, "a shared transmit context has no effect on its endpoints");
    // SAFETY: the pointer is a domain of this provider.
    let domain = Arc::clone(unsafe { Domain::of(domain) }.shared());
    // SAFETY: the client passed a writable location.
    unsafe { TransmitContext { fid, shared: Arc::new(Transmits { domain }) }.give(stx) };
    0
}

unsafe extern "C" fn close_transmit(stx: fid_t) -> c_int {
    // SAFETY: the pointer is a context of this provider, and the client no longer uses it.
    unsafe { TransmitContext::close(stx, TransmitContext::shared) }
}

#[cfg(test)]
mod tests {
    use std::ptr::null_mut;

    use super::*;
    use crate::abi::{
        FI_ADDR_UNSPEC, FI_MR_LOCAL, FI_READ, FI_RECV, FI_REMOTE_READ, FI_REMOTE_WRITE, FI_SEND, FI_WRITE,
    };
    use crate::info::tests::made;
    use crate::provider::API;
    use crate::testing::{self, Client};

    #[test]
    fn shared_receive_needs_memory_that_is_registered_for_it() {
        let client = Client::open_as(API, FI_MR_LOCAL, |_| ());
        // SAFETY: the domain is open.
        let context = made(|place| unsafe { open_receive(client.domain, null_mut(), place, null_mut()) });
        let mut memory = [0_u8; 64];
        let (at, len) = (memory.as_mut_ptr(), memory.len());
        let post = |desc| {
            // SAFETY: the context is open, and no message arrives.
            unsafe { (*(*context).msg).recv.unwrap()(context, at.cast(), len, desc, FI_ADDR_UNSPEC, null_mut()) }
        };
        let (accepted, refused) = (0, -(libc::EINVAL as isize));
        for (access, answer) in [
            (FI_RECV, accepted),
            (FI_READ, accepted),
            (FI_SEND, refused),
            (FI_WRITE, refused),
            (FI_REMOTE_READ | FI_REMOTE_WRITE, refused),
        ] {
            let region = client.region(at, len, access, 7, 0);
            // SAFETY: the region is open.
            let desc = unsafe { (*region).mem_desc };
            assert_eq!((post(desc), post(null_mut())), (answer, refused), "{access:#x}");
            assert_eq!(testing::close(region), 0);
            assert_eq!(post(desc), refused, "the region is closed");
        }
        assert_eq!(testing::close(context), 0);
    }
}
