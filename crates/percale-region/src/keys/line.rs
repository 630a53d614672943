//! The rights and the range of a key, in one cache line that is read without a lock.
//!
//! A line is written under the table's lock. It has a sequence number, which is odd while the line is being written. A
//! reader compares the number before and after. If it is the same and even, all values that were read are from one
//! write (a sequence lock; its loom model is below). The memory of a line is not freed before its table is, so in the
//! worst case a reader finds that the line now has another key.

use crate::access_origin::{AccessOrigin, AccessScope};
use crate::local_memory::access::{Access, Refusal, admit};
use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// Set if the line is in use, by a region or by an allocated window.
const OWNED: u32 = 1 << 31;
/// Set if the line has a key.
const LIVE: u32 = 1 << 30;
/// Set if accesses may arrive only through one endpoint.
const ENDPOINT: u32 = 1 << 29;
/// Set if accesses may arrive only from one peer.
const PAIR: u32 = 1 << 28;
/// Set if no accesses are admitted.
const NOBODY: u32 = 1 << 27;

/// Reduces an authority to 32 bits.
#[inline]
const fn fold(authority: u64) -> u32 {
    (authority ^ authority >> 32) as u32
}

/// Returns the bits of the remote rights in a line.
#[inline]
const fn bits(rights: Access) -> u32 {
    // The four rights are bits 12, 13, 62 and 61 of an `Access`.
    let all = rights.bits();
    ((all >> 12) & 3) as u32 | ((all >> 60) & 4) as u32 | ((all >> 58) & 8) as u32
}

/// The rights and the range of a key, in one cache line that is read without a lock.
#[derive(Debug, Default)]
#[cfg_attr(not(loom), repr(C, align(64)))]
pub(super) struct KeyCacheLine {
    sequence: AtomicU32,
    what: AtomicU32,
    /// The row of the region that has the key.
    row: AtomicU32,
    authority: AtomicU32,
    key: AtomicU64,
    base: AtomicU64,
    len: AtomicU64,
    endpoint: AtomicU64,
    peer: [AtomicU64; 2],
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<KeyCacheLine>() == 64);

/// The content of a line at one time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct KeySnapshot {
    what: u32,
    row: u32,
    authority: u32,
    key: u64,
    base: u64,
    len: u64,
    endpoint: u64,
    peer: [u64; 2],
}

impl KeySnapshot {
    /// Creates the content of a line with a live key.
    pub(super) fn live(key: u64, rights: Access, (base, len): (u64, u64), through: AccessScope) -> Self {
        let (kind, via) = match through {
            AccessScope::Domain => (0, AccessOrigin::default()),
            AccessScope::Nobody => (NOBODY, AccessOrigin::default()),
            AccessScope::Endpoint(endpoint) => (ENDPOINT, AccessOrigin { endpoint, ..AccessOrigin::default() }),
            AccessScope::Pair(via) => (ENDPOINT | PAIR, via),
        };
        let peer = [via.peer as u64, (via.peer >> 64) as u64];
        Self {
            what: OWNED | LIVE | kind | bits(rights),
            row: 0,
            authority: 0,
            key,
            base,
            len,
            endpoint: via.endpoint,
            peer,
        }
    }

    /// Sets the authorization key that endpoints must have.
    #[inline]
    pub(super) const fn under(mut self, authority: u64) -> Self {
        self.authority = fold(authority);
        self
    }

    /// Sets the row of the region.
    #[inline]
    pub(super) const fn at(mut self, row: u32) -> Self {
        self.row = row;
        self
    }

    /// Returns the key.
    #[inline]
    pub(super) const fn key(&self) -> u64 {
        self.key
    }

    /// Returns the row of the region that has the key.
    #[inline]
    pub(super) const fn row(&self) -> u32 {
        self.row
    }

    /// Creates the content of a line that is in use without a key.
    #[inline]
    pub(super) fn owned() -> Self {
        Self { what: OWNED, ..Self::default() }
    }

    #[inline]
    pub(super) const fn is_owned(&self) -> bool {
        self.what & OWNED != 0
    }

    /// Returns whether this is the content of a live line with this key.
    #[inline]
    pub(super) const fn is(&self, key: u64) -> bool {
        self.what & LIVE != 0 && self.key == key
    }

    /// Returns whether an access of this origin is admitted. Compares only 32 bits that are computed from the
    /// authority. The region itself compares the whole value.
    #[inline]
    pub(super) const fn admits(&self, via: AccessOrigin) -> bool {
        let peer = [via.peer as u64, (via.peer >> 64) as u64];
        self.authority == fold(via.authority)
            && self.what & NOBODY == 0
            && (self.what & ENDPOINT == 0 || self.endpoint == via.endpoint)
            && (self.what & PAIR == 0 || (self.peer[0] == peer[0] && self.peer[1] == peer[1]))
    }

    /// Checks an access, as [`Registered::check`](super::Registered::check) does.
    #[inline]
    pub(super) const fn check(&self, address: u64, len: u64, wanted: Access) -> Result<u64, Refusal> {
        check(self.what, (self.base, self.len), (address, len), wanted)
    }
}

#[inline(always)]
const fn check(what: u32, place: (u64, u64), part: (u64, u64), wanted: Access) -> Result<u64, Refusal> {
    let wanted = bits(wanted);
    admit(what & wanted == wanted, place, part)
}

impl KeyCacheLine {
    /// Writes the whole line. Only one thread at a time may call this.
    pub(super) fn write(&self, snapshot: &KeySnapshot) {
        let sequence = self.sequence.load(Ordering::Relaxed);
        self.sequence.store(sequence.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        let KeySnapshot { what, row, authority, key, base, len, endpoint, peer } = *snapshot;
        self.what.store(what, Ordering::Relaxed);
        self.row.store(row, Ordering::Relaxed);
        self.authority.store(authority, Ordering::Relaxed);
        self.key.store(key, Ordering::Relaxed);
        self.base.store(base, Ordering::Relaxed);
        self.len.store(len, Ordering::Relaxed);
        self.endpoint.store(endpoint, Ordering::Relaxed);
        self.peer[0].store(peer[0], Ordering::Relaxed);
        self.peer[1].store(peer[1], Ordering::Relaxed);
        self.sequence.store(sequence.wrapping_add(2), Ordering::Release);
    }

    /// Returns whether the line may have this key and therefore should be read.
    #[inline(always)]
    pub(super) fn may_be(&self, key: u64) -> bool {
        self.key.load(Ordering::Relaxed) == key
    }

    /// Returns whether the line was free at some time during the call.
    #[inline(always)]
    pub(super) fn was_free(&self) -> bool {
        self.what.load(Ordering::Relaxed) & OWNED == 0
    }

    /// Checks an access to a region that is open to all endpoints. Returns `None` if the line has another key or
    /// another authority, if the region is not open to all endpoints, or while the line is being written.
    #[inline(always)]
    pub(super) fn check_open(
        &self,
        key: u64,
        authority: u64,
        part: (u64, u64),
        wanted: Access,
    ) -> Option<Result<u64, Refusal>> {
        let before = self.sequence.load(Ordering::Acquire);
        let what = self.what.load(Ordering::Relaxed);
        let open = (what & (LIVE | NOBODY | ENDPOINT | PAIR)) == LIVE
            && self.key.load(Ordering::Relaxed) == key
            && self.authority.load(Ordering::Relaxed) == fold(authority);
        let place = (self.base.load(Ordering::Relaxed), self.len.load(Ordering::Relaxed));
        fence(Ordering::Acquire);
        let whole = before & 1 == 0 && self.sequence.load(Ordering::Relaxed) == before;
        (open && whole).then(|| check(what, place, part, wanted))
    }

    /// Reads the line. Returns `None` while it is being written.
    #[inline(always)]
    pub(super) fn read(&self) -> Option<KeySnapshot> {
        let before = self.sequence.load(Ordering::Acquire);
        let what = self.what.load(Ordering::Relaxed);
        let mut snapshot = KeySnapshot {
            what,
            row: self.row.load(Ordering::Relaxed),
            authority: self.authority.load(Ordering::Relaxed),
            key: self.key.load(Ordering::Relaxed),
            base: self.base.load(Ordering::Relaxed),
            len: self.len.load(Ordering::Relaxed),
            ..KeySnapshot::default()
        };
        if what & ENDPOINT != 0 {
            snapshot.endpoint = self.endpoint.load(Ordering::Relaxed);
            snapshot.peer = [self.peer[0].load(Ordering::Relaxed), self.peer[1].load(Ordering::Relaxed)];
        }
        fence(Ordering::Acquire);
        (before & 1 == 0 && self.sequence.load(Ordering::Relaxed) == before).then_some(snapshot)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::local_memory::access::AccessExt as _;

    #[test]
    fn right_bits_match_access_bits() {
        let all = [Access::REMOTE_READ, Access::REMOTE_WRITE, Access::REMOTE_ATOMIC, Access::REMOTE_FETCH];
        for (shift, right) in (0..).zip(all) {
            assert_eq!(bits(right), 1 << shift);
        }
        assert_eq!(bits(Access::all()), 15);
        assert_eq!(bits(Access::READ | Access::WRITE | Access::SEND | Access::RECEIVE), 0);
    }

    /// Requirements: MW-019.
    #[test]
    fn key_line_check_matches_region_check() {
        let all = Access::REMOTE_READ | Access::REMOTE_WRITE;
        let snapshot = KeySnapshot::live(
            7,
            all.remote_rights(),
            (u64::MAX - 9, 10),
            AccessScope::Pair(AccessOrigin { endpoint: 3, peer: 1 << 100, authority: 0 }),
        );
        assert!(
            snapshot.is(7)
                && !snapshot.is(8)
                && snapshot.is_owned()
                && !KeySnapshot::owned().is(0)
                && !KeySnapshot::default().is_owned()
        );
        assert!(snapshot.admits(AccessOrigin { endpoint: 3, peer: 1 << 100, authority: 0 }));
        for via in [
            AccessOrigin { endpoint: 3, peer: 1, authority: 0 },
            AccessOrigin { endpoint: 4, peer: 1 << 100, authority: 0 },
            AccessOrigin::default(),
        ] {
            assert!(!snapshot.admits(via));
        }
        for (address, len, offset) in
            [(u64::MAX - 9, 10, Some(0)), (u64::MAX, 1, Some(9)), (u64::MAX, 2, None), (0, 1, None)]
        {
            assert_eq!(snapshot.check(address, len, Access::REMOTE_READ).ok(), offset, "{address:#x}");
            let line = KeyCacheLine::default();
            line.write(&snapshot);
            assert_eq!(
                line.check_open(7, 0, (address, len), Access::REMOTE_READ),
                None,
                "the key is valid for one pair only"
            );
            line.write(&KeySnapshot { what: snapshot.what & !(ENDPOINT | PAIR), ..snapshot });
            let open = |key, authority| line.check_open(key, authority, (address, len), Access::REMOTE_READ);
            assert_eq!((open(7, 0).map(Result::ok), open(8, 0), open(7, 1)), (Some(offset), None, None));
        }
        let read = KeySnapshot::live(7, Access::REMOTE_READ.remote_rights(), (0, 8), AccessScope::Domain);
        assert_eq!(read.check(0, 8, Access::REMOTE_WRITE), Err(Refusal::Right));
        assert_eq!(read.check(0, 8, Access::REMOTE_FETCH), Ok(0));
    }
}

#[cfg(all(test, loom))]
mod model {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;
    use crate::sync::explore;

    fn of(number: u64) -> KeySnapshot {
        let through = AccessScope::Pair(AccessOrigin {
            endpoint: number,
            peer: u128::from(number) << 64 | u128::from(number),
            authority: 0,
        });
        KeySnapshot::live(number, Access::REMOTE_READ, (number, number), through)
    }

    /// A reader of a line reads only values from a single write. The reader is the spawned thread: a writer loads the
    /// sequence before it stores it, and in the spawned thread that load would hide its conflict with the reader's first
    /// load from loom. With PERCALE_LONG, the model has three preemptions.
    #[test]
    fn loom_line_reads_are_not_torn() {
        let preemptions = if std::env::var_os("PERCALE_LONG").is_some() { 3 } else { 2 };
        explore(Some(preemptions), 25000, || {
            let line = Arc::new(KeyCacheLine::default());
            line.write(&of(1));
            let reader = Arc::clone(&line);
            let reader = thread::spawn(move || {
                if let Some(snapshot) = reader.read() {
                    assert!((1..=2).any(|number| snapshot == of(number)), "{snapshot:?}");
                }
            });
            line.write(&of(2));
            reader.join().unwrap();
            assert_eq!(line.read(), Some(of(2)));
        });
    }

    /// Returns the right of peers to the region with this number.
    fn right(number: u64) -> Access {
        if number == 1 { Access::REMOTE_READ } else { Access::REMOTE_WRITE }
    }

    /// Returns the line of a region that is open to all endpoints.
    fn open(number: u64) -> KeySnapshot {
        KeySnapshot::live(number, right(number), (number * 100, 10), AccessScope::Domain).under(number)
    }

    /// An access is checked against the range and the rights of the region that has its key.
    #[test]
    fn loom_accesses_are_not_checked_against_torn_lines() {
        for number in [1, 2] {
            explore(Some(3), 1000, move || {
                let line = Arc::new(KeyCacheLine::default());
                line.write(&open(1));
                let check =
                    move |line: &KeyCacheLine| line.check_open(number, number, (number * 100 + 2, 8), right(number));
                let reader = Arc::clone(&line);
                let reader = thread::spawn(move || {
                    let checked = check(&reader);
                    assert!(matches!(checked, None | Some(Ok(2))), "{checked:?}");
                });
                line.write(&open(2));
                reader.join().unwrap();
                assert_eq!(check(&line), (number == 2).then_some(Ok(2)));
            });
        }
    }
}
