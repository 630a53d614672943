//! Every kind of change, made under a cache over the kernel tier by system calls of this process: no transfer uses the
//! old pages. Skipped with the reason where the programs cannot be loaded.

mod files;
mod mapped;
#[path = "../oracle/mod.rs"]
mod oracle;
mod race;
mod told;

use pindown::Range;

fn range(at: u64, len: u64) -> Range {
    Range::new(at, len).expect("a range")
}
