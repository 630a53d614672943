//! Environments with a system call filter.

use std::process::{Output, Stdio};

use percale_conformance::skipped;

use crate::diagnosis::{Diagnosis, PROGRAM, diagnose, doctor};
use crate::filter::filtered;

/// The calls that Docker's default profile rejects in a container without additional capabilities, of those that exist
/// on every architecture (docs.docker.com/engine/security/seccomp, with io_uring since version 25).
const DOCKER: [libc::c_long; 25] = [
    libc::SYS_acct,
    libc::SYS_add_key,
    libc::SYS_bpf,
    libc::SYS_delete_module,
    libc::SYS_finit_module,
    libc::SYS_init_module,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_io_uring_setup,
    libc::SYS_kcmp,
    libc::SYS_keyctl,
    libc::SYS_mount,
    libc::SYS_move_pages,
    libc::SYS_open_by_handle_at,
    libc::SYS_perf_event_open,
    libc::SYS_personality,
    libc::SYS_pivot_root,
    libc::SYS_quotactl,
    libc::SYS_reboot,
    libc::SYS_request_key,
    libc::SYS_setns,
    libc::SYS_swapon,
    libc::SYS_umount2,
    libc::SYS_unshare,
    libc::SYS_userfaultfd,
];

/// Runs the command with a filter. Returns `None`, and skips the test, if the system does not permit filters.
fn diagnose_filtered(calls: &[libc::c_long], action: u32) -> Option<Diagnosis> {
    match filtered(calls, action, || diagnose(&[])) {
        Ok(diagnosis) => Some(diagnosis),
        Err(error) => {
            skipped("seccomp", "a system call filter", &error.to_string());
            None
        }
    }
}

#[test]
fn filter_of_docker() {
    let before = diagnose(&[]);
    let Some(after) = diagnose_filtered(&DOCKER, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32) else { return };
    after.names_only(&before, "seccomp", "rejects userfaultfd, unshare", "");
    for check in ["userfaultfd", "user-namespaces", "io-uring"] {
        // A machine may lack io_uring for another reason.
        if before.check(check)["state"] == "works" {
            assert_eq!(after.check(check)["cause"], "seccomp", "{after:#?}");
        }
    }
    assert_eq!(after.check("shared-memory")["state"], "works");
    assert_eq!(after.code, before.code, "nothing essential is rejected");
}

#[test]
fn filter_that_rejects_shared_memory_is_an_essential_fault() {
    let before = diagnose(&[]);
    let action = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
    let Some(after) = diagnose_filtered(&[libc::SYS_memfd_create], action) else { return };
    after.names_only(&before, "seccomp", "rejects memfd_create", "");
    assert_eq!(after.check("memfd")["cause"], "seccomp");
    assert_eq!(after.check("shared-memory")["cause"], "memfd");
    assert_eq!(after.code, Some(1), "{after:#?}");
    assert!(after.errors.contains("something essential is missing: shared-memory"), "{}", after.errors);
}

/// The filter returns this error.
fn rejecting(error: i32) -> u32 {
    libc::SECCOMP_RET_ERRNO | error as u32
}

/// percale needs calls that discovery does not make.
#[test]
fn filter_that_rejects_domains_is_an_essential_fault() {
    let before = diagnose(&[]);
    let Some(after) = diagnose_filtered(&[libc::SYS_epoll_create1], rejecting(libc::EPERM)) else { return };
    after.names_only(&before, "seccomp", "rejects epoll_create1", "epoll_create1");
    for check in ["shared-memory", "tcp"] {
        let line = after.check(check);
        assert!(line["state"] == "missing" && line["cause"] == "seccomp", "{line:#}");
        assert!(line["detail"].as_str().unwrap().contains("epoll_create1"), "{line:#}");
    }
    assert_eq!(after.code, Some(1), "{after:#?}");
}

#[test]
fn filter_that_rejects_sockets_is_not_the_loopback_interface() {
    let before = diagnose(&[]);
    for call in ["bind", "listen", "connect", "setsockopt"] {
        let number = match call {
            "bind" => libc::SYS_bind,
            "listen" => libc::SYS_listen,
            "connect" => libc::SYS_connect,
            _ => libc::SYS_setsockopt,
        };
        let Some(after) = diagnose_filtered(&[number], rejecting(libc::EPERM)) else { return };
        after.names_only(&before, "seccomp", call, call);
        assert_eq!(after.code, Some(1), "{call}: {after:#?}");
    }
    // The error of systemd's RestrictAddressFamilies=.
    let Some(after) = diagnose_filtered(&[libc::SYS_socket], rejecting(libc::EAFNOSUPPORT)) else { return };
    after.names_only(&before, "seccomp", "socket(AF_INET)", "");
    assert_eq!(after.check("tcp")["state"], "missing", "{after:#?}");
}

/// Whatever call a filter rejects, it is the one cause.
#[test]
fn each_rejected_call_has_one_cause() {
    let before = diagnose(&[]);
    for (number, call, error) in [
        (libc::SYS_membarrier, "membarrier", libc::EPERM),
        (libc::SYS_fallocate, "fallocate", libc::EPERM),
        (libc::SYS_madvise, "madvise", libc::EPERM),
        (libc::SYS_memfd_create, "memfd_create", libc::EOPNOTSUPP),
        (libc::SYS_ftruncate, "ftruncate", libc::ENOSYS),
        (libc::SYS_sendmsg, "sendmsg", libc::EPERM),
        (libc::SYS_getsockname, "getsockname", libc::EPERM),
    ] {
        let Some(after) = diagnose_filtered(&[number], rejecting(error)) else { return };
        after.names_only(&before, "seccomp", call, call);
    }
}

#[test]
fn filter_that_prevents_processes_is_one_fault() {
    // A command whose output is a file needs no pipe.
    let path = std::env::temp_dir().join(format!("percale-doctor-pipes-{}", std::process::id()));
    let file = std::fs::File::create(&path).unwrap();
    let run = || doctor(&[], PROGRAM.as_ref()).stdout(file).stderr(Stdio::null()).status().unwrap();
    let status = filtered(&[libc::SYS_pipe2], rejecting(libc::EPERM), run);
    let stdout = std::fs::read(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let status = match status {
        Ok(status) => status,
        Err(error) => return skipped("seccomp", "a system call filter", &error.to_string()),
    };
    let after = Diagnosis::read(&Output { status, stdout, stderr: Vec::new() });
    assert_eq!(after.to_mend(), std::collections::BTreeSet::from(["seccomp".to_owned()]), "{after:#?}");
    assert_eq!(after.code, Some(3), "{after:#?}");
    assert!(after.check("seccomp")["detail"].as_str().unwrap().contains("pipe2"), "{after:#?}");
}

#[test]
fn filter_that_ends_processes() {
    let before = diagnose(&[]);
    let Some(after) = diagnose_filtered(&[libc::SYS_userfaultfd], libc::SECCOMP_RET_KILL_PROCESS) else { return };
    after.names_only(&before, "seccomp", "ends processes that call userfaultfd", "");
    let userfaultfd = after.check("userfaultfd");
    assert!(userfaultfd["cause"] == "seccomp" && userfaultfd["state"] == "missing", "{userfaultfd:#}");
    assert!(userfaultfd["detail"].as_str().unwrap().contains("SIGSYS"), "{userfaultfd:#}");
    assert_eq!(after.code, before.code, "{}", after.errors);
}
