//! pindown-helper and its clients, as processes: the helper as root, clients as nobody. Skipped with the reason where the
//! programs cannot be loaded.
#![expect(unsafe_code, reason = "the clients make raw system calls; each block states its own reason")]

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use pindown::monitor::bpf::{Change, Denial, Monitor, Unavailable, Unwatchable, Watch, loadable};

const HELPER: &str = env!("CARGO_BIN_EXE_pindown-helper");
const NOBODY: u32 = 65534;
const PAGE: usize = 4096;

/// A place for a socket, and for a copy of this program that nobody may run.
struct Place(PathBuf);

impl Place {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let place = std::env::temp_dir().join(format!("pindown-{}-{number}", std::process::id()));
        fs::create_dir(&place).expect("the place is new");
        fs::copy(std::env::current_exe().expect("this program"), place.join("client")).expect("a copy");
        Self(place)
    }

    fn socket(&self) -> PathBuf {
        self.0.join("socket")
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).ok();
    }
}

/// A process that is killed at the end, and what it says.
struct Talker {
    child: Child,
    says: BufReader<ChildStdout>,
    hears: ChildStdin,
}

impl Talker {
    fn start(command: &mut Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
        let says = BufReader::new(child.stdout.take().expect("piped"));
        let hears = child.stdin.take().expect("piped");
        Self { child, says, hears }
    }

    /// The next line that is meant for the test. A process that ends says nothing more.
    fn line(&mut self) -> String {
        loop {
            let mut line = String::new();
            if self.says.read_line(&mut line).expect("it talks") == 0 {
                return "ended".into();
            }
            // The harness of the client's talks as well, and does not end its lines.
            if let Some((_, said)) = line.trim().split_once("> ") {
                return said.into();
            }
        }
    }

    /// Tells it to do something that takes a while.
    fn tell(&mut self, what: &str) {
        writeln!(self.hears, "{what}").expect("it listens");
    }

    fn ask(&mut self, what: &str) -> String {
        self.tell(what);
        self.line()
    }
}

impl Drop for Talker {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// A helper that listens, unless the programs cannot be loaded.
fn helper(place: &Place, arguments: &[&str]) -> Option<Talker> {
    if let Err(why) = loadable() {
        eprintln!("skipped: {why}");
        return None;
    }
    let mut helper = Talker::start(Command::new(HELPER).arg("--socket").arg(place.socket()).args(arguments));
    let mut line = String::new();
    helper.says.read_line(&mut line).expect("it talks");
    assert!(line.starts_with("listening at"), "{line}");
    Some(helper)
}

/// The test `client` as a process of nobody's.
fn client(place: &Place, role: &str) -> Talker {
    let mut command = Command::new(place.0.join("client"));
    command.args(["client_process", "--exact", "--ignored", "--nocapture"]).uid(NOBODY).gid(NOBODY);
    Talker::start(command.env("PINDOWN_ROLE", role).env("PINDOWN_SOCKET", place.socket()))
}

/// What a client does: connects, says how that went, and then what it is told.
#[test]
#[ignore = "started by the other tests, as another user"]
fn client_process() {
    let Ok(role) = std::env::var("PINDOWN_ROLE") else { panic!("the other tests start it") };
    let socket = PathBuf::from(std::env::var("PINDOWN_SOCKET").expect("with the role"));
    if role == "hidden" {
        // SAFETY: no pointers.
        assert_eq!(unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0) }, 0);
    }
    if role == "impostor" {
        let (family, kind) = (rustix::net::AddressFamily::UNIX, rustix::net::SocketType::SEQPACKET);
        let listener = rustix::net::socket(family, kind, None).expect("a socket");
        let address = rustix::net::SocketAddrUnix::new(&socket).expect("a path");
        rustix::net::bind(&listener, &address).expect("the place is everybody's");
        rustix::net::listen(&listener, 1).expect("it listens");
        println!("> ready");
        return drop(std::io::stdin().lines().next());
    }
    let monitor = match Monitor::from_helper(&socket) {
        Ok(monitor) => monitor,
        Err(Unavailable::Denied(why)) => return println!("> denied {why:?}"),
        Err(why) => return println!("> {why}"),
    };
    println!("> ready");
    for line in std::io::stdin().lines() {
        let answer = match line.expect("a line").as_str() {
            "head" => format!("{}", monitor.page().head()),
            "change" => format!("{}", reports_a_change(&monitor)),
            "sleep" => {
                let seen = monitor.page().head();
                format!("{}", monitor.wait(seen, Duration::from_secs(3)).expect("it can wait"))
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

/// Whether a thread that waits is woken by a change of another's.
fn is_woken(monitor: &Monitor) -> bool {
    let seen = monitor.page().head();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| monitor.wait(seen, Duration::from_secs(20)).expect("it can wait"));
        // Long enough to be asleep, most of the time; it would find the change either way.
        std::thread::sleep(Duration::from_millis(100));
        reports_a_change(monitor) && waiter.join().expect("it ends")
    })
}

fn map(flags: i32, fd: i32) -> *mut libc::c_void {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), PAGE, protection, flags, fd, 0) };
    assert_ne!(start, libc::MAP_FAILED);
    start
}

fn reports_a_change(monitor: &Monitor) -> bool {
    let start = map(libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1);
    let seen = monitor.page().head();
    // SAFETY: the mapping is this function's own.
    assert_eq!(unsafe { libc::munmap(start, PAGE) }, 0);
    let range = start as u64..start as u64 + PAGE as u64;
    monitor.page().drain(seen).any(|change| change == Change::Range(range.clone()))
}

/// Whether a shared file's truncation moved its number; or why it cannot be watched.
fn watches_a_file(monitor: &Monitor) -> Result<bool, Unwatchable> {
    // SAFETY: the name is a string.
    let fd = unsafe { libc::memfd_create(c"client".as_ptr(), libc::MFD_CLOEXEC) };
    // SAFETY: no pointers.
    assert_eq!(unsafe { libc::ftruncate(fd, PAGE as i64) }, 0);
    let start = map(libc::MAP_SHARED, fd);
    // SAFETY: mapped above, for this function alone.
    unsafe { start.cast::<u8>().write_volatile(1) };
    let watch = monitor.watch(start as u64..start as u64 + PAGE as u64)?;
    let Watch::Inode(slot) = watch else { panic!("a shared mapping has an inode") };
    let before = monitor.page().inode(slot);
    // SAFETY: no pointers.
    assert_eq!(unsafe { libc::ftruncate(fd, 0) }, 0);
    Ok(monitor.page().inode(slot) == before + 1)
}

/// Copies of the links, which a thread holds in a descriptor table of its own.
fn links_of_the_keeper() -> Vec<OwnedFd> {
    let tasks = fs::read_dir("/proc/self/task").expect("own threads").flatten().map(|task| task.path());
    let is_keeper =
        |task: &PathBuf| fs::read_to_string(task.join("comm")).is_ok_and(|name| name.contains("pindown-keep"));
    let keeper = tasks.into_iter().find(is_keeper).expect("a thread holds them");
    let id: i64 = keeper.file_name().and_then(|id| id.to_str()?.parse().ok()).expect("a number");
    let owned = |answer: i64| {
        assert!(answer >= 0, "{}", std::io::Error::last_os_error());
        // SAFETY: made for this call alone.
        unsafe { OwnedFd::from_raw_fd(answer as i32) }
    };
    // SAFETY: no pointers. (PIDFD_THREAD, Linux 6.9.)
    let thread = owned(unsafe { libc::syscall(libc::SYS_pidfd_open, id, libc::O_EXCL) });
    let copy = |number: i64| {
        // SAFETY: no pointers.
        owned(unsafe { libc::syscall(libc::SYS_pidfd_getfd, thread.as_raw_fd(), number, 0) })
    };
    let numbers = fs::read_dir(keeper.join("fd")).expect("its descriptors").flatten();
    numbers.filter_map(|number| number.file_name().to_str()?.parse().ok()).map(copy).collect()
}

/// What an unprivileged process gets when it tries to write, detach, replace or find what the helper made.
fn attacks() -> Vec<(&'static str, i32)> {
    let bpf = |command: i32, words: &mut [u32; 32]| {
        // SAFETY: 128 zeroed bytes with descriptors or numbers in them, no addresses.
        let answer = unsafe { libc::syscall(libc::SYS_bpf, command, words.as_mut_ptr(), 128) };
        if answer < 0 { std::io::Error::last_os_error().raw_os_error().unwrap_or(0) } else { 0 }
    };
    let mut outcomes = Vec::new();
    let mut bells = 0;
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
            bells += 1;
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
            assert!(!is.contains("bpf"), "{is} is where the program may close it");
        }
    }
    assert_eq!(bells, 1, "no map but that which wakes is passed or kept");
    for (name, command) in [("next program", 11), ("next map", 12), ("next link", 31)] {
        outcomes.push((name, bpf(command, &mut [0; 32])));
    }
    let maps = fs::read_to_string("/proc/self/maps").expect("own mappings");
    let mapped = Vec::from_iter(maps.lines().filter(|line| line.contains("bpf-map")));
    let (ours, theirs): (Vec<&str>, Vec<&str>) = mapped.into_iter().partition(|line| line.contains(" rw-s "));
    // How far it has read its bell, and: the page, how far the bell was written.
    assert_eq!((ours.len(), theirs.len()), (1, 2), "{maps}");
    for page in theirs {
        let start = usize::from_str_radix(page.split('-').next().unwrap_or(""), 16).expect("an address");
        let at = std::ptr::with_exposed_provenance_mut(start);
        // SAFETY: a permission more on the page's mapping breaks nothing, if it were granted.
        let answer = unsafe { libc::mprotect(at, PAGE, libc::PROT_READ | libc::PROT_WRITE) };
        let error = std::io::Error::last_os_error().raw_os_error().unwrap_or(0);
        outcomes.push(("write", if answer == 0 { 0 } else { error }));
    }
    outcomes
}

#[test]
fn mon_034_a_client_without_privilege_sees_its_own_changes_only() {
    let place = Place::new();
    let Some(_helper) = helper(&place, &[]) else { return };
    let (mut one, mut other) = (client(&place, "plain"), client(&place, "plain"));
    assert_eq!((one.line(), other.line()), ("ready".into(), "ready".into()));
    assert_eq!(one.ask("change"), "true");
    // Whatever its standard library does at first has been done.
    one.ask("head");
    let before = one.ask("head");
    for _ in 0..20 {
        assert_eq!(other.ask("change"), "true");
    }
    assert_eq!(one.ask("head"), before);
    assert_eq!(one.ask("watch"), "Ok(true)");
}

#[test]
fn mon_034_a_client_can_write_detach_and_find_nothing() {
    let place = Place::new();
    let Some(_helper) = helper(&place, &[]) else { return };
    let mut one = client(&place, "plain");
    assert_eq!(one.line(), "ready");
    let outcomes = one.ask("attack");
    assert!(!outcomes.contains(", 0)"), "one attack was let through: {outcomes}");
    assert_eq!(outcomes.matches("(\"write\", 13)").count(), 2, "{outcomes}");
    assert_eq!(one.ask("change"), "true");
}

#[test]
fn mon_048_a_client_that_waits_is_woken_and_no_other() {
    let place = Place::new();
    let Some(mut helper) = helper(&place, &[]) else { return };
    let (mut one, mut other) = (client(&place, "plain"), client(&place, "plain"));
    assert_eq!((one.line(), other.line()), ("ready".into(), "ready".into()));
    assert_eq!(one.ask("wait"), "true");
    // Nothing happens to the one, whatever the other does.
    one.ask("head");
    one.tell("sleep");
    for _ in 0..20 {
        assert_eq!(other.ask("wait"), "true");
    }
    assert_eq!(one.line(), "false");
    helper.child.kill().expect("it is this test's own child");
    helper.child.wait().expect("it ends");
    assert_eq!(one.ask("wait"), "true");
}

#[test]
fn mon_035_two_monitors_of_one_process_are_told_both() {
    let place = Place::new();
    let Some(_helper) = helper(&place, &[]) else { return };
    let mut one = client(&place, "plain");
    assert_eq!(one.line(), "ready");
    assert_eq!(one.ask("again"), "true");
    assert_eq!(one.ask("change"), "true");
}

#[test]
fn mon_045_reports_go_on_when_the_helper_was_killed() {
    let place = Place::new();
    let Some(mut helper) = helper(&place, &[]) else { return };
    let mut one = client(&place, "plain");
    assert_eq!(one.line(), "ready");
    assert_eq!(one.ask("change"), "true");
    helper.child.kill().expect("it is this test's own child");
    helper.child.wait().expect("it ends");
    assert_eq!(one.ask("change"), "true");
    assert_eq!(one.ask("watch"), "Err(Gone)");
    assert_eq!(one.ask("change"), "true");
    assert!(matches!(Monitor::from_helper(&place.socket()), Err(Unavailable::NoHelper { .. })));
    // Its socket is still there: the next helper takes it over.
    let Some(_next) = self::helper(&place, &[]) else { return };
    let mut two = client(&place, "plain");
    assert_eq!(two.line(), "ready");
}

#[test]
fn mon_034_a_process_that_hides_from_its_user_is_refused() {
    let place = Place::new();
    let Some(_helper) = helper(&place, &[]) else { return };
    assert_eq!(client(&place, "hidden").line(), "denied NotTheUsers");
}

#[test]
fn mon_034_a_helper_of_another_user_is_not_believed() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: it takes two users, and so root");
    }
    let place = Place::new();
    fs::set_permissions(&place.0, fs::Permissions::from_mode(0o777)).expect("the place is ours");
    let mut impostor = client(&place, "impostor");
    assert_eq!(impostor.line(), "ready");
    let answer = Monitor::from_helper(&place.socket());
    assert!(matches!(answer, Err(Unavailable::ForeignHelper(NOBODY))), "{answer:?}");
}

#[test]
fn mon_042_an_ended_client_makes_room_and_one_user_has_only_so_much() {
    let place = Place::new();
    let Some(_helper) = helper(&place, &["--per-user", "1"]) else { return };
    let mut one = client(&place, "plain");
    assert_eq!(one.line(), "ready");
    assert_eq!(client(&place, "plain").line(), "denied TooManyClients");
    // Another user is not bothered.
    let monitor = Monitor::from_helper(&place.socket()).expect("root is another user");
    assert!(reports_a_change(&monitor));
    drop(one);
    let deadline = Instant::now() + Duration::from_secs(10);
    while client(&place, "plain").line() != "ready" {
        assert!(Instant::now() < deadline, "the ended client still counts");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn mon_034_a_closed_connection_does_not_end_the_reports() {
    let place = Place::new();
    let Some(_helper) = helper(&place, &[]) else { return };
    let first = Monitor::from_helper(&place.socket()).expect("the helper listens");
    let second = Monitor::from_helper(&place.socket()).expect("the helper listens");
    drop(second);
    std::thread::sleep(Duration::from_millis(300));
    assert!(reports_a_change(&first) && !first.page().busy());
}

#[test]
fn mon_033_the_helper_says_what_it_lacks() {
    let says = |command: &mut Command| {
        let output = command.output().expect("it starts");
        (output.status.success(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
    };
    let (well, help) = says(Command::new(HELPER).arg("--help"));
    assert!(well && help.contains("--socket PATH"), "{help}");
    let (well, error) = says(Command::new(HELPER).arg("--nonsense"));
    assert!(!well && error.contains("unknown argument --nonsense"), "{error}");
    let place = Place::new();
    let helper = place.0.join("helper");
    fs::copy(HELPER, &helper).expect("a copy");
    if loadable().is_ok() {
        let (well, error) = says(Command::new(&helper).arg("--check").uid(NOBODY).gid(NOBODY));
        assert!(!well && error.contains("CAP_BPF is missing"), "{error}");
        let _running = self::helper(&place, &[]);
        let (well, error) = says(Command::new(HELPER).arg("--socket").arg(place.socket()));
        assert!(!well && error.contains("is in use"), "{error}");
    }
    let nowhere = Path::new("/nonexistent/pindown.sock");
    assert!(matches!(Monitor::from_helper(nowhere), Err(Unavailable::NoHelper { .. })));
    assert_eq!(Denial::Version.to_string(), "it speaks another version");
}
