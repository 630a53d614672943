//! The search for faults with several processes. `search-processes --help` describes its use.

use std::process::ExitCode;

fn main() -> ExitCode {
    percale_conformance::search_processes::play();
    percale_conformance::search_processes::program::main()
}
