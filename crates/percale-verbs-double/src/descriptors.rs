//! Descriptors that a forked child closes, and counters that have a descriptor.

use std::ffi::c_int;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, Ordering};

/// A part of the list of descriptors. It has no lock, because a forked child walks it.
struct Part {
    /// The descriptors, and -1 in free places.
    descriptors: [AtomicI32; 512],
    next: OnceLock<Box<Part>>,
}

impl Part {
    const fn new() -> Self {
        Self { descriptors: [const { AtomicI32::new(-1) }; 512], next: OnceLock::new() }
    }

    /// Records a descriptor in a free place. Returns false if there is no free place.
    fn records(&self, fd: c_int) -> bool {
        self.descriptors.iter().any(|one| one.compare_exchange(-1, fd, Ordering::Relaxed, Ordering::Relaxed).is_ok())
    }
}

/// Descriptors that a forked child closes.
static INHERITED: Part = Part::new();

/// Returns all places of the list.
fn inherited() -> impl Iterator<Item = &'static AtomicI32> {
    std::iter::successors(Some(&INHERITED), |part| part.next.get().map(Box::as_ref)).flat_map(|part| &part.descriptors)
}

/// Records a descriptor that children must not keep.
pub(crate) fn private(fd: c_int) {
    let mut part = &INHERITED;
    while !part.records(fd) {
        part = part.next.get_or_init(|| Box::new(Part::new()));
    }
}

/// Removes a descriptor from the list. Its owner closes it.
pub(crate) fn unlist(fd: c_int) {
    for one in inherited() {
        _ = one.compare_exchange(fd, -1, Ordering::Relaxed, Ordering::Relaxed);
    }
}

/// Closes a descriptor of the list.
pub(crate) fn close(fd: c_int) {
    unlist(fd);
    // SAFETY: only the owner calls this function, once.
    unsafe { libc::close(fd) };
}

/// Closes all descriptors of the list, in a forked child.
pub(crate) extern "C" fn in_child() {
    for one in inherited() {
        let fd = one.swap(-1, Ordering::Relaxed);
        if fd >= 0 {
            // SAFETY: the descriptor belongs to the parent, and nothing in the child uses it.
            unsafe { libc::close(fd) };
        }
    }
}

/// Creates a counter with a descriptor.
pub(crate) fn counter(flags: c_int) -> Result<c_int, c_int> {
    // SAFETY: eventfd has no preconditions.
    let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | flags) };
    if fd < 0 { Err(last()) } else { Ok(fd) }
}

/// Adds one to a counter.
pub(crate) fn add(fd: c_int) {
    let one = 1u64.to_ne_bytes();
    // SAFETY: the bytes are valid for the call, and the descriptor belongs to the caller.
    unsafe { libc::write(fd, one.as_ptr().cast(), one.len()) };
}

/// Takes one from a counter. If the counter is 0, waits, unless the descriptor is non-blocking.
pub(crate) fn take(fd: c_int) -> Result<(), c_int> {
    let mut count = [0; 8];
    // SAFETY: the bytes are valid for the call, and the descriptor belongs to the caller.
    let read = unsafe { libc::read(fd, count.as_mut_ptr().cast(), count.len()) };
    if read == 8 { Ok(()) } else { Err(last()) }
}

/// Returns the last errno.
pub(crate) fn last() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_closes_any_number_of_descriptors() {
        // Numbers that no descriptor has.
        let numbers = 1_000_000..1_001_200;
        let listed = || inherited().filter(|one| numbers.contains(&one.load(Ordering::Relaxed))).count();
        numbers.clone().for_each(private);
        assert_eq!(listed(), numbers.len());
        // SAFETY: the child makes only system calls, and closes the descriptors that it has inherited.
        let child = unsafe { libc::fork() };
        if child == 0 {
            in_child();
            // SAFETY: the child ends without running the parent's destructors.
            unsafe { libc::_exit(i32::from(listed() > 0)) };
        }
        let mut status = -1;
        // SAFETY: the child belongs to this test.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0, "the child has not closed all descriptors");
        numbers.clone().for_each(unlist);
        assert_eq!(listed(), 0);
    }
}
