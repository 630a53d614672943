//! Registration modes, progress and threading, which applications and providers agree on (fi_domain(3), fi_mr(3)).

use std::ffi::c_int;

use super::hints::{Hints, Rejection};
use crate::abi::*;
use crate::registration::mode;

/// Selects the registration mode of a result, and the corresponding `mode`. The provider does not require any mode, so
/// all bits that an application offers are cleared (AMB-04), except those in `required` (`FI_PERCALE_MR_MODE`), which
/// the application must offer. A region then behaves as with mode 0: offsets, keys chosen by the application, and
/// memory that need not be mapped. The modes of version 1.4 and older are separate values and are kept. FI_LOCAL_MR is
/// their FI_MR_LOCAL (MR-024), and has no effect in versions with that bit (MR-025).
pub(super) fn registration(hints: &Hints, required: c_int) -> Result<(c_int, u64), Rejection> {
    let requested = hints.domain.mr_mode;
    let old = FI_MR_BASIC | FI_MR_SCALABLE;
    let local = if hints.mode & FI_LOCAL_MR != 0 { FI_MR_LOCAL } else { 0 };
    let before_bits = hints.api < fi_version(1, 5);
    let (offered, stays) = match requested {
        FI_MR_BASIC => (mode::BASIC | local, requested),
        FI_MR_SCALABLE => (local, requested),
        FI_MR_UNSPEC if before_bits && required & mode::BASIC == 0 => (local, FI_MR_SCALABLE),
        FI_MR_UNSPEC if before_bits => (mode::BASIC | local, FI_MR_BASIC),
        _ if requested & old != 0 || before_bits => {
            let rule = "FI_MR_BASIC and FI_MR_SCALABLE cannot be combined; other bits need API 1.5";
            return Err(format!("hints request domain_attr->mr_mode {requested:#x}: {rule}"));
        }
        _ => (requested, required),
    };
    if required & !offered != 0 {
        let lacking = mode::names(required & !offered);
        return Err(format!("hints have domain_attr->mr_mode without {lacking}, which FI_PERCALE_MR_MODE requires"));
    }
    let is_old = stays & old != 0;
    Ok((stays, if is_old && required & FI_MR_LOCAL != 0 { FI_LOCAL_MR } else { 0 }))
}

/// Selects control and data progress.
pub(super) fn progress(hints: &Hints) -> Result<(u32, u32), Rejection> {
    let last = if hints.api < fi_version(2, 0) { FI_PROGRESS_MANUAL } else { FI_PROGRESS_CONTROL_UNIFIED };
    let requested = |field: &str, value: u32| {
        if value > last {
            Err(format!("hints request domain_attr->{field} {value}; valid are 1 to {last}"))
        } else {
            Ok(value)
        }
    };
    let control = requested("control_progress", hints.domain.control_progress)?;
    let data = match requested("progress", hints.domain.data_progress)? {
        FI_PROGRESS_UNSPEC => FI_PROGRESS_MANUAL,
        data => data,
    };
    Ok((if control == FI_PROGRESS_UNSPEC { data } else { control }, data))
}

/// Selects the threading model: the application's promise or, without one, FI_THREAD_SAFE, which permits every use.
pub(super) fn threading(requested: u32) -> Result<u32, Rejection> {
    match requested {
        FI_THREAD_UNSPEC => Ok(FI_THREAD_SAFE),
        FI_THREAD_SAFE..=FI_THREAD_ENDPOINT => Ok(requested),
        other => Err(format!("hints request domain_attr->threading {other}; valid are 1 to {FI_THREAD_ENDPOINT}")),
    }
}

/// Selects resource management. Resources are never overrun, whether that is requested or not.
pub(super) fn resource_management(requested: u32) -> Result<u32, Rejection> {
    match requested {
        FI_RM_UNSPEC..=FI_RM_ENABLED => Ok(FI_RM_ENABLED),
        other => Err(format!("hints request domain_attr->resource_mgmt {other}; only FI_RM_ENABLED is supported")),
    }
}

/// Selects the type of address vectors. Both types are supported, and an unspecified type stays unspecified.
pub(super) fn vector_type(requested: u32) -> Result<u32, Rejection> {
    match requested {
        FI_AV_UNSPEC..=FI_AV_TABLE => Ok(requested),
        other => Err(format!("hints request domain_attr->av_type {other}; supported are FI_AV_MAP and FI_AV_TABLE")),
    }
}
