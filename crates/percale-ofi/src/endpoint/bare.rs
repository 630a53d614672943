//! Objects that have the structure of an endpoint but only a few of its calls. The other calls are rejected.

use std::ffi::c_void;

use crate::abi::{
    fi_ops, fi_ops_atomic, fi_ops_cm, fi_ops_collective, fi_ops_ep, fi_ops_msg, fi_ops_rma, fi_ops_tagged, fid_ep,
};
use crate::object;

static MESSAGES: fi_ops_msg = fi_ops_msg::REFUSING;
static TAGGED: fi_ops_tagged = fi_ops_tagged::REFUSING;
static RMA: fi_ops_rma = fi_ops_rma::REFUSING;
static ATOMIC: fi_ops_atomic = fi_ops_atomic::REFUSING;
static COLLECTIVE: fi_ops_collective = fi_ops_collective::REFUSING;

/// Builds an endpoint structure that has only the named tables.
pub(super) fn bare(class: usize, context: *mut c_void, fi: &'static fi_ops, ops: &'static fi_ops_ep) -> fid_ep {
    fid_ep {
        fid: object::head(class, context, fi),
        ops: std::ptr::from_ref(ops).cast_mut(),
        cm: std::ptr::from_ref(&CM_NONE).cast_mut(),
        msg: std::ptr::from_ref(&MESSAGES).cast_mut(),
        rma: std::ptr::from_ref(&RMA).cast_mut(),
        tagged: std::ptr::from_ref(&TAGGED).cast_mut(),
        atomic: std::ptr::from_ref(&ATOMIC).cast_mut(),
        collective: std::ptr::from_ref(&COLLECTIVE).cast_mut(),
    }
}

static CM_NONE: fi_ops_cm = fi_ops_cm::REFUSING;
