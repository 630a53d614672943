//! Pinned memory of the host, which is kept for the next transfer.
//!
//! Pinning costs as much as copying megabytes, so buffers return to a pool, where they are sorted by size. Sizes are
//! powers of two. The pool keeps at most [`KEPT`] bytes. Buffers beyond that are freed. The lock of the pool is not
//! held during calls of the driver.
//!
//! The memory is mapped by this module and registered with the driver, not allocated by the driver. An application that
//! resets a device's context ends all allocations of the driver in this context. Memory that the driver allocated would
//! then be unmapped, and the application might soon reuse its addresses. Memory that is mapped here remains: copies
//! from and to it are slower when it is no longer registered, but still correct.

#![expect(
    unsafe_code,
    reason = "maps memory, registers it with a driver and unmaps it; each block states its own reason"
)]

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::{io, ptr};

use rustix::mm::{Advice, MapFlags, ProtFlags};

use super::driver::{DeviceError, Driver};
use super::kind::Interface;
use crate::local_memory::volatile::Segment;
use crate::system::forked::{PerProcess, Process};

/// The length of the shortest buffer.
const LEAST: usize = 4096;
/// The maximum number of bytes that are kept while not in use.
const KEPT: usize = 256 << 20;

#[derive(Debug, Default)]
struct Pool {
    free: HashMap<(Interface, usize), Vec<Segment>>,
    bytes: usize,
}

/// The pool of this process. Memory that a forked child inherits was pinned for its parent's device.
static POOL: PerProcess<Mutex<Pool>> = PerProcess::new();

fn with<R>(pool: &Mutex<Pool>, then: impl FnOnce(&mut Pool) -> R) -> R {
    then(&mut pool.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Pinned memory for one transfer. It returns to the pool when it is dropped.
#[derive(Debug)]
pub struct Pinned {
    driver: &'static dyn Driver,
    memory: Segment,
    len: usize,
    process: Process,
}

/// Returns `len` bytes of pinned memory with unspecified contents.
///
/// # Errors
/// If the system does not provide the memory.
pub fn pinned(driver: &'static dyn Driver, len: usize) -> Result<Pinned, DeviceError> {
    let room = len.max(LEAST).checked_next_power_of_two();
    let none = |text: String| DeviceError::Driver { function: "pinned memory", code: 0, text, memory: true };
    let room = room.ok_or_else(|| none("the length exceeds the address space".to_owned()))?;
    let class = (driver.interface(), room);
    let own = || Ok((Process::current()?, POOL.get_or_make()?));
    let (process, pool) = own().map_err(|error: std::io::Error| none(error.to_string()))?;
    let kept = with(pool, |pool| {
        let memory = pool.free.get_mut(&class)?.pop()?;
        pool.bytes -= room;
        Some(memory)
    });
    let memory = match kept {
        Some(memory) => memory,
        None => map(driver, room).map_err(|error| none(error.to_string()))?,
    };
    Ok(Pinned { driver, memory, len, process })
}

impl Pinned {
    /// Returns the requested bytes. They may be used while this object exists, by one transfer.
    #[must_use]
    #[inline]
    pub fn segment(&self) -> Segment {
        self.memory.slice(0, self.len)
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // In a forked child the memory is not registered with the driver.
        let Some(pool) = POOL.get().filter(|_| self.process.is_here()) else { return };
        let (memory, class) = (self.memory, (self.driver.interface(), self.memory.len()));
        let kept = with(pool, |pool| {
            let fits = pool.bytes + memory.len() <= KEPT;
            if fits {
                pool.bytes += memory.len();
                pool.free.entry(class).or_default().push(memory);
            }
            fits
        });
        if !kept {
            // SAFETY: the memory was mapped for the pool, is no longer in the pool, and the transfer that used it has
            // ended.
            unsafe { unmap(self.driver, memory) };
        }
    }
}

/// Maps `len` bytes and registers them with the driver. Forked children do not inherit them. Otherwise a write by
/// either process would copy a page, and the device would continue to use the old page.
fn map(driver: &'static dyn Driver, len: usize) -> io::Result<Segment> {
    let allowed = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address that the kernel chooses does not affect existing memory.
    let address = unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), len, allowed, MapFlags::PRIVATE) }?;
    // SAFETY: the range was just mapped; the advice only changes what a child inherits.
    unsafe { rustix::mm::madvise(address, len, Advice::LinuxDontFork) }?;
    // SAFETY: it stays mapped until `unmap`.
    let memory = unsafe { Segment::new(address.cast(), len) };
    // SAFETY: as above; `unmap` ends the registration first.
    if let Err(error) = unsafe { driver.register_host(memory) } {
        crate::later::later!(debug: %error, "cannot pin staging memory; transfers will be slower");
    }
    Ok(memory)
}

/// Unregisters and unmaps memory.
///
/// # Safety
/// The memory came from [`map`], and no copy uses it.
unsafe fn unmap(driver: &'static dyn Driver, memory: Segment) {
    if let Err(error) = driver.unregister_host(memory) {
        crate::later::later!(debug: %error, "cannot unregister pinned memory");
    }
    // SAFETY: `map` mapped the whole range, and the caller guarantees that it is unused.
    if let Err(error) = unsafe { rustix::mm::munmap(memory.as_ptr().cast(), memory.len()) } {
        crate::later::later!(error: %error, "munmap of pinned memory failed");
    }
}
