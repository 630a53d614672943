//! The errors of registering and closing regions.

use percale_device::DeviceError;

/// FI_EBADFLAGS of libfabric.
const EBADFLAGS: i32 = 260;

/// The reason why memory was not registered.
#[non_exhaustive]
#[derive(thiserror::Error)]
pub enum RegisterError {
    /// This segment is empty. If there are several segments, none may be empty.
    #[error("piece {0} of the region has no bytes; leave it out")]
    Empty(usize),
    /// The end of a segment is beyond the last address.
    #[error("a piece of {len} bytes at {address:#x} exceeds the address space")]
    Wraps {
        /// The address of its first byte.
        address: usize,
        /// Its length in bytes.
        len: usize,
    },
    /// The access rights contain bits that are not defined.
    #[error("invalid access rights {0:#x}")]
    Access(u64),
    /// There are more segments than a region can have.
    #[error("too many pieces {0} (at most {max})", max = crate::local_memory::volatile::IOV_LIMIT)]
    Pieces(usize),
    /// The address of the last byte would not fit into 64 bits.
    #[error("base plus length exceeds 64 bits")]
    Range,
    /// A region of the domain has this key, or a window owns it.
    #[error("the key is in use in this domain; close its region or choose another key")]
    KeyTaken(u64),
    /// The memory was registered as backed, but is not mapped with these rights.
    #[error("the memory is not mapped with the rights of the region: {0}")]
    Unbacked(std::io::Error),
    /// Peers may not write to memory that is shared or static.
    #[error("this buffer is read-only: register it without REMOTE_WRITE")]
    ReadOnly,
    /// Peers may not have a right to write if this process does not have it.
    #[error("REMOTE_WRITE and REMOTE_ATOMIC require LOCAL_WRITE")]
    LocalWrite,
    /// All 2^24 local keys of the domain are in use.
    #[error("all local keys of the domain are in use; close regions that have one")]
    LocalKeys,
    /// The memory does not belong to the given device, or the device cannot be used.
    #[error("cannot register device memory: {0}")]
    Device(DeviceError),
    /// The system provided no random numbers.
    #[error("cannot generate a key: {0}")]
    System(std::io::Error),
    /// The process is a forked child of the process that opened the domain.
    #[error("the domain belongs to the parent process of this fork; open one in this process")]
    Forked,
}

impl From<DeviceError> for RegisterError {
    fn from(error: DeviceError) -> Self {
        Self::Device(error)
    }
}

impl std::fmt::Debug for RegisterError {
    /// Prints the same text as `Display`, because keys must not be written to logs.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RegisterError({self})")
    }
}

impl RegisterError {
    /// Returns the libfabric error code (positive) of this error.
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            Self::Empty(_) | Self::Wraps { .. } | Self::Pieces(_) | Self::Range => libc::EINVAL,
            Self::LocalWrite => libc::EINVAL,
            Self::Access(_) => EBADFLAGS,
            Self::KeyTaken(_) => libc::ENOKEY,
            Self::Unbacked(_) => libc::EFAULT,
            Self::ReadOnly => libc::EACCES,
            Self::LocalKeys => libc::ENOSPC,
            Self::Device(error) => error.errno(),
            Self::System(error) => crate::system::call::errno(error).unwrap_or(libc::EIO),
            Self::Forked => libc::ECHILD,
        }
    }
}

/// The reason why a region could not be closed, enabled, disabled or changed.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum CloseError<R> {
    /// A peer that was in the middle of an access has not finished within the domain's `revoke_timeout`. No new access
    /// begins. The region keeps the memory, and the application may try to close it again.
    #[error("timeout: a peer has not finished its access (is it stopped?); close the region again later")]
    Busy(R),
    /// Windows are bound to the region, which is unchanged. Unbind, invalidate or deallocate them, and then try again.
    #[error("windows are bound to the region; unbind, invalidate or deallocate them, then try again")]
    Windows(R),
    /// The process is a forked child of the process that opened the domain. Only the parent can change the region.
    #[error("the region belongs to the parent process of this fork")]
    Forked(R),
}

impl<R> std::fmt::Debug for CloseError<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Busy(_) => "Busy",
            Self::Windows(_) => "Windows",
            Self::Forked(_) => "Forked",
        })
    }
}

impl<R> CloseError<R> {
    /// Returns the libfabric error code (positive) of this error.
    #[must_use]
    pub const fn errno(&self) -> i32 {
        match self {
            Self::Busy(_) | Self::Windows(_) => libc::EBUSY,
            Self::Forked(_) => libc::ECHILD,
        }
    }

    /// Returns the same error with a different region.
    #[doc(hidden)]
    pub fn of<S>(self, region: S) -> CloseError<S> {
        match self {
            Self::Busy(_) => CloseError::Busy(region),
            Self::Windows(_) => CloseError::Windows(region),
            Self::Forked(_) => CloseError::Forked(region),
        }
    }

    /// Returns the region, which is either unchanged or still being revoked.
    #[must_use]
    pub fn into_region(self) -> R {
        let (Self::Busy(region) | Self::Windows(region) | Self::Forked(region)) = self;
        region
    }
}
