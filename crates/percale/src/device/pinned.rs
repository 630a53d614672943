//! Pinned memory of the host, kept for the next transfer.
//!
//! Pinning costs as much as copying megabytes, so buffers go back to a pool, by sizes that are powers of two. The pool keeps at most
//! [`KEPT`] bytes; what does not fit is freed. Lock: the pool's own, held for no call of the driver.

#![expect(unsafe_code, reason = "frees what it allocated; each block says why nobody uses it")]

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use super::driver::{DeviceError, Driver};
use super::kind::{Interface, Kind};
use crate::memory::forked::{PerProcess, Process};
use crate::memory::volatile::Segment;

/// The shortest buffer.
const LEAST: usize = 4096;
/// The most bytes that are kept while nobody uses them.
const KEPT: usize = 256 << 20;

#[derive(Debug, Default)]
struct Pool {
    free: HashMap<(Interface, usize), Vec<Segment>>,
    bytes: usize,
}

/// What a forked child inherits was pinned for its parent's device.
static POOL: PerProcess<Mutex<Pool>> = PerProcess::new();

fn with<R>(pool: &Mutex<Pool>, then: impl FnOnce(&mut Pool) -> R) -> R {
    then(&mut pool.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Pinned memory, for one transfer: back to the pool when dropped.
#[derive(Debug)]
pub(crate) struct Pinned {
    driver: &'static dyn Driver,
    memory: Segment,
    len: usize,
    process: Process,
}

/// So many bytes of pinned memory. What is in there is of no meaning.
///
/// # Errors
/// What the driver says.
pub(crate) fn pinned(driver: &'static dyn Driver, len: usize) -> Result<Pinned, DeviceError> {
    let room = len.max(LEAST).checked_next_power_of_two();
    let none = |text: String| DeviceError::Driver { function: "pinned memory", code: 0, text, memory: true };
    let room = room.ok_or_else(|| none("more than there can be".to_owned()))?;
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
        None => driver.allocate(Kind::Pinned, 0, room)?,
    };
    Ok(Pinned { driver, memory, len, process })
}

impl Pinned {
    /// The bytes that were asked for. To be used while this is there, by one transfer.
    #[must_use]
    pub(crate) fn segment(&self) -> Segment {
        self.memory.slice(0, self.len)
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // In a forked child it is not the driver's memory.
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
            // SAFETY: it came from there, and who had it is done.
            unsafe { self.driver.free(Kind::Pinned, 0, memory) };
        }
    }
}
