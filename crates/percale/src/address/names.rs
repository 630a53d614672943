//! How processes find a vector that they share.
//!
//! Every process that uses a named vector binds an abstract Unix socket for as long as it does, whose name has the vector's
//! key and the process's number. Nobody connects to it: the kernel lists it (/proc/net/unix), and forgets it with the process.
//! Who opens the vector takes its memory from any of these processes, through /proc: there the kernel checks that the two are
//! of one user, and opens a description of its own, only for reading if no more is wanted. So no process is needed by the
//! others, none has to serve, and nothing has a name in a file system.
//!
//! Opening is done by one process at a time: it holds a socket of a fixed name meanwhile.
//!
//! A vector's key is made of the user, the family of its addresses and its name. Sockets are seen in one network namespace,
//! processes in one pid namespace: named vectors are shared within both.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags, SealFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use sha2::{Digest, Sha256};

use super::shared::Shared;

/// What all of our sockets' names begin with.
const PREFIX: &str = "percale-vector";
/// How long to wait for others that open the vector.
const PATIENCE: Duration = Duration::from_secs(20);

/// A named vector's memory, and the socket that says that this process has it.
#[derive(Debug)]
pub(super) struct Named {
    pub(super) shared: Shared,
    pub(super) presence: OwnedFd,
}

/// How a named vector is to be opened.
#[derive(Clone, Copy, Debug)]
pub(super) struct Opening<'a> {
    pub(super) name: &'a str,
    /// Vectors of different families are different vectors.
    pub(super) family: &'a str,
    /// Only what is there already, and only for reading.
    pub(super) read_only: bool,
    /// How many entries a new one is for.
    pub(super) expected: usize,
}

impl Opening<'_> {
    /// The key: 32 digits.
    fn key(&self) -> String {
        let mut hash = Sha256::new();
        for part in [&rustix::process::geteuid().as_raw().to_string(), self.family, self.name] {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        hash.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect()
    }

    /// Opens the vector, or makes it.
    pub(super) fn open(&self) -> io::Result<Named> {
        let key = self.key();
        let _alone = alone(&key)?;
        let shared = match find(&key, self.read_only)? {
            Some(shared) => shared,
            None if self.read_only => return Err(io::ErrorKind::NotFound.into()),
            None => Shared::create(&memory_name(&key), self.expected)?,
        };
        Ok(Named { shared, presence: announce(&key)? })
    }
}

fn memory_name(key: &str) -> String {
    format!("{PREFIX}-{key}")
}

/// Binds an abstract socket.
fn bind(name: &str) -> Result<OwnedFd, Errno> {
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
    Ok(socket)
}

/// Waits until nobody else opens this vector.
fn alone(key: &str) -> io::Result<OwnedFd> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match bind(&format!("{PREFIX}/{key}/open")) {
            Ok(socket) => return Ok(socket),
            Err(Errno::ADDRINUSE) if Instant::now() < deadline => std::thread::sleep(Duration::from_micros(200)),
            Err(Errno::ADDRINUSE) => return Err(io::ErrorKind::TimedOut.into()),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Says that this process has the vector, until the socket is closed.
fn announce(key: &str) -> io::Result<OwnedFd> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    // What is in use may be of another pid namespace, or of a child that outlived its parent.
    let own = format!("{PREFIX}/{key}/{}/{number}", std::process::id());
    for attempt in 0..1000 {
        match bind(&format!("{own}/{attempt}")) {
            Err(Errno::ADDRINUSE) => {}
            other => return Ok(other?),
        }
    }
    Err(io::ErrorKind::AddrInUse.into())
}

/// The memory, from any process that has it.
fn find(key: &str, read_only: bool) -> io::Result<Option<Shared>> {
    let sockets = std::fs::read_to_string("/proc/net/unix")?;
    let prefix = format!("@{PREFIX}/{key}/");
    let mut denied = None;
    for line in sockets.lines() {
        let Some(at) = line.find(&prefix) else { continue };
        let Some(pid) = line[at + prefix.len()..].split('/').next().and_then(|pid| pid.parse::<u32>().ok()) else {
            continue;
        };
        match memory_of(pid, key, read_only) {
            Ok(Some(shared)) => return Ok(Some(shared)),
            Ok(None) => {}
            Err(error) => denied = Some(error),
        }
    }
    // Somebody of ours has it, and does not let us have it: another of the same name would not be the same.
    denied.map_or(Ok(None), Err)
}

/// The memory of a process, if it is of this user and has it.
fn memory_of(pid: u32, key: &str, read_only: bool) -> io::Result<Option<Shared>> {
    let process = format!("/proc/{pid}");
    // Gone, or somebody else's who only says so.
    let ours = rustix::process::geteuid().as_raw();
    if rustix::fs::stat(process.as_str()).map_or(true, |found| found.st_uid != ours) {
        return Ok(None);
    }
    let gone = |error: &io::Error| {
        matches!(error.kind(), io::ErrorKind::NotFound) || error.raw_os_error() == Some(libc::ESRCH)
    };
    let descriptors = match std::fs::read_dir(format!("{process}/fd")) {
        Ok(descriptors) => descriptors,
        Err(error) if gone(&error) => return Ok(None),
        Err(error) => return Err(error),
    };
    let wanted = format!("/memfd:{} (deleted)", memory_name(key));
    for descriptor in descriptors.filter_map(Result::ok) {
        let path = descriptor.path();
        if std::fs::read_link(&path).is_ok_and(|target| target.as_os_str().as_bytes() == wanted.as_bytes()) {
            let access = if read_only { OFlags::RDONLY } else { OFlags::RDWR };
            let fd = match rustix::fs::open(&path, access | OFlags::CLOEXEC, Mode::empty()) {
                Ok(fd) => fd,
                Err(Errno::NOENT | Errno::SRCH) => return Ok(None),
                Err(error) => return Err(error.into()),
            };
            // A memfd, as only they have seals, and of this user's making.
            let seals = rustix::fs::fcntl_get_seals(&fd);
            if seals.is_ok_and(|seals| seals.contains(SealFlags::GROW)) && rustix::fs::fstat(&fd)?.st_uid == ours {
                return Shared::open(fd, read_only).map(Some);
            }
        }
    }
    Ok(None)
}
