//! Handles of devices, which consist of the driver of an interface and the number of one of its devices.

use super::cuda;
use super::driver::{DeviceError, Driver};
use super::kind::{Interface, Place};
use crate::local_memory::volatile::Segment;

impl Interface {
    /// Returns the driver of the interface. It is loaded at the first call.
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`] for all interfaces except CUDA. [`DeviceError::Missing`], with a description of the
    /// missing component.
    pub fn driver(self) -> Result<&'static dyn Driver, DeviceError> {
        match self {
            Self::Cuda => cuda::driver(),
            other => Err(DeviceError::Unsupported(other)),
        }
    }
}

/// A device with memory that operations may use.
#[derive(Clone, Copy)]
pub struct Device {
    driver: &'static dyn Driver,
    ordinal: u32,
}

crate::short_debug!(Device, "Device", interface: |this| this.interface(), ordinal: |this| this.ordinal);

impl PartialEq for Device {
    fn eq(&self, other: &Self) -> bool {
        (self.interface(), self.ordinal) == (other.interface(), other.ordinal)
    }
}

impl Eq for Device {}

impl Device {
    /// Returns the device with this number.
    ///
    /// # Errors
    /// The errors of [`Interface::driver`], and [`DeviceError::NoDevice`].
    pub fn new(interface: Interface, ordinal: u32) -> Result<Self, DeviceError> {
        let driver = interface.driver()?;
        let devices = driver.devices();
        if ordinal >= devices {
            return Err(DeviceError::NoDevice { interface, ordinal, devices });
        }
        Ok(Self { driver, ordinal })
    }

    /// Returns the device that owns this memory, or `None` if it belongs to the host.
    ///
    /// # Errors
    /// The error that the driver reports. [`DeviceError::Mixed`] for memory that is not part of a single allocation.
    pub fn of(interface: Interface, memory: Segment) -> Result<Option<Self>, DeviceError> {
        let driver = interface.driver()?;
        let place = whole(driver, memory)?;
        Ok((!place.kind.is_host()).then_some(Self { driver, ordinal: place.ordinal }))
    }

    /// Returns the interface of the device.
    #[must_use]
    #[inline]
    pub fn interface(self) -> Interface {
        self.driver.interface()
    }

    /// Returns the number of the device.
    #[must_use]
    #[inline]
    pub const fn ordinal(self) -> u32 {
        self.ordinal
    }

    /// Returns the driver of the device.
    #[must_use]
    #[inline]
    pub const fn driver(self) -> &'static dyn Driver {
        self.driver
    }
}

/// Returns the location of a range. The whole range must be at one location.
pub fn whole(driver: &dyn Driver, memory: Segment) -> Result<Place, DeviceError> {
    let first = driver.locate(memory.as_ptr().addr())?;
    if memory.len() > 1 {
        let last = driver.locate(memory.as_ptr().addr() + (memory.len() - 1))?;
        // One part of the host's memory may be pinned for a device and the rest not.
        if first.kind.is_host() && last.kind.is_host() {
            return Ok(Place::HOST);
        }
        if first != last {
            return Err(DeviceError::Mixed);
        }
    }
    Ok(first)
}
