//! The monitors of the registration cache that are measured.

use clap::builder::PossibleValuesParser;

/// All of them, the best first.
pub(super) const ALL: [&str; 5] = [BPF, "userfaultfd-promised", "userfaultfd", "sealed", IMPORTED];

/// The kernel tier.
pub(super) const BPF: &str = "bpf";

/// Reports no changes by itself and makes no kernel queries: only the cache's own work remains.
pub(super) const IMPORTED: &str = "imported";

/// The monitors that can be named.
pub(super) fn names() -> PossibleValuesParser {
    ALL.into()
}
