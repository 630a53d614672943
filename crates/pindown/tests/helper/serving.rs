//! Tests of honest clients.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use pindown::monitor::bpf::{BpfUnavailable, Denial, Monitor, loadable};

use crate::client::reports_a_change;
use crate::copied::copy_program;
use crate::support::{NOBODY, SocketDirectory, client, helper, program};

/// Requirements: MON-034.
#[test]
fn unprivileged_client_sees_only_changes_in_its_process() {
    let place = SocketDirectory::new();
    let Some(_helper) = helper(&place, &[]) else { return };
    let (mut one, mut other) = (client(&place, "plain"), client(&place, "plain"));
    assert_eq!((one.line(), other.line()), ("ready".into(), "ready".into()));
    assert_eq!(one.ask("change"), "true");
    // The standard library of the client has made its first allocations by now.
    one.ask("head");
    let before = one.ask("head");
    for _ in 0..20 {
        assert_eq!(other.ask("change"), "true");
    }
    assert_eq!(one.ask("head"), before);
    assert_eq!(one.ask("watch"), "Ok(true)");
}

/// Requirements: MON-034.
#[test]
fn client_cannot_write_detach_or_find_other_objects() {
    let place = SocketDirectory::new();
    let Some(_helper) = helper(&place, &[]) else { return };
    let mut one = client(&place, "plain");
    assert_eq!(one.line(), "ready");
    let outcomes = one.ask("attack");
    assert!(!outcomes.contains(", 0)"), "an attack succeeded: {outcomes}");
    assert_eq!(outcomes.matches("(\"write\", 13)").count(), 2, "{outcomes}");
    assert_eq!(one.ask("change"), "true");
}

/// Requirements: MON-048.
#[test]
fn a_client_that_waits_is_woken_and_no_other() {
    let place = SocketDirectory::new();
    let Some(mut helper) = helper(&place, &[]) else { return };
    let (mut one, mut other) = (client(&place, "plain"), client(&place, "plain"));
    assert_eq!((one.line(), other.line()), ("ready".into(), "ready".into()));
    assert_eq!(one.ask("wait"), "true");
    // The second client does not affect the first.
    one.ask("head");
    one.tell("sleep");
    for _ in 0..20 {
        assert_eq!(other.ask("wait"), "true");
    }
    assert_eq!(one.line(), "false");
    helper.child.kill().expect("a child of this test");
    helper.child.wait().expect("the helper ends");
    assert_eq!(one.ask("wait"), "true");
}

/// Requirements: MON-035.
#[test]
fn change_is_reported_to_both_monitors_of_a_process() {
    let place = SocketDirectory::new();
    let Some(_helper) = helper(&place, &[]) else { return };
    let mut one = client(&place, "plain");
    assert_eq!(one.line(), "ready");
    assert_eq!(one.ask("again"), "true");
    assert_eq!(one.ask("change"), "true");
}

/// Requirements: MON-045.
#[test]
fn reports_go_on_when_the_helper_was_killed() {
    let place = SocketDirectory::new();
    let Some(mut helper) = helper(&place, &[]) else { return };
    let mut one = client(&place, "plain");
    assert_eq!(one.line(), "ready");
    assert_eq!(one.ask("change"), "true");
    helper.child.kill().expect("a child of this test");
    helper.child.wait().expect("the helper ends");
    assert_eq!(one.ask("change"), "true");
    assert_eq!(one.ask("watch"), "Err(Gone)");
    assert_eq!(one.ask("change"), "true");
    assert!(matches!(Monitor::from_helper(&place.socket()), Err(BpfUnavailable::NoHelper { .. })));
    // The socket of the killed helper still exists, and the next helper replaces it.
    let Some(_next) = crate::support::helper(&place, &[]) else { return };
    let mut two = client(&place, "plain");
    assert_eq!(two.line(), "ready");
}

/// Requirements: MON-034.
#[test]
fn process_inaccessible_to_its_user_is_rejected() {
    let place = SocketDirectory::new();
    let Some(_helper) = helper(&place, &[]) else { return };
    assert_eq!(client(&place, "hidden").line(), "denied NotTheUsers");
}

/// Requirements: MON-034.
#[test]
fn helper_of_another_user_is_rejected() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped (root): two users are required, and therefore root");
    }
    let place = SocketDirectory::new();
    fs::set_permissions(&place.0, fs::Permissions::from_mode(0o777)).expect("the directory belongs to this user");
    let mut impostor = client(&place, "impostor");
    assert_eq!(impostor.line(), "ready");
    let answer = Monitor::from_helper(&place.socket());
    assert!(matches!(answer, Err(BpfUnavailable::ForeignHelper(NOBODY))), "{answer:?}");
}

/// Requirements: MON-042.
#[test]
fn ended_client_frees_its_slot_and_users_are_limited() {
    let place = SocketDirectory::new();
    let Some(_helper) = helper(&place, &["--per-user", "1"]) else { return };
    let mut one = client(&place, "plain");
    assert_eq!(one.line(), "ready");
    assert_eq!(client(&place, "plain").line(), "denied TooManyClients");
    // Another user is not affected.
    let monitor = Monitor::from_helper(&place.socket()).expect("root is another user");
    assert!(reports_a_change(&monitor));
    drop(one);
    let deadline = Instant::now() + Duration::from_secs(10);
    while client(&place, "plain").line() != "ready" {
        assert!(Instant::now() < deadline, "the ended client still counts");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Requirements: MON-034.
#[test]
fn a_closed_connection_does_not_end_the_reports() {
    let place = SocketDirectory::new();
    let Some(_helper) = helper(&place, &[]) else { return };
    let first = Monitor::from_helper(&place.socket()).expect("the helper listens");
    let second = Monitor::from_helper(&place.socket()).expect("the helper listens");
    drop(second);
    std::thread::sleep(Duration::from_millis(300));
    assert!(reports_a_change(&first) && !first.page().busy());
}

/// Requirements: MON-033.
#[test]
fn helper_errors_state_the_cause() {
    let says = |command: &mut Command| {
        let output = command.output().expect("the process starts");
        (output.status.success(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
    };
    let (well, help) = says(Command::new(program()).arg("--help"));
    assert!(well && help.contains("--socket PATH"), "{help}");
    let (well, error) = says(Command::new(program()).arg("--nonsense"));
    assert!(!well && error.contains("unknown argument --nonsense"), "{error}");
    let place = SocketDirectory::new();
    let helper = place.0.join("helper");
    copy_program(&program(), &helper);
    if loadable().is_ok() {
        let (well, error) = says(Command::new(&helper).arg("--check").uid(NOBODY).gid(NOBODY));
        assert!(!well && error.contains("CAP_BPF is missing"), "{error}");
        let _running = crate::support::helper(&place, &[]);
        let (well, error) = says(Command::new(program()).arg("--socket").arg(place.socket()));
        assert!(!well && error.contains("is in use"), "{error}");
    }
    let nowhere = Path::new("/nonexistent/pindown.sock");
    assert!(matches!(Monitor::from_helper(nowhere), Err(BpfUnavailable::NoHelper { .. })));
    assert_eq!(Denial::Version.to_string(), "the protocol version differs");
}
