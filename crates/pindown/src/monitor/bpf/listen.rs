//! The socket that the helper's clients connect to.
//!
//! The helper makes it, or takes over one that a service manager made ([`passed`]).
//!
//! The permissions of a socket that the helper makes are never wider than intended. The kernel creates the file with
//! the socket's own mode without the bits of the umask. So the mode is set before the file exists, and the group and
//! the bits that the umask removed are set afterwards. Clients cannot connect before the socket listens. Links at the
//! path are not followed, and a file is replaced only if it is a socket, because the directory may belong to another
//! user.
//!
//! One helper listens at a path. A socket that rejects connections belongs to a helper that was killed, or to one that
//! has called bind(2) and not yet listen(2). So a helper holds [`StartLock`] from before the first until after the
//! second. At its end it removes the file while the socket still listens, when no other helper replaces the file.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FileType, FlockOperation, Mode, OFlags, fchmod, flock, fstat, open};
use rustix::io::ioctl_fionbio;
use rustix::net::sockopt::{socket_acceptconn, socket_domain, socket_type};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, getsockname, listen, socket_with,
};
use tracing::warn;

use super::service_manager;

/// The maximum time to wait for another helper that starts at the same path. It holds the lock for a few system calls.
const STARTING: Duration = Duration::from_secs(5);

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
    /// Removes the file when it is dropped, which is before the socket is closed. `None` if the file belongs to a
    /// service manager.
    pub(super) name: Option<Name>,
    pub(super) socket: OwnedFd,
    pub(super) path: PathBuf,
}

/// The file through which clients reach a socket.
#[derive(Debug)]
pub(super) struct Name {
    path: PathBuf,
    /// A descriptor of the file: while it is open, no other file has its inode number.
    file: OwnedFd,
}

impl Drop for Name {
    /// Removes the file, unless another one has replaced it.
    fn drop(&mut self) {
        if is_file_at(&self.file, &self.path) {
            // The file may have been removed in the meantime.
            fs::remove_file(&self.path).ok();
        }
    }
}

/// The lock of the helpers that start at one path: a file next to the socket, which exists only while a helper starts.
/// Only the owner of the file can open it, so other users cannot take the lock.
#[derive(Debug)]
struct StartLock {
    path: PathBuf,
    _file: OwnedFd,
}

impl StartLock {
    /// Waits until no other helper starts at this path.
    ///
    /// # Errors
    /// `AddrInUse` if another process keeps the lock; otherwise errors of the system calls.
    fn take(socket: &Path, wait: Duration) -> io::Result<Self> {
        let mut path = socket.as_os_str().to_owned();
        path.push(".lock");
        let path = PathBuf::from(path);
        let deadline = Instant::now() + wait;
        let named = |what: &str, why: io::Error| {
            io::Error::new(why.kind(), format!("{what} the lock file {}: {why}", path.display()))
        };
        // With this flag a FIFO does not wait for a reader.
        let flags = OFlags::CREATE | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        loop {
            let file = open(&path, flags, Mode::RUSR | Mode::WUSR).map_err(|why| named("opening", why.into()))?;
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                // The former owner may have removed the file before this lock was taken.
                Ok(()) if is_file_at(&file, &path) => return Ok(Self { path, _file: file }),
                Ok(()) => continue,
                Err(rustix::io::Errno::WOULDBLOCK) if Instant::now() < deadline => {}
                Err(rustix::io::Errno::WOULDBLOCK) => {
                    let what = format!("another process that starts there holds {}", path.display());
                    return Err(io::Error::new(io::ErrorKind::AddrInUse, what));
                }
                Err(why) => return Err(named("locking", why.into())),
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for StartLock {
    fn drop(&mut self) {
        // The lock is still held, so the file is the one that was locked.
        fs::remove_file(&self.path).ok();
    }
}

/// Returns whether `file` is what exists at `path`. Links are not followed.
fn is_file_at(file: &OwnedFd, path: &Path) -> bool {
    let found = fs::symlink_metadata(path).map(|found| (found.dev(), found.ino()));
    fstat(file).is_ok_and(|own| found.is_ok_and(|found| found == (own.st_dev, own.st_ino)))
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
    Ok(Listener { name: None, socket, path })
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

/// Warns if a directory above the socket does not let the users pass that the mode of the socket allows to connect.
pub(super) fn warn_of_closed_directories(path: &Path) {
    let Ok(socket) = fs::symlink_metadata(path) else { return };
    let users = if socket.mode() & 0o002 != 0 { AllowedUsers::Everybody } else { AllowedUsers::Group(socket.gid()) };
    if let Some((directory, mode)) = closed_directory(path, users) {
        warn!(
            "users may not be able to connect: the directory {} has the mode {mode:04o}; give them the permission to \
             pass it (chmod o+x), or use another path",
            directory.display()
        );
    }
}

/// Returns the first directory above the socket that lacks the permission to pass it, with its mode.
fn closed_directory(path: &Path, users: AllowedUsers) -> Option<(&Path, u32)> {
    path.ancestors().skip(1).find_map(|directory| {
        let name = if directory.as_os_str().is_empty() { Path::new(".") } else { directory };
        let found = fs::metadata(name).ok()?;
        let is_open = found.mode() & 0o001 != 0
            || matches!(users, AllowedUsers::Group(group) if found.gid() == group && found.mode() & 0o010 != 0);
        (!is_open).then_some((name, found.mode() & 0o7777))
    })
}

/// Makes a socket at `path`, and listens.
///
/// # Errors
/// `AddrInUse` if a process listens there, or another helper is starting there; `AlreadyExists` if the path is a file
/// that is not a socket; otherwise errors of the system calls.
pub(super) fn at(path: &Path, users: AllowedUsers) -> io::Result<Listener> {
    let make =
        || socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None);
    let address = SocketAddrUnix::new(path)?;
    let _lock = StartLock::take(path, STARTING)?;
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
    Ok(Listener { name: Some(name), socket, path: path.to_owned() })
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

    /// Requirements: MON-034.
    #[test]
    fn a_helper_that_has_not_called_listen_yet_keeps_its_socket() {
        let place = directory("listen-starting");
        let path = place.join("socket");
        let lock = StartLock::take(&path, STARTING).expect("no helper starts");
        let first = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
        let first = first.expect("a socket");
        bind(&first, &SocketAddrUnix::new(&path).expect("a path")).expect("bound");
        std::thread::scope(|scope| {
            let second = scope.spawn(|| at(&path, AllowedUsers::Everybody));
            // The time that the second helper needs to connect.
            std::thread::sleep(Duration::from_millis(50));
            listen(&first, 1).expect("listens");
            drop(lock);
            let error = second.join().expect("no panic").expect_err("the first helper listens there");
            assert_eq!(error.kind(), io::ErrorKind::AddrInUse, "{error}");
        });
        let left: Vec<_> =
            fs::read_dir(&place).expect("the directory").flatten().map(|file| file.file_name()).collect();
        assert_eq!(left, ["socket"]);
        fs::remove_dir_all(&place).expect("removed");
    }

    /// Requirements: MON-034.
    #[test]
    fn one_of_several_helpers_that_start_at_once_listens() {
        let place = directory("listen-race");
        let path = place.join("socket");
        for _ in 0..50 {
            // Each round begins with the file of a helper that was killed.
            let killed = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
            bind(killed.expect("a socket"), &SocketAddrUnix::new(&path).expect("a path")).expect("bound");
            let start = std::sync::Barrier::new(3);
            let opened: Vec<_> = std::thread::scope(|scope| {
                let helpers = [(); 3].map(|()| {
                    scope.spawn(|| {
                        start.wait();
                        at(&path, AllowedUsers::Everybody)
                    })
                });
                helpers.map(|helper| helper.join().expect("no panic")).into_iter().flatten().collect()
            });
            assert_eq!(opened.len(), 1);
            assert!(path.exists());
        }
        assert!(!path.exists());
        fs::remove_dir_all(&place).expect("removed");
    }

    #[test]
    fn a_lock_that_is_kept_ends_the_start() {
        let place = directory("listen-lock");
        let path = place.join("socket");
        let _lock = StartLock::take(&path, STARTING).expect("no helper starts");
        let error = StartLock::take(&path, Duration::from_millis(20)).expect_err("it is held");
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        assert!(error.to_string().contains("socket.lock"), "{error}");
        let link = place.join("link");
        symlink("nowhere", place.join("link.lock")).expect("linked");
        let error = StartLock::take(&link, STARTING).expect_err("links are not followed");
        assert!(error.to_string().contains("link.lock"), "{error}");
        assert!(!place.join("nowhere").exists());
        fs::remove_dir_all(&place).expect("removed");
    }

    /// Requirements: MON-034.
    #[test]
    fn the_file_is_removed_while_the_socket_listens() {
        let place = directory("listen-end");
        let path = place.join("socket");
        let Listener { name, socket, .. } = at(&path, AllowedUsers::Everybody).expect("listens");
        drop(name);
        assert!(!path.exists());
        let next = at(&path, AllowedUsers::Everybody).expect("no file is there");
        drop(socket);
        assert!(path.exists());
        drop(next);
        fs::remove_dir_all(&place).expect("removed");
    }

    #[test]
    fn a_directory_that_does_not_let_clients_pass_is_found() {
        let place = directory("listen-closed");
        let inner = place.join("inner");
        fs::create_dir(&inner).expect("a directory");
        let path = inner.join("socket");
        let own = fs::metadata(&place).expect("a directory").gid();
        let (everybody, group) = (AllowedUsers::Everybody, AllowedUsers::Group(own));
        let set = |directory: &Path, mode| {
            fs::set_permissions(directory, fs::Permissions::from_mode(mode)).expect("the directory is ours");
        };
        set(&place, 0o755);
        set(&inner, 0o755);
        assert_eq!(closed_directory(&path, everybody), None);
        set(&place, 0o710);
        assert_eq!(closed_directory(&path, everybody), Some((place.as_path(), 0o710)));
        assert_eq!(closed_directory(&path, group), None);
        set(&inner, 0o700);
        assert_eq!(closed_directory(&path, everybody), Some((inner.as_path(), 0o700)));
        assert_eq!(closed_directory(&path, group), Some((inner.as_path(), 0o700)));
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
