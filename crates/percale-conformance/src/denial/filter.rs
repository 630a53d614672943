//! A system call filter (seccomp) that makes one call fail.

#![expect(unsafe_code, reason = "prctl and seccomp have no safe wrappers here; each block states its own reason")]

use super::calls::{DeniedCalls, SystemCall};

const LOAD: u16 = 0x20;
const EQUAL: u16 = 0x15;
const GREATER: u16 = 0x25;
const RETURN: u16 = 0x06;
const ALLOW: u32 = 0x7fff_0000;
const ERRNO: u32 = 0x0005_0000;
/// The offset of the call number in `struct seccomp_data`, and the offset of the lower half of an argument.
const NUMBER: u32 = 0;
const fn argument(index: u32) -> u32 {
    16 + 8 * index
}

const fn step(code: u16, k: u32, jt: u8, jf: u8) -> libc::sock_filter {
    libc::sock_filter { code, jt, jf, k }
}

/// Makes the call fail with this error in every thread of this process, from now on.
///
/// # Errors
/// Fails if the system does not permit filters.
pub fn deny(call: &SystemCall, error: i32) -> std::io::Result<()> {
    let fail = step(RETURN, ERRNO | error.unsigned_abs(), 0, 0);
    let mut program = vec![step(LOAD, NUMBER, 0, 0)];
    match call.which {
        DeniedCalls::All => program.push(step(EQUAL, call.number as u32, 0, 1)),
        DeniedCalls::OwnDescriptors => program.extend([
            step(EQUAL, call.number as u32, 0, 3),
            step(LOAD, argument(0), 0, 0),
            step(GREATER, 2, 0, 1),
        ]),
        DeniedCalls::OfDescriptors => program.extend([
            step(EQUAL, call.number as u32, 0, 3),
            step(LOAD, argument(4), 0, 0),
            step(EQUAL, u32::MAX, 1, 0),
        ]),
        DeniedCalls::SharedWords => program.extend([
            step(EQUAL, call.number as u32, 0, 3),
            step(LOAD, argument(1), 0, 0),
            step(GREATER, 1, 1, 0),
        ]),
    }
    program.extend([fail, step(RETURN, ALLOW, 0, 0)]);
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the call changes only this process.
    if unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } != 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: the filter is read only during the call. All threads get it (flag 1: TSYNC).
    match unsafe { libc::syscall(libc::SYS_seccomp, 1, 1, &raw const filter) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}
