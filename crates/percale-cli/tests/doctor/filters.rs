//! Environments with a system call filter.

use percale_conformance::skipped;

use crate::diagnosis::{Diagnosis, diagnose};
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
