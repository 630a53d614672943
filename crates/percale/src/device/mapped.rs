//! The host's memory, for devices to write, and writes that a device's stream makes.

#![expect(unsafe_code, reason = "lends memory to a driver; each block says how long it is there")]

use super::driver::{DeviceError, Driver};
use super::kind::Device;
use crate::memory::volatile::Segment;
use crate::trigger::Variable;

/// A value that devices reach, as long as this is there. They may write what of it is atomic.
#[derive(Debug)]
pub(crate) struct Mapped<T> {
    value: Box<T>,
    driver: &'static dyn Driver,
    /// Where devices find it.
    address: u64,
}

impl<T: Sync> Mapped<T> {
    /// Lets the driver map it.
    pub(crate) fn new(driver: &'static dyn Driver, value: Box<T>) -> Result<Self, DeviceError> {
        // SAFETY: the box stays where it is until this is dropped, which ends the mapping first.
        let address = unsafe { driver.register_host(memory::<T>(&value)) }?;
        Ok(Self { value, driver, address })
    }

    /// The value.
    pub(crate) const fn get(&self) -> &T {
        &self.value
    }

    /// Where devices find it.
    pub(crate) const fn address(&self) -> u64 {
        self.address
    }
}

fn memory<T>(value: &T) -> Segment {
    // SAFETY: the value's own bytes; who gets them says how long they are there.
    unsafe { Segment::new(std::ptr::from_ref(value).cast_mut().cast(), size_of::<T>()) }
}

impl<T> Drop for Mapped<T> {
    fn drop(&mut self) {
        if let Err(error) = self.driver.unregister_host(memory(&*self.value)) {
            tracing::warn!(%error, "memory stays mapped for devices");
        }
    }
}

impl Device {
    /// Has a stream of the device write a variable ([`Domain::device_variable`](crate::Domain::device_variable)), as a program of the device's would:
    /// what waits for it begins. Returns when it was written.
    ///
    /// # Errors
    /// What the driver says; [`DeviceError::Mixed`] if the variable is not for devices.
    pub fn write_variable(self, variable: &Variable) -> Result<(), DeviceError> {
        let address = variable.device_address().ok_or(DeviceError::Mixed)?;
        // SAFETY: 8 bytes, aligned, that are mapped as long as the variable is there, and the write is over when this returns.
        unsafe { self.driver().write_value(self.ordinal(), address, variable.value()) }
    }
}
