//! Events as libfabric has them.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::Arc;

use percale::ErrorCode;
use percale::endpoint::connection::ConnectionRequest;

use crate::abi::{fi_eq_cm_entry, fi_info, fid_t};
use crate::info::Copied;
use crate::passive::Request;

/// A client's object, as a name.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fid(pub(super) fid_t);

// SAFETY: a name; who follows it says why that is sound.
unsafe impl Send for Fid {}

/// Whom events are about.
#[derive(Debug, Default)]
pub(super) struct Names {
    /// Endpoints by their percale number.
    pub(super) endpoints: HashMap<u64, Fid>,
    /// Those whose connections are over, and were said to be.
    pub(super) over: HashSet<u64>,
    /// Passive endpoints, and what the endpoints are like that take their connections.
    pub(super) listeners: HashMap<SocketAddr, (Fid, Arc<Copied>)>,
}

/// The answer that carries a connection request to the client.
#[derive(Debug)]
pub(super) struct Asked {
    info: *mut fi_info,
    handle: fid_t,
}

// SAFETY: both are ours alone until they are handed over.
unsafe impl Send for Asked {}

impl Asked {
    /// For a request from this address.
    pub(super) fn new(request: ConnectionRequest, from: SocketAddr, like: &Copied) -> Option<Self> {
        let handle = Request::hand_out(request);
        let asked = Self { info: std::ptr::null_mut(), handle };
        // Without an answer the request is dropped, which rejects it.
        let info = like.for_request(from, handle)?;
        let handle = asked.handle;
        std::mem::forget(asked);
        Some(Self { info, handle })
    }

    /// The client has it now.
    pub(super) fn hand_over(self) {
        std::mem::forget(self);
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        if !self.info.is_null() {
            // SAFETY: nobody else has it.
            drop(unsafe { Copied::adopt(self.info) });
        }
        // SAFETY: nobody else has it.
        drop(unsafe { Request::take(self.handle) });
    }
}

/// An event that was looked at.
#[derive(Debug)]
pub(super) enum Record {
    /// Written by the client.
    User { code: u32, data: Vec<u8> },
    /// Of a connection.
    Connection { code: u32, fid: Fid, request: Option<Asked>, data: Vec<u8> },
    /// An error: there will be no connection.
    Refused { fid: Fid, error: ErrorCode, data: Vec<u8> },
}

/// Bytes of a connection's event without its data.
pub(super) const HEAD: usize = size_of::<fi_eq_cm_entry>();

impl Record {
    /// Number and bytes, of data as much as `room` allows.
    pub(super) fn bytes(&self, room: usize) -> (u32, Vec<u8>) {
        match self {
            Self::User { code, data } => (*code, data.clone()),
            Self::Connection { code, fid, request, data } => {
                let info = request.as_ref().map_or(std::ptr::null_mut(), |asked| asked.info);
                let mut bytes = Vec::with_capacity(HEAD + data.len());
                bytes.extend_from_slice(&fid.0.expose_provenance().to_ne_bytes());
                bytes.extend_from_slice(&info.expose_provenance().to_ne_bytes());
                bytes.extend_from_slice(data);
                bytes.truncate(room);
                (*code, bytes)
            }
            Self::Refused { .. } => (0, Vec::new()),
        }
    }
}
