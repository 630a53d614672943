//! Collectives.

use super::World;
use crate::search::ledger::{Life, Verdict};
use crate::search::step::GroupStep;

/// The groups of a run.
#[derive(Default)]
pub(super) struct Groups {}

impl Groups {
    pub(super) fn uses(&self, _life: Life) -> bool {
        false
    }

    pub(super) fn forget(&mut self, _life: Life, _forget: bool) {}
}

impl World {
    pub(super) fn group(&mut self, _at: usize, _what: GroupStep) -> Verdict {
        Ok(())
    }
}
