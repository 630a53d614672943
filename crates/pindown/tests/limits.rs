//! The system's limit of pinned memory, for a process without privileges: io_uring charges the memory that it pins to
//! the user, and rejects more than RLIMIT_MEMLOCK. Each test uses a different user, which requires root; without root
//! the test is skipped.
#![expect(unsafe_code, reason = "limits of processes; each block states its own reason")]

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use pindown::monitor::imported::Notifier;
use pindown::monitor::userfaultfd::{Settings, Unseen};
use pindown::monitor::{Choice, Refusal};
use pindown::{Access, Cache, LookupError, Range};

use copied::copy_program;
use oracle::{ANONYMOUS, Memory, Oracle, PAGE, READ_WRITE, load, must, pattern, pinned_kilobytes, store, unmap};

mod copied;
mod oracle;

/// RLIMIT_MEMLOCK of the test processes.
const LIMIT: u64 = 4 << 20;

/// The size of a buffer.
const BYTES: u64 = 64 << 10;

/// Returns a user ID that differs for each test of each run.
fn user(number: u32) -> u32 {
    200_000 + 8 * (std::process::id() % 1_000_000) + number
}

/// A copy of this program that every user may run.
struct Program(PathBuf);

impl Program {
    fn new(name: &str) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped (root): only root can run a process as another user");
            return None;
        }
        let place = std::env::temp_dir().join(format!("pindown-limits-{}-{name}", std::process::id()));
        copy_program(&std::env::current_exe().expect("this program"), &place);
        Some(Self(place))
    }

    fn start(&self, role: &str, user: u32) -> Talker {
        let mut command = Command::new(&self.0);
        command.args(["limited_process", "--exact", "--ignored", "--nocapture"]).env("PINDOWN_ROLE", role);
        command.uid(user).gid(user).stdin(Stdio::piped()).stdout(Stdio::piped());
        let limit = libc::rlimit { rlim_cur: LIMIT, rlim_max: LIMIT };
        // SAFETY: the limit lives through the call.
        let set = move || match unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const limit) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        };
        // SAFETY: only that system call is made between fork and exec.
        unsafe { command.pre_exec(set) };
        let mut child = command.spawn().expect("the process starts");
        let says = BufReader::new(child.stdout.take().expect("piped"));
        Talker { child, says }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        std::fs::remove_file(&self.0).ok();
    }
}

struct Talker {
    child: Child,
    says: BufReader<std::process::ChildStdout>,
}

impl Talker {
    /// Returns the next line for the test.
    fn line(&mut self) -> String {
        self.line_or_end().expect("the process has not ended")
    }

    /// Like [`Self::line`], but `None` if the process ended.
    fn line_or_end(&mut self) -> Option<String> {
        loop {
            let mut line = String::new();
            if self.says.read_line(&mut line).expect("the output can be read") == 0 {
                return None;
            }
            if let Some((_, message)) = line.trim().split_once("> ") {
                return Some(message.into());
            }
        }
    }

    /// Kills the process, so that it cannot close anything.
    fn kill(&mut self) {
        self.child.kill().expect("the process exists");
        self.child.wait().expect("the process ends");
    }
}

impl Drop for Talker {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

#[test]
#[ignore = "started by the other tests, as another user"]
fn limited_process() {
    let Ok(role) = std::env::var("PINDOWN_ROLE") else { panic!("the other tests start this process") };
    let message = match role.as_str() {
        "hoard" => return hoard(),
        "kept" => keep_all(),
        "fresh" => fresh(),
        "locked" => locked(),
        other => panic!("{other}"),
    };
    println!("> {message}");
}

/// Registers until this fails, prints the number of registrations, and waits to be killed.
fn hoard() {
    let (_notifier, imported) = Notifier::new(|_, _| true).expect("a descriptor");
    let cache = Cache::builder(Oracle::new()).monitor(Choice::Imported(imported)).open().expect("opens");
    let memory = Memory::new(2 * LIMIT / PAGE);
    let mut count = 0;
    let refused = loop {
        let range = Range::new(memory.start + count * BYTES, BYTES).expect("a range");
        match cache.register(range, Access::LOCAL_WRITE) {
            Ok(_) => count += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(&refused, LookupError::Registrar { source, .. } if source.raw_os_error() == Some(libc::ENOMEM)));
    assert_eq!((cache.stats().own, pinned_kilobytes() * 1024), (count, count * BYTES), "nothing of it remains");
    println!("> {count}");
    std::io::stdin().lines().next();
}

/// Sends from new buffers each time, in total more than may be pinned.
fn keep_all() -> String {
    let (_notifier, imported) = Notifier::new(|_, _| true).expect("a descriptor");
    let oracle = Oracle::new();
    let cache = Cache::builder(oracle.clone()).monitor(Choice::Imported(imported)).open().expect("opens");
    let lane = cache.lane();
    let buffers = 8 * LIMIT / BYTES;
    let memory = Memory::new(8 * LIMIT / PAGE);
    for number in (0..buffers).chain(0..buffers) {
        let at = memory.start + number * BYTES;
        store(at, &pattern(BYTES, number as u8));
        let used = lane.get(Range::new(at, BYTES).expect("a range"), Access::LOCAL_WRITE);
        let used = used.unwrap_or_else(|error| panic!("buffer {number}: {error}"));
        assert!(oracle.carry(used.local_key(), at, BYTES) == pattern(BYTES, number as u8));
        lane.end(used);
        assert!(pinned_kilobytes() * 1024 <= LIMIT);
    }
    let stats = cache.stats();
    assert!(stats.evictions > buffers && stats.failures == 0, "{stats:?}");
    "done".into()
}

/// Maps, sends, receives and unmaps new memory, like the application that failed in paper 002, which
/// docs/requirements.md lists.
fn fresh() -> String {
    let oracle = Oracle::new();
    let builder = Cache::builder(oracle.clone()).monitor(Choice::Userfaultfd(Unseen::NeverMade.into()));
    let cache = match builder.open() {
        Ok(cache) => cache,
        Err(why) => return format!("skipped (userfaultfd): {why}"),
    };
    let lane = cache.lane();
    let mut most = 0;
    for round in 0..10_000_u64 {
        let at = must(libc::SYS_mmap, [0, BYTES, READ_WRITE, ANONYMOUS as u64, u64::MAX, 0]);
        store(at, &round.to_ne_bytes());
        let used = lane.get(Range::new(at, BYTES).expect("a range"), Access::LOCAL_WRITE);
        let used = used.unwrap_or_else(|error| panic!("round {round}: {error}"));
        assert_eq!(oracle.carry(used.local_key(), at, 8), round.to_ne_bytes(), "round {round}");
        oracle.deliver(used.local_key(), at, &(!round).to_ne_bytes());
        lane.end(used);
        assert_eq!(load(at, 8), (!round).to_ne_bytes(), "round {round}");
        unmap(at, BYTES);
        if round % 64 == 0 {
            most = most.max(pinned_kilobytes());
        }
    }
    let stats = cache.stats();
    assert!(most * 1024 <= LIMIT, "{most} kB");
    assert!(stats.misses > 9_000 && stats.failures == 0, "{stats:?}");
    "done".into()
}

/// Keeps more memory than may be locked, with the setting in which locking prevents guard pages.
fn locked() -> String {
    let oracle = Oracle::new();
    let settings = Settings::new(Unseen::GuardsRefused);
    let cache = match Cache::builder(oracle.clone()).monitor(Choice::Userfaultfd(settings)).open() {
        Ok(cache) => cache,
        Err(why) => return format!("skipped (userfaultfd): {why}"),
    };
    let lane = cache.lane();
    // Registrations in use are not evicted, so the memory that they lock stays locked. The program itself locks half of
    // the limit. The device's pins are counted separately, and would otherwise reach the limit first.
    let (mut held, own) = (Vec::new(), Memory::new(LIMIT / 2 / PAGE));
    must(libc::SYS_mlock, [own.start, LIMIT / 2, 0, 0, 0, 0]);
    let (buffers, memory) = (LIMIT / BYTES - 8, Memory::new(LIMIT / PAGE));
    for number in 0..buffers {
        let at = memory.start + number * BYTES;
        store(at, &pattern(BYTES, number as u8));
        let used = lane.get(Range::new(at, BYTES).expect("a range"), Access::LOCAL_WRITE);
        let used = used.unwrap_or_else(|error| panic!("buffer {number}: {error}"));
        assert!(oracle.carry(used.local_key(), at, BYTES) == pattern(BYTES, number as u8));
        held.push(used);
        if number == LIMIT / BYTES / 4 {
            assert_eq!(cache.stats().single_uses_for(Refusal::NotWatchable), 0);
        }
    }
    held.drain(..).for_each(|used| lane.end(used));
    let stats = cache.stats();
    assert!(stats.single_uses_for(Refusal::NotWatchable) >= LIMIT / BYTES / 4, "{stats:?}");
    assert!(stats.misses > LIMIT / BYTES / 4 && stats.failures == 0, "{stats:?}");
    "done".into()
}

/// Requirements: MON-012.
#[test]
fn memory_that_cannot_be_locked_is_used_once() {
    let Some(program) = Program::new("locked") else { return };
    let message = program.start("locked", user(3)).line();
    println!("{message}");
    assert!(message == "done" || message.starts_with("skipped"), "{message}");
}

/// Requirements: MON-040, MON-042, MON-054.
#[test]
fn pages_pinned_by_a_killed_process_are_released() {
    let Some(program) = Program::new("hoard") else { return };
    let user = user(0);
    let mut first = program.start("hoard", user);
    let count = first.line();
    // The ring itself takes some memory.
    assert!((LIMIT / BYTES - 4..=LIMIT / BYTES).contains(&count.parse().expect("a number")), "{count}");
    // While the process lives, the same user cannot pin more memory.
    assert_eq!(program.start("hoard", user).line(), "0");
    first.kill();
    // The kernel releases the pages of a closed ring gradually.
    let deadline = Instant::now() + Duration::from_secs(60);
    // (It may not have released enough for a ring yet, in which case such a process ends.)
    while program.start("hoard", user).line_or_end().as_ref() != Some(&count) {
        assert!(Instant::now() < deadline, "not given back");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Requirements: RCACHE-022, RCACHE-023.
#[test]
fn more_buffers_than_can_be_pinned_are_sent() {
    let Some(program) = Program::new("kept") else { return };
    assert_eq!(program.start("kept", user(1)).line(), "done");
}

/// Requirements: MON-024, MON-053, RCACHE-022.
#[test]
fn fresh_memory_without_privileges_stays_within_the_limit() {
    let Some(program) = Program::new("fresh") else { return };
    let message = program.start("fresh", user(2)).line();
    println!("{message}");
    assert!(message == "done" || message.starts_with("skipped"), "{message}");
}
