//! What is measured with: a device, a cache with one monitor, memory that the monitor keeps.

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
use crate::lot::{self, Lot};
use crate::torture;

/// Those that are measured, the best first.
pub(super) const MONITORS: [&str; 5] = [BPF, "userfaultfd-promised", "userfaultfd", "sealed", IMPORTED];

pub(super) const BPF: &str = "bpf";

/// Of the first, what kernels that free page tables late need; only what that costs others is measured.
pub(super) const RECORDS_ALONE: &str = "bpf-records-alone";

/// Tells nothing by itself and asks nobody: what is left is the cache's own doing.
pub(super) const IMPORTED: &str = "imported";

/// Pins nothing.
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
pub(super) struct Bench {
    pub(super) monitor: String,
    pub(super) clock: Clock,
    pub(super) device: FixedBuffers,
    pub(super) cache: Cache<FixedBuffers>,
    pub(super) lane: Lane<FixedBuffers>,
}

/// A cache that pins by `registrar`; and whom to tell of changes, if nobody else does.
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

impl Bench {
    /// # Errors
    /// Why there is no such monitor here, or no device.
    pub(super) fn open(monitor: &str) -> io::Result<Self> {
        let device = FixedBuffers::new().map_err(|error| io::Error::other(format!("io_uring: {error}")))?;
        let (cache, _) = open(device.clone(), monitor, 1024)?;
        let lane = cache.lane();
        Ok(Self { monitor: monitor.into(), clock: Clock::calibrate(), device, cache, lane })
    }

    /// Another cache, with the same monitor, that pins nothing.
    pub(super) fn unpinned(&self, count: u32) -> io::Result<(Cache<Nothing>, Option<Notifier>)> {
        open(Nothing, &self.monitor, count)
    }

    /// Memory of the kind that the monitor keeps.
    pub(super) fn memory(&self, bytes: usize) -> io::Result<Memory> {
        if matches!(self.monitor.as_str(), "sealed" | "userfaultfd") {
            return Sealed::new(bytes).map(Memory::Sealed);
        }
        let lot = Lot::memory(bytes as u64, libc::MAP_NORESERVE)?;
        // Where the kernel knows no huge pages there are none.
        lot.advise(lot.range(), libc::MADV_NOHUGEPAGE).ok();
        Ok(Memory::Anonymous(lot))
    }

    /// The nanoseconds that something takes.
    #[inline]
    pub(super) fn time<T>(&self, work: impl FnOnce() -> T) -> (f64, T) {
        let start = self.clock.now();
        let done = work();
        let end = self.clock.now();
        (self.clock.nanoseconds(end.wrapping_sub(start)), done)
    }
}

/// Memory to register, of ordinary pages.
pub(super) enum Memory {
    Anonymous(Lot),
    Sealed(Sealed),
}

impl Memory {
    pub(super) fn range(&self) -> Range {
        match self {
            Self::Anonymous(lot) => lot.range(),
            Self::Sealed(sealed) => sealed.range(),
        }
    }

    /// Part `number` of equal ones.
    pub(super) fn part(&self, number: usize, bytes: usize) -> io::Result<Range> {
        lot::range(self.range().start() + (number * bytes) as u64, bytes as u64)
    }

    /// The processor writes to all of it, or to a part.
    pub(super) fn write(&self, at: usize, bytes: &[u8]) -> io::Result<()> {
        let process = rustix::process::getpid().as_raw_pid();
        Foreign { process, address: self.range().start() }.write(at, bytes)
    }

    /// What the processor sees there.
    pub(super) fn read(&self, at: usize, bytes: &mut [u8]) -> io::Result<()> {
        let process = rustix::process::getpid().as_raw_pid();
        Foreign { process, address: self.range().start() }.read(at, bytes)
    }

    /// Every page is there.
    pub(super) fn fill(&self) -> io::Result<()> {
        static CHUNK: [u8; 64 << 10] = [0x5a; 64 << 10];
        let len = self.range().len() as usize;
        (0..len).step_by(CHUNK.len()).try_for_each(|at| self.write(at, &CHUNK[..CHUNK.len().min(len - at)]))
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if let Self::Anonymous(lot) = self {
            // What cannot be unmapped stays mapped.
            lot.release().ok();
        }
    }
}

/// Where the device's bytes come from: zeroes, since reading a file is done by another thread of the kernel's, which costs
/// more than most transfers.
pub(super) fn source() -> io::Result<File> {
    File::open("/dev/zero")
}

/// Rounds until the time is up, and at least `least`. Each is given its number.
pub(super) fn rounds(time: Duration, least: u32, mut round: impl FnMut(u32) -> io::Result<()>) -> io::Result<u32> {
    let start = Instant::now();
    let mut number = 0;
    while number < least || start.elapsed() < time {
        round(number)?;
        number += 1;
    }
    Ok(number)
}

/// The median of a few.
pub(super) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
