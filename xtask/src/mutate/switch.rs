//! Selects one mutation of a program that contains many, and records which places of mutations were reached.
//!
//! `cargo xtask mutate` adds this file as a crate to its copy of the workspace. The environment selects the mutation
//! (PERCALE_MUTATION, a number) and names a file (PERCALE_MUTATION_REACHED), which has one byte for each
//! mutation. It is mapped before `main` starts, because tests close descriptors, replace the allocator, and deny
//! system calls. Programs that a test executes inherit the variables, and forked children share the mapping.

use std::ffi::c_void;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::ptr::{self, null_mut};
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicUsize, Ordering::Relaxed};

static SELECTED: AtomicUsize = AtomicUsize::new(usize::MAX);
static REACHED: AtomicPtr<AtomicU8> = AtomicPtr::new(null_mut());
static LEN: AtomicUsize = AtomicUsize::new(0);

unsafe extern "C" {
    fn mmap(at: *mut c_void, len: usize, access: i32, flags: i32, file: i32, offset: i64) -> *mut c_void;
}

#[used]
// SAFETY: the section holds pointers to functions of this type, which the loader calls.
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = {
    extern "C" fn start() {
        if let Some(number) = std::env::var("PERCALE_MUTATION").ok().and_then(|text| text.parse().ok()) {
            SELECTED.store(number, Relaxed);
        }
        let Some(path) = std::env::var_os("PERCALE_MUTATION_REACHED") else { return };
        let Ok(file) = File::options().read(true).write(true).open(path) else { return };
        let Ok(len) = file.metadata().map(|file| file.len() as usize) else { return };
        // Read and write, shared.
        // SAFETY: the kernel chooses the address of a new mapping.
        let mapped = unsafe { mmap(ptr::null_mut(), len, 1 | 2, 1, file.as_raw_fd(), 0) };
        if mapped.addr() != usize::MAX {
            LEN.store(len, Relaxed);
            REACHED.store(mapped.cast(), Relaxed);
        }
    }
    start
};

/// Returns whether this mutation is selected.
#[inline]
pub fn is_on(mutation: usize) -> bool {
    SELECTED.load(Relaxed) == mutation
}

/// Records that the place of this mutation was reached.
#[inline]
pub fn reach(mutation: usize) {
    let reached = REACHED.load(Relaxed);
    if !reached.is_null() && mutation < LEN.load(Relaxed) {
        // SAFETY: the mapping has `LEN` bytes and is never removed.
        unsafe { &*reached.add(mutation) }.store(1, Relaxed);
    }
}
