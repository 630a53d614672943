//! Memory of the host that devices write.

#![expect(unsafe_code, reason = "registers memory with a driver; each block states its own reason")]

use std::mem::ManuallyDrop;

use super::driver::{DeviceError, Driver};
use crate::local_memory::volatile::Segment;

/// A value that devices can access while this object exists. They may write those parts of it that are atomic.
#[derive(Debug)]
pub struct Mapped<T> {
    value: ManuallyDrop<Box<T>>,
    driver: &'static dyn Driver,
    /// The address of the value for devices.
    address: u64,
}

impl<T: Sync> Mapped<T> {
    /// Registers the value with the driver.
    pub fn new(driver: &'static dyn Driver, value: Box<T>) -> Result<Self, DeviceError> {
        // SAFETY: the box is not moved or freed until this object is dropped, which ends the registration first.
        let address = unsafe { driver.register_host(memory::<T>(&value)) }?;
        Ok(Self { value: ManuallyDrop::new(value), driver, address })
    }

    /// Returns the value.
    pub fn get(&self) -> &T {
        &self.value
    }

    /// Returns the address of the value for devices.
    pub const fn address(&self) -> u64 {
        self.address
    }
}

fn memory<T>(value: &T) -> Segment {
    // SAFETY: these are the bytes of the value. The caller guarantees how long they exist.
    unsafe { Segment::new(std::ptr::from_ref(value).cast_mut().cast(), size_of::<T>()) }
}

impl<T> Drop for Mapped<T> {
    fn drop(&mut self) {
        match self.driver.unregister_host(memory(&**self.value)) {
            // SAFETY: the value is dropped once, here, and no device can access it any more.
            Ok(()) => unsafe { ManuallyDrop::drop(&mut self.value) },
            // Devices may still write the value, so its memory is never freed.
            Err(error) => {
                crate::later::later!(warn: %error, "cannot unregister memory from the device driver; the memory is leaked")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::{Copies, Copy, Exported, Interface, Kind, Place};

    /// A driver that maps any memory. Its `unregister_host` succeeds or fails as configured.
    #[derive(Debug)]
    struct Mapping {
        ends: bool,
    }

    const NOTHING: DeviceError = DeviceError::Lacks("such operation");

    // SAFETY: it does not access memory.
    unsafe impl Driver for Mapping {
        fn interface(&self) -> Interface {
            Interface::Cuda
        }
        fn devices(&self) -> u32 {
            1
        }
        fn locate(&self, _: usize) -> Result<Place, DeviceError> {
            Err(NOTHING)
        }
        fn settle(&self, _: usize) -> Result<(), DeviceError> {
            Err(NOTHING)
        }
        unsafe fn begin(&self, _: u32, _: &[Copy]) -> Result<Copies, DeviceError> {
            Err(NOTHING)
        }
        fn is_over(&self, _: &Copies) -> Result<bool, DeviceError> {
            Err(NOTHING)
        }
        fn finish(&self, _: Copies) -> Result<(), DeviceError> {
            Err(NOTHING)
        }
        fn describe(&self, _: u32) -> Result<String, DeviceError> {
            Err(NOTHING)
        }
        fn allocate(&self, _: Kind, _: u32, _: usize) -> Result<Segment, DeviceError> {
            Err(NOTHING)
        }
        unsafe fn free(&self, _: Kind, _: u32, _: Segment) {}
        unsafe fn register_host(&self, memory: Segment) -> Result<u64, DeviceError> {
            Ok(memory.as_ptr().addr() as u64)
        }
        fn unregister_host(&self, _: Segment) -> Result<(), DeviceError> {
            if self.ends { Ok(()) } else { Err(NOTHING) }
        }
        fn export(&self, _: u32, _: usize) -> Result<Exported, DeviceError> {
            Err(NOTHING)
        }
        fn open(&self, _: u32, _: &Exported) -> Result<Segment, DeviceError> {
            Err(NOTHING)
        }
        unsafe fn close(&self, _: u32, _: Segment) {}
        fn dma_buf(&self, _: u32, _: Segment) -> Result<OwnedFd, DeviceError> {
            Err(NOTHING)
        }
        unsafe fn write_value(&self, _: u32, _: u64, _: u64) -> Result<(), DeviceError> {
            Err(NOTHING)
        }
    }

    /// Requirements: XPU-013.
    #[test]
    fn memory_that_stays_mapped_for_devices_is_not_freed() {
        static FREED: AtomicUsize = AtomicUsize::new(0);
        struct Value(u64);
        impl Drop for Value {
            fn drop(&mut self) {
                FREED.fetch_add(1, Ordering::Relaxed);
            }
        }
        static ENDS: Mapping = Mapping { ends: true };
        static STAYS: Mapping = Mapping { ends: false };
        let mapped = Mapped::new(&ENDS, Box::new(Value(7))).expect("a mapping");
        assert_eq!((mapped.get().0, mapped.address()), (7, std::ptr::from_ref(mapped.get()).addr() as u64));
        drop(mapped);
        assert_eq!(FREED.load(Ordering::Relaxed), 1);
        drop(Mapped::new(&STAYS, Box::new(Value(8))).expect("a mapping"));
        assert_eq!(FREED.load(Ordering::Relaxed), 1, "devices may still write it");
    }
}
