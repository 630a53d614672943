//! One pair of a kind of memory and an operation.

use std::io;

use pindown::monitor::Refusal;
use pindown::{Cache, Lane, LookupError, Registrar, Stats};
use serde::{Deserialize, Serialize};

use super::kinds::MemoryKind;
use super::memory::Memory;
use super::monitors::TestedCache;
use super::operations::{Operation, Tools};
use super::oracle::{MemoryComparer, Oracle, PinnedRange, UsedRegistration};
use crate::fixed_buffers::ACCESS;

/// The result of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Outcome {
    /// The cache returned a registration of pages that no longer belong to the memory.
    Stale,
    /// The cache returned a registration with rights that the process has lost.
    Rights,
    /// The pages changed, and the cache made a new registration or returned an error.
    Caught,
    /// The pages did not change, and the cache returned its existing registration.
    Kept,
    /// The pages did not change, and the cache made a new registration.
    Needless,
    /// The cache does not keep registrations of such memory, so none can be stale.
    Refused,
    /// Such memory is not available here or cannot be pinned, or the operation is not possible on it.
    NotApplicable,
    /// The torture program itself failed, or its process ended.
    Failed,
}

/// The result of a pair, with details.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Verdict {
    pub(super) outcome: Outcome,
    /// Whether an earlier registration, independent of the cache, contains pages that no longer belong to the memory
    /// after the operation. Absent if this could not be observed.
    pub(super) changed: Option<bool>,
    /// The reason.
    pub(super) detail: Option<String>,
}

impl Verdict {
    pub(super) fn because(outcome: Outcome, detail: impl ToString) -> Self {
        Self { outcome, changed: None, detail: Some(detail.to_string()) }
    }
}

/// Runs one pair.
pub(super) fn run(
    kind: &MemoryKind,
    operation: &Operation,
    subject: &TestedCache,
    oracle: &Oracle,
    tools: &mut Tools,
) -> Verdict {
    let mut memory = match (kind.make)() {
        Ok(memory) => memory,
        Err(error) => return Verdict::because(Outcome::NotApplicable, error),
    };
    // Removes registrations that earlier pairs left in the cache at the same addresses.
    subject.cache.flush();
    let verdict = Case { memory: &mut memory, operation, subject, oracle }.run(tools);
    verdict.unwrap_or_else(|error| Verdict::because(Outcome::Failed, error))
}

struct Case<'a> {
    memory: &'a mut Memory,
    operation: &'a Operation,
    subject: &'a TestedCache,
    oracle: &'a Oracle,
}

impl Case<'_> {
    fn run(&mut self, tools: &mut Tools) -> io::Result<Verdict> {
        self.memory.touch()?;
        let lane = self.subject.cache.lane();
        let mut comparer = self.oracle.comparer()?;
        let range = self.memory.registered;
        let before = self.subject.cache.stats();
        let first = match look_up(&lane, &mut comparer, self.memory) {
            Ok(first) => first,
            Err(LookupError::Registrar { source, .. }) => {
                return Ok(Verdict::because(Outcome::NotApplicable, format!("cannot be pinned: {source}")));
            }
            Err(error) => return Ok(Verdict::because(Outcome::Failed, error)),
        };
        if !first.current? {
            return Ok(Verdict::because(Outcome::Stale, "the first registration already had different pages"));
        }
        let refusal = refusal(&before, &self.subject.cache);
        // The witness shows the effect of the operation on a registration that is never invalidated.
        let witness = Witness::new(self.oracle, range)?;
        self.subject.about_to_change(range);
        let done = (self.operation.apply)(self.memory, tools);
        self.memory.fill_holes(&tools.mappings)?;
        let lost = self.memory.lost_rights;
        // Look up the memory before anything else accesses it.
        let second = look_up(&lane, &mut comparer, self.memory);
        self.memory.give_rights_back()?;
        let changed = !comparer.is_current(witness.slot, range)?;
        let verdict = |outcome, detail| Verdict { outcome, changed: Some(changed), detail };
        let failed = done.err().map(|error| error.to_string());
        let again = match second {
            Ok(again) => again,
            Err(LookupError::Registrar { source, .. }) if refusal.is_none() => {
                return Ok(verdict(Outcome::Caught, Some(format!("cannot be pinned any more: {source}"))));
            }
            Err(error) => return Ok(verdict(Outcome::Refused, Some(error.to_string()))),
        };
        let hit = again.number == first.number;
        if !again.current? {
            let what = if hit { "the old registration was returned" } else { "a new registration has different pages" };
            return Ok(verdict(Outcome::Stale, Some(what.into())));
        }
        Ok(match (failed, refusal) {
            (Some(why), _) => verdict(Outcome::NotApplicable, Some(why)),
            (None, Some(refusal)) => verdict(Outcome::Refused, Some(refusal)),
            (None, None) if hit && lost => verdict(Outcome::Rights, None),
            (None, None) if hit => verdict(Outcome::Kept, None),
            (None, None) if changed => verdict(Outcome::Caught, None),
            (None, None) if lost => verdict(Outcome::Caught, Some("rights were lost".into())),
            (None, None) => verdict(Outcome::Needless, None),
        })
    }
}

/// The result of a use of the cache.
struct UseResult {
    number: u64,
    /// Whether the registration contained the memory's pages, or an error if that could not be observed.
    current: io::Result<bool>,
}

/// Uses the cache as an application does, and checks the returned registration.
fn look_up(lane: &Lane<Oracle>, comparer: &mut MemoryComparer, memory: &mut Memory) -> Result<UseResult, LookupError> {
    let used = lane.get(memory.registered, ACCESS)?;
    let UsedRegistration { number, slot } = UsedRegistration::of(&used);
    // The check accesses the memory with the CPU, so the access rights must be restored first.
    let current = memory.give_rights_back().and_then(|()| comparer.is_current(slot, memory.registered));
    lane.end(used);
    Ok(UseResult { number, current })
}

/// Returns the reason why the cache has kept no registration since `before`, or `None` if it has kept one.
fn refusal(before: &Stats, cache: &Cache<Oracle>) -> Option<String> {
    let after = cache.stats();
    let all = [Refusal::NotCaching, Refusal::TooLarge, Refusal::NotWatchable, Refusal::InUse, Refusal::Changed];
    let grown = |refusal: &&Refusal| after.single_uses_for(**refusal) > before.single_uses_for(**refusal);
    let known = all.iter().find(grown).map(ToString::to_string);
    known.or_else(|| (after.entries == 0).then(|| "not kept".into()))
}

/// Pages that are pinned independently of the cache.
struct Witness<'a> {
    oracle: &'a Oracle,
    pin: Option<PinnedRange>,
    slot: u32,
}

impl<'a> Witness<'a> {
    fn new(oracle: &'a Oracle, range: pindown::Range) -> io::Result<Self> {
        let pinned = oracle.pin(range, ACCESS)?;
        Ok(Self { oracle, pin: Some(pinned.pin), slot: pinned.local_key as u32 })
    }
}

impl Drop for Witness<'_> {
    fn drop(&mut self) {
        if let Some(pin) = self.pin.take() {
            self.oracle.unpin(pin);
        }
    }
}
