//! Threads that use registrations and check them.

use std::io;
use std::sync::atomic::Ordering;

use pindown::{Access, Range, Use};

use super::{Arena, Tally, Thread};
use crate::fixed_buffers::ACCESS;
use crate::memory_range::range;
use crate::torture::memory::MemoryShape;
use crate::torture::oracle::UsedRegistration;

/// The number of uses that a thread holds at a time, in addition to the use that it checks.
const HELD: usize = 3;

/// A use that a thread holds while it has others.
struct HeldUse {
    lane: usize,
    used: Use,
    part: Range,
    access: Access,
}

impl Arena<'_> {
    /// Uses parts of regions in the same way as an application thread, and checks the registrations.
    pub(super) fn use_and_check(&self, thread: &mut Thread) -> io::Result<Tally> {
        self.interrupted.join();
        let MemoryShape { unit, registered: pages, .. } = MemoryShape::small();
        let rights = [ACCESS, ACCESS, ACCESS | Access::REMOTE_READ, ACCESS | Access::REMOTE_WRITE];
        let mut held: Vec<HeldUse> = Vec::new();
        self.begin(thread);
        while self.should_continue(thread) {
            let region = thread.dice.of(self.regions);
            let begun = region.counted.load(Ordering::Acquire);
            let start = region.start.load(Ordering::Acquire);
            let first = thread.dice.below(pages) / 2;
            let some = 1 + thread.dice.below(pages - first);
            let part = range(start + first * unit, some * unit)?;
            let access = *thread.dice.of(&rights);
            let lane = thread.dice.below(thread.lanes.len() as u64) as usize;
            // Most repetitions are hits.
            for _ in 0..1 + thread.dice.below(8) {
                thread.tally.uses += 1;
                // There may be a hole now.
                let Ok(used) = thread.lanes[lane].get(part, access) else { break };
                thread.tally.keys(self.oracle.fault(&used, part, access));
                for _ in 0..thread.dice.below(400) {
                    std::hint::spin_loop();
                }
                let address = part.start() + thread.dice.below(some) * unit + 8 * thread.number;
                // A check takes longer than a lookup, so only some uses are checked.
                let settled = begun.is_multiple_of(2) && thread.dice.once_in(3);
                let current =
                    settled.then(|| thread.comparer.is_word_current(UsedRegistration::of(&used).slot, address));
                let after = region.name_of_last();
                let undisturbed = region.counted.load(Ordering::Acquire) == begun;
                thread.tally.keys(self.oracle.fault(&used, part, access));
                if held.len() < HELD && thread.dice.once_in(64) {
                    let used = thread.lanes[lane].hold(used);
                    held.push(HeldUse { lane, used, part, access });
                } else {
                    thread.lanes[lane].end(used);
                }
                if let (Some(Ok(current)), true) = (current, undisturbed) {
                    thread.tally.record_check(current, || after);
                }
            }
            if thread.dice.once_in(16) {
                self.tidy(thread, &mut held);
            }
        }
        held.drain(..).for_each(|kept| self.end(thread, kept));
        Ok(std::mem::take(&mut thread.tally))
    }

    /// Ends a held use, and sometimes empties a cache.
    fn tidy(&self, thread: &mut Thread, held: &mut Vec<HeldUse>) {
        if let Some(kept) = held.pop() {
            self.end(thread, kept);
        }
        let cache = &thread.dice.of(self.subjects).cache;
        match thread.dice.below(64) {
            0 => cache.flush(),
            1..4 => cache.sweep(),
            _ => {}
        }
    }

    fn end(&self, thread: &mut Thread, HeldUse { lane, used, part, access }: HeldUse) {
        thread.tally.keys(self.oracle.fault(&used, part, access));
        thread.lanes[lane].end(used);
    }
}
