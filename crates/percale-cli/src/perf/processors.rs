//! The processors that this process may run on, and pinning it to one of them.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::failure::{Failure, Result};

/// The processors we may use.
pub(crate) fn allowed() -> Result<Vec<usize>> {
    let set = sched_getaffinity(None).map_err(Failure::system("asking for the allowed processors"))?;
    Ok((0..CpuSet::MAX_CPU).filter(|&processor| set.is_set(processor)).collect())
}

/// Stays on `processor` (this thread, and those that it starts).
pub(crate) fn pin(processor: usize) -> Result<()> {
    if processor >= CpuSet::MAX_CPU {
        return Err(Failure::Usage(format!("there is no processor {processor}")));
    }
    allow(&[processor])
}

/// Runs on any of these (this thread, and those that it starts).
pub(crate) fn allow(processors: &[usize]) -> Result<()> {
    let mut set = CpuSet::new();
    processors.iter().for_each(|&processor| set.set(processor));
    sched_setaffinity(None, &set).map_err(Failure::system(format!("staying on processors {processors:?}")))
}
