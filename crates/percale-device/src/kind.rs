//! Kinds of memory, and where some memory is.

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
    #[inline]
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
