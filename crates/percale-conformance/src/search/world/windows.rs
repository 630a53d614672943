//! Windows of type 1. They are bound to blocks of regions, bound elsewhere, unbound and deallocated while peers access
//! memory with their keys.
//!
//! Only the owner of a place changes its windows. Every endpoint can access memory through them. A key permits no
//! access after the call that invalidates it has returned.

use percale::{RemoteMemory, Window, WindowAccess, WindowType};

use super::World;
use super::accesses::{AccessMemory, BLOCK, Target, WORDS};
use crate::search::ledger::{Fault, Verdict};
use crate::search::step::{AccessBy, BLOCKS, WindowStep};

/// The maximum number of allocated windows of a run.
const OPEN: usize = 4;

/// The binding of a window.
#[derive(Clone, Copy, Debug)]
struct Bound {
    region: usize,
    first: usize,
    blocks: usize,
    writes: bool,
    name: RemoteMemory,
}

struct KnownWindow {
    place: usize,
    /// `None` after the window was deallocated.
    window: Option<Window>,
    bound: Option<Bound>,
    /// The binding of its last invalid key.
    dead: Option<Bound>,
}

/// The windows of a run.
#[derive(Default)]
pub(super) struct Windows {
    known: Vec<KnownWindow>,
}

impl World {
    /// Executes an operation on a window of this place.
    pub(super) fn window(&mut self, at: usize, nth: usize, what: WindowStep) -> Verdict {
        if what == WindowStep::Open {
            if self.windows.known.iter().filter(|one| one.window.is_some()).count() < OPEN {
                let window = self.seats[at].domain.window(WindowType::One);
                let window =
                    window.map_err(|error| Fault::new("refused without a cause", format!("a window: {error}")))?;
                self.windows.known.push(KnownWindow { place: at, window: Some(window), bound: None, dead: None });
            }
            return Ok(());
        }
        let open = |one: &KnownWindow| one.place == at && one.window.is_some();
        let theirs: Vec<usize> =
            (0..self.windows.known.len()).filter(|index| open(&self.windows.known[*index])).collect();
        if theirs.is_empty() {
            return Ok(());
        }
        let index = theirs[nth % theirs.len()];
        match what {
            WindowStep::Open => Ok(()),
            WindowStep::Bind { region, first, blocks, writes } => {
                let regions = self.regions.open_at(at);
                if regions.is_empty() {
                    return Ok(());
                }
                let region = regions[usize::from(region) % regions.len()];
                let first = usize::from(first) % BLOCKS;
                let blocks = (1 + usize::from(blocks)).min(BLOCKS - first);
                self.bind_window(index, Some((region, first, blocks, writes)))
            }
            WindowStep::Unbind => self.bind_window(index, None),
            WindowStep::Close | WindowStep::Drop => {
                self.key_ends(index);
                let known = &mut self.windows.known[index];
                known.dead = known.bound.take().or(known.dead);
                if let Some(window) = known.window.take()
                    && what == WindowStep::Close
                {
                    // If a peer is in the middle of an access, the call waits until the timeout, because peers make no
                    // progress meanwhile. It then returns the window, which is dropped here.
                    _ = window.close();
                }
                Ok(())
            }
        }
    }

    /// Records that outstanding operations through a window may be permitted or denied.
    fn key_ends(&mut self, index: usize) {
        for id in self.regions.through(index) {
            if let Some(operation) = self.ledger.operation_mut(id) {
                operation.may_be_denied = true;
            }
        }
    }

    /// Binds a window to blocks of a region, or removes its binding.
    fn bind_window(&mut self, index: usize, to: Option<(usize, usize, usize, bool)>) -> Verdict {
        let at = self.windows.known[index].place;
        // An empty range can be bound in any region.
        let Some(region) = to.map(|to| to.0).or_else(|| self.regions.open_at(at).first().copied()) else {
            return Ok(());
        };
        self.key_ends(index);
        let known = &mut self.windows.known[index];
        let (Some(window), Some(memory)) = (&mut known.window, self.regions.memory(region)) else { return Ok(()) };
        let (range, access) = match to {
            None => (0..0, WindowAccess::READ),
            Some((_, first, blocks, writes)) => {
                let mut access = WindowAccess::READ;
                access.set(WindowAccess::WRITE, writes);
                ((first * BLOCK) as u64..((first + blocks) * BLOCK) as u64, access)
            }
        };
        let bound = match memory {
            AccessMemory::Safe(region) => window.bind(region, range, access),
            AccessMemory::Raw(region, _) => window.bind(region, range, access),
        };
        known.dead = known.bound.take().or(known.dead);
        match bound {
            Ok(name) => {
                let bound = to.map(|(region, first, blocks, writes)| Bound { region, first, blocks, writes, name });
                known.bound = bound;
                Ok(())
            }
            // The old key is invalid nevertheless.
            Err(percale::memory::window::WindowError::Busy) => Ok(()),
            Err(error) => Err(Fault::new("refused without a cause", format!("binding window {index}: {error}"))),
        }
    }

    /// Accesses the memory of a place through one of its windows, or with an invalid key of one.
    pub(super) fn reach(
        &mut self,
        at: usize,
        (to, nth): (usize, usize),
        block: usize,
        by: AccessBy,
        slot: usize,
        fenced: bool,
    ) -> Verdict {
        let theirs: Vec<usize> =
            (0..self.windows.known.len()).filter(|index| self.windows.known[*index].place == to).collect();
        if theirs.is_empty() {
            return Ok(());
        }
        let window = theirs[nth % theirs.len()];
        let known = &self.windows.known[window];
        // Occasionally use an invalid key.
        let by_dead = known.bound.is_none() || block == 0;
        let Some(Bound { region, first, blocks, writes, name }) = (if by_dead { known.dead } else { known.bound })
        else {
            return Ok(());
        };
        let words = BLOCKS - WORDS;
        let is_word = by.is_word();
        let fits = |block: &usize| if is_word { *block >= words } else { *block < words };
        let blocks: Vec<usize> = (first..first + blocks).filter(fits).collect();
        if blocks.is_empty() {
            return Ok(());
        }
        let block = blocks[block % blocks.len()];
        let begin = ((block - first) * BLOCK) as u64;
        let remote = name.at(begin..begin + by.len(BLOCK) as u64);
        let must = by_dead || by.changes() && !writes;
        // If the region was dropped, the lifetime of its windows is not specified.
        let may = must || self.regions.memory(region).is_none();
        self.access_target(at, to, Target { region, block, remote, window: Some(window), may, must }, by, slot, fenced)
    }

    /// Deallocates all windows.
    pub(super) fn close_windows(&mut self) {
        for known in &mut self.windows.known {
            if let Some(window) = known.window.take() {
                _ = window.close();
            }
        }
    }
}
