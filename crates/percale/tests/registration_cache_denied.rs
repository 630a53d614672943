//! Tests a monitor that is not permitted. This is a separate program, because a process that has opened the monitor
//! keeps it.

#![expect(unsafe_code, reason = "a filter of system calls for one thread; each block states its own reason")]

use percale::device::BufferTable;
use percale::domain::OpenedCache;
use percale::pindown::{Access, Range};
use percale::{CacheMonitor, CacheSettings, Info};

/// Makes this system call fail with EPERM in the calling thread.
fn forbid(call: libc::c_long) {
    // SAFETY: creates an instruction of the filter by value.
    let statement = |code: u32, k: u32| unsafe { libc::BPF_STMT(code as u16, k) };
    // SAFETY: as above.
    let jump = unsafe { libc::BPF_JUMP((libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16, call as u32, 0, 1) };
    let mut filter = [
        // The number of the system call is the first field of seccomp_data.
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0),
        jump,
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the call takes no pointer.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }, 0);
    // SAFETY: the kernel copies the program, which lives until this returns.
    let set = unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) };
    assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
}

/// Requirements: RCACHE-011.
#[test]
fn a_monitor_that_is_not_available_turns_caching_off_with_a_warning() {
    let table = match BufferTable::new(8) {
        Ok(table) => table,
        Err(why) => return eprintln!("SKIPPED (io_uring): {why}"),
    };
    let settings = CacheSettings::default().monitor(CacheMonitor::Userfaultfd).no_unseen_changes();
    let domain = Info::discover().expect("found").domain().registration_cache(settings.clone()).open().expect("opens");
    forbid(libc::SYS_userfaultfd);
    let OpenedCache { cache, notes } =
        domain.open_cache(&settings, table.clone()).expect("a cache without userfaultfd");
    assert_eq!(cache.monitor(), "none");
    assert!(notes.len() == 1 && notes[0].warning, "{notes:?}");
    assert!(notes[0].to_string().contains("the monitor userfaultfd is not available"), "{notes:?}");
    let memory = vec![1_u8; 10_000];
    let lane = cache.lane();
    for round in 1..5 {
        lane.end(lane.get(Range::of(&memory).expect("bytes"), Access::LOCAL_WRITE).expect("registered"));
        assert_eq!((table.made(), table.registered()), (round, 0), "registered and deregistered");
    }
}
