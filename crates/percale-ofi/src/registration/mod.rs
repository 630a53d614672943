//! Registrations of memory (fi_mr(3)), as far as domains and their operations look at them.
//!
//! * [`mode`]: the meaning of a domain's `mr_mode`
//! * [`pieces`]: the memory that a registration names; [`devices`]: the device that the memory belongs to
//! * [`descriptions`]: the descriptions that operations pass for their local memory

pub(crate) mod descriptions;
pub(crate) mod devices;
pub(crate) mod mode;
pub(crate) mod pieces;

use std::ffi::c_void;

use percale::Access;
use percale::device::Device;

use self::pieces::Pieces;

/// A registration, adapted to the domain's mode.
pub(crate) struct Wanted {
    pub(crate) pieces: Pieces,
    pub(crate) access: Access,
    /// The address of the first byte for peers.
    pub(crate) base: u64,
    /// The application's key, if the application chooses keys.
    pub(crate) key: Option<u64>,
    pub(crate) context: *mut c_void,
    /// The authorization key that the endpoints of users must have; `None`: the domain's.
    pub(crate) authorization: Option<Vec<u8>>,
    /// It is for collectives (FI_COLLECTIVE).
    pub(crate) collective: bool,
    /// It will count what peers write (FI_RMA_EVENT).
    pub(crate) events: bool,
    /// The device that the memory belongs to, if not the host.
    pub(crate) device: Option<Device>,
}

// SAFETY: the context is the client's, and never followed; pieces are places that only percale touches.
unsafe impl Send for Wanted {}
// SAFETY: as above.
unsafe impl Sync for Wanted {}
