//! Reads an authorization key from a file that only its owner may access.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The maximum length of an authorization key, in bytes.
pub const KEY_LIMIT: usize = 4096;

/// Reads a key for [`DomainBuilder::authorization_key`](super::DomainBuilder::authorization_key): the bytes of the
/// file. One newline at the end is removed.
///
/// # Errors
/// If the file cannot be read, if other users have access to it, if it is empty, or if it is longer than [`KEY_LIMIT`].
pub fn read_authorization_key(path: &Path) -> io::Result<Vec<u8>> {
    let file = File::open(path)?;
    // The mode is that of the open file, because the name may refer to another file by now.
    let mode = file.metadata()?.mode();
    if mode & 0o077 != 0 {
        let why = format!("other users can access this file (mode {:03o}); run chmod 600", mode & 0o777);
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    }
    let mut key = Vec::new();
    file.take(KEY_LIMIT as u64 + 2).read_to_end(&mut key)?;
    if key.last() == Some(&b'\n') {
        key.pop();
    }
    match key.len() {
        0 => Err(io::Error::new(io::ErrorKind::InvalidData, "the key is empty")),
        len if len > KEY_LIMIT => {
            Err(io::Error::new(io::ErrorKind::InvalidData, format!("the key is longer than {KEY_LIMIT} bytes")))
        }
        _ => Ok(key),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn key_file_must_be_private_nonempty_and_bounded() {
        let path = std::env::temp_dir().join(format!("percale-key-{}", std::process::id()));
        let read = |bytes: &[u8], mode| {
            fs::write(&path, bytes).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            let key = read_authorization_key(&path);
            fs::remove_file(&path).unwrap();
            key.map_err(|error| error.to_string())
        };
        assert_eq!(read(b"secret\n", 0o600).unwrap(), b"secret");
        assert_eq!(read(&[7; KEY_LIMIT], 0o400).unwrap().len(), KEY_LIMIT);
        assert!(read(b"secret", 0o640).unwrap_err().contains("chmod 600"));
        assert!(read(b"\n", 0o600).unwrap_err().contains("empty"));
        assert!(read(&[7; KEY_LIMIT + 1], 0o600).unwrap_err().contains("longer than 4096"));
        assert!(read_authorization_key(&path).is_err(), "there is no file");
    }
}
