//! What a region knows of the windows that are bound to it: how many, and what they may be.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock, PoisonError};

use super::access::Access;
use super::registered::{Grants, Registered};
use super::via::Through;
use crate::memory::rundown::Pin;
use crate::memory::sealed::Located;

/// Set once no window is bound any more.
const CLOSED: u32 = 1 << 31;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Windows {
    /// Windows may be bound (AMB-48).
    pub(super) allowed: bool,
    /// The memory may be changed, so windows may let peers change it (MW-016).
    pub(super) writable: bool,
    bound: AtomicU32,
}

impl Windows {
    pub(super) const fn new(allowed: bool, writable: bool) -> Self {
        Self { allowed, writable, bound: AtomicU32::new(0) }
    }

    /// Whether windows may be bound.
    pub(crate) const fn are_allowed(&self) -> bool {
        self.allowed
    }

    /// Whether they may let peers change the memory.
    pub(crate) const fn may_change(&self) -> bool {
        self.writable
    }

    /// One window more; false if the region was closed.
    #[must_use]
    fn enter(&self) -> bool {
        let more = |bound: u32| (bound & CLOSED == 0).then(|| bound + 1);
        self.bound.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).is_ok()
    }

    fn leave(&self) {
        self.bound.fetch_sub(1, Ordering::AcqRel);
    }

    /// Lets no window be bound any more, unless one is; then false.
    #[must_use]
    pub(super) fn close(&self) -> bool {
        let result = self.bound.compare_exchange(0, CLOSED, Ordering::AcqRel, Ordering::Acquire);
        result.is_ok() || result == Err(CLOSED)
    }

    /// Lets no window be bound any more, whatever is bound now.
    pub(super) fn abandon(&self) {
        self.bound.fetch_or(CLOSED, Ordering::AcqRel);
    }

    /// Whether no window is bound.
    pub(super) fn are_gone(&self) -> bool {
        self.bound.load(Ordering::Acquire) & !CLOSED == 0
    }
}

/// A window holds its region: until it lets go, or this is dropped, the region's memory is in use.
#[derive(Debug)]
pub(crate) struct Hold {
    region: Arc<Registered>,
    held: bool,
}

impl Hold {
    /// `None` if the region was closed. One that let go is used again if it was of the same region.
    pub(crate) fn on(region: &Arc<Registered>, former: Option<Self>) -> Option<Self> {
        if !region.windows.enter() {
            return None;
        }
        match former {
            Some(mut former) if !former.held && Arc::ptr_eq(&former.region, region) => {
                former.held = true;
                Some(former)
            }
            _ => Some(Self { region: Arc::clone(region), held: true }),
        }
    }

    pub(crate) fn let_go(&mut self) {
        if std::mem::take(&mut self.held) {
            self.region.windows.leave();
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.let_go();
    }
}

/// What a window shows of its region.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slice {
    pub(crate) key: u32,
    pub(crate) offset: u64,
    pub(crate) len: u64,
    pub(crate) access: Access,
    pub(crate) through: Through,
}

impl Registered {
    /// Whether no peer may be at it by itself, or was told how.
    pub(crate) fn was_granted_to_none(&mut self) -> bool {
        self.grants.get_mut().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// A part of a region under a key of its own; the caller has checked that it is one. Its addresses are the region's. What is
    /// no longer used is taken for it, if nobody else has it.
    pub(crate) fn slice(region: &Self, slice: &Slice, spare: Option<Arc<Self>>) -> Arc<Self> {
        let Slice { key, offset, len, access, through } = *slice;
        let mut spare = spare;
        let old = spare.as_mut().and_then(Arc::get_mut).and_then(|spare| spare.located.take());
        let located = region.located.as_ref().map(|located| {
            let offset = located.offset + offset;
            match old {
                // Of the same arena: its descriptor need not be counted again.
                Some(old) if old.arena == located.arena => Located { offset, ..old },
                _ => Located { offset, ..located.clone() },
            }
        });
        let made = Self {
            key: key.into(),
            access,
            rights: access.remote_rights(),
            windows: Windows::default(),
            local: OnceLock::new(),
            through,
            authority: region.authority,
            base: region.base.wrapping_add(offset),
            len,
            memory: region.memory.slice(offset as usize, len as usize),
            backed: region.backed,
            located,
            pin: Pin::default(),
            grants: Grants::default().into(),
            counter: region.counter.clone(),
        };
        match spare {
            Some(mut spare) => match Arc::get_mut(&mut spare) {
                Some(place) => {
                    *place = made;
                    spare
                }
                None => Arc::new(made),
            },
            None => Arc::new(made),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn mw_004_a_region_is_closed_to_windows_only_when_none_is_bound() {
        let windows = Windows::new(true, true);
        assert!(windows.are_gone() && windows.enter() && windows.enter());
        windows.leave();
        assert!(!windows.close() && !windows.are_gone() && windows.enter(), "closed under a bound window");
        windows.leave();
        windows.leave();
        assert!(windows.close() && windows.close() && !windows.enter());
        let windows = Windows::new(true, true);
        assert!(windows.enter());
        windows.abandon();
        assert!(!windows.enter() && !windows.are_gone());
        windows.leave();
        assert!(windows.are_gone() && windows.close());
    }
}
