//! The location of a file: local, or below a served directory.

use std::ffi::OsStr;
use std::path::PathBuf;

use crate::transfer::path::ServedPath;

/// The location of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum FileLocation {
    /// On this machine.
    Here(PathBuf),
    /// On a server: `HOST:PORT`, and the path on the server.
    There(String, ServedPath),
}

impl FileLocation {
    /// Parses an argument of the form `HOST:PORT/PATH` or `[IPv6]:PORT/PATH`. Any other argument is a local path.
    pub(super) fn of(argument: &OsStr) -> Self {
        let bytes = argument.as_encoded_bytes();
        let slash = bytes.iter().position(|&byte| byte == b'/');
        let remote = slash.and_then(|at| {
            let address = std::str::from_utf8(&bytes[..at]).ok()?;
            let path = ServedPath::from(bytes[at + 1..].to_vec());
            let (host, port) = address.rsplit_once(':')?;
            let bracketed = host.starts_with('[') && host.ends_with(']');
            let sound = !host.is_empty() && (bracketed || !host.contains(':'));
            (sound && port.parse::<u16>().is_ok()).then(|| Self::There(address.into(), path))
        });
        remote.unwrap_or_else(|| Self::Here(argument.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_addresses_are_distinguished_from_files() {
        for (text, address, path) in [
            ("node7:7471/a/b", "node7:7471", "a/b"),
            ("127.0.0.1:1/x", "127.0.0.1:1", "x"),
            ("[::1]:7471/x", "[::1]:7471", "x"),
            ("h:1//etc", "h:1", "/etc"),
            ("h:1/", "h:1", ""),
        ] {
            let there = FileLocation::There(address.into(), ServedPath::from(path.as_bytes().to_vec()));
            assert_eq!(FileLocation::of(OsStr::new(text)), there);
        }
        for text in ["a", "a/b", "/a:1/b", "./a:1/b", "a:1", "a:b/c", ":1/c", "::1/c", "a:65536/c", ""] {
            assert_eq!(FileLocation::of(OsStr::new(text)), FileLocation::Here(text.into()));
        }
    }
}
