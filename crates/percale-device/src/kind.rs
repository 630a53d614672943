//! Kinds and locations of memory.

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

/// The kind of memory at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Ordinary memory of the host, which is unknown to the device's driver.
    Host,
    /// Memory of the host that the device's driver has pinned. Processors and devices can access it.
    Pinned,
    /// Managed memory: the driver moves its pages between the host and devices.
    Managed,
    /// Memory of a device, which instructions of a processor cannot access.
    Device,
}

impl Kind {
    /// Returns whether processors read and write the memory like any other memory. For managed memory this is true only
    /// on some machines, and accesses move pages there, so the driver copies it.
    #[must_use]
    #[inline]
    pub const fn is_host(self) -> bool {
        matches!(self, Self::Host | Self::Pinned)
    }
}

/// The location of some memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The kind of the memory.
    pub kind: Kind,
    /// The device number, or 0 for memory of the host.
    pub ordinal: u32,
    /// A number that differs from that of every other allocation of the process, even at the same address. It is 0 for
    /// memory of the host.
    pub buffer: u64,
}

impl Place {
    /// The location of memory that is unknown to all drivers.
    pub const HOST: Self = Self { kind: Kind::Host, ordinal: 0, buffer: 0 };
}
