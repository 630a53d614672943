//! Notes for the endpoints of a shared receive context. Each endpoint reads its notes when it makes progress.

use std::sync::{Arc, PoisonError};

use super::many::Many;
use super::{ContextAddress, PostedReceive};
use crate::completion::entry::{Entry, ErrorEntry};
use crate::endpoint::engine::types::Notify;
use crate::endpoint::matching::{HeldMessage, Pattern};
use crate::sync::{AtomicBool, Mutex, Ordering};
use crate::types::PeerAddress;

/// A note for a member.
#[derive(Debug)]
pub(crate) enum MemberNote {
    /// A message of the member was matched with a receive.
    Fill(ReservedReceive),
    /// A receive waits for a message from this peer.
    LookFor(PeerAddress),
    /// A receive waits for a message from the peer at this address. The peer's connection to another member has ended.
    LookAt(ContextAddress),
    /// This receive was canceled.
    Canceled { tagged: bool, receive: PostedReceive },
    /// A receive that another member had taken has ended, and that member's own queue no longer exists.
    Over(Box<EndedReceive>),
}

/// A receive for a message that a member stores.
#[derive(Debug)]
pub(crate) struct ReservedReceive {
    pub(crate) tagged: bool,
    pub(crate) held: HeldMessage,
    pub(crate) receive: PostedReceive,
    /// The pattern with which the receive was posted.
    pub(crate) pattern: Pattern,
}

/// A receive that has ended and has not been reported yet.
#[derive(Debug)]
pub(crate) struct EndedReceive {
    pub(crate) notify: Notify,
    /// The buffer that contains the receive's part. The part ends when it is reported.
    pub(crate) part: Option<Arc<Many>>,
    pub(crate) result: Result<Entry, ErrorEntry>,
}

/// The notes for one member.
#[derive(Debug, Default)]
pub(super) struct Notes {
    /// Whether the list contains notes. It is set after a note was added, so that a member that finds it set and takes
    /// the list does not clear it for a note that is yet to be added.
    any: AtomicBool,
    list: Mutex<Vec<MemberNote>>,
}

impl Notes {
    /// Returns whether there are notes. Costs one relaxed load.
    #[inline]
    pub(super) fn any(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    pub(super) fn add(&self, note: MemberNote) {
        self.list.lock().unwrap_or_else(PoisonError::into_inner).push(note);
        self.any.store(true, Ordering::Release);
    }

    pub(super) fn take(&self) -> Vec<MemberNote> {
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        self.any.store(false, Ordering::Relaxed);
        std::mem::take(&mut *list)
    }
}

#[cfg(all(test, loom))]
mod model {
    use loom::thread;

    use super::*;
    use crate::sync::explore;

    /// One thread adds notes while the member takes them. Once all were added, the member has taken each of them, or
    /// finds that there are more.
    #[test]
    fn loom_member_misses_no_note() {
        explore(None, 75, || {
            let notes = loom::sync::Arc::new(Notes::default());
            let adds = {
                let notes = loom::sync::Arc::clone(&notes);
                thread::spawn(move || (0..2).for_each(|peer| notes.add(MemberNote::LookFor(PeerAddress(peer)))))
            };
            let mut taken = Vec::new();
            let take = |taken: &mut Vec<_>| {
                if notes.any() {
                    taken.extend(notes.take());
                }
            };
            (0..2).for_each(|_| take(&mut taken));
            adds.join().unwrap();
            take(&mut taken);
            let peers = taken.iter().map(|note| match note {
                MemberNote::LookFor(PeerAddress(peer)) => *peer,
                other => panic!("{other:?}"),
            });
            assert!(peers.eq(0..2), "{taken:?}: a note was missed");
        });
    }
}
