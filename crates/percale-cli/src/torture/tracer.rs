//! Causes a thread of another process to execute a system call, as a debugger does (ptrace(2)).
#![expect(
    unsafe_code,
    reason = "stops a thread of another process and changes its registers; each block states why it is sound"
)]

use std::io;

use libc::{c_int, c_uint, c_void, pid_t, user_regs_struct};

/// A stopped thread, with its original registers.
struct Stopped {
    thread: pid_t,
    registers: user_regs_struct,
}

/// Causes the first thread of a process to execute the system call `call[0]`, with the rest of `call` as arguments. The
/// thread then continues its previous work. `instruction` is the address of a `syscall` instruction in its memory.
pub(super) fn inject(process: i32, instruction: u64, call: [u64; 7]) -> io::Result<u64> {
    let stopped = Stopped::stop(process)?;
    let mut registers = stopped.registers;
    let [number, a, b, c, d, e, f] = call;
    (registers.rip, registers.rax) = (instruction, number);
    (registers.rdi, registers.rsi, registers.rdx) = (a, b, c);
    (registers.r10, registers.r8, registers.r9) = (d, e, f);
    // This prevents the kernel from restarting the interrupted call before the original registers are restored.
    registers.orig_rax = u64::MAX;
    stopped.set(&registers)?;
    // A signal also stops the thread before the call. The signal is suppressed, because the process does not need the
    // signals that may arrive here.
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

/// Returns the address of a `syscall` instruction in the C library, if one is found.
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
        // Dropping this detaches from the thread, even if a later step fails.
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
        // If the thread was not stopped, there are no registers to restore.
        if self.registers.rip != 0 {
            self.set(&self.registers).ok();
        }
        request(libc::PTRACE_DETACH, self.thread, std::ptr::null_mut()).ok();
    }
}

fn no_registers() -> user_regs_struct {
    // SAFETY: registers are integers, for which zero is valid.
    unsafe { std::mem::zeroed() }
}

fn registers_of(thread: pid_t) -> io::Result<user_regs_struct> {
    let mut registers = no_registers();
    request(libc::PTRACE_GETREGS, thread, (&raw mut registers).cast())?;
    Ok(registers)
}

fn request(what: c_uint, thread: pid_t, data: *mut c_void) -> io::Result<()> {
    // SAFETY: each request here takes no data, or registers that live until the call returns. The caller is responsible
    // for the effect on the other process.
    let answer = unsafe { libc::ptrace(what, thread, std::ptr::null_mut::<c_void>(), data) };
    if answer == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The reason why a thread has stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    /// PTRACE_INTERRUPT.
    Interrupted,
    /// The delivery of this signal. It is SIGTRAP after a single step.
    Signal(c_int),
}

/// Waits until the thread has stopped.
fn wait(thread: pid_t) -> io::Result<Stop> {
    let mut status: c_int = 0;
    // SAFETY: the kernel may write the status to the given variable.
    if unsafe { libc::waitpid(thread, &raw mut status, libc::__WALL) } == -1 {
        return Err(io::Error::last_os_error());
    }
    match (libc::WIFSTOPPED(status), status >> 16) {
        (false, _) => Err(io::Error::other("the process has ended")),
        (true, libc::PTRACE_EVENT_STOP) => Ok(Stop::Interrupted),
        (true, _) => Ok(Stop::Signal(libc::WSTOPSIG(status))),
    }
}
