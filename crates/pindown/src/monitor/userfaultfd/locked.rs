//! Memory that is locked while registrations of it are kept, and unlocked after the last of them is unpinned.
//!
//! A locked range is a separate mapping, and vm.max_map_count limits the number of a process's mappings. The number of
//! locked ranges is limited to a share of that. Beyond it, memory is registered for one use.
//!
//! Memory that the program locked before stays locked. Such memory is detected by an advice that the kernel rejects
//! only for locked memory (MADV_COLD).

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use rustix::io::Errno;

use super::sys;
use crate::mapping::Mappings;
use crate::range::Range;

/// The monitor may use one sixteenth of a process's mappings.
const SHARE: u64 = 16;

/// The default of vm.max_map_count.
const USUAL: u64 = 65_530;

#[derive(Debug)]
struct Piece {
    end: u64,
    /// The number of registrations for which the piece is locked.
    count: u32,
    /// Whether this monitor locked the piece, which was not locked before.
    ours: bool,
}

/// Disjoint pieces of locked memory, by start address.
#[derive(Debug)]
pub(super) struct Locked {
    pieces: Mutex<BTreeMap<u64, Piece>>,
    most: usize,
}

impl Locked {
    pub(super) fn new() -> Self {
        let limit = std::fs::read_to_string("/proc/sys/vm/max_map_count").ok();
        let limit = limit.and_then(|text| text.trim().parse().ok()).unwrap_or(USUAL);
        Self { pieces: Mutex::default(), most: usize::try_from((limit / SHARE).max(1)).unwrap_or(usize::MAX) }
    }

    /// Locks whole pages for one more registration.
    ///
    /// # Errors
    /// Errors of mlock2(2), after which the locks are as before; ENOMEM if too many pieces are locked.
    pub(super) fn add(&self, range: Range, mappings: &Mappings) -> rustix::io::Result<()> {
        let mut pieces = self.pieces.lock().unwrap_or_else(PoisonError::into_inner);
        let gaps = gaps(&pieces, range);
        // Each gap becomes a piece, and the pieces at the two ends of the range may be split.
        if pieces.len() + gaps.len() + 2 > self.most {
            return Err(Errno::NOMEM);
        }
        let parts: Vec<(Range, bool)> = gaps.into_iter().flat_map(|gap| lock_states(gap, mappings)).collect();
        // The program had locked these pieces. If they are not locked now, another mapping has replaced them, which the
        // monitor locks.
        let replaced: Vec<Range> = foreign(&pieces, range)
            .flat_map(|piece| lock_states(piece, mappings))
            .filter_map(|(part, is_locked)| (!is_locked).then_some(part))
            .collect();
        if pieces.len() + parts.len() + 2 * replaced.len() + 2 > self.most {
            return Err(Errno::NOMEM);
        }
        // Locks the whole range each time, because another mapping may be there than before.
        if let Err(error) = sys::lock(range) {
            // Pages before the one that could not be locked are locked now.
            let unlocked = parts.iter().filter_map(|(part, was_locked)| (!was_locked).then_some(part));
            unlocked.chain(&replaced).for_each(|part| sys::unlock(*part));
            return Err(error);
        }
        split(&mut pieces, range);
        for (_, piece) in pieces.range_mut(range.start()..range.end()) {
            piece.count += 1;
        }
        for part in replaced {
            split(&mut pieces, part);
            pieces.range_mut(part.start()..part.end()).for_each(|(_, piece)| piece.ours = true);
        }
        for (part, was_locked) in parts {
            pieces.insert(part.start(), Piece { end: part.end(), count: 1, ours: !was_locked });
        }
        Ok(())
    }

    /// Removes one registration. Unlocks the pieces that have no more registrations.
    pub(super) fn remove(&self, range: Range) {
        let mut pieces = self.pieces.lock().unwrap_or_else(PoisonError::into_inner);
        split(&mut pieces, range);
        let starts: Vec<u64> = pieces.range(range.start()..range.end()).map(|(start, _)| *start).collect();
        for start in starts {
            let Some(piece) = pieces.get_mut(&start) else { continue };
            piece.count -= 1;
            if piece.count == 0
                && let Some(piece) = pieces.remove(&start)
                && piece.ours
                && let Some(range) = Range::between(start, piece.end)
            {
                sys::unlock(range);
            }
        }
    }
}

/// Returns the parts of the range that are in no piece.
fn gaps(pieces: &BTreeMap<u64, Piece>, range: Range) -> Vec<Range> {
    let mut gaps = Vec::new();
    let before = pieces.range(..range.start()).next_back().map_or(0, |(_, piece)| piece.end);
    let mut at = range.start().max(before.min(range.end()));
    for (&start, piece) in pieces.range(range.start()..range.end()) {
        gaps.extend(Range::between(at, start));
        at = piece.end;
    }
    gaps.extend(Range::between(at, range.end()));
    gaps
}

/// Returns the parts of the range in pieces that the program had locked.
fn foreign(pieces: &BTreeMap<u64, Piece>, range: Range) -> impl Iterator<Item = Range> {
    let before = pieces.range(..range.start()).next_back();
    let all = before.into_iter().chain(pieces.range(range.start()..range.end())).filter(|(_, piece)| !piece.ours);
    all.filter_map(move |(start, piece)| Range::between((*start).max(range.start()), piece.end.min(range.end())))
}

/// Splits a range into parts that are locked (`true`) or not (`false`). Addresses that are not mapped, and those after
/// them, count as locked: mlock2(2) does not reach them, so the monitor never has to unlock them. If the mappings cannot
/// be read, a range that is locked in part counts as locked.
fn lock_states(range: Range, mappings: &Mappings) -> Vec<(Range, bool)> {
    if !sys::is_locked(range) {
        return vec![(range, false)];
    }
    let mut parts: Vec<(Range, bool)> = Vec::new();
    // The kernel locks whole mappings, and splits a mapping that is locked in part.
    let ends = mappings.before_gap(range).unwrap_or_default().into_iter().map(|mapping| mapping.range.end());
    let mut start = range.start();
    for end in ends.map(|end| end.min(range.end())) {
        let Some(part) = Range::between(start, end) else { continue };
        let is_locked = sys::is_locked(part);
        match parts.last_mut() {
            Some((last, state)) if *state == is_locked => {
                *last = Range::between(last.start(), end).unwrap_or(*last);
            }
            _ => parts.push((part, is_locked)),
        }
        start = end;
    }
    parts.extend(Range::between(start, range.end()).map(|rest| (rest, true)));
    parts
}

/// Splits the pieces that extend beyond the ends of the range.
fn split(pieces: &mut BTreeMap<u64, Piece>, range: Range) {
    for at in [range.start(), range.end()] {
        let Some((_, piece)) = pieces.range_mut(..at).next_back() else { continue };
        if piece.end > at {
            let rest = Piece { end: std::mem::replace(&mut piece.end, at), ..*piece };
            pieces.insert(at, rest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, end: u64) -> Range {
        Range::between(start, end).unwrap()
    }

    #[test]
    fn gaps_and_pieces_partition_the_range() {
        let mut pieces = BTreeMap::new();
        for (start, end) in [(10, 20), (30, 40)] {
            pieces.insert(start, Piece { end, count: 1, ours: true });
        }
        assert_eq!(gaps(&pieces, range(0, 50)), [range(0, 10), range(20, 30), range(40, 50)]);
        assert_eq!(gaps(&pieces, range(12, 35)), [range(20, 30)]);
        assert_eq!(gaps(&pieces, range(12, 18)), []);
        split(&mut pieces, range(15, 35));
        let ends: Vec<(u64, u64)> = pieces.iter().map(|(start, piece)| (*start, piece.end)).collect();
        assert_eq!(ends, [(10, 15), (15, 20), (30, 35), (35, 40)]);
    }

    #[test]
    fn gaps_of_a_range_count_against_the_limit() {
        let mut pieces = BTreeMap::new();
        for (start, end) in [(10, 20), (30, 40)] {
            pieces.insert(start, Piece { end, count: 1, ours: true });
        }
        let locked = Locked { pieces: Mutex::new(pieces), most: 6 };
        // Two pieces, three gaps, and room for two splits.
        let mappings = Mappings::open().expect("/proc");
        assert_eq!(locked.add(range(0, 50), &mappings), Err(Errno::NOMEM));
        assert_eq!(locked.pieces.lock().unwrap().len(), 2, "a refused range changes nothing");
    }
}
