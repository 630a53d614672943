//! The authorization key, from a file that only its owner may read.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::failure::{Failure, Result};

/// The longest key.
const LONGEST: usize = 4096;

/// Reads a key: the file's bytes, without a newline at their end.
///
/// # Errors
/// If the file cannot be read, or others can read it too, or it is empty or too long.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>> {
    let what = || format!("the authorization key {}", path.display());
    let file = File::open(path).map_err(Failure::system(what()))?;
    // The mode of the open file: that of the name may be another's by now.
    let mode = file.metadata().map_err(Failure::system(what()))?.mode();
    let wrong = |why: String| Failure::System { what: what(), source: std::io::Error::other(why) };
    if mode & 0o077 != 0 {
        let why = format!("others may use this file (mode {:03o}); chmod 600 it", mode & 0o777);
        return Err(wrong(why));
    }
    let mut key = Vec::new();
    file.take(LONGEST as u64 + 2).read_to_end(&mut key).map_err(Failure::system(what()))?;
    if key.last() == Some(&b'\n') {
        key.pop();
    }
    match key.len() {
        0 => Err(wrong("it is empty".into())),
        len if len > LONGEST => Err(wrong(format!("it is longer than {LONGEST} bytes"))),
        _ => Ok(key),
    }
}
