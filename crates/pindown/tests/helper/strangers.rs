//! Clients that break a rule do not affect other clients.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use pindown::monitor::bpf::{BpfUnavailable, Denial, Monitor, loadable, reports_beginnings};

use crate::client::{reports_a_change, watches_a_file};
use crate::support::{SocketDirectory, Talker, client, command, helper, program};

/// Checks that an honest client of another user (root) is served and gets reports.
fn serves_others(place: &SocketDirectory) {
    let monitor = Monitor::from_helper(&place.socket()).expect("another user is served");
    assert!(reports_a_change(&monitor) && !monitor.page().busy());
    assert_eq!(watches_a_file(&monitor), Ok(true));
}

/// Requirements: MON-034.
#[test]
fn child_cannot_unwatch_through_an_inherited_connection() {
    let place = SocketDirectory::new();
    let Some(_helper) = helper(&place, &[]) else { return };
    // The request is denied, because it comes from another address space, and the truncation is reported.
    assert_eq!(client(&place, "unwatch-from-child").line(), "answer 10, told 1");
    serves_others(&place);
}

/// Requirements: MON-034.
#[test]
fn exec_ends_the_page_and_its_connection() {
    let place = SocketDirectory::new();
    let Some(helper) = helper(&place, &[]) else { return };
    let mut one = client(&place, "keep-over-exec");
    assert_eq!(one.line(), "ready 0");
    let signal = |signal| {
        // SAFETY: the helper is a child of this test, and was not waited for yet.
        assert_eq!(unsafe { libc::kill(helper.child.id().cast_signed(), signal) }, 0);
    };
    signal(libc::SIGSTOP);
    let message = one.ask("go");
    signal(libc::SIGCONT);
    assert_eq!(message, "busy 0x4000000000000000");
    // The answer is OtherAddressSpace, and the connection ends. Changes of the new address space were not reported.
    let expected = format!("answers [[10, {}, 0, 0], [0, 0, 0, 0]] moved 0", Denial::OtherAddressSpace as u64);
    assert_eq!(one.ask("go"), expected);
    serves_others(&place);
}

/// Requirements: MON-034.
#[test]
fn slow_descriptor_close_does_not_block_the_helper() {
    let place = SocketDirectory::new();
    let Some(_helper) = helper(&place, &[]) else { return };
    let mut one = client(&place, "linger");
    assert_eq!(one.line(), "sent");
    serves_others(&place);
}

/// Requirements: MON-034.
#[test]
fn never_quiet_client_does_not_delay_others() {
    let place = SocketDirectory::new();
    let Some(_helper) = helper(&place, &[]) else { return };
    if !reports_beginnings().expect("the programs can be loaded") {
        return eprintln!(
            "skipped (newer kernel): the programs do not report the beginnings of changes on this kernel"
        );
    }
    let mut one = client(&place, "never-quiet");
    let message = one.line();
    if message != "sent" {
        return eprintln!("skipped (userfaultfd): {message}");
    }
    serves_others(&place);
    assert_eq!(one.ask("go"), "40 never quiet, 0 not answered");
}

/// Requirements: MON-034.
#[test]
fn threads_outliving_their_client_leak_nothing() {
    let place = SocketDirectory::new();
    let Some(_helper) = helper(&place, &[]) else { return };
    let message = client(&place, "parked-and-gone").line();
    if message == "no userfaultfd" {
        return eprintln!("skipped (userfaultfd): {message}");
    }
    assert_eq!(message, "17408 threads");
    let monitor = Monitor::from_helper(&place.socket()).expect("another user is served");
    for _ in 0..64 {
        let page = crate::client::map(libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1);
        // SAFETY: the mapping belongs to this test.
        assert_eq!(unsafe { libc::madvise(page, crate::support::PAGE, libc::MADV_DONTNEED) }, 0);
    }
    assert!(!monitor.page().busy(), "nothing may be kept any more");
}

/// Requirements: MON-034.
#[test]
fn client_limit_is_enforced_per_user() {
    if let Err(why) = loadable() {
        return eprintln!("skipped (bpf): {why}");
    }
    let place = SocketDirectory::new();
    let mut helper = Command::new(program());
    let limit = || {
        // SAFETY: all zeros are valid limits.
        let mut soft: libc::rlimit = unsafe { std::mem::zeroed() };
        // SAFETY: the call only writes the limits.
        unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut soft) };
        soft.rlim_cur = 1024;
        // SAFETY: the call only reads the limits.
        match unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const soft) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    };
    // SAFETY: the closure only makes system calls.
    unsafe { helper.arg("--socket").arg(place.socket()).pre_exec(limit) };
    let mut helper = Talker::start(&mut helper);
    assert!(helper.raw_line().starts_with("listening at"));
    let mut crowd = client(&place, "crowd");
    assert_eq!(crowd.line(), format!("256 granted, then [10, {}, 0, 0]", Denial::TooManyClients as u64));
    assert!(Denial::TooManyClients.to_string().contains("--per-user"), "the limit is named");
    serves_others(&place);
    crowd.tell("go");
    assert_eq!(crowd.line(), "ended");
    // The resources of the user are released.
    loop {
        match client(&place, "plain").line().as_str() {
            "ready" => break,
            message => assert_eq!(message, "denied TooManyClients"),
        }
    }
}

/// Requirements: MON-034.
#[test]
fn file_limit_is_enforced_per_user() {
    let place = SocketDirectory::new();
    let Some(_helper) = helper(&place, &[]) else { return };
    let mut many = client(&place, "many-files");
    // The answer is `Unwatchable` with `TooManyFiles`.
    assert_eq!(many.line(), "1024 watched, then [7, 9]");
    serves_others(&place);
}

/// Requirements: MON-034.
#[test]
fn one_user_cannot_keep_others_from_watching_a_file() {
    let place = SocketDirectory::new();
    let Some(_helper) = helper(&place, &[]) else { return };
    let mut many = client(&place, "one-file");
    let message = many.line();
    let (path, refused) =
        message.strip_prefix("32 watch ").and_then(|rest| rest.split_once(", then ")).expect("32 address spaces");
    assert_eq!(refused, "[7, 9]");
    let other = Talker::start(command(&place, "watch-file").env("PINDOWN_FILE", path)).line();
    assert_eq!(other, "[6, 0, 0, 0]");
}

/// Requirements: MON-034.
#[test]
fn page_names_do_not_count_clients() {
    let place = SocketDirectory::new();
    let Some(_helper) = helper(&place, &[]) else { return };
    let name = |_| client(&place, "name").line().parse::<u64>().expect("a number");
    let names = [(); 3].map(name);
    assert!(names.iter().all(|&name| name >= 1 << 32), "random, not counted: {names:?}");
}

/// Requirements: MON-033.
#[test]
fn a_signal_ends_the_helper_and_removes_its_socket() {
    for signal in [libc::SIGTERM, libc::SIGINT] {
        let place = SocketDirectory::new();
        let Some(mut helper) = helper(&place, &[]) else { return };
        let mut one = client(&place, "plain");
        assert_eq!(one.line(), "ready");
        // SAFETY: the helper is a child of this test, and was not waited for yet.
        assert_eq!(unsafe { libc::kill(helper.child.id().cast_signed(), signal) }, 0);
        assert!(helper.child.wait().expect("the helper ends").success());
        assert!(!place.socket().exists(), "nothing listens there");
        assert_eq!(one.ask("change"), "true");
        let answer = Monitor::from_helper(&place.socket());
        assert!(matches!(answer, Err(BpfUnavailable::NoHelper { .. })), "{answer:?}");
    }
}

/// Requirements: MON-034.
#[test]
fn excessive_total_limit_is_rejected_at_startup() {
    if loadable().is_err() {
        return;
    }
    let place = SocketDirectory::new();
    let mut helper = Command::new(program());
    helper.arg("--socket").arg(place.socket()).args(["--total", "5000"]).stderr(Stdio::piped());
    let mut helper = Talker::start(&mut helper);
    assert_eq!(helper.raw_line(), "", "the helper does not listen");
    let mut message = String::new();
    helper.child.stderr.take().expect("piped").read_to_string(&mut message).expect("the output can be read");
    assert!(!helper.child.wait().expect("the helper ends").success());
    assert!(message.contains("--total") && message.contains("4096"), "{message}");
}
