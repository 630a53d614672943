//! Sends of which some bytes have yet to leave.
//!
//! A stream keeps what it collects, and what the kernel has no room for, until the next progress. What is reported as sent arrives
//! without us: whoever has read that need not make progress again. So such a send is reported when its last byte has left.

use std::collections::{HashMap, VecDeque};

use super::core::Core;
use super::types::{Notify, Side};
use crate::completion::entry::{Entry, ErrorCode, ErrorEntry};
use crate::transport::Connection;
use crate::transport::any::AnyLink;

/// A send that a link keeps some bytes of.
#[derive(Clone, Copy, Debug)]
struct Kept {
    /// Where its last byte is in the link's stream.
    end: u64,
    notify: Notify,
    entry: Entry,
}

/// Sends whose last bytes have not left yet.
#[derive(Debug, Default)]
pub(crate) struct Unsent {
    /// Of all peers.
    count: usize,
    /// By peer, in order.
    kept: HashMap<Connection, VecDeque<Kept>>,
}

impl Core {
    /// A link took a whole send.
    #[inline]
    pub(super) fn sent(&mut self, to: Connection, link: &AnyLink, notify: Notify, entry: Entry) {
        if self.has_left(to, link, notify, || entry) {
            self.complete(Side::Transmit, notify, entry);
        }
    }

    /// The same, for whoever sees to the end of a send that has left already: whether it has.
    #[inline]
    pub(super) fn has_left(
        &mut self,
        to: Connection,
        link: &AnyLink,
        notify: Notify,
        entry: impl FnOnce() -> Entry,
    ) -> bool {
        self.report_sent(to, link); // Those before, which this one may have taken along.
        let Some((_, end)) = link.unsent() else { return true };
        self.unsent.count += 1;
        self.unsent.kept.entry(to).or_default().push_back(Kept { end, notify, entry: entry() });
        false
    }

    /// Reports what has left since. Whether there was any.
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

    /// The connection is gone: what has not left will not arrive.
    #[cold]
    pub(super) fn fail_unsent(&mut self, to: Connection, error: ErrorCode, why: &str) {
        let lost = self.unsent.kept.remove(&to).unwrap_or_default();
        self.unsent.count -= lost.len();
        for Kept { notify, entry, .. } in lost {
            self.fail(Side::Transmit, notify, ErrorEntry::new(entry, error).with_text(why.to_owned()));
        }
    }
}
