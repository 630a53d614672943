//! System call filters (seccomp) for child processes.

#![expect(unsafe_code, reason = "prctl has no safe wrapper for filters; each block states its own reason")]

use std::io;

const fn step(code: u32, k: u32, jt: u8, jf: u8) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt, jf, k }
}

/// Runs `run` in a thread in which these calls have the result `action` (SECCOMP_RET_*). Processes that it starts have
/// the same filter. The other threads of this process do not have it.
///
/// # Errors
/// Fails if the system does not permit filters.
pub(crate) fn filtered<T: Send>(calls: &[libc::c_long], action: u32, run: impl FnOnce() -> T + Send) -> io::Result<T> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            install(calls, action)?;
            Ok(run())
        });
        thread.join().expect("the thread returns")
    })
}

fn install(calls: &[libc::c_long], action: u32) -> io::Result<()> {
    let load = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    let equal = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    let end = libc::BPF_RET | libc::BPF_K;
    // The number of the system call is the first word of the filter's input. Each comparison jumps to the last step.
    let mut steps = vec![step(load, 0, 0, 0)];
    for (at, call) in calls.iter().enumerate() {
        steps.push(step(equal, *call as u32, (calls.len() - at) as u8, 0));
    }
    steps.extend([step(end, libc::SECCOMP_RET_ALLOW, 0, 0), step(end, action, 0, 0)]);
    let filter = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
    // SAFETY: the call takes only integers.
    if unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the filter points to its steps, which live until the call returns. The kernel copies them.
    if unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
