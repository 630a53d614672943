//! Keys of regions and windows. A key consists of an index of 24 bits, and 8 bits that change with each use of the
//! index.

use std::collections::HashMap;
use std::ffi::c_int;

use crate::abi;

/// The object that a key identifies.
pub(crate) struct KeyOwner {
    pub(crate) domain: u32,
    pub(crate) context: u32,
    pub(crate) key: u32,
    pub(crate) what: KeyObject,
}

pub(crate) enum KeyObject {
    Region {
        start: u64,
        len: u64,
        rights: c_int,
        /// The number of windows that are bound to it.
        windows: u32,
    },
    Window {
        two: bool,
        bound: Option<BoundRange>,
    },
}

/// The range to which a window is bound.
#[derive(Clone, Copy)]
pub(crate) struct BoundRange {
    /// The index of the region.
    pub(crate) region: u32,
    pub(crate) start: u64,
    pub(crate) len: u64,
    pub(crate) rights: c_int,
    /// The queue pair over which it was bound.
    pub(crate) pair: u32,
}

/// The keys of regions and windows.
#[derive(Default)]
pub(crate) struct Keys {
    named: HashMap<u32, KeyOwner>,
    /// Indices that can be reused, with the last key of each.
    free: Vec<u32>,
    next: u32,
}

const REMOTE: c_int = abi::ACCESS_REMOTE_WRITE | abi::ACCESS_REMOTE_READ;

impl Keys {
    /// Assigns a key to a new object. With `reuse` it is the key of the object that was destroyed last.
    pub(crate) fn insert(&mut self, domain: u32, context: u32, what: KeyObject, reuse: bool) -> u32 {
        let key = match self.free.pop() {
            Some(last) if reuse => last,
            // A different key with the same index.
            Some(last) => last & !0xff | last.wrapping_add(1) & 0xff,
            None => {
                self.next += 1;
                self.next << 8
            }
        };
        self.named.insert(key >> 8, KeyOwner { domain, context, key, what });
        key
    }

    pub(crate) fn get(&self, key: u32) -> Option<&KeyOwner> {
        self.named.get(&(key >> 8))
    }

    fn region(&mut self, place: u32) -> Option<&mut u32> {
        match &mut self.named.get_mut(&place)?.what {
            KeyObject::Region { windows, .. } => Some(windows),
            KeyObject::Window { .. } => None,
        }
    }

    /// Removes a region to which no window is bound, or a window.
    pub(crate) fn remove(&mut self, key: u32) -> Result<KeyOwner, c_int> {
        match self.named.get(&(key >> 8)) {
            Some(KeyOwner { what: KeyObject::Region { windows: 0, .. } | KeyObject::Window { .. }, .. }) => {}
            Some(_) => return Err(libc::EBUSY),
            None => return Err(libc::EINVAL),
        }
        self.unbind(key >> 8);
        let named = self.named.remove(&(key >> 8)).ok_or(libc::EINVAL)?;
        self.free.push(named.key);
        Ok(named)
    }

    /// Removes a window's binding, if it has one.
    pub(crate) fn unbind(&mut self, place: u32) {
        let Some(KeyOwner { what: KeyObject::Window { bound, .. }, .. }) = self.named.get_mut(&place) else { return };
        let Some(bound) = bound.take() else { return };
        if let Some(windows) = self.region(bound.region) {
            *windows -= 1;
        }
    }

    /// Binds a window under a new key. A range without bytes unbinds it. An error is the status of the completion.
    pub(crate) fn bind(&mut self, key: u32, domain: u32, (region, bound): (u32, BoundRange)) -> Result<(), c_int> {
        let wrong = Err(abi::WC_MW_BIND_ERR);
        let Some(window) = self.named.get(&(key >> 8)) else { return wrong };
        let KeyObject::Window { two, bound: before } = &window.what else { return wrong };
        if window.domain != domain || *two && (before.is_some() || bound.len == 0) {
            return wrong;
        }
        if bound.len > 0 {
            let Some(under) = self.named.get(&(region >> 8)).filter(|under| under.key == region) else { return wrong };
            let KeyObject::Region { start, len, rights, .. } = under.what else { return wrong };
            let writes = bound.rights & abi::ACCESS_REMOTE_WRITE != 0;
            let inside = bound.start >= start && bound.len <= len && bound.start - start <= len - bound.len;
            let allowed = rights & abi::ACCESS_MW_BIND != 0 && (!writes || rights & abi::ACCESS_LOCAL_WRITE != 0);
            if under.domain != domain || !inside || !allowed {
                return wrong;
            }
        }
        self.unbind(key >> 8);
        if bound.len > 0
            && let Some(windows) = self.region(bound.region)
        {
            *windows += 1;
        }
        if let Some(KeyOwner { what: KeyObject::Window { bound: now, .. }, key: old, .. }) =
            self.named.get_mut(&(key >> 8))
        {
            *now = (bound.len > 0).then_some(bound);
            *old = key;
        }
        Ok(())
    }

    /// Invalidates a window of type 2 that was bound over this queue pair, or over any queue pair if `lax` is true.
    pub(crate) fn invalidate(&mut self, key: u32, pair: u32, lax: bool) -> Result<(), ()> {
        let named = self.named.get(&(key >> 8)).filter(|named| named.key == key).ok_or(())?;
        match named.what {
            KeyObject::Window { two: true, bound: Some(bound) } if lax || bound.pair == pair => {}
            _ => return Err(()),
        }
        self.unbind(key >> 8);
        Ok(())
    }

    /// Returns whether a peer may make this access over a queue pair.
    pub(crate) fn admits(
        &self,
        key: u32,
        (domain, pair): (u32, u32),
        (address, len): (u64, u64),
        right: c_int,
    ) -> bool {
        let Some(named) = self.named.get(&(key >> 8)).filter(|named| named.key == key && named.domain == domain) else {
            return false;
        };
        let (start, all, rights) = match named.what {
            KeyObject::Region { start, len, rights, .. } => (start, len, rights),
            KeyObject::Window { two, bound: Some(bound) } if !two || bound.pair == pair => {
                (bound.start, bound.len, bound.rights)
            }
            KeyObject::Window { .. } => return false,
        };
        rights & REMOTE & right != 0 && address >= start && len <= all && address - start <= all - len
    }

    /// Returns whether a request of this process may use this memory.
    pub(crate) fn is_local(&self, key: u32, domain: u32, (address, len): (u64, u64), written: bool) -> bool {
        let Some(named) = self.named.get(&(key >> 8)).filter(|named| named.key == key && named.domain == domain) else {
            return false;
        };
        let KeyObject::Region { start, len: all, rights, .. } = named.what else { return false };
        let allowed = !written || rights & abi::ACCESS_LOCAL_WRITE != 0;
        allowed && address >= start && len <= all && address - start <= all - len
    }

    /// Returns the number of windows of type 2 that are bound over a queue pair.
    pub(crate) fn bound_over(&self, pair: u32) -> usize {
        let is = |named: &&KeyOwner| matches!(&named.what, KeyObject::Window { two: true, bound: Some(bound) } if bound.pair == pair);
        self.named.values().filter(is).count()
    }

    /// Counts the regions, the windows, and the bytes of regions.
    pub(crate) fn count(&self, of: impl Fn(u32) -> bool) -> (usize, usize, u64) {
        let all = self.named.values().filter(|named| of(named.context));
        all.fold((0, 0, 0), |(regions, windows, bytes), named| match named.what {
            KeyObject::Region { len, .. } => (regions + 1, windows, bytes + len),
            KeyObject::Window { .. } => (regions, windows + 1, bytes),
        })
    }
}
