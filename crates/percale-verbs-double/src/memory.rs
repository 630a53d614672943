//! Copies to and from memory of this process, as a device makes them. Memory that is no longer mapped is skipped.

use std::ffi::c_void;

/// The system call that copies within this process: `process_vm_readv` or `process_vm_writev`.
type Copy = unsafe extern "C" fn(
    libc::pid_t,
    *const libc::iovec,
    libc::c_ulong,
    *const libc::iovec,
    libc::c_ulong,
    libc::c_ulong,
) -> isize;

/// Returns the number of bytes that the kernel copied, or `None` if the kernel does not copy between processes on this
/// system.
fn copy(by: Copy, own: *mut c_void, address: u64, len: usize) -> Option<usize> {
    let own = libc::iovec { iov_base: own, iov_len: len };
    let there = libc::iovec { iov_base: std::ptr::with_exposed_provenance_mut(address as usize), iov_len: len };
    // SAFETY: getpid has no preconditions.
    let me = unsafe { libc::getpid() };
    // SAFETY: `own` is memory of the caller with this many bytes. The kernel checks the memory at `there`, which the
    // application has registered for such copies.
    let copied = unsafe { by(me, &raw const own, 1, &raw const there, 1, 0) };
    if copied >= 0 {
        return Some(copied.unsigned_abs());
    }
    let error = std::io::Error::last_os_error().raw_os_error();
    (error == Some(libc::EFAULT)).then_some(0)
}

/// Writes bytes to registered memory.
pub(crate) fn write(address: u64, bytes: &[u8]) {
    if !bytes.is_empty()
        && copy(libc::process_vm_writev, bytes.as_ptr().cast_mut().cast(), address, bytes.len()).is_none()
    {
        let to = std::ptr::with_exposed_provenance_mut::<u8>(address as usize);
        // SAFETY: the memory is registered, so the application permits the device to write it. `bytes` belongs to this
        // library.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
    }
}

/// Reads registered memory. Unmapped parts are read as zeros.
pub(crate) fn read(address: u64, len: usize, into: &mut Vec<u8>) {
    let start = into.len();
    into.resize(start + len, 0);
    let own = &mut into[start..];
    if len > 0 && copy(libc::process_vm_readv, own.as_mut_ptr().cast(), address, len).is_none() {
        let from = std::ptr::with_exposed_provenance::<u8>(address as usize);
        // SAFETY: the memory is registered, so the application permits the device to read it. `own` belongs to this
        // library.
        unsafe { std::ptr::copy_nonoverlapping(from, own.as_mut_ptr(), len) };
    }
}

/// Returns whether all pages are mapped, and writable if that is required. Makes them present.
pub(crate) fn is_there(address: u64, len: usize, written: bool) -> bool {
    // SAFETY: sysconf has no preconditions.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) }.unsigned_abs();
    let start = address / page * page;
    let Some(end) = address.checked_add(len as u64).and_then(|end| end.checked_next_multiple_of(page)) else {
        return false;
    };
    let advice = if written { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
    let first = std::ptr::with_exposed_provenance_mut(start as usize);
    // SAFETY: the advice does not change memory contents.
    unsafe { libc::madvise(first, (end - start) as usize, advice) == 0 }
}
