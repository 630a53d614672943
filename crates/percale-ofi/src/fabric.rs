//! The fabric.

use std::ffi::{c_int, c_void};

use crate::abi::{FI_ENOSYS, fi_fabric_attr, fid_fabric};

/// Opens a fabric.
pub(crate) unsafe extern "C" fn open(
    _attr: *mut fi_fabric_attr,
    _fabric: *mut *mut fid_fabric,
    _context: *mut c_void,
) -> c_int {
    -FI_ENOSYS
}
