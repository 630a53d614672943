//! The receive side of a queue pair, which executes the requests of its peer.

use std::ffi::c_int;

use crate::abi;
use crate::machine::Machine;
use crate::memory;

/// A request as it is sent.
pub(crate) struct Message {
    pub(crate) from: u32,
    pub(crate) to: u32,
    /// The address to which the request is sent.
    pub(crate) gid: [u8; 16],
    /// The number of the sender's first packet.
    pub(crate) start: u32,
    /// The number of the request.
    pub(crate) sequence: u64,
    pub(crate) opcode: c_int,
    pub(crate) immediate: u32,
    pub(crate) remote: (u64, u32),
    /// The number of bytes that the request writes, sends or reads.
    pub(crate) len: u32,
    pub(crate) data: Vec<u8>,
}

/// The result of a request.
pub(crate) enum Response {
    /// The request was executed. Contains the bytes of a read.
    Done(Vec<u8>),
    /// The request was rejected, with this status for the sender.
    Refused(c_int),
    /// No receive is posted.
    Unready,
    /// There is no such queue pair.
    Nobody,
    /// The request is out of order and is not answered.
    Ignored,
}

impl Machine {
    /// Executes a request of a peer.
    pub(crate) fn respond(&mut self, message: &Message) -> Response {
        let Some(pair) = self.pairs.get(&message.to).filter(|pair| pair.receives_now()) else {
            return Response::Nobody;
        };
        let connected = pair.peer.filter(|peer| peer.number == message.from && peer.sequence == message.start);
        let (context, port, domain, expected) = (pair.context, pair.port, pair.domain, pair.expected);
        let device = self.device(context);
        let settings = &device.settings;
        let lost = device.gone || settings.drop || settings.drop_port == port || settings.address(port) != message.gid;
        let lax = settings.lax;
        if connected.is_none() || lost {
            return Response::Nobody;
        }
        if message.sequence > expected {
            return Response::Ignored; // The earlier requests will be sent again, followed by this one.
        }
        let is_again = message.sequence < expected;
        if is_again && message.opcode != abi::WR_RDMA_READ {
            return Response::Done(Vec::new());
        }
        let answer = match message.opcode {
            abi::WR_SEND | abi::WR_SEND_WITH_IMM | abi::WR_SEND_WITH_INV => self.deliver(message, domain, lax),
            abi::WR_RDMA_WRITE | abi::WR_RDMA_READ => self.access(message, domain),
            _ => Response::Refused(abi::WC_REM_INV_REQ_ERR),
        };
        if let Response::Refused(_) = answer {
            if let Some(pair) = self.pairs.get(&message.to) {
                let ptr = pair.ptr;
                self.event(context, abi::EVENT_QP_ACCESS_ERR, ptr);
            }
            self.pair_error(message.to);
        } else if !is_again && let (Some(pair), Response::Done(_)) = (self.pairs.get_mut(&message.to), &answer) {
            pair.expected += 1;
        }
        answer
    }

    fn deliver(&mut self, message: &Message, domain: u32, lax: bool) -> Response {
        let Some(pair) = self.pairs.get_mut(&message.to) else { return Response::Nobody };
        let Some(receive) = pair.receives.pop_front() else { return Response::Unready };
        let mut wc = abi::Wc { wr_id: receive.id, byte_len: message.len, src_qp: message.from, ..abi::Wc::default() };
        let room: u64 = receive.parts.iter().map(|part| u64::from(part.length)).sum();
        let (mut refused, mut left) = (None, message.data.as_slice());
        if u64::from(message.len) > room {
            refused = Some((abi::WC_LOC_LEN_ERR, abi::WC_REM_INV_REQ_ERR));
        }
        for part in &receive.parts {
            if refused.is_some() || left.is_empty() {
                break;
            }
            let (first, rest) = left.split_at((part.length as usize).min(left.len()));
            if self.keys.is_local(part.lkey, domain, (part.addr, first.len() as u64), true) {
                memory::write(part.addr, first);
            } else {
                refused = Some((abi::WC_LOC_PROT_ERR, abi::WC_REM_OP_ERR));
            }
            left = rest;
        }
        match message.opcode {
            abi::WR_SEND_WITH_IMM => (wc.wc_flags, wc.imm_data) = (abi::WC_WITH_IMM.cast_unsigned(), message.immediate),
            abi::WR_SEND_WITH_INV => {
                (wc.wc_flags, wc.imm_data) = (abi::WC_WITH_INV.cast_unsigned(), message.immediate);
                if self.keys.invalidate(message.immediate, message.to, lax).is_err() {
                    refused = refused.or(Some((abi::WC_WR_FLUSH_ERR, abi::WC_REM_ACCESS_ERR)));
                }
            }
            _ => {}
        }
        if let Some((status, _)) = refused {
            wc.status = status;
        }
        self.received(message.to, wc);
        refused.map_or_else(|| Response::Done(Vec::new()), |(_, status)| Response::Refused(status))
    }

    fn access(&mut self, message: &Message, domain: u32) -> Response {
        let Some(pair) = self.pairs.get(&message.to) else { return Response::Nobody };
        let (address, key) = message.remote;
        let writes = message.opcode == abi::WR_RDMA_WRITE;
        let right = if writes { abi::ACCESS_REMOTE_WRITE } else { abi::ACCESS_REMOTE_READ };
        let is_admitted = message.len == 0
            || pair.rights & right != 0
                && self.keys.admits(key, (domain, message.to), (address, message.len.into()), right);
        if !is_admitted {
            return Response::Refused(abi::WC_REM_ACCESS_ERR);
        }
        let mut bytes = Vec::new();
        if writes {
            memory::write(address, &message.data);
        } else {
            memory::read(address, message.len as usize, &mut bytes);
        }
        Response::Done(bytes)
    }
}
