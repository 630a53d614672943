//! The parts of memory registrations (fi_mr(3)) that domains and operations use.
//!
//! * [`mode`]: the meaning of a domain's `mr_mode`
//! * [`pieces`]: the memory of a registration; [`devices`]: the device that the memory belongs to
//! * [`descriptions`]: the descriptors that operations pass for their local memory

pub(crate) mod descriptions;
pub(crate) mod devices;
pub(crate) mod mode;
pub(crate) mod pieces;

use std::ffi::c_void;

use percale::Access;
use percale::device::Device;

use self::pieces::Pieces;

/// A registration request, adapted to the mode of the domain.
pub(crate) struct Wanted {
    pub(crate) pieces: Pieces,
    pub(crate) access: Access,
    /// The address of the first byte, as peers use it.
    pub(crate) base: u64,
    /// The application's key, if the application selects keys.
    pub(crate) key: Option<u64>,
    pub(crate) context: *mut c_void,
    /// The authorization key that an endpoint needs to access the region. `None` stands for the domain's key.
    pub(crate) authorization: Option<Vec<u8>>,
    /// Set if the region is for collectives (FI_COLLECTIVE).
    pub(crate) collective: bool,
    /// Set if the region will count the writes of peers (FI_RMA_EVENT).
    pub(crate) events: bool,
    /// The device that the memory belongs to, or `None` for host memory.
    pub(crate) device: Option<Device>,
}

// SAFETY: the context belongs to the client and is never dereferenced. Only percale accesses the memory of the pieces.
unsafe impl Send for Wanted {}
// SAFETY: as above.
unsafe impl Sync for Wanted {}
