//! Queue pairs, and the requests and receives that are posted to them.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::time::Instant;

use crate::abi;

/// A posted request.
#[derive(Clone)]
pub(crate) struct Request {
    pub(crate) id: u64,
    pub(crate) opcode: c_int,
    pub(crate) parts: Vec<abi::Sge>,
    /// The inline data of the request.
    pub(crate) inline: Option<Vec<u8>>,
    pub(crate) immediate: u32,
    /// The address and key of the peer's memory.
    pub(crate) remote: (u64, u32),
    /// For a bind: the window's key, its new key, and the range. The next field is the region's key.
    pub(crate) bind: Option<(u32, u32, crate::keys::BoundRange)>,
    pub(crate) region: u32,
    /// The time before which the request does not begin.
    pub(crate) ready: Option<Instant>,
    pub(crate) state: RequestState,
}

/// The progress of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestState {
    Waiting,
    /// The request was sent to another process.
    Sent,
    /// The request has completed with this status and number of bytes.
    Done(c_int, u32),
}

/// A posted receive.
#[derive(Clone)]
pub(crate) struct Receive {
    pub(crate) id: u64,
    pub(crate) parts: Vec<abi::Sge>,
}

/// The peer to which a queue pair is connected.
#[derive(Clone, Copy)]
pub(crate) struct Peer {
    pub(crate) number: u32,
    pub(crate) gid: [u8; 16],
    /// The number of the first packet from the peer.
    pub(crate) sequence: u32,
}

/// A queue pair.
pub(crate) struct Pair {
    /// The address of the queue pair's structure, for events.
    pub(crate) ptr: u64,
    /// The sequence number of its creation.
    pub(crate) made: u32,
    pub(crate) context: u32,
    pub(crate) domain: u32,
    pub(crate) send_queue: u32,
    pub(crate) receive_queue: u32,
    pub(crate) cap: abi::QpCap,
    pub(crate) state: c_int,
    pub(crate) rights: c_int,
    pub(crate) port: u8,
    pub(crate) peer: Option<Peer>,
    /// The number of the first packet to the peer.
    pub(crate) sequence: u32,
    pub(crate) sends: VecDeque<Request>,
    pub(crate) receives: VecDeque<Receive>,
    /// The numbers of requests and of receives with completions that were not polled yet.
    pub(crate) used: (u32, u32),
    /// The number of the first request in `sends`, counted since the queue pair was connected. The next field is the
    /// number of the next request that the peer may send.
    pub(crate) first: u64,
    pub(crate) expected: u64,
    /// The time before which nothing is sent.
    pub(crate) hold: Option<Instant>,
    /// The time since which no answer has arrived.
    pub(crate) silent: Option<Instant>,
    /// The number of consecutive answers that the peer has no receive posted.
    pub(crate) unready: u32,
    pub(crate) retries: u32,
}

impl Pair {
    /// Handles the failure of the device, after which nothing completes any more.
    pub(crate) fn vanish(&mut self) {
        self.state = abi::QPS_ERR;
        self.sends.clear();
        self.receives.clear();
    }

    pub(crate) const fn receives_now(&self) -> bool {
        self.state == abi::QPS_RTR || self.state == abi::QPS_RTS
    }
}
