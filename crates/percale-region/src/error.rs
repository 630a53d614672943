//! The errors of registering and closing regions, and of raw keys.

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

/// The reason why a region or a window could not be closed, or a region not enabled, disabled or changed. The error of
/// a `close` contains the object: [`into_inner`](Self::into_inner) returns it.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum CloseError<R> {
    /// A peer that was in the middle of an access has not finished within the domain's `revoke_timeout`. No new access
    /// begins. The memory stays with the region, which may be closed again. So may a window.
    #[error("timeout: a peer has not finished its access to the memory (is it stopped?); try again later")]
    Busy(R),
    /// Windows are bound to the region, which is unchanged. Unbind, invalidate or deallocate them, and then try again.
    #[error("windows are bound to the region; unbind, invalidate or deallocate them, then try again")]
    Windows(R),
    /// The process is a forked child of the process that opened the domain. Only the parent can close or change the
    /// region or window.
    #[error("the memory is registered by the parent process of this fork, and only the parent can close or change it")]
    Forked(R),
}

impl<R> std::fmt::Debug for CloseError<R> {
    /// Prints the same text as `Display`, and nothing about the object, so `R` need not implement `Debug`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CloseError({self})")
    }
}

impl<R> CloseError<R> {
    /// Returns whether the same call may succeed later although neither it nor the program is changed, which is the
    /// case for [`Busy`](Self::Busy).
    #[must_use]
    pub const fn is_retriable(&self) -> bool {
        matches!(self, Self::Busy(_))
    }

    /// Returns the libfabric error code (positive) of this error.
    #[must_use]
    pub const fn errno(&self) -> i32 {
        match self {
            Self::Busy(_) | Self::Windows(_) => libc::EBUSY,
            Self::Forked(_) => libc::ECHILD,
        }
    }

    /// Returns the same error with a different object.
    #[doc(hidden)]
    pub fn of<S>(self, region: S) -> CloseError<S> {
        match self {
            Self::Busy(_) => CloseError::Busy(region),
            Self::Windows(_) => CloseError::Windows(region),
            Self::Forked(_) => CloseError::Forked(region),
        }
    }

    /// Returns the region or window that was not closed. It is either unchanged or still being revoked.
    #[must_use]
    pub fn into_inner(self) -> R {
        let (Self::Busy(region) | Self::Windows(region) | Self::Forked(region)) = self;
        region
    }
}

/// The reason why bytes are not a raw key, or a raw key was not mapped.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MapError {
    /// A raw key must have 8 or 32 bytes.
    #[error("a raw key has 8 or 32 bytes, not {0}")]
    Length(usize),
    /// The domain has the maximum number of mapped keys.
    #[error("too many mapped keys (2^32); unmap some")]
    Full,
    /// The process is a forked child of the process that opened the domain.
    #[error("the domain belongs to the parent process of this fork; open one in this process")]
    Forked,
}

impl MapError {
    /// Returns the libfabric error code (positive) of this error.
    #[must_use]
    #[inline]
    pub const fn errno(&self) -> i32 {
        match self {
            Self::Length(_) => libc::EINVAL,
            Self::Full => libc::ENOSPC,
            Self::Forked => libc::ECHILD,
        }
    }
}
