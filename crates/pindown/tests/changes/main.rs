//! Makes every kind of change by system calls of this process, to memory in a cache with the kernel monitor, and checks
//! that no transfer uses the old pages. The tests are skipped, with the reason, if the programs cannot be loaded.

mod files;
mod mapped;
#[path = "../oracle/mod.rs"]
mod oracle;
mod race;
mod reported;

use pindown::Range;

fn range(at: u64, len: u64) -> Range {
    Range::new(at, len).expect("a range")
}
