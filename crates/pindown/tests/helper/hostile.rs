//! Clients that break one rule each, for the tests of `strangers.rs`. Each prints the result after "> ".

use std::io::BufRead;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use crate::parked::Parked;
use crate::protocol::{HELLO, Link, ReportPage, SharedFile, UNWATCH, WATCHED};

/// The number of a descriptor that is kept across exec.
const SOCKET: i32 = 100;
const PAGE_MAP: i32 = 101;

/// Runs a role. Returns false if this module does not have a role of this name.
pub(crate) fn play(role: &str, socket: &Path) -> bool {
    match role {
        "unwatch-from-child" => unwatch_from_child(socket),
        "keep-over-exec" => keep_over_exec(socket),
        "kept-over-exec" => kept_over_exec(),
        "linger" => linger(socket),
        "never-quiet" => never_quiet(socket),
        "parked-and-gone" => parked_and_gone(socket),
        "crowd" => crowd(socket),
        "many-files" => many_files(socket),
        "one-file" => one_file(socket),
        "watch-file" => watch_file(socket),
        "name" => println!("> {}", Link::open(socket).expect("the helper listens").join().expect("a page").name()),
        _ => return false,
    }
    true
}

fn wait_for_a_line() {
    std::io::stdin().lock().read_line(&mut String::new()).expect("a line from the test");
}

/// Forks a child process that runs `work` and exits with its result. Only `work` runs in the child.
pub(crate) fn fork(work: impl FnOnce() -> i32) -> libc::pid_t {
    // SAFETY: the child makes system calls and ends; glibc makes its allocator usable in the child.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: the call takes no pointers.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
        let code = work();
        // SAFETY: the call ends the child.
        unsafe { libc::_exit(code) };
    }
    assert!(child > 0);
    child
}

/// Waits for a child. Returns its exit code, or -1.
pub(crate) fn wait(child: libc::pid_t) -> i32 {
    let mut status = 0;
    // SAFETY: the call only writes the status.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { -1 }
}

/// A forked child uses the socket from another address space.
fn unwatch_from_child(socket: &Path) {
    let link = Link::open(socket).expect("the helper listens");
    let page = link.join().expect("a page");
    let file = SharedFile::new();
    let [WATCHED, slot, ..] = file.watch(&link) else { panic!("not watched") };
    let child = fork(|| link.ask([UNWATCH, slot, 0, 0])[0] as i32);
    let answer = wait(child);
    let before = page.inode(slot);
    file.truncate();
    println!("> answer {answer}, told {}", page.inode(slot) - before);
}

/// Keeps the socket and the page across exec.
fn keep_over_exec(socket: &Path) {
    let link = Link::open(socket).expect("the helper listens");
    let page = link.join().expect("a page");
    println!("> ready {}", page.busy());
    wait_for_a_line();
    for (fd, at) in [(link.0.as_raw_fd(), SOCKET), (page.fds[0].as_raw_fd(), PAGE_MAP)] {
        // SAFETY: the call takes no pointers. Such copies are not closed at exec.
        assert_eq!(unsafe { libc::dup2(fd, at) }, at);
    }
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(std::env::args().skip(1)).env("PINDOWN_ROLE", "kept-over-exec");
    panic!("{}", command.exec());
}

fn kept_over_exec() {
    let page = ReportPage::kept(PAGE_MAP);
    let (busy, head) = (page.busy(), page.head());
    println!("> busy {busy:#x}");
    wait_for_a_line();
    // SAFETY: the descriptor was kept for this purpose.
    let link = Link(unsafe { std::os::fd::FromRawFd::from_raw_fd(SOCKET) });
    let answers = [0, 1].map(|slot| link.ask([UNWATCH, slot, 0, 0]));
    println!("> answers {answers:?} moved {}", page.head() - head);
}

/// Sends a socket that takes a minute to close, and keeps no copy.
fn linger(socket: &Path) {
    use std::net::{TcpListener, TcpStream};
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let stream = TcpStream::connect(listener.local_addr().expect("bound")).expect("connected");
    stream.set_nonblocking(true).expect("the mode can be set");
    let junk = vec![0_u8; 1 << 20];
    while std::io::Write::write(&mut &stream, &junk).is_ok() {}
    stream.set_nonblocking(false).expect("the mode can be set");
    let set = |seconds| {
        let linger = libc::linger { l_onoff: i32::from(seconds > 0), l_linger: seconds };
        // SAFETY: the option has this type.
        let set = unsafe {
            libc::setsockopt(
                stream.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_LINGER,
                (&raw const linger).cast(),
                size_of::<libc::linger>() as u32,
            )
        };
        assert_eq!(set, 0);
    };
    set(60);
    let hello = HELLO.map(u64::to_le_bytes).concat();
    // The helper reads the first message, and leaves the second unread.
    let (first, second) =
        (Link::open(socket).expect("the helper listens"), Link::open(socket).expect("the helper listens"));
    let mut sent = first.send_bytes(&hello, &[stream.as_raw_fd()]).is_ok();
    second.send_bytes(&[], &[]).ok();
    sent |= second.send_bytes(&hello, &[stream.as_raw_fd()]).is_ok();
    if !sent {
        // The kernel rejected the message, so this process closes the socket itself.
        set(0);
    }
    drop((first, second, stream));
    println!("> sent");
    wait_for_a_line();
    drop(listener);
}

/// Sends Hello on many connections while a thread is inside a call.
fn never_quiet(socket: &Path) {
    let Some(parked) = Parked::new(1) else { return println!("> no userfaultfd") };
    let links: Vec<_> = (0..40).map(|_| Link::open(socket).expect("the helper listens")).collect();
    for link in &links {
        link.send(HELLO).expect("sent");
    }
    println!("> sent");
    wait_for_a_line();
    let kinds: Vec<_> = links.iter().map(|link| link.receive().map_or([0; 4], |answer| answer.words)).collect();
    let denied = kinds.iter().filter(|words| words[..2] == [10, 8]).count();
    println!("> {denied} never quiet, {} not answered", kinds.iter().filter(|words| words[0] == 0).count());
    parked.release();
}

/// Keeps threads inside a call while the helper ends the client's page. In total there are more threads than entries in
/// any table.
fn parked_and_gone(socket: &Path) {
    const EACH: usize = 512;
    let mut threads = 0;
    while threads < 17_408 {
        let link = Link::open(socket).expect("the helper listens");
        let answer = link.ask(HELLO);
        assert_eq!(answer[0], 2, "{answer:?}");
        let Some(parked) = Parked::new(EACH) else { return println!("> no userfaultfd") };
        drop(link);
        // When this request is answered, the helper has detected the end of the other connection.
        for _ in 0..2 {
            assert_eq!(Link::open(socket).expect("the helper listens").ask([1, 77, 0, 0])[..2], [10, 1]);
        }
        parked.release();
        threads += EACH;
    }
    println!("> {threads} threads");
}

/// Starts as many clients as one user may have, and one more.
fn crowd(socket: &Path) {
    let mut children = Vec::new();
    let (mut granted, mut last) = (0, [0; 4]);
    while last == [0; 4] {
        let (from, to) = rustix::pipe::pipe().expect("a pipe");
        children.push(fork(|| {
            let link = Link::open(socket);
            let answer = link.as_ref().map_or([1; 4], |link| link.join().err().unwrap_or([0; 4]));
            rustix::io::write(&to, answer.map(u64::to_le_bytes).as_flattened()).ok();
            loop {
                // SAFETY: the call takes no pointers.
                unsafe { libc::pause() };
            }
        }));
        let mut bytes = [[0_u8; 8]; 4];
        assert_eq!(rustix::io::read(&from, bytes.as_flattened_mut()), Ok(32));
        last = bytes.map(u64::from_le_bytes);
        granted += usize::from(last == [0; 4]);
    }
    println!("> {granted} granted, then {last:?}");
    wait_for_a_line();
    for child in children {
        // SAFETY: the process is a child of this one, and was not waited for yet.
        unsafe { libc::kill(child, libc::SIGKILL) };
        wait(child);
    }
}

/// Watches 64 files in each of many processes, until one is rejected.
fn many_files(socket: &Path) {
    let (mut watched, mut last) = (0, [0; 2]);
    let mut children = Vec::new();
    while last == [0; 2] && children.len() < 24 {
        let (from, to) = rustix::pipe::pipe().expect("a pipe");
        children.push(fork(|| {
            let link = Link::open(socket).expect("the helper listens");
            let page = link.join().expect("a page");
            let mut count = 0;
            let refused = loop {
                let answer = if count < 64 { SharedFile::new().watch(&link) } else { [0; 4] };
                if answer[0] != WATCHED {
                    break [answer[0], answer[1]];
                }
                count += 1;
            };
            let message = [count, refused[0], refused[1]].map(u64::to_le_bytes);
            rustix::io::write(&to, message.as_flattened()).ok();
            loop {
                // SAFETY: the call takes no pointers.
                unsafe { libc::pause() };
                assert!(page.fds.len() > 1);
            }
        }));
        let mut bytes = [[0_u8; 8]; 3];
        assert_eq!(rustix::io::read(&from, bytes.as_flattened_mut()), Ok(24));
        let [count, kind, why] = bytes.map(u64::from_le_bytes);
        watched += count;
        last = [kind, why];
    }
    println!("> {watched} watched, then {last:?}");
    wait_for_a_line();
}

/// Watches one file in each of many processes, until one is rejected.
fn one_file(socket: &Path) {
    let file = SharedFile::new();
    let (mut watching, mut last) = (0, [0; 2]);
    while last == [0; 2] && watching < 80 {
        let (from, to) = rustix::pipe::pipe().expect("a pipe");
        fork(|| {
            let link = Link::open(socket).expect("the helper listens");
            let page = link.join().expect("a page");
            let answer = file.watch(&link);
            let message = if answer[0] == WATCHED { [0; 2] } else { [answer[0], answer[1]] };
            rustix::io::write(&to, message.map(u64::to_le_bytes).as_flattened()).ok();
            loop {
                // SAFETY: the call takes no pointers.
                unsafe { libc::pause() };
                assert!(page.fds.len() > 1);
            }
        });
        let mut bytes = [[0_u8; 8]; 2];
        assert_eq!(rustix::io::read(&from, bytes.as_flattened_mut()), Ok(16));
        last = bytes.map(u64::from_le_bytes);
        watching += u32::from(last == [0; 2]);
    }
    println!("> {watching} watch /proc/{}/fd/{}, then {last:?}", std::process::id(), file.fd);
    wait_for_a_line();
}

/// Watches the file that `PINDOWN_FILE` names.
fn watch_file(socket: &Path) {
    let file = std::fs::OpenOptions::new().read(true).write(true).open(std::env::var("PINDOWN_FILE").expect("a file"));
    let file = file.expect("the file can be opened");
    let link = Link::open(socket).expect("the helper listens");
    let _page = link.join().expect("a page");
    println!("> {:?}", SharedFile::of(file.as_raw_fd()).watch(&link));
}
