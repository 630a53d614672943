//! The monitors of the registration cache that can be measured.

use clap::builder::PossibleValuesParser;

/// All monitors, the best first.
pub(super) const ALL: [&str; 5] = [BPF, "userfaultfd-promised", "userfaultfd", "sealed", IMPORTED];

/// The monitor that uses BPF in the kernel.
pub(super) const BPF: &str = "bpf";

/// A monitor that detects no changes itself and makes no kernel queries, so that only the work of the cache is
/// measured.
pub(super) const IMPORTED: &str = "imported";

/// Returns a parser for the names of the monitors.
pub(super) fn names() -> PossibleValuesParser {
    ALL.into()
}
