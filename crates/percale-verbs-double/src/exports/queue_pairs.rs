//! The functions of queue pairs, and the requests and receives that are posted to them.

use std::ffi::c_int;
use std::time::{Duration, Instant};

use super::pointers::{errno, freed, given, of, zeroed};
use crate::abi;
use crate::control::operation;
use crate::keys::BoundRange;
use crate::machine::{Machine, machine};
use crate::pair::{Receive, Request, RequestState};

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_qp(domain: *mut abi::Pd, attr: *mut abi::QpInitAttr) -> *mut abi::Qp {
    // SAFETY: the caller passes a valid domain and structure.
    let (pd, attr) = (unsafe { of(domain) }, unsafe { of(attr) });
    // SAFETY: the caller passes valid queues.
    let queues = (unsafe { of(attr.send_cq) }.handle, unsafe { of(attr.recv_cq) }.handle);
    let mut state = machine();
    given(state.create_pair(pd.handle, queues, attr.qp_type, attr.cap).map(|number| {
        let mut pair: Box<abi::Qp> = zeroed();
        (pair.context, pair.pd, pair.qp_context) = (pd.context, domain, attr.qp_context);
        (pair.send_cq, pair.recv_cq) = (attr.send_cq, attr.recv_cq);
        (pair.handle, pair.qp_num, pair.qp_type) = (number, number, attr.qp_type);
        if let Some(made) = state.pairs.get_mut(&number) {
            made.ptr = (&raw const *pair).expose_provenance() as u64;
        }
        pair
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_modify_qp(pair: *mut abi::Qp, attr: *mut abi::QpAttr, mask: c_int) -> c_int {
    // SAFETY: the caller passes a valid queue pair and structure.
    let (number, attr) = (unsafe { of(pair) }.qp_num, unsafe { of(attr) });
    if attr.qp_state == abi::QPS_RTR {
        let mut state = machine();
        let context = state.pairs.get(&number).map(|pair| pair.context);
        let mut wait = context.and_then(|context| state.device(context).delay("connect"));
        if !crate::control::Settings::is_address(&attr.ah_attr.grh.dgid.raw) {
            wait = wait.or(Some(Duration::from_secs(1)));
        }
        drop(state);
        if let Some(wait) = wait {
            std::thread::sleep(wait);
        }
    }
    let mut state = machine();
    let result = state.modify(number, attr, mask);
    state.pump(number);
    errno(result)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_qp(pair: *mut abi::Qp) -> c_int {
    // SAFETY: the caller passes a valid queue pair.
    let number = unsafe { of(pair) }.qp_num;
    let result = machine().destroy_pair(number);
    // SAFETY: it was returned by `ibv_create_qp`.
    unsafe { freed(pair, result) }
}

/// Returns a request without any operands.
fn request(id: u64, opcode: c_int) -> Request {
    Request {
        id,
        opcode,
        parts: Vec::new(),
        inline: None,
        immediate: 0,
        remote: (0, 0),
        bind: None,
        region: 0,
        ready: None,
        state: RequestState::Waiting,
    }
}

/// Returns the scatter/gather list of a request.
///
/// # Safety
/// The list has `count` elements.
unsafe fn parts(list: *const abi::Sge, count: c_int) -> Vec<abi::Sge> {
    // SAFETY: guaranteed by the caller.
    (0..usize::try_from(count).unwrap_or(0)).map(|at| unsafe { list.wrapping_add(at).read() }).collect()
}

pub(super) unsafe extern "C" fn post_send(
    pair: *mut abi::Qp,
    first: *mut abi::SendWr,
    bad: *mut *mut abi::SendWr,
) -> c_int {
    // SAFETY: the caller passes a valid queue pair.
    let number = unsafe { of(pair) }.qp_num;
    let mut next = first;
    while !next.is_null() {
        // SAFETY: the caller passes a valid request.
        let wr = unsafe { of(next) };
        // SAFETY: the caller passes a valid list.
        let parts = unsafe { parts(wr.sg_list, wr.num_sge) };
        let mut made = Request { immediate: wr.imm_data, parts, ..request(wr.wr_id, wr.opcode) };
        // SAFETY: both kinds begin with at least the address and the key, and any bytes are a valid value.
        let remote = unsafe { wr.wr.rdma };
        made.remote = (remote.remote_addr, remote.rkey);
        if wr.opcode == abi::WR_BIND_MW {
            // SAFETY: the caller passes a valid window.
            let old = unsafe { of(wr.bind_mw.mw) }.rkey;
            // SAFETY: the caller passes a valid region.
            let (region, bound) = unsafe { bound(&wr.bind_mw.bind_info, number) };
            (made.bind, made.region) = (Some((old, wr.bind_mw.rkey, bound)), region);
        }
        if wr.send_flags & abi::SEND_INLINE.cast_unsigned() != 0 {
            let mut bytes = Vec::new();
            made.parts.iter().for_each(|part| crate::memory::read(part.addr, part.length as usize, &mut bytes));
            made.inline = Some(bytes);
        }
        if let Err(errno) = machine().post(number, made) {
            // SAFETY: the caller passes a valid pointer.
            unsafe { bad.write(next) };
            return errno;
        }
        next = wr.next;
    }
    0
}

pub(super) unsafe extern "C" fn post_recv(
    pair: *mut abi::Qp,
    first: *mut abi::RecvWr,
    bad: *mut *mut abi::RecvWr,
) -> c_int {
    // SAFETY: the caller passes a valid queue pair.
    let number = unsafe { of(pair) }.qp_num;
    let mut next = first;
    while !next.is_null() {
        // SAFETY: the caller passes a valid request.
        let wr = unsafe { of(next) };
        // SAFETY: the caller passes a valid list.
        let receive = Receive { id: wr.wr_id, parts: unsafe { parts(wr.sg_list, wr.num_sge) } };
        if let Err(errno) = machine().post_receive(number, receive) {
            // SAFETY: the caller passes a valid pointer.
            unsafe { bad.write(next) };
            return errno;
        }
        next = wr.next;
    }
    0
}

/// Returns the range to which a window is to be bound, together with the queue pair.
///
/// # Safety
/// The region is alive, unless the range has no bytes.
unsafe fn bound(info: &abi::MwBindInfo, pair: u32) -> (u32, BoundRange) {
    let region = match info.mr.is_null() {
        true => 0,
        // SAFETY: guaranteed by the caller.
        false => unsafe { of(info.mr) }.handle,
    };
    let rights = info.mw_access_flags.cast_signed();
    (region, BoundRange { region: region >> 8, start: info.addr, len: info.length, rights, pair })
}

pub(super) unsafe extern "C" fn bind_mw(pair: *mut abi::Qp, window: *mut abi::Mw, bind: *mut abi::MwBind) -> c_int {
    // SAFETY: the caller passes a valid queue pair and request.
    let (number, bind) = (unsafe { of(pair) }.qp_num, unsafe { of(bind) });
    // SAFETY: the caller passes a valid window.
    let (old, kind) = (unsafe { of(window) }.rkey, unsafe { of(window) }.kind);
    if kind != abi::MW_TYPE_1 {
        return libc::EINVAL;
    }
    // SAFETY: the caller passes a valid region.
    let (region, bound) = unsafe { bound(&bind.bind_info, number) };
    let key = old & !0xff | old.wrapping_add(1) & 0xff;
    let request = Request { bind: Some((old, key, bound)), region, ..request(bind.wr_id, abi::WR_BIND_MW) };
    let result = machine().post(number, request);
    if result.is_ok() {
        // SAFETY: the caller passes a valid window, which this call changes.
        unsafe { (*window).rkey = key };
    }
    errno(result)
}

impl Machine {
    /// Accepts a request, and executes it at once if this is possible.
    fn post(&mut self, number: u32, mut request: Request) -> Result<(), c_int> {
        let context = self.pairs.get(&number).ok_or(libc::EINVAL)?.context;
        self.device(context).fails("ibv_post_send").map_or(Ok(()), Err)?;
        let device = self.device(context);
        let (delay, gone) = (device.delay(operation(request.opcode)), device.gone);
        let pair = self.pairs.get_mut(&number).ok_or(libc::EINVAL)?;
        let inline = request.inline.as_ref().map_or(0, Vec::len);
        if request.parts.len() > pair.cap.max_send_sge as usize || inline > pair.cap.max_inline_data as usize {
            return Err(libc::EINVAL);
        }
        if pair.used.0 >= pair.cap.max_send_wr {
            return Err(libc::ENOMEM);
        }
        match pair.state {
            _ if gone => return Ok(()), // Requests to a failed device never complete.
            abi::QPS_RTS => {}
            abi::QPS_ERR => {
                pair.used.0 += 1;
                self.sent(number, &request, abi::WC_WR_FLUSH_ERR, 0);
                return Ok(());
            }
            _ => return Err(libc::EINVAL),
        }
        pair.used.0 += 1;
        request.ready = delay.map(|delay| Instant::now() + delay);
        pair.sends.push_back(request);
        self.pump(number);
        Ok(())
    }

    fn post_receive(&mut self, number: u32, receive: Receive) -> Result<(), c_int> {
        let context = self.pairs.get(&number).ok_or(libc::EINVAL)?.context;
        self.device(context).fails("ibv_post_recv").map_or(Ok(()), Err)?;
        let gone = self.device(context).gone;
        let pair = self.pairs.get_mut(&number).ok_or(libc::EINVAL)?;
        if receive.parts.len() > pair.cap.max_recv_sge as usize || pair.state == abi::QPS_RESET {
            return Err(libc::EINVAL);
        }
        if pair.used.1 >= pair.cap.max_recv_wr {
            return Err(libc::ENOMEM);
        }
        if gone {
            return Ok(());
        }
        pair.used.1 += 1;
        if pair.state == abi::QPS_ERR {
            self.received(number, abi::Wc { wr_id: receive.id, status: abi::WC_WR_FLUSH_ERR, ..abi::Wc::default() });
        } else {
            pair.receives.push_back(receive);
        }
        Ok(())
    }
}
