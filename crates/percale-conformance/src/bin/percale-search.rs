//! The search for faults. `percale-search --help` describes its use.

use std::process::ExitCode;

use percale_conformance::search::heap::Quarantine;

#[global_allocator]
static HEAP: Quarantine = Quarantine::new();

fn main() -> ExitCode {
    percale_conformance::search::program::main()
}
