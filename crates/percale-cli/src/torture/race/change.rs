//! Threads that change memory.

use std::io;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};

use libc::MAP_FIXED_NOREPLACE;

use super::pending::Pending;
use super::region::{BETWEEN, MADE_ANEW, NOTHING, Region, SUBMITTED_BEFORE};
use super::{Arena, Tally, Thread};
use crate::fixed_buffers::ACCESS;
use crate::memory_range::MemoryRange;
use crate::torture::dice::Dice;
use crate::torture::memory::{Memory, Origin};
use crate::torture::operations::{ExecutionMode, Tools};
use crate::torture::oracle::UsedRegistration;

/// The additional state of a thread that changes memory.
pub(super) struct ChangerState {
    pub(super) tools: Tools,
    /// The channel to another thread that unmaps memory.
    pub(super) unmap: Sender<MemoryRange>,
    pub(super) unmapped: Receiver<io::Result<()>>,
}

/// The number of changes after which a region moves to other addresses.
const MOVES: u64 = 16;

/// The timeout for munmap(2), which waits for some monitors.
const MUNMAP_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a region remains unchanged after a change that occurs only once in a run, so that other threads can detect
/// its effect.
const REST: Duration = Duration::from_millis(2);

/// The possible changes of a region.
enum Change {
    /// The memory is made again at other addresses.
    Anew,
    /// Another thread unmaps the memory while this one maps it again.
    Between,
    /// A request to io_uring that was submitted before the caches were opened.
    Pending(Box<Pending>),
    /// One of the region's operations.
    Operation(usize),
    /// No change is possible now.
    Nothing,
}

impl Change {
    /// Draws a change for the region, which has been changed `count` times. If there is a pending request, the memory
    /// must keep its addresses. Only operations that are system calls of this thread guarantee this.
    fn draw(region: &Region, memory: &Memory, count: u64, dice: &mut Dice) -> Self {
        let mut pending = region.pending();
        if pending.is_some() && dice.once_in(8) {
            return pending.take().map_or(Self::Nothing, |pending| Self::Pending(Box::new(pending)));
        }
        if pending.is_none() && region.moves() && count % MOVES == MOVES - 1 {
            return Self::Anew;
        }
        if region.moves() && matches!(memory.origin, Origin::Mapped) && dice.once_in(4) {
            return Self::Between;
        }
        let which = dice.below(region.operations.len() as u64) as usize;
        match region.operations.get(which) {
            Some(operation) if pending.is_none() || operation.way == ExecutionMode::Call => Self::Operation(which),
            _ => Self::Nothing,
        }
    }

    /// Returns the number of the change for [`Region::last`].
    fn number(&self) -> usize {
        match self {
            Self::Anew => MADE_ANEW,
            Self::Between => BETWEEN,
            Self::Pending(_) => SUBMITTED_BEFORE,
            Self::Operation(which) => *which,
            Self::Nothing => NOTHING,
        }
    }
}

impl Arena<'_> {
    /// Changes one region after another until the end of the run.
    pub(super) fn change(&self, thread: &mut Thread, hands: &mut ChangerState) -> io::Result<Tally> {
        self.begin(thread);
        while self.should_continue(thread) {
            let region = thread.dice.of(self.regions);
            let mut memory = region.memory();
            let change = Change::draw(region, &memory, region.changes(), &mut thread.dice);
            let watched = thread.dice.once_in(2);
            if watched {
                check(&memory, thread, || "the previous change, before the next one".into())?;
            }
            self.subjects.iter().for_each(|subject| subject.about_to_change(memory.registered));
            region.count();
            region.last.store(change.number(), Ordering::Release);
            let mut rest = Duration::from_micros(thread.dice.below(300));
            match change {
                Change::Anew => self.make_again(region, &mut memory)?,
                Change::Between => map_between(&memory, thread, hands, || region.name_of_last())?,
                Change::Pending(pending) => {
                    pending.complete(&memory)?;
                    rest = REST;
                }
                Change::Operation(which) => self.operate(region, which, &mut memory, thread, hands)?,
                Change::Nothing => {}
            }
            region.count();
            if watched {
                check(&memory, thread, || format!("{}, immediately", region.name_of_last()))?;
            }
            drop(memory);
            thread.tally.changes += 1;
            std::thread::sleep(rest);
        }
        Ok(std::mem::take(&mut thread.tally))
    }

    fn make_again(&self, region: &Region, memory: &mut Memory) -> io::Result<()> {
        let old = std::mem::replace(memory, (region.kind.make)()?);
        region.start.store(memory.registered.start(), Ordering::Release);
        // Addresses for which the monitor may no longer keep registrations stay reserved. Other addresses may be
        // reused, which is the more difficult test. Sealed memory remains in both cases.
        if self.monitor.alone && !matches!(old.origin, Origin::Sealed) { old.retire() } else { Ok(()) }
    }

    /// Executes one of the region's operations.
    fn operate(
        &self,
        region: &Region,
        which: usize,
        memory: &mut Memory,
        thread: &mut Thread,
        hands: &mut ChangerState,
    ) -> io::Result<()> {
        memory.children.clear();
        // If the kernel rejects the operation for such memory, nothing changes.
        (region.operations[which].apply)(memory, &mut hands.tools).ok();
        memory.give_rights_back()?;
        let again = region.moves() && thread.dice.once_in(4);
        if (hands.tools.mappings.of(memory.whole)?.is_none() || again) && memory.establish(0).is_err() {
            // The memory was sealed.
            self.make_again(region, memory)?;
        }
        Ok(())
    }
}

/// Looks up the whole registered part, which no thread is changing, and checks that the registration contains the
/// current pages.
fn check(memory: &Memory, thread: &mut Thread, after: impl Fn() -> String) -> io::Result<()> {
    let page = memory.page(thread.dice.below(memory.pages()))?;
    let lane = thread.dice.of(&thread.lanes);
    // There may be a hole.
    let Ok(used) = lane.get(memory.registered, ACCESS) else { return Ok(()) };
    let current = thread.comparer.is_word_current(UsedRegistration::of(&used).slot, page.start() + 8 * thread.number);
    lane.end(used);
    if let Ok(current) = current {
        thread.tally.record_check(current, after);
    }
    Ok(())
}

/// Lets another thread unmap the memory. This thread maps it again as soon as possible, and uses the new memory.
fn map_between(
    memory: &Memory,
    thread: &mut Thread,
    hands: &ChangerState,
    after: impl Fn() -> String,
) -> io::Result<()> {
    let gone = |_| io::Error::other("the thread that unmaps has exited");
    hands.unmap.send(MemoryRange::adopt(memory.whole)).map_err(|_| gone(()))?;
    let deadline = Instant::now() + MUNMAP_TIMEOUT;
    let mut answer = None;
    while let Err(error) = memory.establish(MAP_FIXED_NOREPLACE) {
        if error.raw_os_error() != Some(libc::EEXIST) {
            return Err(error);
        }
        match &answer {
            None if Instant::now() < deadline => answer = hands.unmapped.try_recv().ok(),
            None => return Err(io::Error::other(format!("munmap did not return for {MUNMAP_TIMEOUT:?}: {}", after()))),
            Some(Err(error)) => return Err(io::Error::other(format!("munmap: {error}"))),
            Some(Ok(())) => {
                let there = hands.tools.mappings.of(memory.whole);
                return Err(io::Error::other(format!("the unmapped range was reused by another mapping: {there:?}")));
            }
        }
    }
    let lane = thread.dice.of(&thread.lanes);
    if let Ok(used) = lane.get(memory.registered, ACCESS) {
        let word = memory.registered.start() + 8 * thread.number;
        let current = thread.comparer.is_word_current(UsedRegistration::of(&used).slot, word);
        lane.end(used);
        thread.tally.record_check(current?, after);
    }
    answer.unwrap_or_else(|| hands.unmapped.recv().unwrap_or_else(|_| Err(gone(()))))
}
