//! The clients: this program, started again as another user, with a role.

use std::fs;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use pindown::monitor::bpf::{BpfUnavailable, Change, Monitor, Unwatchable, Watch};

use crate::support::PAGE;
use crate::{fuzz, hostile};

/// The process of a client: it connects, prints the result, and then does what the test requests.
#[test]
#[ignore = "started by the other tests, as another user"]
fn client_process() {
    let Ok(role) = std::env::var("PINDOWN_ROLE") else { panic!("the other tests start this process") };
    let socket = PathBuf::from(std::env::var("PINDOWN_SOCKET").expect("set together with PINDOWN_ROLE"));
    if hostile::play(&role, &socket) || fuzz::play(&role, &socket) {
        return;
    }
    if role == "hidden" {
        // SAFETY: the call takes no pointers.
        assert_eq!(unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0) }, 0);
    }
    if role == "impostor" {
        let (family, kind) = (rustix::net::AddressFamily::UNIX, rustix::net::SocketType::SEQPACKET);
        let listener = rustix::net::socket(family, kind, None).expect("a socket");
        let address = rustix::net::SocketAddrUnix::new(&socket).expect("a path");
        rustix::net::bind(&listener, &address).expect("the directory is writable");
        rustix::net::listen(&listener, 1).expect("the socket can listen");
        println!("> ready");
        return drop(std::io::stdin().lines().next());
    }
    // With the role "default", the client uses the path in PINDOWN_SOCKET as any program does.
    let opened = if role == "default" { Monitor::open() } else { Monitor::from_helper(&socket) };
    let monitor = match opened {
        Ok(monitor) => monitor,
        Err(BpfUnavailable::Denied(why)) => return println!("> denied {why:?}"),
        Err(why) => return println!("> {why}"),
    };
    println!("> ready");
    for line in std::io::stdin().lines() {
        let answer = match line.expect("a line").as_str() {
            "head" => format!("{}", monitor.page().head()),
            "change" => format!("{}", reports_a_change(&monitor)),
            "sleep" => {
                let seen = monitor.page().head();
                format!("{}", monitor.wait(seen, Duration::from_secs(3)).expect("the wait succeeds"))
            }
            "wait" => format!("{}", is_woken(&monitor)),
            "watch" => format!("{:?}", watches_a_file(&monitor)),
            "attack" => format!("{:?}", attacks()),
            "again" => format!("{}", Monitor::from_helper(&socket).is_ok_and(|second| reports_a_change(&second))),
            "busy" => format!("{}", monitor.page().busy()),
            other => panic!("{other}"),
        };
        println!("> {answer}");
    }
}

/// Returns whether a waiting thread is woken by a change that another thread makes.
fn is_woken(monitor: &Monitor) -> bool {
    let seen = monitor.page().head();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| monitor.wait(seen, Duration::from_secs(20)).expect("the wait succeeds"));
        // This is usually long enough for the thread to be asleep. It would find the change in either case.
        std::thread::sleep(Duration::from_millis(100));
        reports_a_change(monitor) && waiter.join().expect("the thread ends")
    })
}

pub(crate) fn map(flags: i32, fd: i32) -> *mut libc::c_void {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), PAGE, protection, flags, fd, 0) };
    assert_ne!(start, libc::MAP_FAILED);
    start
}

pub(crate) fn reports_a_change(monitor: &Monitor) -> bool {
    let start = map(libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1);
    let seen = monitor.page().head();
    // SAFETY: the mapping belongs to this function.
    assert_eq!(unsafe { libc::munmap(start, PAGE) }, 0);
    let range = start as u64..start as u64 + PAGE as u64;
    monitor.page().drain(seen).any(|change| change == Change::Range(range.clone()))
}

/// Returns whether the truncation of a shared file changed its count; or the reason why the file cannot be watched.
pub(crate) fn watches_a_file(monitor: &Monitor) -> Result<bool, Unwatchable> {
    // SAFETY: the name is a string.
    let fd = unsafe { libc::memfd_create(c"client".as_ptr(), libc::MFD_CLOEXEC) };
    // SAFETY: the call takes no pointers.
    assert_eq!(unsafe { libc::ftruncate(fd, PAGE as i64) }, 0);
    let start = map(libc::MAP_SHARED, fd);
    // SAFETY: mapped above, only for this function.
    unsafe { start.cast::<u8>().write_volatile(1) };
    let watch = monitor.watch(start as u64..start as u64 + PAGE as u64)?;
    let Watch::Inode(slot) = watch else { panic!("a shared mapping has an inode") };
    let before = monitor.page().inode(slot);
    // SAFETY: the call takes no pointers.
    assert_eq!(unsafe { libc::ftruncate(fd, 0) }, 0);
    let reported = monitor.page().inode(slot) == before + 1;
    monitor.unwatch(slot);
    // SAFETY: the mapping belongs to this function.
    assert_eq!(unsafe { libc::munmap(start, PAGE) }, 0);
    // SAFETY: the descriptor belongs to this function.
    assert_eq!(unsafe { libc::close(fd) }, 0);
    Ok(reported)
}

/// Returns copies of the links, which a thread holds in a separate descriptor table.
fn links_of_the_keeper() -> Vec<OwnedFd> {
    let tasks = fs::read_dir("/proc/self/task").expect("own threads").flatten().map(|task| task.path());
    let is_keeper =
        |task: &PathBuf| fs::read_to_string(task.join("comm")).is_ok_and(|name| name.contains("pindown-keep"));
    let keeper = tasks.into_iter().find(is_keeper).expect("the keeper thread");
    let id: i64 = keeper.file_name().and_then(|id| id.to_str()?.parse().ok()).expect("a number");
    let owned = |answer: i64| {
        assert!(answer >= 0, "{}", std::io::Error::last_os_error());
        // SAFETY: the descriptor was made only for this call.
        unsafe { OwnedFd::from_raw_fd(answer as i32) }
    };
    // SAFETY: the call takes no pointers. (PIDFD_THREAD, Linux 6.9.)
    let thread = owned(unsafe { libc::syscall(libc::SYS_pidfd_open, id, libc::O_EXCL) });
    let copy = |number: i64| {
        // SAFETY: the call takes no pointers.
        owned(unsafe { libc::syscall(libc::SYS_pidfd_getfd, thread.as_raw_fd(), number, 0) })
    };
    let numbers = fs::read_dir(keeper.join("fd")).expect("the descriptors of the keeper").flatten();
    numbers.filter_map(|number| number.file_name().to_str()?.parse().ok()).map(copy).collect()
}

/// Returns the errors that an unprivileged process gets when it tries to write, detach, replace or find the objects
/// that the helper made.
fn attacks() -> Vec<(&'static str, i32)> {
    let bpf = |command: i32, words: &mut [u32; 32]| {
        // SAFETY: the attribute is 128 zeroed bytes with descriptors or numbers in them, and no addresses.
        let answer = unsafe { libc::syscall(libc::SYS_bpf, command, words.as_mut_ptr(), 128) };
        if answer < 0 { std::io::Error::last_os_error().raw_os_error().unwrap_or(0) } else { 0 }
    };
    let mut outcomes = Vec::new();
    let mut doorbells = 0;
    let links = links_of_the_keeper();
    assert!(links.len() >= 3, "the links are held");
    for link in &links {
        let mut words = [0; 32];
        words[0] = link.as_raw_fd().cast_unsigned();
        outcomes.push(("detach", bpf(34, &mut words)));
        outcomes.push(("replace", bpf(29, &mut words)));
    }
    drop(links);
    for entry in fs::read_dir("/proc/self/fd").expect("own descriptors").flatten() {
        let is = fs::read_link(entry.path()).map(|path| path.display().to_string()).unwrap_or_default();
        let Ok(fd) = entry.file_name().to_string_lossy().parse::<u32>() else { continue };
        assert!(!is.contains("bpf-prog"), "{is} was passed or kept");
        if is.contains("bpf-map") {
            doorbells += 1;
            // The kernel's position, and the records.
            for offset in 1..4 {
                let (rights, offset) = (libc::PROT_READ | libc::PROT_WRITE, offset * PAGE as i64);
                // SAFETY: a new mapping.
                let answer =
                    unsafe { libc::mmap(std::ptr::null_mut(), PAGE, rights, libc::MAP_SHARED, fd as i32, offset) };
                let error = std::io::Error::last_os_error().raw_os_error().unwrap_or(0);
                outcomes.push(("write the bell", if answer == libc::MAP_FAILED { error } else { 0 }));
            }
            let mut words = [0; 32];
            words[0] = fd;
            outcomes.push(("update the bell", bpf(2, &mut words)));
        } else {
            assert!(!is.contains("bpf"), "{is} is open in the process");
        }
    }
    assert_eq!(doorbells, 1, "only the doorbell's map is passed or kept");
    for (name, command) in [("next program", 11), ("next map", 12), ("next link", 31)] {
        outcomes.push((name, bpf(command, &mut [0; 32])));
    }
    let maps = fs::read_to_string("/proc/self/maps").expect("own mappings");
    let mapped = Vec::from_iter(maps.lines().filter(|line| line.contains("bpf-map")));
    let (ours, theirs): (Vec<&str>, Vec<&str>) = mapped.into_iter().partition(|line| line.contains(" rw-s "));
    // The writable mapping is the doorbell's read position; the read-only ones are the page and the doorbell's written
    // position.
    assert_eq!((ours.len(), theirs.len()), (1, 2), "{maps}");
    for page in theirs {
        let start = usize::from_str_radix(page.split('-').next().unwrap_or(""), 16).expect("an address");
        let at = std::ptr::with_exposed_provenance_mut(start);
        // SAFETY: an additional permission on the page's mapping would break nothing if it were granted.
        let answer = unsafe { libc::mprotect(at, PAGE, libc::PROT_READ | libc::PROT_WRITE) };
        let error = std::io::Error::last_os_error().raw_os_error().unwrap_or(0);
        outcomes.push(("write", if answer == 0 { 0 } else { error }));
    }
    outcomes
}
