//! The dispositions of signals that end the process by default.

#![expect(unsafe_code, reason = "no safe wrapper sets a signal's disposition")]

/// Makes a write beyond the file size limit (`ulimit -f`) fail with EFBIG instead of ending the process. The error is
/// reported with the file's name.
pub(crate) fn ignore_file_size() {
    // SAFETY: an ignored signal runs no code of this process.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}
