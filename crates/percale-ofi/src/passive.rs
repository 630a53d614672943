//! `fid_pep`: listening for connections (fi_passive_ep(3)).

use std::ffi::{c_int, c_void};

use crate::abi::{fi_info, fid_pep};
use crate::fabric::Fabric;

/// Opens a passive endpoint.
///
/// # Safety
/// As fi_passive_ep(3) has it.
pub(crate) unsafe fn open(
    _fabric: &Fabric,
    _info: *const fi_info,
    _pep: *mut *mut fid_pep,
    _context: *mut c_void,
) -> c_int {
    -libc::ENOSYS
}
