//! Sends with bytes that have yet to leave.
//!
//! A stream keeps the bytes that it collects, and those for which the kernel has no room, until the next progress. A
//! send that was reported as complete has to arrive without further progress of this endpoint, because a caller that
//! has read the completion need not make progress again. So such a send is reported when its last byte has left.

use std::collections::{HashMap, VecDeque};

use super::super::types::Notify;
use crate::completion::entry::Entry;
use crate::transport::ConnectionId;

/// A send with bytes that its link has not sent yet.
#[derive(Clone, Copy, Debug)]
struct UnsentSend {
    /// The position in the link's stream at which the send ends.
    end: u64,
    notify: Notify,
    entry: Entry,
}

/// Sends with bytes that have not left yet.
#[derive(Debug, Default)]
pub(in super::super) struct UnsentSends {
    /// The number of these sends, of all peers.
    count: usize,
    /// The sends by peer, in order.
    kept: HashMap<ConnectionId, VecDeque<UnsentSend>>,
}

impl UnsentSends {
    /// Returns the number of sends.
    #[cfg(any(test, feature = "sim"))]
    pub(super) const fn len(&self) -> usize {
        self.count
    }

    /// Returns whether there are any such sends.
    #[inline]
    pub(in super::super) const fn any(&self) -> bool {
        self.count > 0
    }

    /// Keeps a send that ends at this position of its link's stream.
    pub(in super::super) fn keep(&mut self, to: ConnectionId, end: u64, notify: Notify, entry: Entry) {
        self.count += 1;
        self.kept.entry(to).or_default().push_back(UnsentSend { end, notify, entry });
    }

    /// Takes the next send to a peer, if all of its bytes are among the first `left` of the link's stream, which have
    /// left.
    pub(in super::super) fn take_sent(&mut self, to: ConnectionId, left: u64) -> Option<(Notify, Entry)> {
        let UnsentSend { notify, entry, .. } = self.kept.get_mut(&to)?.pop_front_if(|kept| kept.end <= left)?;
        self.count -= 1;
        Some((notify, entry))
    }

    /// Takes the sends to a peer that have not left. They will not arrive, because the connection has ended.
    #[cold]
    pub(in super::super) fn take_lost(&mut self, to: ConnectionId) -> impl Iterator<Item = (Notify, Entry)> + use<> {
        let lost = self.kept.remove(&to).unwrap_or_default();
        self.count -= lost.len();
        lost.into_iter().map(|UnsentSend { notify, entry, .. }| (notify, entry))
    }
}
