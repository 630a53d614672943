//! The processors that this process may use, and pinning to one of them.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::failure::{Failure, Result};

/// Returns the processors that this thread may use.
pub(crate) fn allowed() -> Result<Vec<usize>> {
    let set = sched_getaffinity(None).map_err(Failure::system("reading the allowed processors"))?;
    Ok((0..CpuSet::MAX_CPU).filter(|&processor| set.is_set(processor)).collect())
}

/// Pins this thread, and the threads that it starts later, to `processor`.
pub(crate) fn pin(processor: usize) -> Result<()> {
    if processor >= CpuSet::MAX_CPU {
        return Err(Failure::Usage(format!("processor {processor} does not exist")));
    }
    allow(&[processor])
}

/// Allows this thread, and the threads that it starts later, to run on any of these processors.
pub(crate) fn allow(processors: &[usize]) -> Result<()> {
    let mut set = CpuSet::new();
    processors.iter().for_each(|&processor| set.set(processor));
    sched_setaffinity(None, &set).map_err(Failure::system(format!("setting the CPU affinity to {processors:?}")))
}
