//! Sends of which some bytes have yet to leave.
//!
//! A stream keeps the bytes that it collects, and those for which the kernel has no room, until the next progress. A send that was reported
//! as complete arrives without further progress of this endpoint: a caller that has read the completion need not make progress again. So
//! such a send is reported when its last byte has left.

use std::collections::{HashMap, VecDeque};

use super::core::Core;
use super::types::{Notify, Side};
use crate::completion::entry::{Entry, ErrorCode, ErrorEntry};
use crate::transport::Connection;
use crate::transport::any::AnyLink;

/// A send of which a link still keeps some bytes.
#[derive(Clone, Copy, Debug)]
struct Kept {
    /// The position in the link's stream at which the send ends.
    end: u64,
    notify: Notify,
    entry: Entry,
}

/// Sends with bytes that have not left yet.
#[derive(Debug, Default)]
pub(crate) struct Unsent {
    /// The number of these sends, of all peers.
    count: usize,
    /// The sends by peer, in order.
    kept: HashMap<Connection, VecDeque<Kept>>,
}

impl Core {
    /// Records that a link took a whole send. Reports the send if all of its bytes have left.
    #[inline]
    pub(super) fn sent(&mut self, to: Connection, link: &AnyLink, notify: Notify, entry: Entry) {
        if self.has_left(to, link, notify, || entry) {
            self.complete(Side::Transmit, notify, entry);
        }
    }

    /// Like [`sent`](Self::sent), but returns whether the send has left. If it has, the caller reports it; if not, it is reported when its
    /// last byte has left.
    #[inline]
    pub(super) fn has_left(
        &mut self,
        to: Connection,
        link: &AnyLink,
        notify: Notify,
        entry: impl FnOnce() -> Entry,
    ) -> bool {
        self.report_sent(to, link); // Earlier sends: their last bytes may have left with this one.
        let Some((_, end)) = link.unsent() else { return true };
        self.unsent.count += 1;
        self.unsent.kept.entry(to).or_default().push_back(Kept { end, notify, entry: entry() });
        false
    }

    /// Reports the sends that have left since. Returns whether there were any.
    #[inline]
    pub(super) fn report_sent(&mut self, to: Connection, link: &AnyLink) -> bool {
        self.unsent.count > 0 && self.report_kept(to, link.unsent().map_or(u64::MAX, |(start, _)| start))
    }

    #[inline(never)]
    fn report_kept(&mut self, to: Connection, left: u64) -> bool {
        let mut any = false;
        while let Some(kept) = self.unsent.kept.get_mut(&to).and_then(|kept| kept.pop_front_if(|one| one.end <= left)) {
            self.unsent.count -= 1;
            any = true;
            self.complete(Side::Transmit, kept.notify, kept.entry);
        }
        any
    }

    /// Fails the sends that have not left, because the connection is gone and they will not arrive.
    #[cold]
    pub(super) fn fail_unsent(&mut self, to: Connection, error: ErrorCode, why: &str) {
        let lost = self.unsent.kept.remove(&to).unwrap_or_default();
        self.unsent.count -= lost.len();
        for Kept { notify, entry, .. } in lost {
            self.fail(Side::Transmit, notify, ErrorEntry::new(entry, error).with_text(why.to_owned()));
        }
    }
}
