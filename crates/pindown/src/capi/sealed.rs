//! Sealed memory, identified by its address.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::error::{Failure, answer};
use super::place;
use crate::monitor::sealed::Sealed;

/// Allocated blocks, by their first address.
static BLOCKS: Mutex<BTreeMap<usize, Sealed>> = Mutex::new(BTreeMap::new());

/// The process that owns these blocks. Sealed memory is shared with a forked child, which must not allocate it again.
static OWNER: AtomicU32 = AtomicU32::new(0);

fn blocks() -> Result<MutexGuard<'static, BTreeMap<usize, Sealed>>, Failure> {
    let own = std::process::id();
    match OWNER.compare_exchange(0, own, Ordering::Relaxed, Ordering::Relaxed) {
        Err(owner) if owner != own => {
            let why = "sealed memory belongs to the parent process of this fork: a child cannot allocate or free it";
            Err(Failure::new(libc::ECHILD, why))
        }
        _ => Ok(BLOCKS.lock().unwrap_or_else(PoisonError::into_inner)),
    }
}

/// Allocates sealed memory.
#[cfg_attr(feature = "c-symbols", unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn pindown_alloc(length: usize, memory: *mut *mut c_void) -> c_int {
    answer((|| {
        let place = place(memory, "memory")?;
        if length == 0 {
            return Err(Failure::invalid("cannot allocate 0 bytes of sealed memory; request at least one"));
        }
        if length > isize::MAX as usize / 2 {
            return Err(Failure::new(libc::ENOMEM, format!("{length} bytes exceed the address space")));
        }
        let mut blocks = blocks()?;
        let mut sealed = Sealed::new(length)?;
        let start = sealed.as_mut_ptr();
        blocks.insert(start.addr(), sealed);
        // SAFETY: not null, and the caller guarantees that a pointer may be written there.
        unsafe { place.write(start.cast()) };
        Ok(0)
    })())
}

/// Frees sealed memory. A later `pindown_alloc` may reuse it.
#[cfg_attr(feature = "c-symbols", unsafe(no_mangle))]
pub(crate) extern "C" fn pindown_free(memory: *mut c_void) -> c_int {
    answer((|| {
        if memory.is_null() {
            return Ok(0);
        }
        match blocks()?.remove(&memory.addr()) {
            Some(_) => Ok(0),
            None => {
                Err(Failure::invalid(format!("{memory:?} was not allocated by pindown_alloc, or was already freed")))
            }
        }
    })())
}
