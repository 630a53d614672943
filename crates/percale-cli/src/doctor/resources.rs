//! Checks of the limits of the process (ulimit), and of /dev/shm.

use std::fs;
use std::io;

use rustix::fs::{Mode, OFlags, open, statvfs, unlink};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit};

use super::finding::{Finding, Remedy};
use super::surroundings::{CAP_IPC_LOCK, Container, Surroundings};
use crate::units;

/// A limit of the process.
struct Limit {
    check: &'static str,
    resource: Resource,
    /// A lower limit is a restriction.
    least: u64,
    /// The option of ulimit, and the name in limits.conf(5). The option `--ulimit` of Docker and Podman uses the same
    /// names, but does not know `as`.
    flag: char,
    name: &'static str,
    /// What the limit applies to.
    meaning: &'static str,
    /// Whether the limit is a number of bytes.
    is_bytes: bool,
}

const LIMITS: [Limit; 6] = [
    Limit {
        check: "open-files",
        resource: Resource::Nofile,
        least: 1024,
        flag: 'n',
        name: "nofile",
        meaning: "each peer takes 4 descriptors over shared memory, 1 over TCP",
        is_bytes: false,
    },
    Limit {
        check: "threads",
        resource: Resource::Nproc,
        least: 256,
        flag: 'u',
        name: "nproc",
        meaning: "each process with percale has one to three threads of it; the limit counts all threads of the user",
        is_bytes: false,
    },
    Limit {
        check: "file-size",
        resource: Resource::Fsize,
        least: 64 << 20,
        flag: 'f',
        name: "fsize",
        meaning: "memory that percale allocates and shares is a file in memory",
        is_bytes: true,
    },
    Limit {
        check: "address-space",
        resource: Resource::As,
        least: 4 << 30,
        flag: 'v',
        name: "as",
        meaning: "a process maps the shared memory of its peers",
        is_bytes: true,
    },
    Limit {
        check: "data-size",
        resource: Resource::Data,
        least: 64 << 20,
        flag: 'd',
        name: "data",
        meaning: "the ordinary memory of a process",
        is_bytes: true,
    },
    Limit {
        check: "stack-size",
        resource: Resource::Stack,
        least: 1 << 20,
        flag: 's',
        name: "stack",
        meaning: "the calls of a program and its libraries use the stack of the calling thread",
        is_bytes: true,
    },
];

/// The limit of locked memory. Shared memory and TCP lock nothing.
const LOCKED: Limit = Limit {
    check: "locked-memory",
    resource: Resource::Memlock,
    // The kernel's default since Linux 5.16.
    least: 8 << 20,
    flag: 'l',
    name: "memlock",
    meaning: "memory that is registered with RDMA devices and io_uring",
    is_bytes: true,
};

/// A number of descriptors or threads that is sufficient for many peers.
const MANY: u64 = 65_536;

/// The smallest usual size of /dev/shm: that of Docker's containers.
const SHARED_FILES: u64 = 64 << 20;

/// Returns the limits, and /dev/shm.
pub(super) fn findings(surroundings: &Surroundings) -> Vec<Finding> {
    let limits = LIMITS.iter().map(|limit| judge(limit, &getrlimit(limit.resource), surroundings));
    let has_rdma = fs::read_dir("/sys/class/infiniband").is_ok_and(|mut devices| devices.next().is_some());
    let locked = locked(&getrlimit(Resource::Memlock), has_rdma, surroundings);
    limits.chain([locked, shared_files(surroundings)]).collect()
}

fn judge(limit: &Limit, now: &Rlimit, surroundings: &Surroundings) -> Finding {
    let shown = |value: u64| match usize::try_from(value) {
        Ok(bytes) if limit.is_bytes => units::size(bytes),
        _ => units::count(value),
    };
    let detail = |value: &str| format!("{value} (ulimit -{}): {}", limit.flag, limit.meaning);
    match now.current {
        Some(value) if value < limit.least => {
            Finding::limited(limit.check, detail(&shown(value)), raise(limit, now.maximum, surroundings))
        }
        Some(value) => Finding::works(limit.check, detail(&shown(value))),
        None => Finding::works(limit.check, detail("no limit")),
    }
}

fn locked(now: &Rlimit, has_rdma: bool, surroundings: &Surroundings) -> Finding {
    let check = LOCKED.check;
    if now.current.is_some() && surroundings.has_capability(CAP_IPC_LOCK) {
        return Finding::works(check, "the limit does not apply to this user (CAP_IPC_LOCK)");
    }
    // An RDMA device needs the memory of all registered regions.
    let least = if has_rdma { u64::MAX } else { LOCKED.least };
    judge(&Limit { least, ..LOCKED }, now, surroundings)
}

/// Returns what raises a limit: the shell, if the process may raise it so far, otherwise the system.
fn raise(limit: &Limit, maximum: Option<u64>, surroundings: &Surroundings) -> Remedy {
    let (flag, name) = (limit.flag, limit.name);
    // The shell counts bytes in KiB. A number of descriptors or threads cannot be unlimited.
    let in_shell = match maximum {
        None if limit.is_bytes => Some("unlimited".to_owned()),
        None => Some(MANY.to_string()),
        Some(bytes) if bytes >= limit.least && limit.is_bytes => Some((bytes >> 10).to_string()),
        Some(number) if number >= limit.least => Some(number.min(MANY).to_string()),
        Some(_) => None,
    };
    if let Some(value) = in_shell {
        let advice = "Raise the limit in the shell that starts the program:";
        return Remedy::new(advice, [format!("ulimit -{flag} {value}")]);
    }
    if limit.resource == Resource::As
        && let Some(remedy) = raise_outside(surroundings)
    {
        return remedy;
    }
    let wanted = if limit.is_bytes { "unlimited".to_owned() } else { MANY.to_string() };
    let docker = if limit.is_bytes { "-1" } else { &wanted };
    let option = format!("--ulimit {name}={docker}:{docker}");
    if let Some(command) = surroundings.container.and_then(|container| container.started_with(&option)) {
        return Remedy::new("Start the container with a higher limit:", [command]);
    }
    let write = surroundings.as_root("tee -a /etc/security/limits.d/percale.conf");
    // The entries of limits.conf(5) for all users do not apply to root.
    let (users, user) = if surroundings.user == 0 { ("root", "root") } else { ("all users", "*") };
    let advice = format!(
        "Raise the limit for {users}, and log in again (of a service of systemd: Limit{}=):",
        name.to_uppercase()
    );
    Remedy::new(advice, [format!("echo '{user} - {name} {wanted}' | {write}")])
}

/// Returns what raises a limit for which container programs have no option: a container inherits it.
fn raise_outside(surroundings: &Surroundings) -> Option<Remedy> {
    match surroundings.container? {
        Container::Docker => Some(Remedy::new(
            "docker run has no option for this limit. Set LimitAS=infinity in the section [Service] of the service \
             that starts containers, on the host:",
            ["sudo systemctl edit containerd", "sudo systemctl restart containerd"].map(str::to_owned),
        )),
        Container::Podman => Some(Remedy::new(
            "podman run has no option for this limit. Raise it in the shell that starts the container:",
            ["ulimit -v unlimited", "podman run IMAGE"].map(str::to_owned),
        )),
        Container::Kubernetes | Container::Apptainer | Container::Other => None,
    }
}

/// The directory of memory that MPI libraries share. percale does not use it.
const SHARED: &str = "/dev/shm";

/// Checks the size of /dev/shm, and makes a file in it.
fn shared_files(surroundings: &Surroundings) -> Finding {
    let size = statvfs(SHARED).map(|found| found.f_blocks.saturating_mul(found.f_frsize));
    judge_shared_files(size.and_then(|size| write_file(SHARED).map(|()| size)), size.ok(), surroundings)
}

/// Writes to a file in a directory. No file remains.
fn write_file(directory: &str) -> Result<(), Errno> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let mode = Mode::RUSR | Mode::WUSR;
    let file = match open(directory, flags | OFlags::TMPFILE, mode) {
        // The file system has no files without a name.
        Err(Errno::OPNOTSUPP | Errno::ISDIR) => {
            let path = format!("{directory}/percale-doctor-{}", std::process::id());
            let file = open(path.as_str(), flags | OFlags::CREATE | OFlags::EXCL, mode)?;
            unlink(path.as_str())?;
            file
        }
        opened => opened?,
    };
    rustix::io::write(file, &[0]).map(drop)
}

/// Judges the size of /dev/shm after a file was written, or the error. `size` is known also if the write failed.
fn judge_shared_files(written: Result<u64, Errno>, size: Option<u64>, surroundings: &Surroundings) -> Finding {
    let users = "percale does not use it, but MPI libraries do";
    let detail = match written {
        Ok(bytes) if bytes >= SHARED_FILES => {
            return Finding::works("dev-shm", format!("{} in {SHARED}; {users}", rounded(bytes)));
        }
        Ok(bytes) => format!("only {} in {SHARED}; {users}", rounded(bytes)),
        Err(error) => format!("no file can be made in {SHARED}: {}; {users}", io::Error::from(error)),
    };
    let mend = |advice: &str, command: &str| Remedy::new(advice, [surroundings.as_root(command)]);
    let remedy = match written {
        // A container does not choose the permissions.
        Err(Errno::ACCESS | Errno::PERM) => mend("Let every user make files in it:", "chmod 1777 /dev/shm"),
        Err(Errno::NOSPC | Errno::DQUOT) if size >= Some(SHARED_FILES) => {
            mend("Remove the files that programs have left there. This lists them:", "ls -lS /dev/shm")
        }
        _ => larger_shared_files(written.err(), surroundings),
    };
    Finding::limited("dev-shm", detail, remedy)
}

/// Returns what mounts a larger /dev/shm, or another one if it has an error.
fn larger_shared_files(error: Option<Errno>, surroundings: &Surroundings) -> Remedy {
    let mend = |advice: &str, command: &str| Remedy::new(advice, [surroundings.as_root(command)]);
    match surroundings.container.and_then(|container| container.started_with("--shm-size 1g")) {
        Some(command) => Remedy::new("Start the container with a /dev/shm of this size:", [command]),
        None if surroundings.container == Some(Container::Kubernetes) => Remedy::new(
            "Mount an emptyDir of medium Memory at /dev/shm of the pod:",
            ["kubectl edit deployment NAME".to_owned()],
        ),
        None => match error {
            Some(Errno::ROFS) => mend("Permit writes:", "mount -o remount,rw /dev/shm"),
            Some(Errno::NOENT) => mend("Mount it:", "mount --mkdir -t tmpfs tmpfs /dev/shm"),
            _ => mend("Enlarge /dev/shm, here to half of the memory:", "mount -o remount,size=50% /dev/shm"),
        },
    }
}

/// Formats a size without its last digits.
fn rounded(bytes: u64) -> String {
    let unit = if bytes >= 1 << 30 { 1 << 30 } else { 1 << 10 };
    usize::try_from(bytes / unit * unit).map_or_else(|_| units::count(bytes), units::size)
}

#[cfg(test)]
mod tests {
    use super::super::finding::State;
    use super::*;

    fn at(current: u64, maximum: Option<u64>) -> Rlimit {
        Rlimit { current: Some(current), maximum }
    }

    #[test]
    fn a_low_limit_is_raised_where_it_can_be() {
        let user = Surroundings::example();
        let low = at(64 << 10, None);
        let found = locked(&low, false, &user);
        assert_eq!((found.state, found.check.as_str()), (State::Limited, "locked-memory"));
        assert!(found.detail.starts_with("64 KiB (ulimit -l)"), "{}", found.detail);
        assert_eq!(found.remedy.unwrap().commands, ["ulimit -l unlimited"]);

        let fixed = at(64 << 10, Some(64 << 10));
        let remedy = locked(&fixed, false, &user).remedy.unwrap();
        assert!(remedy.commands[0].contains("memlock unlimited' | sudo tee -a"), "{:?}", remedy.commands);
        assert!(remedy.advice.contains("LimitMEMLOCK="), "{}", remedy.advice);
        let root = Surroundings { user: 0, ..user.clone() };
        let remedy = locked(&fixed, false, &root).remedy.unwrap();
        assert!(remedy.commands[0].starts_with("echo 'root - memlock unlimited' | tee"), "{remedy:?}");
        let docker = Surroundings { container: Some(Container::Docker), ..user };
        let remedy = locked(&fixed, false, &docker).remedy.unwrap();
        assert_eq!(remedy.commands, ["docker run --ulimit memlock=-1:-1 IMAGE"]);

        let files = |current, maximum| judge(&LIMITS[0], &at(current, maximum), &docker).remedy.unwrap().commands;
        assert_eq!(files(100, Some(1 << 20)), ["ulimit -n 65536"]);
        assert_eq!(files(100, Some(4096)), ["ulimit -n 4096"]);
        assert_eq!(files(100, Some(200)), ["docker run --ulimit nofile=65536:65536 IMAGE"]);
    }

    #[test]
    fn docker_and_podman_know_the_names_of_the_limits() {
        // The names that their option --ulimit accepts (github.com/docker/go-units).
        const KNOWN: [&str; 15] = [
            "core",
            "cpu",
            "data",
            "fsize",
            "locks",
            "memlock",
            "msgqueue",
            "nice",
            "nofile",
            "nproc",
            "rss",
            "rtprio",
            "rttime",
            "sigpending",
            "stack",
        ];
        for container in [Container::Docker, Container::Podman] {
            let inside = Surroundings { container: Some(container), ..Surroundings::example() };
            for limit in LIMITS.iter().chain([&LOCKED]) {
                let remedy = judge(limit, &at(1, Some(1)), &inside).remedy.unwrap();
                let commands = remedy.commands.join("\n");
                match commands.split_once("--ulimit ") {
                    Some((_, option)) => assert!(KNOWN.contains(&option.split('=').next().unwrap()), "{commands}"),
                    None => assert!(limit.name == "as" && remedy.advice.contains("no option"), "{remedy:?}"),
                }
            }
        }
    }

    #[test]
    fn an_rdma_device_needs_more_locked_memory() {
        let user = Surroundings::example();
        let usual = at(8 << 20, Some(8 << 20));
        assert_eq!(locked(&usual, false, &user).state, State::Works);
        assert_eq!(locked(&usual, true, &user).state, State::Limited);
        assert_eq!(locked(&Rlimit { current: None, maximum: None }, true, &user).state, State::Works);
    }

    #[test]
    fn limits_are_judged_by_their_number() {
        let user = Surroundings::example();
        for limit in &LIMITS {
            assert_eq!(judge(limit, &at(limit.least, None), &user).state, State::Works, "{}", limit.check);
            assert_eq!(judge(limit, &at(limit.least - 1, None), &user).state, State::Limited, "{}", limit.check);
        }
    }

    #[test]
    fn a_small_dev_shm_is_a_restriction() {
        let user = Surroundings::example();
        let size = 64 << 20;
        assert_eq!(judge_shared_files(Ok(size), Some(size), &user).state, State::Works);
        let small = judge_shared_files(Ok(64 << 10), Some(64 << 10), &user);
        assert!(small.state == State::Limited && small.detail.starts_with("only 64 KiB"), "{small:?}");
        for (error, size, command) in [
            (Errno::ROFS, Some(size), "mount -o remount,rw /dev/shm"),
            (Errno::ACCESS, Some(size), "chmod 1777 /dev/shm"),
            (Errno::NOSPC, Some(size), "ls -lS /dev/shm"),
            (Errno::NOSPC, Some(4096), "mount -o remount,size=50% /dev/shm"),
            (Errno::NOENT, None, "mount --mkdir -t tmpfs tmpfs /dev/shm"),
        ] {
            let found = judge_shared_files(Err(error), size, &user);
            assert!(found.detail.contains(&io::Error::from(error).to_string()), "{found:?}");
            assert_eq!(
                (found.state, found.remedy.unwrap().commands),
                (State::Limited, vec![format!("sudo {command}")])
            );
        }
        assert_eq!(rounded((5 << 30) + 12_345), "5120 MiB");
    }
}
