//! An initiator's table of a target's keys.
//!
//! The state of a key is *asked* (a request is pending), *granted*, *executed* (the target executes the next few
//! thousand accesses itself) or *unknown* to the target. Grants are kept in slots that are reused. An index identifies
//! one use of a slot, so an old index does not find a later grant.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};

use super::REQUEST_LIMIT;
use super::path::MappedGrant;

/// The number of accesses that the target executes before the initiator requests a grant again. The reason for the
/// refusal may have been temporary: no free descriptor, or no room in a socket.
const EXECUTED: u32 = 4096;
/// The maximum number of keys in the table.
pub(super) const KEYS: usize = 64 << 10;

/// The index of a grant. It can be used for any access until the grant is removed. After that every access returns
/// [`DirectError::Stale`](super::DirectError::Stale).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrantIndex {
    slot: u32,
    serial: u32,
}

/// The entry of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// The region can be reached directly.
    Ready(GrantIndex),
    /// A request was sent to the target, or will be sent when there is room. The caller looks up the key again later,
    /// and lets the target execute accesses in the meantime.
    Unknown,
    /// The target executes a limited number of accesses.
    Executed,
    /// The target had no region with this key when it answered. This is returned once. The next lookup sends a new
    /// request, because the target may have such a region by then.
    NoKey,
}

/// Whether a request is needed for a key.
#[derive(Debug)]
pub(super) enum RequestNeeded {
    /// No request is needed, or none is possible at the moment.
    Known(Lookup),
    /// A request with this number is needed.
    New(u32),
}

/// The answer to a request.
#[derive(Debug)]
pub(super) enum GrantAnswer {
    Granted(MappedGrant),
    Executed,
    NoKey,
    /// The granted memory no longer exists.
    Void,
}

#[derive(Clone, Copy, Debug)]
enum KeyState {
    Asked,
    Granted(GrantIndex),
    /// The target executes this many more accesses.
    Executed(u32),
    NoKey,
}

#[derive(Debug)]
struct Slot {
    serial: u32,
    grant: Option<MappedGrant>,
}

/// The initiator's table of a target's keys and their grants.
#[derive(Debug)]
pub(in super::super) struct Grants {
    /// The grant that was looked up last. It never refers to a grant that was removed.
    last: Option<(u64, GrantIndex)>,
    slots: Vec<Slot>,
    free: Vec<u32>,
    known: HashMap<u64, KeyState, SeededHasher>,
    /// The number and the key of each pending request.
    requested: Vec<(u32, u64)>,
    next: u32,
    /// The number of grants at which the table searches for void grants.
    sweep_at: usize,
}

impl Grants {
    const SWEEP_LEAST: usize = 64;

    pub(super) fn new() -> Self {
        Self {
            last: None,
            slots: Vec::new(),
            free: Vec::new(),
            known: HashMap::with_hasher(SeededHasher(RandomState::new().hash_one(0_u64) | 1)),
            requested: Vec::new(),
            next: 0,
            sweep_at: Self::SWEEP_LEAST,
        }
    }

    /// Returns the grant for this key, if it was looked up last.
    #[inline]
    pub(in super::super) fn last(&self, key: u64) -> Option<GrantIndex> {
        match self.last {
            Some((last, index)) if last == key => Some(index),
            _ => None,
        }
    }

    /// Like [`last`](Self::last), but returns the grant itself.
    #[inline]
    pub(super) fn last_grant(&self, key: u64) -> Option<&MappedGrant> {
        self.get(self.last(key)?)
    }

    /// Returns a grant, unless it was removed.
    #[inline]
    pub(super) fn get(&self, index: GrantIndex) -> Option<&MappedGrant> {
        let slot = self.slots.get(index.slot as usize)?;
        if slot.serial == index.serial { slot.grant.as_ref() } else { None }
    }

    /// Returns the entry of a key.
    pub(super) fn find(&mut self, key: u64) -> Option<Lookup> {
        Some(match self.known.get_mut(&key)? {
            KeyState::Granted(index) => {
                let index = *index;
                self.last = Some((key, index));
                Lookup::Ready(index)
            }
            KeyState::Asked => Lookup::Unknown,
            KeyState::Executed(0) => {
                self.known.remove(&key);
                return None;
            }
            KeyState::Executed(left) => {
                *left -= 1;
                Lookup::Executed
            }
            KeyState::NoKey => {
                self.known.remove(&key);
                Lookup::NoKey
            }
        })
    }

    /// Returns whether the table has the maximum number of keys.
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.known.len() >= KEYS
    }

    /// Makes room: removes keys that are neither granted nor pending. They can be requested again.
    pub(super) fn forget_ungranted(&mut self) {
        self.known.retain(|_, state| matches!(state, KeyState::Asked | KeyState::Granted(_)));
    }

    /// Records a request for a key without an entry.
    pub(super) fn ask(&mut self, key: u64) -> RequestNeeded {
        if self.is_full() {
            return RequestNeeded::Known(Lookup::Executed);
        }
        if self.requested.len() >= REQUEST_LIMIT {
            return RequestNeeded::Known(Lookup::Unknown);
        }
        self.next = self.next.wrapping_add(1);
        self.requested.push((self.next, key));
        self.known.insert(key, KeyState::Asked);
        RequestNeeded::New(self.next)
    }

    /// Removes a request that was answered or never sent, and returns its key.
    #[inline]
    pub(super) fn answered(&mut self, id: u32) -> Option<u64> {
        let index = self.requested.iter().position(|(requested, _)| *requested == id)?;
        let (_, key) = self.requested.swap_remove(index);
        self.known.remove(&key);
        Some(key)
    }

    /// Records an answer.
    pub(super) fn learn(&mut self, key: u64, answer: GrantAnswer) {
        let state = match answer {
            GrantAnswer::Granted(grant) => KeyState::Granted(self.keep(grant)),
            GrantAnswer::Executed => KeyState::Executed(EXECUTED),
            GrantAnswer::NoKey => KeyState::NoKey,
            GrantAnswer::Void => return,
        };
        self.known.insert(key, state);
    }

    fn keep(&mut self, grant: MappedGrant) -> GrantIndex {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { serial: 0, grant: None });
            self.slots.len() as u32 - 1
        });
        let slot = &mut self.slots[index as usize];
        slot.serial = slot.serial.wrapping_add(1);
        slot.grant = Some(grant);
        GrantIndex { slot: index, serial: slot.serial }
    }

    /// Removes a key, unless a request for it is pending.
    pub(in super::super) fn forget(&mut self, key: u64) {
        if matches!(self.known.get(&key), Some(KeyState::Asked)) {
            return;
        }
        if let Some(KeyState::Granted(index)) = self.known.remove(&key) {
            self.drop_grant(index);
        }
    }

    fn drop_grant(&mut self, index: GrantIndex) {
        if self.last.is_some_and(|(_, last)| last == index) {
            self.last = None;
        }
        if let Some(slot) = self.slots.get_mut(index.slot as usize)
            && slot.grant.take().is_some()
        {
            self.free.push(index.slot);
        }
    }

    /// Returns the number of stored grants, including void ones.
    #[inline]
    pub(super) fn live(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Returns whether there are many grants, some of which may be void.
    #[inline]
    pub(super) fn is_due(&self) -> bool {
        self.live() >= self.sweep_at
    }

    /// Removes the grants that are no longer valid.
    pub(super) fn sweep(&mut self, holds: impl Fn(&MappedGrant) -> bool) {
        let mut void = Vec::new();
        self.known.retain(|_, state| {
            let KeyState::Granted(index) = *state else { return true };
            let grant = self.slots.get(index.slot as usize).and_then(|slot| slot.grant.as_ref());
            let stands = grant.is_some_and(&holds);
            if !stands {
                void.push(index);
            }
            stands
        });
        void.into_iter().for_each(|index| self.drop_grant(index));
        self.sweep_at = Self::SWEEP_LEAST + 2 * self.live();
    }
}

/// Hashes a key with one multiplication. Peers choose keys, so the hash is seeded, and peers cannot choose keys that
/// collide.
#[derive(Clone, Copy, Debug)]
struct SeededHasher(u64);

impl BuildHasher for SeededHasher {
    type Hasher = FoldedHasher;

    #[inline]
    fn build_hasher(&self) -> FoldedHasher {
        FoldedHasher(self.0)
    }
}

#[derive(Debug)]
struct FoldedHasher(u64);

impl Hasher for FoldedHasher {
    #[inline]
    fn write_u64(&mut self, key: u64) {
        let product = u128::from(key ^ self.0.rotate_left(32)) * u128::from(self.0);
        self.0 = (product >> 64) as u64 ^ product as u64;
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}
