//! Causes a thread of another process to execute a system call, as a debugger does (ptrace(2)).
#![expect(
    unsafe_code,
    reason = "stops a thread of another process and changes its registers; each block states why it is sound"
)]

use std::io;
use std::ptr::{null_mut, without_provenance_mut};

use libc::{c_int, c_uint, c_void, iovec, pid_t, user_regs_struct};

/// A stopped thread, with its original registers once they are read.
struct Stopped {
    thread: pid_t,
    registers: Option<user_regs_struct>,
}

/// Causes the first thread of a process to execute the system call `call[0]`, with the rest of `call` as arguments. The
/// thread then continues its previous work. `instruction` is the address of the instruction for system calls in its memory.
pub(super) fn inject(process: i32, instruction: u64, call: [u64; 7]) -> io::Result<u64> {
    let (stopped, mut registers) = Stopped::stop(process)?;
    processor::prepare(&mut registers, instruction, call);
    stopped.set(registers)?;
    // A signal also stops the thread before the call. The signal is suppressed, because the process does not need the
    // signals that may arrive here.
    while {
        request(libc::PTRACE_SINGLESTEP, process, 0, null_mut())?;
        wait(process)? != Stop::Signal(libc::SIGTRAP)
    } {}
    let answer = processor::result(&registers_of(process)?);
    drop(stopped);
    match answer {
        -4095..0 => Err(io::Error::from_raw_os_error(-answer as i32)),
        _ => Ok(answer as u64),
    }
}

/// Returns the address of an instruction for system calls in the C library, if one is found.
pub(super) fn instruction() -> Option<u64> {
    let start = libc::syscall as *const u8;
    // SAFETY: this is code of the C library, which is readable; more code follows if the function is shorter.
    let code = unsafe { std::slice::from_raw_parts(start, 64) };
    let offset = code.windows(processor::SYSTEM_CALL.len()).position(|bytes| bytes == processor::SYSTEM_CALL)?;
    Some((start.addr() + offset) as u64)
}

/// The registers of system calls.
#[cfg(target_arch = "x86_64")]
mod processor {
    use libc::user_regs_struct;

    /// `syscall`.
    pub(super) const SYSTEM_CALL: [u8; 2] = [0x0f, 0x05];

    /// Sets the registers so that the instruction at this address makes the call.
    pub(super) fn prepare(registers: &mut user_regs_struct, instruction: u64, call: [u64; 7]) {
        let [number, a, b, c, d, e, f] = call;
        (registers.rip, registers.rax) = (instruction, number);
        (registers.rdi, registers.rsi, registers.rdx) = (a, b, c);
        (registers.r10, registers.r8, registers.r9) = (d, e, f);
        // This prevents the kernel from restarting the interrupted call before the original registers are restored.
        registers.orig_rax = u64::MAX;
    }

    /// Returns the result of the call.
    pub(super) fn result(registers: &user_regs_struct) -> i64 {
        registers.rax.cast_signed()
    }
}

/// The registers of system calls.
#[cfg(target_arch = "aarch64")]
mod processor {
    use libc::user_regs_struct;

    /// `svc #0`.
    pub(super) const SYSTEM_CALL: [u8; 4] = 0xd400_0001_u32.to_le_bytes();

    /// Sets the registers so that the instruction at this address makes the call. The kernel has already decided how the
    /// interrupted call is restarted, by the original registers.
    pub(super) fn prepare(registers: &mut user_regs_struct, instruction: u64, call: [u64; 7]) {
        let [number, arguments @ ..] = call;
        registers.pc = instruction;
        registers.regs[8] = number;
        registers.regs[..6].copy_from_slice(&arguments);
    }

    /// Returns the result of the call.
    pub(super) fn result(registers: &user_regs_struct) -> i64 {
        registers.regs[0].cast_signed()
    }
}

impl Stopped {
    /// Stops a thread. Also returns its registers.
    fn stop(thread: pid_t) -> io::Result<(Self, user_regs_struct)> {
        request(libc::PTRACE_SEIZE, thread, 0, null_mut())?;
        // Dropping this detaches from the thread, even if a later step fails.
        let mut stopped = Self { thread, registers: None };
        request(libc::PTRACE_INTERRUPT, thread, 0, null_mut())?;
        while wait(thread)? != Stop::Interrupted {
            request(libc::PTRACE_CONT, thread, 0, null_mut())?;
        }
        let registers = registers_of(thread)?;
        stopped.registers = Some(registers);
        Ok((stopped, registers))
    }

    fn set(&self, mut registers: user_regs_struct) -> io::Result<()> {
        exchange_registers(libc::PTRACE_SETREGSET, self.thread, &mut registers)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        if let Some(registers) = self.registers {
            self.set(registers).ok();
        }
        request(libc::PTRACE_DETACH, self.thread, 0, null_mut()).ok();
    }
}

fn registers_of(thread: pid_t) -> io::Result<user_regs_struct> {
    // SAFETY: registers are integers, for which zero is valid.
    let mut registers = unsafe { std::mem::zeroed() };
    exchange_registers(libc::PTRACE_GETREGSET, thread, &mut registers)?;
    Ok(registers)
}

/// Makes a request that reads or writes all general registers.
fn exchange_registers(what: c_uint, thread: pid_t, registers: &mut user_regs_struct) -> io::Result<()> {
    let mut part = iovec { iov_base: (&raw mut *registers).cast(), iov_len: size_of::<user_regs_struct>() };
    request(what, thread, libc::NT_PRSTATUS as usize, (&raw mut part).cast())
}

fn request(what: c_uint, thread: pid_t, address: usize, data: *mut c_void) -> io::Result<()> {
    // SAFETY: each request here takes no data, or registers that live until the call returns. The caller is responsible
    // for the effect on the other process.
    let answer = unsafe { libc::ptrace(what, thread, without_provenance_mut::<c_void>(address), data) };
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
