//! The helper as a service: a socket of a service manager, the users that may connect, its log, and its end.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use pindown::monitor::bpf::{BpfUnavailable, Monitor, loadable};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with};

use crate::client::reports_a_change;
use crate::copied::copy_program;
use crate::support::{NOBODY, PAGE, SocketDirectory, Talker, client, helper, program};

/// Returns whether the programs can be loaded. If not, the test is skipped.
fn is_loadable() -> bool {
    let why = loadable().err();
    if let Some(why) = &why {
        eprintln!("skipped (bpf): {why}");
    }
    why.is_none()
}

/// A socket as `pindown-helper.socket` makes it. It listens although no helper runs.
fn socket_of_manager(path: &Path) -> OwnedFd {
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
    let socket = socket.expect("a socket");
    bind(&socket, &SocketAddrUnix::new(path).expect("a path")).expect("bound");
    rustix::net::sockopt::set_socket_passcred(&socket, true).expect("the option exists");
    fs::set_permissions(path, fs::Permissions::from_mode(0o666)).expect("the file exists");
    listen(&socket, 100).expect("listens");
    socket
}

/// Waits until a client has connected to the socket, although no helper runs.
fn wait_for_client(socket: &OwnedFd) {
    poll(&mut [PollFd::new(socket, PollFlags::IN)], None).expect("poll succeeds");
}

/// Returns a command that starts a program as a service manager does: with the socket as descriptor 3. The words before
/// the program's own arguments can start another program that executes it.
fn activated(socket: &OwnedFd, words: &[&str], helper: &Path, arguments: &[&str]) -> Command {
    // The variable contains the process ID of the helper, which the shell becomes.
    let script = "LISTEN_PID=$$ LISTEN_FDS=1 exec \"$@\"";
    let mut command = Command::new(words.first().unwrap_or(&"sh"));
    command.args(words.iter().skip(1));
    if !words.is_empty() {
        command.arg("sh");
    }
    command.args(["-c", script, "sh"]).arg(helper).args(arguments);
    let number = socket.as_raw_fd();
    let pass = move || {
        // A copy of another number, so that the second copy has no close-on-exec flag, even if the number is 3.
        // SAFETY: the call takes no pointers.
        let copy = unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 10) };
        // SAFETY: as above.
        if unsafe { libc::dup2(copy, 3) } == 3 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
    };
    // SAFETY: the closure only makes system calls.
    unsafe { command.pre_exec(pass) };
    command
}

fn signal(talker: &Talker, signal: i32) {
    // SAFETY: the helper is a child of this test, and was not waited for yet.
    assert_eq!(unsafe { libc::kill(talker.child.id().cast_signed(), signal) }, 0);
}

/// Starts an activated helper that listens.
fn start(command: &mut Command) -> Talker {
    let mut helper = Talker::start(command);
    let line = helper.raw_line();
    assert!(line.starts_with("listening at"), "{line}");
    helper
}

/// Requirements: MON-033, MON-034.
#[test]
fn client_that_connects_before_the_service_starts_is_served() {
    if !is_loadable() {
        return;
    }
    let place = SocketDirectory::new();
    let socket = socket_of_manager(&place.socket());
    let mut early = client(&place, "plain");
    wait_for_client(&socket);
    let mut helper = start(&mut activated(&socket, &[], &program(), &[]));
    assert_eq!(early.line(), "ready");
    assert_eq!(early.ask("change"), "true");
    let mut late = client(&place, "plain");
    assert_eq!(late.line(), "ready");
    signal(&helper, libc::SIGTERM);
    assert!(helper.child.wait().expect("the helper ends").success());
    assert!(place.socket().exists(), "the socket belongs to the service manager");
    assert_eq!(early.ask("change"), "true");
    // The next client waits for the next helper.
    let mut next = client(&place, "plain");
    wait_for_client(&socket);
    let _helper = start(&mut activated(&socket, &[], &program(), &[]));
    assert_eq!(next.line(), "ready");
}

/// Requirements: MON-034.
#[test]
fn descriptors_sent_before_the_service_starts_do_not_block_it() {
    if !is_loadable() {
        return;
    }
    let place = SocketDirectory::new();
    let socket = socket_of_manager(&place.socket());
    let mut slow = client(&place, "linger");
    assert_eq!(slow.line(), "sent");
    let _helper = start(&mut activated(&socket, &[], &program(), &[]));
    let monitor = Monitor::from_helper(&place.socket()).expect("another user is served");
    assert!(reports_a_change(&monitor));
}

/// The helper needs no other privileges than those that `pindown-helper.service` gives it.
///
/// Requirements: MON-033, MON-034.
#[test]
fn two_capabilities_are_enough_for_the_service() {
    if !is_loadable() {
        return;
    }
    let place = SocketDirectory::new();
    let socket = socket_of_manager(&place.socket());
    let copy = place.0.join("helper");
    copy_program(&program(), &copy);
    let capabilities =
        ["--inh-caps", "--ambient-caps", "--bounding-set"].map(|set| format!("{set}=-all,+bpf,+perfmon"));
    let user = format!("{}", NOBODY - 1);
    let mut words = vec!["setpriv", "--reuid", &user, "--regid", &user, "--clear-groups", "--no-new-privs"];
    words.extend(capabilities.iter().map(String::as_str));
    let _helper = start(&mut activated(&socket, &words, &copy, &["--total", "64"]));
    let mut one = client(&place, "plain");
    assert_eq!(one.line(), "ready");
    assert_eq!(one.ask("change"), "true");
    assert_eq!(one.ask("watch"), "Ok(true)");
    let monitor = Monitor::from_helper(&place.socket()).expect("root trusts the socket, which root made");
    assert!(reports_a_change(&monitor));
}

/// Requirements: MON-033.
#[test]
fn idle_service_exits_and_is_started_again() {
    if !is_loadable() {
        return;
    }
    let place = SocketDirectory::new();
    let socket = socket_of_manager(&place.socket());
    let mut helper = start(&mut activated(&socket, &[], &program(), &["--idle-exit", "1"]));
    let mut one = client(&place, "plain");
    assert_eq!(one.line(), "ready");
    // Longer than the time after which an idle helper exits.
    std::thread::sleep(Duration::from_millis(2500));
    assert!(helper.child.try_wait().expect("a child").is_none(), "a client gets reports");
    drop(one);
    assert!(helper.child.wait().expect("the helper ends").success());
    let mut next = client(&place, "plain");
    wait_for_client(&socket);
    let _helper = start(&mut activated(&socket, &[], &program(), &["--idle-exit", "1"]));
    assert_eq!(next.line(), "ready");
}

/// Requirements: MON-033.
#[test]
fn unsuitable_settings_of_a_service_are_rejected() {
    if !is_loadable() {
        return;
    }
    let place = SocketDirectory::new();
    let path = place.socket();
    let socket = socket_of_manager(&path);
    let stream = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).expect("a socket");
    let rejected = |command: &mut Command, code: i32, expected: &str| {
        let output = command.output().expect("the process starts");
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!((output.status.code(), error.contains(expected)), (Some(code), true), "{error}");
    };
    rejected(&mut activated(&socket, &[], &program(), &["--group", "root"]), 3, "SocketGroup=");
    rejected(&mut activated(&stream, &[], &program(), &[]), 3, "ListenSequentialPacket=");
    rejected(Command::new(program()).args(["--idle-exit", "9"]), 3, "--idle-exit needs a service manager");
    rejected(Command::new(program()).args(["--total", "x"]), 2, "--total: x is not a number");
    rejected(Command::new(program()).args(["--total", "4097"]), 2, "--total 4097: the programs have room for 4096");
    rejected(Command::new(program()).args(["--per-user", "0"]), 2, "--per-user 0: no client would be served");
    let own = place.0.join("own");
    let own = own.to_str().expect("a path in UTF-8");
    rejected(Command::new(program()).args(["--socket", own, "--group", "no-such-group"]), 3, "groupadd --system");
    rejected(
        Command::new(program()).args(["--socket", own, "--group", "4294967295"]),
        3,
        "is not the number of a group",
    );
    rejected(Command::new(program()).args(["--socket", "/nonexistent/s"]), 3, "cannot listen at /nonexistent/s: ");
}

/// Requirements: MON-034.
#[test]
fn only_members_of_the_group_may_connect() {
    if !is_loadable() {
        return;
    }
    let place = SocketDirectory::new();
    // A number that is no group of the clients.
    let Some(mut running) = helper(&place, &["--group", "4242"]) else { return };
    let found = fs::symlink_metadata(place.socket()).expect("the socket exists");
    assert_eq!((found.permissions().mode() & 0o777, found.gid()), (0o660, 4242));
    let expected = format!("{} of pindown-helper is only for some users", place.socket().display());
    for role in ["plain", "default"] {
        let line = client(&place, role).line();
        assert!(line.starts_with(&expected), "{role}: {line}");
    }
    let monitor = Monitor::from_helper(&place.socket()).expect("root may connect");
    assert!(reports_a_change(&monitor));
    signal(&running, libc::SIGINT);
    assert!(running.child.wait().expect("the helper ends").success());
    assert!(!place.socket().exists());
    let group = NOBODY.to_string();
    let Some(_helper) = helper(&place, &["--group", &group]) else { return };
    assert_eq!(client(&place, "plain").line(), "ready");
}

/// Requirements: MON-033.
#[test]
fn variable_chooses_the_socket() {
    if !is_loadable() {
        return;
    }
    let place = SocketDirectory::new();
    let missing = client(&place, "default").line();
    assert!(missing.contains(place.socket().to_str().expect("a path in UTF-8")), "{missing}");
    let Some(_helper) = helper(&place, &[]) else { return };
    let mut one = client(&place, "default");
    assert_eq!(one.line(), "ready");
    assert_eq!(one.ask("change"), "true");
    // The helper uses the variable, too.
    let other = place.0.join("other");
    let _other = start(Command::new(program()).env("PINDOWN_SOCKET", &other));
    assert!(Monitor::from_helper(&other).is_ok());
    let nowhere = Monitor::from_helper(&place.0.join("nowhere"));
    assert!(matches!(nowhere, Err(BpfUnavailable::NoHelper { .. })), "{nowhere:?}");
}

/// Requirements: MON-042.
#[test]
fn journal_gets_priorities_and_counts_of_rejected_clients() {
    if !is_loadable() {
        return;
    }
    let place = SocketDirectory::new();
    let log = place.0.join("log");
    let file = File::create(&log).expect("created");
    let found = file.metadata().expect("a file");
    let mut command = Command::new(program());
    command.arg("--socket").arg(place.socket()).args(["--per-user", "1", "--verbose"]);
    command.env("JOURNAL_STREAM", format!("{}:{}", found.dev(), found.ino())).stderr(Stdio::from(file));
    let mut helper = start(&mut command);
    let mut one = client(&place, "plain");
    assert_eq!(one.line(), "ready");
    for _ in 0..5 {
        assert_eq!(client(&place, "plain").line(), "denied TooManyClients");
    }
    signal(&helper, libc::SIGTERM);
    assert!(helper.child.wait().expect("the helper ends").success());
    let text = fs::read_to_string(&log).expect("the log");
    let expected = [
        format!("<6>listening at {}; serves at most 1 clients of one user", place.socket().display()),
        format!("<7>a client of user {NOBODY} gets reports"),
        format!("<4>rejected a client of user {NOBODY}: "),
        "<6>SIGTERM received: exiting; 1 address spaces keep their reports".into(),
    ];
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), expected.len(), "{text}");
    for (line, expected) in lines.iter().zip(&expected) {
        assert!(line.starts_with(expected.as_str()), "{line}");
    }
}

/// Requirements: MON-042.
#[test]
fn a_log_that_is_not_read_does_not_stop_the_helper() {
    if !is_loadable() {
        return;
    }
    let place = SocketDirectory::new();
    let (log, writer) = std::io::pipe().expect("a pipe");
    // One page: fewer bytes than the messages about the clients have.
    rustix::pipe::fcntl_setpipe_size(&writer, PAGE).expect("the size can be reduced");
    let mut command = Command::new(program());
    command.arg("--socket").arg(place.socket()).arg("--verbose").stderr(Stdio::from(OwnedFd::from(writer)));
    let mut helper = start(&mut command);
    for number in 0..100 {
        let monitor = Monitor::from_helper(&place.socket());
        assert!(monitor.is_ok(), "client {number}: {monitor:?}");
    }
    signal(&helper, libc::SIGTERM);
    assert!(ends(&mut helper.child), "the helper obeys the signal");
    drop(log);
}

/// Waits until a process has ended, for a limited time. Returns whether it has ended with success.
fn ends(child: &mut Child) -> bool {
    let deadline = Instant::now() + Duration::from_secs(20);
    while Instant::now() < deadline {
        if let Some(status) = child.try_wait().expect("a child") {
            return status.success();
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    false
}

/// Requirements: MON-033.
#[test]
fn output_that_cannot_be_written_is_an_error_and_no_panic() {
    let full = || File::options().write(true).open("/dev/full").expect("every Linux has it");
    for arguments in [&["--help"][..], &["--version"], &["--check", "--json"], &["--check"]] {
        let output = Command::new(program()).args(arguments).stdout(full()).output().expect("the process starts");
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        // Without --json, the reason why the programs cannot be loaded is an error message.
        let expected = if arguments == ["--check"] && loadable().is_err() { 3 } else { 1 };
        assert_eq!(output.status.code(), Some(expected), "{arguments:?}: {error}");
        assert!(expected == 3 || error.contains("cannot write to the standard output"), "{arguments:?}: {error}");
    }
    if !is_loadable() {
        return;
    }
    // Clients are served although the line for scripts cannot be written.
    let place = SocketDirectory::new();
    let mut command = Command::new(program());
    command.arg("--socket").arg(place.socket()).stdout(full()).stderr(Stdio::piped());
    let mut helper = command.spawn().expect("the process starts");
    let deadline = Instant::now() + Duration::from_secs(60);
    let served = loop {
        let monitor = Monitor::from_helper(&place.socket());
        let ended = helper.try_wait().expect("a child").is_some();
        if monitor.is_ok() || ended || Instant::now() > deadline {
            break monitor.is_ok();
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    // SAFETY: the helper is a child of this test, and was not waited for yet, or the signal has no effect.
    unsafe { libc::kill(helper.id().cast_signed(), libc::SIGTERM) };
    let ended = ends(&mut helper);
    helper.kill().ok();
    let output = helper.wait_with_output().expect("the helper has ended");
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(served && ended && log.contains("warning: cannot write to the standard output"), "{log}");
}

/// Requirements: MON-034.
#[test]
fn a_socket_can_have_a_name_that_is_not_utf8() {
    if !is_loadable() {
        return;
    }
    let place = SocketDirectory::new();
    let path = place.0.join(OsStr::from_bytes(b"s\xffcket"));
    let mut helper = Talker::start(Command::new(program()).arg("--socket").arg(&path));
    assert_eq!(helper.raw_bytes(), [b"listening at ", path.as_os_str().as_bytes(), b"\n"].concat());
    assert!(Monitor::from_helper(&path).is_ok());
}

/// Requirements: MON-034.
#[test]
fn a_directory_that_clients_cannot_pass_is_a_warning() {
    if !is_loadable() {
        return;
    }
    let place = SocketDirectory::new();
    fs::set_permissions(&place.0, fs::Permissions::from_mode(0o700)).expect("the directory is ours");
    let mut command = Command::new(program());
    let mut helper = start(command.arg("--socket").arg(place.socket()).stderr(Stdio::piped()));
    signal(&helper, libc::SIGTERM);
    let log = helper.child.stderr.take().expect("piped");
    assert!(helper.child.wait().expect("the helper ends").success());
    let log = std::io::read_to_string(log).expect("the log");
    let expected =
        format!("warning: users may not be able to connect: the directory {} has the mode 0700", place.0.display());
    assert!(log.contains(&expected), "{log}");
}

/// Requirements: MON-033.
#[test]
fn service_manager_is_notified_of_the_state() {
    if !is_loadable() {
        return;
    }
    let place = SocketDirectory::new();
    let path = place.0.join("notify");
    let manager = UnixDatagram::bind(&path).expect("bound");
    let receive = || {
        let mut bytes = [0; 256];
        let len = manager.recv(&mut bytes).expect("the helper sends its state");
        String::from_utf8_lossy(&bytes[..len]).into_owned()
    };
    let mut command = Command::new(program());
    command.arg("--socket").arg(place.socket()).env("NOTIFY_SOCKET", &path);
    let mut helper = Talker::start(&mut command);
    assert_eq!(receive(), "READY=1");
    let mut one = client(&place, "plain");
    assert_eq!(one.line(), "ready");
    while receive() != "STATUS=connections: 1, address spaces with reports: 1" {}
    signal(&helper, libc::SIGTERM);
    while receive() != "STOPPING=1" {}
    assert!(helper.child.wait().expect("the helper ends").success());
    assert_eq!(helper.raw_line(), "", "the manager gets messages instead");
}

/// Requirements: MON-033.
#[test]
fn check_reports_the_reason_as_json() {
    let output = Command::new(program()).args(["--check", "--json"]).output().expect("the process starts");
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    match loadable() {
        Ok(()) => assert_eq!(printed, "{\"loadable\": true}\n"),
        Err(_) => assert!(printed.starts_with("{\"loadable\": false, \"reason\": \""), "{printed}"),
    }
    assert_eq!(output.status.code(), Some(if loadable().is_ok() { 0 } else { 3 }));
}
