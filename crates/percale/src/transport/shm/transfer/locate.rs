//! Which sealed arena, if any, a range of our memory lies in.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

/// A range found in an arena.
#[derive(Clone, Debug)]
pub(super) struct Located {
    pub(super) arena: u32,
    pub(super) offset: u64,
    pub(super) size: usize,
    pub(super) fd: Arc<OwnedFd>,
}

struct Known {
    start: usize,
    located: Located,
}

static KNOWN: Mutex<Vec<Known>> = Mutex::new(Vec::new());

pub(super) fn locate(ptr: *const u8, len: usize) -> Option<Located> {
    let known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    known.iter().find_map(|known| {
        let offset = ptr.addr().checked_sub(known.start)?;
        (offset.checked_add(len)? <= known.located.size)
            .then(|| Located { offset: offset as u64, ..known.located.clone() })
    })
}

#[cfg(test)]
pub(in super::super) fn add(start: *const u8, size: usize, arena: u32, fd: OwnedFd) {
    let located = Located { arena, offset: 0, size, fd: Arc::new(fd) };
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner).push(Known { start: start.addr(), located });
}
