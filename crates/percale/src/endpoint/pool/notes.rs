//! Notes for the endpoints of a shared receive context, which each reads at its progress.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::many::Many;
use super::{At, Waiting};
use crate::completion::entry::{Entry, ErrorEntry};
use crate::endpoint::engine::types::Notify;
use crate::endpoint::matching::{Held, Pattern};
use crate::types::PeerAddress;

/// A note for a member.
#[derive(Debug)]
pub(crate) enum Note {
    /// A message of the member has a receive.
    Fill(Promise),
    /// A receive waits for this peer.
    LookFor(PeerAddress),
    /// A receive waits for the peer at this address. The connection of this peer to another member ended.
    LookAt(At),
    /// This receive was canceled.
    Canceled { tagged: bool, receive: Waiting },
    /// A receive that another member had taken has ended. That member's own queue no longer exists.
    Over(Box<Over>),
}

/// A receive for a message that a member keeps.
#[derive(Debug)]
pub(crate) struct Promise {
    pub(crate) tagged: bool,
    pub(crate) held: Held,
    pub(crate) receive: Waiting,
    /// The pattern that it was posted with.
    pub(crate) pattern: Pattern,
}

/// The end of a receive, which is still to be reported.
#[derive(Debug)]
pub(crate) struct Over {
    pub(crate) notify: Notify,
    /// The buffer of which it is a part; the part ends when it is reported.
    pub(crate) part: Option<Arc<Many>>,
    pub(crate) result: Result<Entry, ErrorEntry>,
}

/// The notes for one member.
#[derive(Debug, Default)]
pub(super) struct Notes {
    pub(super) any: AtomicBool,
    list: Mutex<Vec<Note>>,
}

impl Notes {
    pub(super) fn add(&self, note: Note) {
        self.list.lock().unwrap_or_else(PoisonError::into_inner).push(note);
        self.any.store(true, Ordering::Release);
    }

    pub(super) fn take(&self) -> Vec<Note> {
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        self.any.store(false, Ordering::Relaxed);
        std::mem::take(&mut *list)
    }
}
