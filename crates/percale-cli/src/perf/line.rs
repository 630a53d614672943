//! The minimum time of a message between two processors: the transfer of a cache line, or a copy. It is also the limit
//! of messages of `percale perf` through shared memory, and is measured in the same way.

use std::time::Duration;

use super::measure::{self, Best, Options};
use super::plan::Planned;
use super::processors;
use super::session::Session;
use crate::failure::{Failure, Result};
use crate::row::{MeasuredOperation, MessageMemory, Transport};

/// Returns the time in nanoseconds to transfer `bytes` bytes from one process to another. Up to 8 bytes, this is the
/// transfer of a cache line. Up to 8 KiB, it is the transfer of a cache line, a copy in and a copy out. Above 8 KiB, it
/// is one processor's copy of data that another has written.
pub(super) fn way(bytes: usize, time: Duration) -> Result<f64> {
    let time = time.max(Duration::from_millis(10));
    let options = Options { time, iterations: None, dirty: false, verify: true, apis: &[] };
    let planned = Planned {
        transport: Transport::Shm,
        op: MeasuredOperation::TaggedLatency,
        bytes,
        memory: MessageMemory::Ordinary,
    };
    // The session pins this thread to one processor. The code after it must not be pinned.
    let before = processors::allowed()?;
    let mut session = Session::local(bytes)?;
    let row = measure::row(&mut session, &planned, &options, &mut Best::new(), || ())?;
    drop(session);
    processors::allow(&before)?;
    row.limit_p50_ns.ok_or_else(|| Failure::Data("the limit was not measured".into()))
}
