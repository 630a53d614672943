//! Operations that involve other processes and threads, various kinds of writes, and locks on all memory.

#![expect(unsafe_code, reason = "locks memory and truncates files; each block states why it is sound")]

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};

use super::{ExecutionMode, Operation, Tools};
use crate::limits::kernel::Foreign;
use crate::torture::fork::Fork;
use crate::torture::kinds::Trait;
use crate::torture::memory::Memory;

const fn any(
    name: &'static str,
    way: ExecutionMode,
    apply: fn(&mut Memory, &mut Tools) -> io::Result<()>,
) -> Operation {
    Operation { name, needs: &[], apply, way }
}

const fn own(name: &'static str, apply: fn(&mut Memory, &mut Tools) -> io::Result<()>) -> Operation {
    Operation { name, needs: &[Trait::Own], apply, way: ExecutionMode::Other }
}

pub(super) const ALL: &[Operation] = &[
    any("fork, child writes", ExecutionMode::Once, |memory, _| {
        let child = Fork::of(Some((memory.registered, memory.unit)))?;
        child.wait()
    }),
    any("fork, parent writes", ExecutionMode::Once, |memory, _| {
        // The child lives until the parent has written to the memory. The check of the memory does this.
        let child = Fork::that_waits()?;
        memory.children.push(child);
        Ok(())
    }),
    any("vfork and exec", ExecutionMode::Maps, |_, _| {
        let mut command = Command::new("/proc/self/exe");
        let status = command.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).status()?;
        if status.success() { Ok(()) } else { Err(io::Error::other(format!("the child ended with {status}"))) }
    }),
    any("thread starts and ends", ExecutionMode::Maps, |_, _| {
        let thread = std::thread::Builder::new().stack_size(64 << 20).spawn(|| {})?;
        thread.join().map_err(|_| io::Error::other("the thread panicked"))
    }),
    any("write to /proc/self/mem", ExecutionMode::Call, |memory, _| {
        let file = std::fs::File::options().write(true).open("/proc/self/mem")?;
        file.write_all_at(&vec![3; memory.registered.len() as usize], memory.registered.start())
    }),
    any("process_vm_writev", ExecutionMode::Call, |memory, _| {
        let process = rustix::process::getpid().as_raw_pid();
        let address = memory.registered.start();
        Foreign { process, address }.write(0, &vec![4; memory.registered.len() as usize])
    }),
    any("process_vm_writev by another process", ExecutionMode::Other, |memory, tools| {
        tools.helper()?.write(memory.registered)
    }),
    own("munmap by a debugger", |memory, tools| {
        tools.helper()?.call(libc::SYS_munmap, [memory.registered.start(), memory.registered.len(), 0, 0, 0, 0])
    }),
    own("madvise DONTNEED by a debugger", |memory, tools| {
        let advice = libc::MADV_DONTNEED as u64;
        tools.helper()?.call(libc::SYS_madvise, [memory.registered.start(), memory.registered.len(), advice, 0, 0, 0])
    }),
    any("mlockall and munlockall", ExecutionMode::Once, |_, _| {
        // SAFETY: the call locks pages in memory, which has no visible effect on the program.
        check(unsafe { libc::mlockall(libc::MCL_CURRENT) })?;
        // SAFETY: as above.
        check(unsafe { libc::munlockall() })
    }),
];

fn check(answer: libc::c_int) -> io::Result<()> {
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// A file handle in the form that open_by_handle_at(2) accepts.
#[repr(C)]
struct FileHandle {
    bytes: u32,
    kind: i32,
    handle: [u8; 128],
}

/// Calls open_by_handle_at(2) with O_TRUNC for the file of a descriptor.
pub(super) fn truncate_by_handle(file: BorrowedFd<'_>) -> io::Result<()> {
    let mut handle = FileHandle { bytes: 128, kind: 0, handle: [0; 128] };
    let (file, empty, mut mount) = (file.as_raw_fd(), c"".as_ptr(), 0_i32);
    let (handle, mount) = (&raw mut handle, &raw mut mount);
    // SAFETY: the handle has as much room as it specifies, and the kernel may write the mount ID to the given variable.
    let named = unsafe { libc::syscall(libc::SYS_name_to_handle_at, file, empty, handle, mount, libc::AT_EMPTY_PATH) };
    if named < 0 {
        return Err(io::Error::last_os_error());
    }
    let flags = libc::O_RDWR | libc::O_TRUNC | libc::O_CLOEXEC;
    // SAFETY: the kernel only reads the handle, which it filled in before.
    let opened = unsafe { libc::syscall(libc::SYS_open_by_handle_at, file, handle, flags) };
    if opened < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new, and has no other owner.
    drop(unsafe { OwnedFd::from_raw_fd(opened as i32) });
    Ok(())
}

/// Calls truncate(2).
pub(super) fn truncate(path: &str, len: u64) -> io::Result<()> {
    let path = CString::new(path)?;
    // SAFETY: the path is a string that ends with a zero byte.
    check(unsafe { libc::truncate(path.as_ptr(), len as libc::off_t) })
}
