//! Registration modes, progress, threading: what applications and providers agree on (fi_domain(3), fi_mr(3)).

use std::ffi::c_int;

use super::hints::Hints;
use super::offer::Why;
use crate::abi::*;

/// Which registration mode answers. We need nothing of an application, so all bits that it offers are cleared (AMB-04), and what a
/// region means is then what 0 means: offsets, the application's keys, memory that need not be there. The modes of 1.4 and
/// older are names of their own and stay.
pub(super) fn registration(hints: &Hints) -> Result<c_int, Why> {
    let asked = hints.domain.mr_mode;
    let old = FI_MR_BASIC | FI_MR_SCALABLE;
    match asked {
        FI_MR_BASIC | FI_MR_SCALABLE => Ok(asked),
        FI_MR_UNSPEC if hints.api < fi_version(1, 5) => Ok(FI_MR_SCALABLE),
        _ if asked & old != 0 || hints.api < fi_version(1, 5) => {
            let rule = "FI_MR_BASIC and FI_MR_SCALABLE stand alone, other bits came with API 1.5";
            Err(format!("hints ask for domain_attr->mr_mode {asked:#x}: {rule}"))
        }
        _ => Ok(0),
    }
}

/// Control and data progress.
pub(super) fn progress(hints: &Hints) -> Result<(u32, u32), Why> {
    let last = if hints.api < fi_version(2, 0) { FI_PROGRESS_MANUAL } else { FI_PROGRESS_CONTROL_UNIFIED };
    let asked = |field: &str, value: u32| {
        if value > last {
            Err(format!("hints ask for domain_attr->{field} {value}; there are 1 to {last}"))
        } else {
            Ok(value)
        }
    };
    let control = asked("control_progress", hints.domain.control_progress)?;
    let data = match asked("progress", hints.domain.data_progress)? {
        FI_PROGRESS_UNSPEC => FI_PROGRESS_MANUAL,
        data => data,
    };
    Ok((if control == FI_PROGRESS_UNSPEC { data } else { control }, data))
}

/// Threading: the application's promise, or, without one, anything is allowed.
pub(super) fn threading(asked: u32) -> Result<u32, Why> {
    match asked {
        FI_THREAD_UNSPEC => Ok(FI_THREAD_SAFE),
        FI_THREAD_SAFE..=FI_THREAD_ENDPOINT => Ok(asked),
        other => Err(format!("hints ask for domain_attr->threading {other}; there are 1 to {FI_THREAD_ENDPOINT}")),
    }
}

/// Nothing overruns, whether that is asked for or not.
pub(super) fn resource_management(asked: u32) -> Result<u32, Why> {
    match asked {
        FI_RM_UNSPEC..=FI_RM_ENABLED => Ok(FI_RM_ENABLED),
        other => Err(format!("hints ask for domain_attr->resource_mgmt {other}; there is FI_RM_ENABLED")),
    }
}

/// Vectors: both types are there, unspecified says so.
pub(super) fn vector_type(asked: u32) -> Result<u32, Why> {
    match asked {
        FI_AV_UNSPEC..=FI_AV_TABLE => Ok(asked),
        other => Err(format!("hints ask for domain_attr->av_type {other}; there are FI_AV_MAP and FI_AV_TABLE")),
    }
}
