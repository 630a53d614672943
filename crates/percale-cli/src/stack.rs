//! Runs the command with enough stack, whatever the limit of the process (`ulimit -s`) is.

use std::process::ExitCode;
use std::thread::{Builder, scope};

use rustix::process::{Resource, getrlimit};

/// The command does not rely on a smaller limit, in bytes.
const ENOUGH: u64 = 1 << 20;

/// The stack of the thread that replaces the main one, in bytes: the usual limit.
const SIZE: usize = 8 << 20;

/// Runs the function. If the limit is low, it runs in a thread with a stack of its own size, to which the limit does
/// not apply, while the main thread waits.
pub(crate) fn with_enough(run: impl Fn() -> ExitCode + Sync) -> ExitCode {
    if getrlimit(Resource::Stack).current.is_none_or(|limit| limit >= ENOUGH) {
        return run();
    }
    scope(|scope| match Builder::new().stack_size(SIZE).spawn_scoped(scope, &run) {
        // 101 is the exit status of a panic in the main thread.
        Ok(thread) => thread.join().unwrap_or(ExitCode::from(101)),
        // Without another thread, the small stack may be sufficient.
        Err(_) => run(),
    })
}
