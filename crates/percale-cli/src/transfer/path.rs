//! The path of a file in the served directory, as bytes.
//!
//! In JSON it is a string if it is valid UTF-8, otherwise an array of numbers.

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// The maximum length of a path in bytes. The kernel does not accept longer paths.
pub(crate) const LONGEST: usize = 4096;

/// The maximum number of bytes of a path in messages.
const SHOWN: usize = 256;

/// A path.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Spelled", into = "Spelled")]
pub(crate) struct ServedPath(Vec<u8>);

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Spelled {
    Text(String),
    Bytes(Vec<u8>),
}

impl From<Spelled> for ServedPath {
    fn from(spelled: Spelled) -> Self {
        match spelled {
            Spelled::Text(text) => Self(text.into_bytes()),
            Spelled::Bytes(bytes) => Self(bytes),
        }
    }
}

impl From<ServedPath> for Spelled {
    fn from(path: ServedPath) -> Self {
        String::from_utf8(path.0).map_or_else(|error| Self::Bytes(error.into_bytes()), Self::Text)
    }
}

impl From<Vec<u8>> for ServedPath {
    fn from(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }
}

impl ServedPath {
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }

    pub(crate) fn path(&self) -> &Path {
        Path::new(OsStr::from_bytes(&self.0))
    }

    /// Formats the path for messages: at most 256 bytes, with all characters that are not printable escaped.
    pub(crate) fn shown(&self) -> String {
        let (shown, rest) = self.0.split_at(SHOWN.min(self.0.len()));
        let dots = if rest.is_empty() { "" } else { "..." };
        format!("{:?}{dots}", OsStr::from_bytes(shown))
    }
}

impl fmt::Debug for ServedPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_round_trip_through_json_and_display_escaped() {
        for bytes in [b"a/b".to_vec(), b"\xff\xfe".to_vec(), "\u{e9}\u{1b}[2J".into(), Vec::new()] {
            let path = ServedPath::from(bytes);
            let text = serde_json::to_string(&path).unwrap();
            assert_eq!(serde_json::from_str::<ServedPath>(&text).unwrap(), path, "{text}");
        }
        assert_eq!(serde_json::to_string(&ServedPath::from(b"a".to_vec())).unwrap(), "\"a\"");
        let hostile = ServedPath::from("\u{1b}[2J".repeat(4000).into_bytes()).shown();
        assert!(hostile.len() < 2048 && !hostile.contains('\u{1b}'), "{hostile}");
    }
}
