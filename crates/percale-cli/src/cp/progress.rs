//! The progress bar of a copy on standard error. It is visible only on a terminal.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::failure::{Failure, Result};

/// The progress bar.
pub(super) struct Progress(ProgressBar);

impl Progress {
    /// Makes a bar for `size` bytes.
    pub(super) fn new(size: u64) -> Result<Self> {
        let bar = ProgressBar::with_draw_target(Some(size), ProgressDrawTarget::stderr_with_hz(4));
        let template = "{bar:40} {percent:>3} %  {decimal_bytes} of {decimal_total_bytes}, {decimal_bytes_per_sec}";
        let style = ProgressStyle::with_template(template);
        Ok(Self(
            bar.with_style(style.map_err(|error| Failure::Usage(format!("cannot show the progress bar: {error}")))?),
        ))
    }

    /// Records that the first `bytes` bytes were kept from an earlier attempt.
    pub(super) fn resumed(&self, bytes: u64) {
        self.0.set_position(bytes);
        self.0.reset_eta();
    }

    /// Records that `bytes` more bytes were transferred.
    pub(super) fn moved(&self, bytes: u64) {
        self.0.inc(bytes);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
