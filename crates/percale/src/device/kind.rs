//! Kinds of memory, and where some memory is.

use super::driver::{DeviceError, Driver};
use crate::memory::volatile::Segment;

/// A software interface to devices with memory (fi_mr(3), `iface`).
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Interface {
    /// CUDA.
    Cuda,
    /// ROCm.
    Rocr,
    /// Level Zero.
    LevelZero,
    /// Neuron.
    Neuron,
    /// SynapseAI.
    SynapseAi,
}

impl Interface {
    /// Its driver, which is loaded when it is first asked for.
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`] of all but CUDA; [`DeviceError::Missing`], with what this machine lacks.
    pub fn driver(self) -> Result<&'static dyn Driver, DeviceError> {
        match self {
            Self::Cuda => super::cuda::driver(),
            other => Err(DeviceError::Unsupported(other)),
        }
    }
}

impl std::fmt::Display for Interface {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Cuda => "CUDA",
            Self::Rocr => "ROCm",
            Self::LevelZero => "Level Zero",
            Self::Neuron => "Neuron",
            Self::SynapseAi => "SynapseAI",
        })
    }
}

/// What kind of memory an address is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Ordinary memory of the host, which is unknown to the device's driver.
    Host,
    /// The host's, pinned by the device's driver: processors and devices use it.
    Pinned,
    /// Its pages are now the host's, now a device's, and the driver moves them.
    Managed,
    /// A device's: no instruction of a processor reaches it.
    Device,
}

impl Kind {
    /// Returns whether processors read and write it as any other memory. Of managed memory that is so on some machines only, and costs pages
    /// that move: the driver copies it.
    #[must_use]
    pub const fn is_host(self) -> bool {
        matches!(self, Self::Host | Self::Pinned)
    }
}

/// Where memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The kind of the memory.
    pub kind: Kind,
    /// The device; 0 of the host's memory.
    pub ordinal: u32,
    /// Unlike that of any other allocation that the process ever makes, also at the same address; 0 of the host's memory.
    pub buffer: u64,
}

impl Place {
    /// Memory that no driver knows.
    pub const HOST: Self = Self { kind: Kind::Host, ordinal: 0, buffer: 0 };
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
    /// The device of this number.
    ///
    /// # Errors
    /// As [`Interface::driver`], and [`DeviceError::NoDevice`].
    pub fn new(interface: Interface, ordinal: u32) -> Result<Self, DeviceError> {
        let driver = interface.driver()?;
        let devices = driver.devices();
        if ordinal >= devices {
            return Err(DeviceError::NoDevice { interface, ordinal, devices });
        }
        Ok(Self { driver, ordinal })
    }

    /// The device that has this memory; `None` if it is the host's.
    ///
    /// # Errors
    /// The error that the driver reports. [`DeviceError::Mixed`] for memory that is not one allocation's.
    pub fn of(interface: Interface, memory: Segment) -> Result<Option<Self>, DeviceError> {
        let driver = interface.driver()?;
        let place = whole(driver, memory)?;
        Ok((!place.kind.is_host()).then_some(Self { driver, ordinal: place.ordinal }))
    }

    /// The interface of the device.
    #[must_use]
    pub fn interface(self) -> Interface {
        self.driver.interface()
    }

    /// Its number.
    #[must_use]
    pub const fn ordinal(self) -> u32 {
        self.ordinal
    }

    /// Its driver.
    #[must_use]
    pub const fn driver(self) -> &'static dyn Driver {
        self.driver
    }
}

/// Where a range is, which lies in one place only.
pub(crate) fn whole(driver: &dyn Driver, memory: Segment) -> Result<Place, DeviceError> {
    let first = driver.locate(memory.as_ptr().addr())?;
    if memory.len() > 1 {
        let last = driver.locate(memory.as_ptr().addr() + (memory.len() - 1))?;
        // A part of the host's memory may be pinned for a device, and the rest not.
        if first.kind.is_host() && last.kind.is_host() {
            return Ok(Place::HOST);
        }
        if first != last {
            return Err(DeviceError::Mixed);
        }
    }
    Ok(first)
}
