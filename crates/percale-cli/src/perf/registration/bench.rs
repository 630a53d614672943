//! The objects of the measurements: a device, a cache with one monitor, and memory that the monitor supports.

use std::fs::File;
use std::io;
use std::time::{Duration, Instant};

use pindown::monitor::Choice;
use pindown::monitor::imported::Notifier;
use pindown::monitor::sealed::Sealed;
use pindown::{Access, Cache, Lane, Pinned, Range, Registrar};

use crate::clock::Clock;
use crate::fixed_buffers::FixedBuffers;
use crate::limits::kernel::Foreign;
use crate::memory_range::{self, MemoryRange};
use crate::perf::monitors::IMPORTED;
use crate::torture;

/// The part of the monitor `bpf` that is needed on kernels that free page tables late. Only its cost for other
/// processes is measured.
pub(super) const RECORDS_ALONE: &str = "bpf-records-alone";

/// A registrar that pins nothing.
#[derive(Clone, Copy)]
pub(super) struct Nothing;

impl Registrar for Nothing {
    type Pin = ();

    fn pin(&self, range: Range, _access: Access) -> io::Result<Pinned<()>> {
        Ok(Pinned { pin: (), local_key: range.start(), remote_key: 0 })
    }

    fn unpin(&self, _pin: ()) {}
}

/// The monitor and the device of one process.
pub(super) struct RegistrationBench {
    pub(super) monitor: String,
    pub(super) clock: Clock,
    pub(super) device: FixedBuffers,
    pub(super) cache: Cache<FixedBuffers>,
    pub(super) lane: Lane<FixedBuffers>,
}

/// Opens a cache that pins with `registrar`. If the monitor is [`IMPORTED`], also returns the notifier with which this
/// program must report changes.
fn open<R: Registrar>(registrar: R, monitor: &str, count: u32) -> io::Result<(Cache<R>, Option<Notifier>)> {
    let (choice, notifier) = if monitor == IMPORTED {
        let (notifier, imported) = Notifier::new(|_, _| true)?;
        (Choice::Imported(imported), Some(notifier))
    } else {
        (torture::choice(monitor).ok_or(io::ErrorKind::NotFound)??, None)
    };
    let cache = Cache::builder(registrar).monitor(choice).max_count(count).open().map_err(io::Error::other)?;
    Ok((cache, notifier))
}

impl RegistrationBench {
    /// Opens the device, and a cache with this monitor.
    ///
    /// # Errors
    /// Returns the reason why the device or the cache is not available.
    pub(super) fn open(monitor: &str) -> io::Result<Self> {
        let device = FixedBuffers::new().map_err(|error| io::Error::other(format!("io_uring: {error}")))?;
        let (cache, _) = open(device.clone(), monitor, 1024)?;
        let lane = cache.lane();
        Ok(Self { monitor: monitor.into(), clock: Clock::calibrate(), device, cache, lane })
    }

    /// Opens another cache with the same monitor, which pins nothing.
    pub(super) fn unpinned(&self, count: u32) -> io::Result<(Cache<Nothing>, Option<Notifier>)> {
        open(Nothing, &self.monitor, count)
    }

    /// Allocates memory of the kind that the monitor supports.
    pub(super) fn memory(&self, bytes: usize) -> io::Result<RegistrationMemory> {
        if matches!(self.monitor.as_str(), "sealed" | "userfaultfd") {
            return Sealed::new(bytes).map(RegistrationMemory::Sealed);
        }
        let memory_range = MemoryRange::memory(bytes as u64, libc::MAP_NORESERVE)?;
        // Errors are ignored, because a kernel without huge pages does not need the advice.
        memory_range.advise(memory_range.range(), libc::MADV_NOHUGEPAGE).ok();
        Ok(RegistrationMemory::Anonymous(memory_range))
    }

    /// Runs `work`. Returns the elapsed time in nanoseconds and the result.
    #[inline]
    pub(super) fn time<T>(&self, work: impl FnOnce() -> T) -> (f64, T) {
        let start = self.clock.now();
        let done = work();
        let end = self.clock.now();
        (self.clock.nanoseconds(end.wrapping_sub(start)), done)
    }
}

/// Memory to register, in pages of the base size.
pub(super) enum RegistrationMemory {
    Anonymous(MemoryRange),
    Sealed(Sealed),
}

impl RegistrationMemory {
    pub(super) fn range(&self) -> Range {
        match self {
            Self::Anonymous(memory_range) => memory_range.range(),
            Self::Sealed(sealed) => sealed.range(),
        }
    }

    /// Returns part `number` of equal parts of `bytes` bytes.
    pub(super) fn part(&self, number: usize, bytes: usize) -> io::Result<Range> {
        memory_range::range(self.range().start() + (number * bytes) as u64, bytes as u64)
    }

    /// Writes to the memory with the CPU, at byte `at`.
    pub(super) fn write(&self, at: usize, bytes: &[u8]) -> io::Result<()> {
        let process = rustix::process::getpid().as_raw_pid();
        Foreign { process, address: self.range().start() }.write(at, bytes)
    }

    /// Reads the memory with the CPU.
    pub(super) fn read(&self, at: usize, bytes: &mut [u8]) -> io::Result<()> {
        let process = rustix::process::getpid().as_raw_pid();
        Foreign { process, address: self.range().start() }.read(at, bytes)
    }

    /// Makes every page present.
    pub(super) fn fill(&self) -> io::Result<()> {
        static CHUNK: [u8; 64 << 10] = [0x5a; 64 << 10];
        let len = self.range().len() as usize;
        (0..len).step_by(CHUNK.len()).try_for_each(|at| self.write(at, &CHUNK[..CHUNK.len().min(len - at)]))
    }
}

impl Drop for RegistrationMemory {
    fn drop(&mut self) {
        if let Self::Anonymous(memory_range) = self {
            // An error leaves the memory mapped, which is harmless.
            memory_range.release().ok();
        }
    }
}

/// Opens the source of the device's data. It is /dev/zero, because the kernel reads files in another thread, which
/// costs more than most transfers.
pub(super) fn source() -> io::Result<File> {
    File::open("/dev/zero")
}

/// Runs rounds until the time has elapsed, and at least `least` rounds. `round` is called with the number of the round.
pub(super) fn rounds(time: Duration, least: u32, mut round: impl FnMut(u32) -> io::Result<()>) -> io::Result<u32> {
    let start = Instant::now();
    let mut number = 0;
    while number < least || start.elapsed() < time {
        round(number)?;
        number += 1;
    }
    Ok(number)
}

/// Returns the median of a few values.
pub(super) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
