//! Copies of programs that are then run.

use std::path::Path;
use std::process::Command;

/// Copies a program. Another process does it: if this one had the copy open for writing, a child that another thread starts meanwhile would
/// inherit the descriptor, and as long as the child has it the copy cannot be run ("Text file busy").
pub(crate) fn copy_program(from: &Path, to: &Path) {
    let status = Command::new("cp").arg(from).arg(to).status().expect("cp is a part of every system");
    assert!(status.success(), "cp failed: {status}");
}
