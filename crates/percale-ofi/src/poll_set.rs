//! `fid_poll`: which of several queues and counters have something (fi_poll(3)).

use std::ffi::c_int;

use crate::abi::{fi_poll_attr, fid_domain, fid_poll};

/// Opens a poll set.
pub(crate) unsafe extern "C" fn open(
    _domain: *mut fid_domain,
    _attr: *mut fi_poll_attr,
    _pollset: *mut *mut fid_poll,
) -> c_int {
    -libc::ENOSYS
}
