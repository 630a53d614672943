//! Finds the vectors that processes share by name.
//!
//! Every process that uses a named vector keeps an abstract Unix socket bound. The name of the socket contains the
//! vector's key and the process ID. No process connects to the socket: the kernel lists it (/proc/net/unix), and
//! removes it when the process ends. A process that opens the vector opens its memory from any of these processes,
//! through /proc. There the kernel checks that the two processes belong to the same user, and opens a separate file
//! description, which is read-only if only reading is requested. So no process depends on another process, no process
//! has to be a server, and no name is created in a file system.
//!
//! One process at a time opens the vector. Any user can bind a socket of any name, so a fixed name could not serve as a
//! lock: its holder might be a process of another user. Instead every process binds its own names, and a socket counts
//! only if a process of this user has it (which is checked through /proc, by inode). To open the vector, a process
//! binds a name of the stage `waits` with a random number. The process with the smallest number is next. It binds a
//! second name, of the stage `opens`, and checks again. If two processes bind their second names at the same time, at
//! least one of them finds the other's name. A process that finds another second name closes its own. The names of a
//! process are removed when it ends.
//!
//! A vector's key is a digest of the user ID, the family of its addresses, the name of its domain and its own name.
//! Sockets are visible within one network namespace, and processes within one PID namespace. So processes share named
//! vectors only if they have both namespaces in common.

use std::collections::HashSet;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hmac_sha256::Hash as Sha256;
use rustix::fs::{Mode, OFlags, SealFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::shared::SharedStore;
use crate::system::process_socket::ProcessSocket;
use crate::system::random::random;

/// The common prefix of all socket names.
const PREFIX: &str = "percale-vector";
/// The maximum time to wait for other processes that open the vector.
const OPEN_TIMEOUT: Duration = Duration::from_secs(20);

/// The memory of a named vector, and the socket that announces that this process has it.
#[derive(Debug)]
pub(super) struct NamedVector {
    pub(super) shared: SharedStore,
    pub(super) presence: ProcessSocket,
}

/// The parameters for opening a named vector.
#[derive(Clone, Copy, Debug)]
pub(super) struct OpenParameters<'a> {
    pub(super) name: &'a str,
    /// The domain's name. Vectors of differently named domains are different vectors.
    pub(super) domain: &'a str,
    /// The address family. Vectors of different families are different vectors.
    pub(super) family: &'a str,
    /// Whether to open only an existing vector, and only for reading.
    pub(super) read_only: bool,
    /// The expected number of entries of a new vector.
    pub(super) expected: usize,
}

impl OpenParameters<'_> {
    /// Returns the key: 32 hexadecimal digits.
    fn key(&self) -> String {
        let mut hash = Sha256::new();
        for part in [&rustix::process::geteuid().as_raw().to_string(), self.family, self.domain, self.name] {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        hash.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect()
    }

    /// Opens the vector, or creates it.
    pub(super) fn open(&self) -> io::Result<NamedVector> {
        let key = self.key();
        let _alone = alone(&key)?;
        let shared = match find(&key, self.read_only)? {
            Some(shared) => shared,
            None if self.read_only => return Err(io::ErrorKind::NotFound.into()),
            None => SharedStore::create(&memory_name(&key), self.expected)?,
        };
        Ok(NamedVector { shared, presence: announce(&key)? })
    }
}

fn memory_name(key: &str) -> String {
    format!("{PREFIX}-{key}")
}

/// Binds an abstract socket.
fn bind(name: &str) -> Result<ProcessSocket, Errno> {
    let open = || rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None);
    let socket = ProcessSocket::open(open)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
    Ok(socket)
}

/// The stage of opening that a process announces by the name of its socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OpeningStage {
    Waits,
    Opens,
}

impl OpeningStage {
    const fn word(self) -> &'static str {
        match self {
            Self::Waits => "waits",
            Self::Opens => "opens",
        }
    }

    fn bind(self, key: &str, number: u64) -> Result<ProcessSocket, Errno> {
        bind(&format!("{PREFIX}/{key}/{}/{number:016x}/{}", self.word(), std::process::id()))
    }
}

/// Waits until no other process of this user is opening this vector. No other process opens it until the returned
/// socket is closed.
fn alone(key: &str) -> io::Result<ProcessSocket> {
    let number = u64::from_ne_bytes(random()?);
    let deadline = Instant::now() + OPEN_TIMEOUT;
    let _waits = OpeningStage::Waits.bind(key, number)?;
    loop {
        let before = |stage, other| stage == OpeningStage::Opens || other < number;
        if !has_rival(key, number, before)? {
            let opens = OpeningStage::Opens.bind(key, number)?;
            if !has_rival(key, number, |stage, _| stage == OpeningStage::Opens)? {
                return Ok(opens);
            }
        }
        if Instant::now() >= deadline {
            return Err(io::ErrorKind::TimedOut.into());
        }
        // The time is random, so that processes that found each other do not collide repeatedly.
        let [chance] = random::<1>()?;
        crate::system::thread::pause(Duration::from_micros(200 + 2 * u64::from(chance)));
    }
}

/// Returns whether there is a matching socket (stage and number) of a process of this user, other than the socket of
/// this call.
fn has_rival(key: &str, own: u64, such: impl Fn(OpeningStage, u64) -> bool) -> io::Result<bool> {
    let sockets = std::fs::read_to_string("/proc/net/unix")?;
    let prefix = format!("@{PREFIX}/{key}/");
    for line in sockets.lines() {
        let Some(at) = line.find(&prefix) else { continue };
        let mut parts = line[at + prefix.len()..].split('/');
        let stage = match parts.next() {
            Some("waits") => OpeningStage::Waits,
            Some("opens") => OpeningStage::Opens,
            _ => continue,
        };
        let (Some(number), Some(pid)) = (parts.next(), parts.next()) else { continue };
        let (Ok(number), Ok(pid)) = (u64::from_str_radix(number, 16), pid.parse::<u32>()) else { continue };
        // The inode number precedes the name.
        let Some(inode) = line[..at].split_whitespace().next_back() else { continue };
        if number != own && such(stage, number) && holds(pid, &format!("socket:[{inode}]")) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns whether the process belongs to this user and has this descriptor.
fn holds(pid: u32, descriptor: &str) -> bool {
    let process = format!("/proc/{pid}");
    let ours = rustix::process::geteuid().as_raw();
    if rustix::fs::stat(process.as_str()).map_or(true, |found| found.st_uid != ours) {
        return false;
    }
    let Ok(descriptors) = std::fs::read_dir(format!("{process}/fd")) else { return false };
    descriptors.filter_map(Result::ok).any(|one| {
        rustix::fs::readlink(one.path(), Vec::new()).is_ok_and(|target| target.as_bytes() == descriptor.as_bytes())
    })
}

/// Announces that this process has the vector, until the socket is closed.
fn announce(key: &str) -> io::Result<ProcessSocket> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    // A name that is in use may belong to another PID namespace, or to a child that outlived its parent.
    let own = format!("{PREFIX}/{key}/{}/{number}", std::process::id());
    for attempt in 0..1000 {
        match bind(&format!("{own}/{attempt}")) {
            Err(Errno::ADDRINUSE) => {}
            other => return Ok(other?),
        }
    }
    Err(io::ErrorKind::AddrInUse.into())
}

/// Opens the memory of any process that has the vector.
fn find(key: &str, read_only: bool) -> io::Result<Option<SharedStore>> {
    let sockets = std::fs::read_to_string("/proc/net/unix")?;
    let prefix = format!("@{PREFIX}/{key}/");
    let (mut denied, mut seen) = (None, HashSet::new());
    for line in sockets.lines() {
        let Some(at) = line.find(&prefix) else { continue };
        let Some(pid) = line[at + prefix.len()..].split('/').next().and_then(|pid| pid.parse::<u32>().ok()) else {
            continue;
        };
        if !seen.insert(pid) {
            continue; // A process may have several names.
        }
        match memory_of(pid, key, read_only) {
            Ok(Some(shared)) => return Ok(Some(shared)),
            Ok(None) => {}
            Err(error) => denied = Some(error),
        }
    }
    // A process of this user has the memory, but opening it is denied. New memory with the same name would be a
    // different vector.
    denied.map_or(Ok(None), Err)
}

/// Opens the memory of a process if the process belongs to this user and has the vector.
fn memory_of(pid: u32, key: &str, read_only: bool) -> io::Result<Option<SharedStore>> {
    let process = format!("/proc/{pid}");
    // The process no longer exists, or belongs to another user and only claims to have the memory.
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
        if rustix::fs::readlink(&path, Vec::new()).is_ok_and(|target| target.as_bytes() == wanted.as_bytes()) {
            let access = if read_only { OFlags::RDONLY } else { OFlags::RDWR };
            let fd = match rustix::fs::open(&path, access | OFlags::CLOEXEC, Mode::empty()) {
                Ok(fd) => fd,
                Err(Errno::NOENT | Errno::SRCH) => return Ok(None),
                Err(error) => return Err(error.into()),
            };
            // Only memfds have seals. The memfd must also have been created by this user.
            let seals = rustix::fs::fcntl_get_seals(&fd);
            if seals.is_ok_and(|seals| seals.contains(SealFlags::GROW)) && rustix::fs::fstat(&fd)?.st_uid == ours {
                return SharedStore::open(fd, read_only).map(Some);
            }
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use rustix::fs::MemfdFlags;

    use super::*;

    fn opening(name: &str) -> OpenParameters<'_> {
        OpenParameters { name, domain: "", family: "", read_only: false, expected: 0 }
    }

    #[test]
    fn sockets_bound_by_other_processes_do_not_block_opening() {
        let name = format!("unit-stranger-{}", std::process::id());
        let opening = opening(&name);
        let key = opening.key();
        // These are all names that can be guessed, and names of all stages for processes that do not have these
        // sockets.
        let mut names =
            vec![format!("{PREFIX}/{key}/open"), format!("{PREFIX}/{key}/waits"), format!("{PREFIX}/{key}")];
        for pid in [1, std::os::unix::process::parent_id(), u32::MAX] {
            names.extend(["waits", "opens"].map(|stage| format!("{PREFIX}/{key}/{stage}/0000000000000000/{pid}")));
            names.push(format!("{PREFIX}/{key}/{pid}/0/0"));
        }
        let _strangers: Vec<ProcessSocket> = names.iter().map(|name| bind(name).unwrap()).collect();
        let begun = Instant::now();
        opening.open().unwrap();
        // The sockets of other processes did not delay the call until the timeout.
        assert!(begun.elapsed() < OPEN_TIMEOUT);
    }

    #[test]
    fn opening_is_mutually_exclusive() {
        let key = format!("unit-alone-{}", std::process::id());
        let inside = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..10 {
                        let turn = alone(&key).unwrap();
                        assert_eq!(
                            inside.fetch_add(1, Ordering::SeqCst),
                            0,
                            "two threads open the vector at the same time"
                        );
                        std::thread::yield_now();
                        inside.fetch_sub(1, Ordering::SeqCst);
                        drop(turn);
                    }
                });
            }
        });
    }

    #[test]
    fn unsealed_or_foreign_memory_is_not_opened() {
        let name = format!("unit-fake-{}", std::process::id());
        let opening = opening(&name);
        let key = opening.key();
        let fake = |sealed: bool| {
            let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
            let fd = rustix::fs::memfd_create(memory_name(&key), flags).unwrap();
            rustix::fs::ftruncate(&fd, 4096).unwrap();
            if sealed {
                rustix::fs::fcntl_add_seals(&fd, SealFlags::GROW | SealFlags::SHRINK).unwrap();
            }
            fd
        };
        let _presence = announce(&key).unwrap();
        let unsealed = fake(false);
        assert!(find(&key, false).unwrap().is_none(), "without seals");
        drop(unsealed);
        let anothers = fake(true);
        let nobody = rustix::fs::Uid::from_raw(65_534);
        if rustix::fs::fchown(&anothers, Some(nobody), None).is_err() {
            println!("skipped (root): only root can change the owner of a memfd");
            return;
        }
        assert!(find(&key, false).unwrap().is_none(), "memory of another user is ignored");
        // Sealed memory of this user is opened and checked.
        rustix::fs::fchown(&anothers, Some(rustix::process::geteuid()), None).unwrap();
        assert!(find(&key, false).is_err(), "the memory does not contain a vector");
    }
}
