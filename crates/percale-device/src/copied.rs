//! The pieces of an operation's memory, and copies of them.
//!
//! The memory that an operation reads or writes has up to [`IOV_LIMIT`] pieces, each of which belongs to the host or to
//! a device. Copies use pinned memory and are divided into [`STEP`]s. The device copies one step while the next one is
//! being started.

#![expect(unsafe_code, reason = "the driver copies memory of operations; each block states its own reason")]

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::driver::{Copies, CopyWay, DeviceError};
use super::handle::Device;
use super::kind::Interface;
use super::pinned::{Pinned, pinned};
use crate::local_memory::volatile::{IOV_LIMIT, Segment, Segments, SegmentsExt as _};

/// The number of bytes of one copy.
const STEP: usize = 4 << 20;

/// The device that owns each piece of an operation's memory, or `None` for the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pieces([Option<Device>; IOV_LIMIT]);

impl Pieces {
    /// Queries the loaded drivers. Returns `None` if all memory belongs to the host.
    pub fn find(memory: &Segments) -> Result<Option<Self>, DeviceError> {
        let mut pieces = Self::default();
        for (at, piece) in memory.as_slice().iter().enumerate().filter(|(_, piece)| !piece.is_empty()) {
            match Device::of(Interface::Cuda, *piece) {
                Ok(device) => pieces.0[at] = device,
                // Without a driver no memory belongs to a device.
                Err(DeviceError::Missing { .. }) => return Ok(None),
                Err(error) => return Err(error),
            }
        }
        Ok(pieces.first().map(|_| pieces))
    }

    /// Returns the value for memory that belongs entirely to this device.
    #[inline]
    pub const fn all(device: Device) -> Self {
        Self([Some(device); IOV_LIMIT])
    }

    /// Returns the device of each piece.
    #[inline]
    pub const fn all_of(&self) -> [Option<Device>; IOV_LIMIT] {
        self.0
    }

    /// Returns the devices that own pieces.
    #[inline]
    pub fn devices(&self) -> impl Iterator<Item = Device> {
        self.0.iter().flatten().copied()
    }

    /// Returns the first device that owns a piece.
    #[inline]
    pub fn first(&self) -> Option<Device> {
        self.devices().next()
    }

    /// Copies the memory to the host. For `offset` see [`aligned`].
    pub fn load(&self, memory: &Segments, offset: usize) -> Result<Option<Pinned>, DeviceError> {
        let Some(device) = self.first() else { return Ok(None) };
        let copy = pinned(device.driver(), offset + memory.len())?;
        self.copy(memory, copy.segment().slice(offset, memory.len()), CopyWay::ToHost)?;
        Ok(Some(copy))
    }

    /// Allocates memory of the same length on the host.
    pub fn room(&self, memory: &Segments) -> Result<Option<Pinned>, DeviceError> {
        self.first().map(|device| pinned(device.driver(), memory.len())).transpose()
    }

    /// Copies bytes between this memory and memory of the host, until the shorter of the two ends.
    pub fn copy(&self, memory: &Segments, host: Segment, way: CopyWay) -> Result<(), DeviceError> {
        let mut at = 0;
        for (piece, device) in memory.as_slice().iter().zip(self.0) {
            let here = host.slice(at, piece.len());
            let there = piece.slice(0, here.len());
            at += here.len();
            match (device, way) {
                (Some(device), way) => copy_one(device, there, here, way)?,
                (None, CopyWay::ToHost) => {
                    Segments::one(here).copy_from(&Segments::one(there));
                }
                (None, _) => {
                    Segments::one(there).copy_from(&Segments::one(here));
                }
            }
        }
        Ok(())
    }
}

/// Copies between a device's memory and the host's. Both have the same length.
fn copy_one(device: Device, there: Segment, here: Segment, way: CopyWay) -> Result<(), DeviceError> {
    let (driver, mut before) = (device.driver(), None);
    let mut result = Ok(());
    for offset in (0..here.len()).step_by(STEP) {
        let (there, here) = (there.slice(offset, STEP), here.slice(offset, STEP));
        // SAFETY: both memories are lent to this operation, and this function waits for each copy below.
        match unsafe { begin_one(device, there, here, way) } {
            Ok(copies) => {
                if let Some(before) = before.replace(copies) {
                    result = result.and(driver.finish(before));
                }
            }
            Err(error) => result = result.and(Err(error)),
        }
    }
    match before {
        Some(last) => result.and(driver.finish(last)),
        None => result,
    }
}

/// Begins one copy between a device's memory and the host's.
///
/// # Safety
/// The memory of both sides exists, and is not accessed in conflicting ways, until the copy has ended. The caller waits
/// for that.
pub(super) unsafe fn begin_one(
    device: Device,
    there: Segment,
    here: Segment,
    way: CopyWay,
) -> Result<Copies, DeviceError> {
    let (to, from) = if way == CopyWay::ToHost { (here, there) } else { (there, here) };
    // SAFETY: the caller's guarantee is passed on.
    unsafe { device.driver().begin(device.ordinal(), &[(way, to, from)]) }
}

/// Returns the offset at which a copy of the memory must begin, so that bytes that are aligned in the memory are
/// aligned in the copy.
#[inline]
pub fn aligned(memory: Segment) -> usize {
    memory.as_ptr().addr() % 16
}

/// Excludes other atomic operations on memory of devices until the guard is dropped. Each of these operations copies
/// the value, changes it and copies it back.
pub fn changing() -> MutexGuard<'static, ()> {
    static CHANGING: Mutex<()> = Mutex::new(());
    CHANGING.lock().unwrap_or_else(PoisonError::into_inner)
}
