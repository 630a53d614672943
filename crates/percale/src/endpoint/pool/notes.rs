//! Notes for the endpoints of a shared receive context. Each endpoint reads its notes when it makes progress.

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
    /// A message of the member was matched with a receive.
    Fill(Promise),
    /// A receive waits for a message from this peer.
    LookFor(PeerAddress),
    /// A receive waits for a message from the peer at this address. The peer's connection to another member has ended.
    LookAt(At),
    /// This receive was canceled.
    Canceled { tagged: bool, receive: Waiting },
    /// A receive that another member had taken has ended, and that member's own queue no longer exists.
    Over(Box<Over>),
}

/// A receive for a message that a member stores.
#[derive(Debug)]
pub(crate) struct Promise {
    pub(crate) tagged: bool,
    pub(crate) held: Held,
    pub(crate) receive: Waiting,
    /// The pattern with which the receive was posted.
    pub(crate) pattern: Pattern,
}

/// The end of a receive, which has not been reported yet.
#[derive(Debug)]
pub(crate) struct Over {
    pub(crate) notify: Notify,
    /// The buffer that contains the receive's part. The part ends when it is reported.
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
