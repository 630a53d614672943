//! State changes of queue pairs, and the completions of posted requests and receives.

use std::ffi::c_int;
use std::time::Instant;

use crate::abi;
use crate::control::Settings;
use crate::machine::{CompletionEntry, Machine};
use crate::pair::{Peer, Request, RequestState};

/// The attributes that each state change requires.
const TO_INIT: c_int = abi::QP_STATE | abi::QP_PKEY_INDEX | abi::QP_PORT | abi::QP_ACCESS_FLAGS;
const TO_RTR: c_int = abi::QP_STATE
    | abi::QP_AV
    | abi::QP_PATH_MTU
    | abi::QP_DEST_QPN
    | abi::QP_RQ_PSN
    | abi::QP_MAX_DEST_RD_ATOMIC
    | abi::QP_MIN_RNR_TIMER;
const TO_RTS: c_int =
    abi::QP_STATE | abi::QP_SQ_PSN | abi::QP_TIMEOUT | abi::QP_RETRY_CNT | abi::QP_RNR_RETRY | abi::QP_MAX_QP_RD_ATOMIC;

impl Machine {
    /// Changes the state of a queue pair. An address without a device causes an error at once, because the caller,
    /// `ibv_modify_qp`, has already waited as long as address resolution would take.
    pub(crate) fn modify(&mut self, number: u32, attr: &abi::QpAttr, mask: c_int) -> Result<(), c_int> {
        let context = self.pairs.get(&number).ok_or(libc::EINVAL)?.context;
        self.fails(context, "ibv_modify_qp")?;
        if mask & abi::QP_STATE == 0 {
            return Err(libc::EOPNOTSUPP);
        }
        let settings = self.device(context).settings.clone();
        let pair = self.pairs.get_mut(&number).ok_or(libc::EINVAL)?;
        let (needed, from) = match attr.qp_state {
            abi::QPS_INIT => (TO_INIT, abi::QPS_RESET),
            abi::QPS_RTR => (TO_RTR, abi::QPS_INIT),
            abi::QPS_RTS => (TO_RTS, abi::QPS_RTR),
            abi::QPS_ERR => {
                self.pair_error(number);
                return Ok(());
            }
            _ => return Err(libc::EINVAL),
        };
        if pair.state != from || mask & needed != needed {
            return Err(libc::EINVAL);
        }
        let reads = u32::from(attr.max_rd_atomic.max(attr.max_dest_rd_atomic));
        if reads > settings.limit("max_qp_rd_atom") {
            return Err(libc::EINVAL);
        }
        match attr.qp_state {
            abi::QPS_INIT => {
                if attr.port_num == 0 || attr.port_num > settings.ports || attr.pkey_index != 0 {
                    return Err(libc::EINVAL);
                }
                (pair.port, pair.rights) = (attr.port_num, attr.qp_access_flags.cast_signed());
            }
            abi::QPS_RTR => {
                let (address, path) = (&attr.ah_attr, attr.ah_attr.grh.dgid.raw);
                if address.is_global == 0 || address.grh.sgid_index != 0 || address.port_num != pair.port {
                    return Err(libc::EINVAL);
                }
                if !Settings::is_address(&path) {
                    return Err(libc::ETIMEDOUT);
                }
                pair.peer = Some(Peer { number: attr.dest_qp_num & 0xff_ffff, gid: path, sequence: attr.rq_psn });
            }
            _ => (pair.sequence, pair.retries) = (attr.sq_psn, attr.rnr_retry.into()),
        }
        pair.state = attr.qp_state;
        Ok(())
    }

    /// Puts a queue pair into the error state. All posted requests and receives complete.
    pub(crate) fn pair_error(&mut self, number: u32) {
        let Some(pair) = self.pairs.get_mut(&number) else { return };
        pair.state = abi::QPS_ERR;
        let (sends, receives) = (std::mem::take(&mut pair.sends), std::mem::take(&mut pair.receives));
        for request in sends {
            let (status, len) = match request.state {
                RequestState::Done(status, len) => (status, len),
                RequestState::Waiting | RequestState::Sent => (abi::WC_WR_FLUSH_ERR, 0),
            };
            self.sent(number, &request, status, len);
        }
        for receive in receives {
            let wc = abi::Wc { wr_id: receive.id, status: abi::WC_WR_FLUSH_ERR, ..abi::Wc::default() };
            self.received(number, wc);
        }
    }

    /// Completes a request.
    pub(crate) fn sent(&mut self, number: u32, request: &Request, status: c_int, len: u32) {
        let Some(queue) = self.pairs.get(&number).map(|pair| pair.send_queue) else { return };
        let opcode = match request.opcode {
            abi::WR_RDMA_WRITE => abi::WC_RDMA_WRITE,
            abi::WR_RDMA_READ => abi::WC_RDMA_READ,
            abi::WR_BIND_MW => abi::WC_BIND_MW,
            abi::WR_LOCAL_INV => abi::WC_LOCAL_INV,
            _ => abi::WC_SEND,
        };
        let wc = abi::Wc { wr_id: request.id, status, opcode, byte_len: len, qp_num: number, ..abi::Wc::default() };
        self.complete(queue, CompletionEntry { wc, is_send: true, ready: None });
    }

    /// Completes a receive.
    pub(crate) fn received(&mut self, number: u32, wc: abi::Wc) {
        let Some((queue, context)) = self.pairs.get(&number).map(|pair| (pair.receive_queue, pair.context)) else {
            return;
        };
        let ready = self.device(context).delay("receive").map(|delay| Instant::now() + delay);
        let wc = abi::Wc { opcode: abi::WC_RECV, qp_num: number, ..wc };
        self.complete(queue, CompletionEntry { wc, is_send: false, ready });
    }
}
