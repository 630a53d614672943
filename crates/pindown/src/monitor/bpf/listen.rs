//! The helper's socket, to which every user may connect.
//!
//! Its permissions are never wider than intended. The kernel creates the file with the socket's own mode without the
//! bits of the umask. So the mode is set before the file exists, and the bits that the umask removed are added
//! afterwards. Clients cannot connect before the socket listens. Links at the path are not followed, and a file is
//! replaced only if it is a socket, because the directory may belong to another user.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, fchmod, fstat, open};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with};

/// The mode with which every user may connect. Connecting requires the write permission.
const EVERYBODY: u32 = 0o666;

/// The file through which clients reach a socket.
#[derive(Debug)]
pub(super) struct Name {
    path: PathBuf,
    /// A descriptor of the file: while it is open, no other file has its inode number.
    file: OwnedFd,
}

impl Name {
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    fn is_there(&self) -> bool {
        let found = fs::symlink_metadata(&self.path).map(|found| (found.dev(), found.ino()));
        fstat(&self.file).is_ok_and(|own| found.is_ok_and(|found| found == (own.st_dev, own.st_ino)))
    }
}

impl Drop for Name {
    /// Removes the file, unless another one has replaced it.
    fn drop(&mut self) {
        if self.is_there() {
            // The file may have been removed in the meantime.
            fs::remove_file(&self.path).ok();
        }
    }
}

/// Listens at `path`.
///
/// # Errors
/// `AddrInUse` if a process listens there; `AlreadyExists` if the path is a file that is not a socket; otherwise errors
/// of the system calls.
pub(super) fn at(path: &Path) -> io::Result<(OwnedFd, Name)> {
    let make =
        || socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None);
    let address = SocketAddrUnix::new(path)?;
    let listener = make()?;
    fchmod(&listener, Mode::from_bits_truncate(EVERYBODY))?;
    if let Err(error) = bind(&listener, &address) {
        if error != rustix::io::Errno::ADDRINUSE {
            return Err(error.into());
        }
        if !fs::symlink_metadata(path)?.file_type().is_socket() {
            let what = format!("{} exists and is not a socket", path.display());
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, what));
        }
        // The file remains from a helper that was killed, or belongs to another helper.
        if connect(make()?, &address) != Err(rustix::io::Errno::CONNREFUSED) {
            return Err(io::Error::new(io::ErrorKind::AddrInUse, format!("{} is in use", path.display())));
        }
        fs::remove_file(path)?;
        bind(&listener, &address)?;
    }
    // Restores the permissions that the umask removed. If a link has replaced the file in the meantime, the link itself
    // is opened, and it is not a socket.
    let file = open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    if FileType::from_raw_mode(fstat(&file)?.st_mode) != FileType::Socket {
        return Err(io::Error::other(format!("{} was replaced", path.display())));
    }
    let same = format!("/proc/self/fd/{}", file.as_raw_fd());
    fs::set_permissions(same, fs::Permissions::from_mode(EVERYBODY))?;
    // The kernel reduces the length of the queue to net.core.somaxconn. It keeps the order of connections in the queue,
    // but not the order of callers that wait for room in it.
    listen(&listener, 4096)?;
    Ok((listener, Name { path: path.to_owned(), file }))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// Requirements: MON-034.
    #[test]
    fn socket_is_world_accessible_and_other_files_are_kept() {
        let place = std::env::temp_dir().join(format!("pindown-listen-{}", std::process::id()));
        fs::create_dir(&place).expect("a directory");
        let [socket, file, link] = ["socket", "file", "link"].map(|name| place.join(name));
        let first = at(&socket).expect("listens");
        let mode = || fs::symlink_metadata(&socket).expect("the socket exists").permissions().mode();
        assert_eq!(mode(), 0o140_666);
        assert_eq!(at(&socket).expect_err("the socket is in use").kind(), io::ErrorKind::AddrInUse);
        let (listener, left) = first;
        drop(listener);
        let second = at(&socket).expect("no process listens");
        drop(left);
        assert!(socket.exists(), "the file belongs to the second listener");
        assert_eq!(mode(), 0o140_666);
        fs::write(&file, "precious").expect("written");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("the file is ours");
        symlink(&file, &link).expect("linked");
        for other in [&file, &link] {
            assert_eq!(at(other).expect_err("no socket").kind(), io::ErrorKind::AlreadyExists);
        }
        assert_eq!(fs::read(&file).expect("the file exists"), b"precious");
        assert_eq!(fs::metadata(&file).expect("the file exists").permissions().mode() & 0o777, 0o600);
        drop(second);
        assert!(!socket.exists());
        fs::remove_dir_all(&place).expect("removed");
    }
}
