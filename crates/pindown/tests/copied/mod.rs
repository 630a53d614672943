//! Copies of programs, which the tests then run.

use std::path::Path;
use std::process::Command;

/// Copies a program in another process. If this process had the copy open for writing, a child that another thread
/// starts at the same time would inherit the descriptor, and the copy could not be executed while the child has it open
/// ("Text file busy").
pub(crate) fn copy_program(from: &Path, to: &Path) {
    let status = Command::new("cp").arg(from).arg(to).status().expect("cp is a part of every system");
    assert!(status.success(), "cp failed: {status}");
}
