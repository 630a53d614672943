//! The socket that the helper's clients connect to.
//!
//! The helper makes it, or takes over one that a service manager made ([`passed`]).
//!
//! The permissions of a socket that the helper makes are never wider than intended. The kernel creates the file with
//! the socket's own mode without the bits of the umask. So the mode is set before the file exists, and the group and
//! the bits that the umask removed are set afterwards. Clients cannot connect before the socket listens. Links at the
//! path are not followed, and a file is replaced only if it is a socket, because the directory may belong to another
//! user.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, fchmod, fstat, open};
use rustix::io::ioctl_fionbio;
use rustix::net::sockopt::{socket_acceptconn, socket_domain, socket_type};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, getsockname, listen, socket_with,
};

use super::service_manager;

/// The users that may connect. Connecting requires the write permission for the file.
#[derive(Clone, Copy, Debug)]
pub(super) enum AllowedUsers {
    Everybody,
    /// The owner of the socket, root, and the members of this group.
    Group(u32),
}

impl AllowedUsers {
    fn mode(self) -> u32 {
        match self {
            Self::Everybody => 0o666,
            Self::Group(_) => 0o660,
        }
    }
}

/// A socket that clients connect to.
#[derive(Debug)]
pub(super) struct Listener {
    pub(super) socket: OwnedFd,
    pub(super) path: PathBuf,
    /// Removes the file when it is dropped. `None` if the file belongs to a service manager.
    pub(super) name: Option<Name>,
}

/// The file through which clients reach a socket.
#[derive(Debug)]
pub(super) struct Name {
    path: PathBuf,
    /// A descriptor of the file: while it is open, no other file has its inode number.
    file: OwnedFd,
}

impl Name {
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

/// Takes over the socket that the service manager passed to this process, if it passed one.
///
/// The service manager has called listen(2), and this function does not call it again: clients trust the user that
/// called it last (SO_PEERCRED).
///
/// # Errors
/// `InvalidInput` if the socket is of another kind; otherwise errors of the system calls.
pub(super) fn passed() -> io::Result<Option<Listener>> {
    service_manager::passed_socket()?.map(inherited).transpose()
}

fn inherited(socket: OwnedFd) -> io::Result<Listener> {
    let is_fit = socket_domain(&socket) == Ok(AddressFamily::UNIX)
        && socket_type(&socket) == Ok(SocketType::SEQPACKET)
        && socket_acceptconn(&socket) == Ok(true);
    let address = getsockname(&socket).and_then(SocketAddrUnix::try_from);
    let path = address.ok().and_then(|address| Some(PathBuf::from(OsStr::from_bytes(address.path_bytes()?))));
    let (true, Some(path)) = (is_fit, path) else {
        let what = "it is not a listening Unix socket of the type SOCK_SEQPACKET with a path: use \
                    ListenSequentialPacket=PATH in its unit";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
    };
    ioctl_fionbio(&socket, true)?;
    Ok(Listener { socket, path, name: None })
}

/// Creates the directory of the helper's default socket, in which every user may look up names.
pub(super) fn make_default_directory() -> io::Result<()> {
    let Some(directory) = Path::new(super::SOCKET).parent() else { return Ok(()) };
    match fs::DirBuilder::new().mode(0o755).create(directory) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        // The umask may have removed permissions.
        made => made.and_then(|()| fs::set_permissions(directory, fs::Permissions::from_mode(0o755))),
    }
}

/// Makes a socket at `path`, and listens.
///
/// # Errors
/// `AddrInUse` if a process listens there; `AlreadyExists` if the path is a file that is not a socket; otherwise errors
/// of the system calls.
pub(super) fn at(path: &Path, users: AllowedUsers) -> io::Result<Listener> {
    let make =
        || socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None);
    let address = SocketAddrUnix::new(path)?;
    let socket = make()?;
    fchmod(&socket, Mode::from_bits_truncate(users.mode()))?;
    if let Err(error) = bind(&socket, &address) {
        if error != rustix::io::Errno::ADDRINUSE {
            return Err(error.into());
        }
        if !fs::symlink_metadata(path)?.file_type().is_socket() {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "a file exists there that is not a socket"));
        }
        // The file remains from a helper that was killed, or belongs to another helper.
        if connect(make()?, &address) != Err(rustix::io::Errno::CONNREFUSED) {
            return Err(io::Error::new(io::ErrorKind::AddrInUse, "the path is in use by another process"));
        }
        fs::remove_file(path)?;
        bind(&socket, &address)?;
    }
    // If a link has replaced the file in the meantime, the link itself is opened, and it is not a socket.
    let file = open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    if FileType::from_raw_mode(fstat(&file)?.st_mode) != FileType::Socket {
        return Err(io::Error::other("the socket was replaced by another file"));
    }
    let same = format!("/proc/self/fd/{}", file.as_raw_fd());
    let name = Name { path: path.to_owned(), file };
    if let AllowedUsers::Group(group) = users {
        chown(&same, None, Some(group)).map_err(|error| {
            io::Error::new(error.kind(), format!("the socket cannot be given to the group {group}: {error}"))
        })?;
    }
    fs::set_permissions(&same, fs::Permissions::from_mode(users.mode()))?;
    // The kernel reduces the length of the queue to net.core.somaxconn. It keeps the order of connections in the queue,
    // but not the order of callers that wait for room in it.
    listen(&socket, 4096)?;
    Ok(Listener { socket, path: path.to_owned(), name: Some(name) })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn directory(name: &str) -> PathBuf {
        let place = std::env::temp_dir().join(format!("pindown-{name}-{}", std::process::id()));
        fs::create_dir(&place).expect("a directory");
        place
    }

    fn mode(path: &Path) -> u32 {
        fs::symlink_metadata(path).expect("the socket exists").permissions().mode()
    }

    /// Requirements: MON-034.
    #[test]
    fn socket_is_world_accessible_and_other_files_are_kept() {
        let place = directory("listen");
        let [socket, file, link] = ["socket", "file", "link"].map(|name| place.join(name));
        let everybody = |path: &Path| at(path, AllowedUsers::Everybody);
        let first = everybody(&socket).expect("listens");
        assert_eq!(mode(&socket), 0o140_666);
        assert_eq!(everybody(&socket).expect_err("the socket is in use").kind(), io::ErrorKind::AddrInUse);
        let Listener { socket: listener, name: left, .. } = first;
        drop(listener);
        let second = everybody(&socket).expect("no process listens");
        drop(left);
        assert!(socket.exists(), "the file belongs to the second listener");
        assert_eq!(mode(&socket), 0o140_666);
        fs::write(&file, "precious").expect("written");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("the file is ours");
        symlink(&file, &link).expect("linked");
        for other in [&file, &link] {
            assert_eq!(everybody(other).expect_err("no socket").kind(), io::ErrorKind::AlreadyExists);
        }
        assert_eq!(fs::read(&file).expect("the file exists"), b"precious");
        assert_eq!(fs::metadata(&file).expect("the file exists").permissions().mode() & 0o777, 0o600);
        drop(second);
        assert!(!socket.exists());
        fs::remove_dir_all(&place).expect("removed");
    }

    /// Requirements: MON-034.
    #[test]
    fn socket_of_a_group_is_closed_to_other_users() {
        let place = directory("listen-group");
        let socket = place.join("socket");
        let own = rustix::process::getegid().as_raw();
        let listener = at(&socket, AllowedUsers::Group(own)).expect("listens");
        assert_eq!(mode(&socket), 0o140_660);
        assert_eq!(fs::symlink_metadata(&socket).expect("the socket exists").gid(), own);
        drop(listener);
        fs::remove_dir_all(&place).expect("removed");
    }

    #[test]
    fn only_a_listening_packet_socket_with_a_path_is_taken_over() {
        let place = directory("listen-passed");
        let path = place.join("socket");
        let own = at(&path, AllowedUsers::Everybody).expect("listens");
        let taken = inherited(own.socket.try_clone().expect("a copy")).expect("it is fit");
        assert_eq!((taken.path.as_path(), taken.name.is_none()), (path.as_path(), true));
        let socket = |kind| socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).expect("a socket");
        let stream = socket(SocketType::STREAM);
        bind(&stream, &SocketAddrUnix::new(place.join("stream")).expect("a path")).expect("bound");
        listen(&stream, 1).expect("listens");
        for other in [stream, socket(SocketType::SEQPACKET)] {
            let error = inherited(other).expect_err("of another kind");
            assert!(error.to_string().contains("ListenSequentialPacket"), "{error}");
        }
        drop((own, taken));
        fs::remove_dir_all(&place).expect("removed");
    }
}
