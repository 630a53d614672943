//! Bytes of local regions that peers fetch.

use super::{RemoteAccesses, SERVE};
use crate::endpoint::engine::types::PullAnswer;
use crate::local_memory::buffer::Buffer;
use crate::region::lease::Lease;
use crate::table::Id;
use crate::transport::ConnectionId;

/// How a peer gets the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum ServeMode {
    /// The bytes are offered, and the peer requests them.
    Offered,
    /// The peer expects the bytes, and they are sent at once. The transfer counts as an answer until it has left.
    Expected,
}

/// Bytes of a region that a peer is about to fetch.
#[derive(Debug)]
pub(in super::super) struct Serve {
    /// The peer that requested the bytes.
    to: ConnectionId,
    /// The bytes that the peer gets.
    source: Lease,
    /// The copy to which `source` refers, if this process must not touch the region's own memory.
    staged: Option<Buffer>,
    mode: ServeMode,
    /// Whether the peer is fetching the bytes.
    fetching: bool,
    /// Whether the bytes are a complete read, which is counted when it ends.
    counted: bool,
}

impl Serve {
    /// Returns the copy that was made of the bytes, if one was made.
    pub(in super::super) const fn staged(&self) -> Option<&Buffer> {
        self.staged.as_ref()
    }

    /// Returns how the peer got the bytes.
    pub(in super::super) const fn mode(&self) -> ServeMode {
        self.mode
    }

    /// Returns whether the bytes were a complete read, which has to be counted now.
    pub(in super::super) const fn is_counted(&self) -> bool {
        self.counted
    }
}

impl RemoteAccesses {
    /// Adds bytes that a peer will fetch. `staged` is the copy to which `source` refers, if a copy was made. `counted`
    /// states whether they are a complete read. Returns the number that the peer uses for them.
    pub(in super::super) fn serve(
        &mut self,
        to: ConnectionId,
        source: Lease,
        staged: Option<Buffer>,
        mode: ServeMode,
        counted: bool,
    ) -> u32 {
        let fetching = mode == ServeMode::Expected;
        self.serves.insert(Serve { to, source, staged, mode, fetching, counted }).to_wire() | SERVE
    }

    /// Handles a peer's request for the bytes of its read.
    pub(in super::super) fn serve_asked(&mut self, from: ConnectionId, wire: u32) -> PullAnswer {
        let Some(id) = self.serve_of(from, wire) else { return PullAnswer::Gone };
        let serve = &mut self.serves[id];
        if std::mem::replace(&mut serve.fetching, true) {
            return PullAnswer::Nothing;
        }
        PullAnswer::Source(serve.source.clone())
    }

    fn serve_of(&self, from: ConnectionId, wire: u32) -> Option<Id<Serve>> {
        let id = self.serves.find_wire(wire & !SERVE)?;
        (self.serves[id].to == from).then_some(id)
    }

    /// Removes a finished transfer to a peer.
    pub(in super::super) fn served(&mut self, from: ConnectionId, wire: u32) -> Option<Serve> {
        let id = self.serve_of(from, wire)?;
        self.serves.remove(id)
    }

    /// Drops the transfers to a peer that were not finished when its connection ended.
    pub(in super::super) fn drop_serves(&mut self, to: ConnectionId) {
        self.serves.retain(|_, serve| serve.to != to);
    }
}
