//! Output: lines on standard output and standard error, and a progress bar.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::failure::{Failure, Result};

/// Prints to standard output. Unlike `println!`, it does not panic if the pipe is closed or the disk is full.
pub(crate) fn print_line(text: &str) -> Result<()> {
    use std::io::Write;
    writeln!(std::io::stdout().lock(), "{text}").map_err(Failure::system("writing the results"))
}

/// Prints to standard error. Unlike `eprintln!`, it does not panic. Errors are ignored: they cannot be reported, and
/// must not affect the clients of a server.
pub(crate) fn say(text: &str) {
    use std::io::Write;
    let _printed: std::io::Result<()> = writeln!(std::io::stderr().lock(), "{text}");
}

/// Makes a progress bar on standard error. It is visible only on a terminal.
pub(crate) fn progress_bar(steps: u64) -> Result<ProgressBar> {
    let bar = ProgressBar::with_draw_target(Some(steps), ProgressDrawTarget::stderr_with_hz(4));
    let style = ProgressStyle::with_template("{bar:40} {percent:>3} %  {msg}")
        .map_err(|error| Failure::Usage(format!("cannot show the progress bar: {error}")))?;
    Ok(bar.with_style(style))
}
