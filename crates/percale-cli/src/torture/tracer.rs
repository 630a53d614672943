//! Has a thread of another process make a system call, as a debugger does (ptrace(2)).
#![expect(
    unsafe_code,
    reason = "stops a thread of another process and changes its registers; each block states why it is sound"
)]

use std::io;

use libc::{c_int, c_uint, c_void, pid_t, user_regs_struct};

/// A thread that is stopped, with its registers as they were.
struct Stopped {
    thread: pid_t,
    registers: user_regs_struct,
}

/// The process' first thread makes system call `call[0]` with the rest as its arguments, and goes on with what it did. `instruction` is where in
/// its memory a `syscall` instruction lies.
pub(super) fn inject(process: i32, instruction: u64, call: [u64; 7]) -> io::Result<u64> {
    let stopped = Stopped::stop(process)?;
    let mut registers = stopped.registers;
    let [number, a, b, c, d, e, f] = call;
    (registers.rip, registers.rax) = (instruction, number);
    (registers.rdi, registers.rsi, registers.rdx) = (a, b, c);
    (registers.r10, registers.r8, registers.r9) = (d, e, f);
    // The call that was interrupted is made again only once its own registers are back.
    registers.orig_rax = u64::MAX;
    stopped.set(&registers)?;
    // A signal stops the thread before the call as well. It is suppressed: the process needs none of those that may arrive here.
    while {
        request(libc::PTRACE_SINGLESTEP, process, std::ptr::null_mut())?;
        wait(process)? != Stop::Signal(libc::SIGTRAP)
    } {}
    let answer = registers_of(process)?.rax as i64;
    drop(stopped);
    match answer {
        -4095..0 => Err(io::Error::from_raw_os_error(-answer as i32)),
        _ => Ok(answer as u64),
    }
}

/// Where a `syscall` instruction lies in the C library, if one is found.
pub(super) fn instruction() -> Option<u64> {
    let start = libc::syscall as *const u8;
    // SAFETY: the function is longer than this, and its code is readable.
    let code = unsafe { std::slice::from_raw_parts(start, 32) };
    let offset = code.windows(2).position(|bytes| bytes == [0x0f, 0x05])?;
    Some((start.addr() + offset) as u64)
}

impl Stopped {
    fn stop(thread: pid_t) -> io::Result<Self> {
        request(libc::PTRACE_SEIZE, thread, std::ptr::null_mut())?;
        // Ended by detaching, whatever else fails.
        let mut stopped = Self { thread, registers: no_registers() };
        request(libc::PTRACE_INTERRUPT, thread, std::ptr::null_mut())?;
        while wait(thread)? != Stop::Interrupted {
            request(libc::PTRACE_CONT, thread, std::ptr::null_mut())?;
        }
        stopped.registers = registers_of(thread)?;
        Ok(stopped)
    }

    fn set(&self, registers: &user_regs_struct) -> io::Result<()> {
        request(libc::PTRACE_SETREGS, self.thread, (&raw const *registers).cast_mut().cast())
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        // If it was not stopped, there is nothing to be put back.
        if self.registers.rip != 0 {
            self.set(&self.registers).ok();
        }
        request(libc::PTRACE_DETACH, self.thread, std::ptr::null_mut()).ok();
    }
}

fn no_registers() -> user_regs_struct {
    // SAFETY: registers are numbers.
    unsafe { std::mem::zeroed() }
}

fn registers_of(thread: pid_t) -> io::Result<user_regs_struct> {
    let mut registers = no_registers();
    request(libc::PTRACE_GETREGS, thread, (&raw mut registers).cast())?;
    Ok(registers)
}

fn request(what: c_uint, thread: pid_t, data: *mut c_void) -> io::Result<()> {
    // SAFETY: each request here takes no data, or registers, which live through the call; what the other process does then is the caller's.
    let answer = unsafe { libc::ptrace(what, thread, std::ptr::null_mut::<c_void>(), data) };
    if answer == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Why a thread has stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    /// By PTRACE_INTERRUPT.
    Interrupted,
    /// For the delivery of this signal; SIGTRAP after a single step.
    Signal(c_int),
}

/// Waits until the thread has stopped.
fn wait(thread: pid_t) -> io::Result<Stop> {
    let mut status: c_int = 0;
    // SAFETY: the status is where the kernel may write it.
    if unsafe { libc::waitpid(thread, &raw mut status, libc::__WALL) } == -1 {
        return Err(io::Error::last_os_error());
    }
    match (libc::WIFSTOPPED(status), status >> 16) {
        (false, _) => Err(io::Error::other("the process has ended")),
        (true, libc::PTRACE_EVENT_STOP) => Ok(Stop::Interrupted),
        (true, _) => Ok(Stop::Signal(libc::WSTOPSIG(status))),
    }
}
