//! `percale perf --rdma`: the costs of registrations, windows and transfers on an RDMA device. The peer is connected to
//! a port of the same device, so the peer's transfers pass through the device.

#![expect(unsafe_code, reason = "registers memory that it does not own; the block states its reason")]

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use comfy_table::{Cell, CellAlignment, Table};
use percale_transport::verbs::{
    Adapter, Backing, Binding, CompletionChannel, CompletionQueue, LoopbackPair, MemoryRegion, PairSize, QueuePair,
    Rights, VerbsRegistrar, Window, WindowKind,
};
use pindown::{Access, Cache, Lane, Range, Registrar};
use serde::Serialize;

use super::args::PerfArgs;
use crate::failure::{Failure, Result};
use crate::limits::kernel::Foreign;
use crate::memory_range::MemoryRange;
use crate::output::{print_line, progress_bar};
use crate::statistics::Samples;
use crate::table::RULED;
use crate::units;

/// The default number of seconds for each size.
const SECONDS: f64 = 2.0;

/// The default sizes.
const SIZES: [usize; 3] = [4 << 10, 64 << 10, 1 << 20];

const ACCESS: Access = Access::LOCAL_WRITE.union(Access::REMOTE_WRITE);

/// The timeout for one request to the device.
const DEVICE_TIMEOUT: Duration = Duration::from_secs(20);
/// The ID of all requests. There is one request at a time.
const REQUEST: u64 = 1;

/// The timed operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum RdmaOperation {
    /// A write of a peer to memory that was registered in advance. All ratios are relative to this.
    InAdvance,
    /// A write of a peer to memory that is registered for this write and deregistered afterwards.
    EachTime,
    /// A write of a peer to memory with a registration from the cache.
    Cached,
    /// A write of a peer to a registered buffer, and a copy out of the buffer.
    Copied,
    /// Registering the memory.
    Register,
    /// Deregistering the memory.
    Deregister,
    /// Binding a window of type 2 to the memory.
    Bind,
    /// Invalidating the window.
    Invalidate,
}

impl RdmaOperation {
    const ALL: [Self; 8] = [
        Self::InAdvance,
        Self::EachTime,
        Self::Cached,
        Self::Copied,
        Self::Register,
        Self::Deregister,
        Self::Bind,
        Self::Invalidate,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::InAdvance => "transfer, registered in advance",
            Self::EachTime => "transfer, registered each time",
            Self::Cached => "transfer, looked up in the cache",
            Self::Copied => "transfer into a buffer, and a copy",
            Self::Register => "register",
            Self::Deregister => "deregister",
            Self::Bind => "bind a window of type 2",
            Self::Invalidate => "invalidate the window",
        }
    }
}

/// One line of the result.
#[derive(Debug, Serialize)]
struct RdmaLine {
    what: RdmaOperation,
    bytes: usize,
    p50_ns: f64,
    /// The time divided by the time of a transfer into memory that was registered in advance.
    ratio: f64,
    /// The number of timed operations.
    count: usize,
    /// The monitor of the cache.
    monitor: &'static str,
}

/// The device, a connected pair of queues, and a cache.
struct Bench {
    adapter: Arc<Adapter>,
    registrar: VerbsRegistrar,
    cache: Cache<VerbsRegistrar>,
    lane: Lane<VerbsRegistrar>,
    queue: Arc<CompletionQueue>,
    pair: Arc<QueuePair>,
    /// The peer of the pair. No operations are posted on it.
    _far: QueuePair,
}

/// Memory of one size, and its registration.
struct Site {
    memory: MemoryRange,
    range: Range,
    peer: LoopbackPair,
    bytes: Vec<u8>,
    /// The key of the registration made in advance.
    key: u32,
    buffer: Arc<MemoryRegion>,
    window: Window,
}

impl Drop for Site {
    fn drop(&mut self) {
        // An error leaves the memory mapped, which is harmless.
        self.memory.release().ok();
    }
}

fn failed<E: std::fmt::Display>(what: &'static str) -> impl Fn(E) -> Failure {
    move |error| Failure::Percale { what, why: error.to_string() }
}

impl Bench {
    fn open() -> Result<Self> {
        let adapter = Adapter::open().map_err(failed("an RDMA device"))?;
        // SAFETY: all memory that is registered with it belongs to a `MemoryRange`, which contains no value of this
        // program.
        let registrar = unsafe { VerbsRegistrar::new(Arc::clone(adapter.domain()), Rights::empty()) };
        let cache = Cache::builder(registrar.clone()).open().map_err(failed("a registration cache"))?;
        let open = || -> io::Result<_> {
            let channel = CompletionChannel::new(adapter.domain().context())?;
            let queue = CompletionQueue::new(&channel, 4)?;
            let buffers = MemoryRegion::new(adapter.domain(), 1, Rights::LOCAL_WRITE)?;
            let size = PairSize { sends: 2, receives: 1, inline: 0, pieces: 1 };
            let (near, far) = (QueuePair::new(&queue, &buffers, size)?, QueuePair::new(&queue, &buffers, size)?);
            let path = adapter.path();
            near.prepare(path, Rights::REMOTE_WRITE)?;
            far.prepare(path, Rights::REMOTE_WRITE)?;
            let (here, there) = (adapter.end(near.number())?, adapter.end(far.number())?);
            near.connect(path, &here, &there)?;
            far.connect(path, &there, &here)?;
            Ok((queue, Arc::new(near), far))
        };
        let (queue, pair, far) = open().map_err(failed("a queue pair"))?;
        Ok(Self { lane: cache.lane(), adapter, registrar, cache, queue, pair, _far: far })
    }

    fn site(&self, bytes: usize) -> io::Result<(Site, <VerbsRegistrar as Registrar>::Pin)> {
        let memory = MemoryRange::memory(bytes as u64, 0)?;
        let range = memory.range();
        // Errors are ignored, because a kernel without huge pages does not need the advice.
        memory.advise(range, libc::MADV_NOHUGEPAGE).ok();
        let pinned = self.registrar.pin(range, ACCESS)?;
        let rights = Rights::LOCAL_WRITE | Rights::REMOTE_WRITE | Rights::BIND;
        let site = Site {
            memory,
            range,
            peer: LoopbackPair::new(&self.adapter, bytes)?,
            bytes: vec![1; bytes],
            key: pinned.remote_key as u32,
            buffer: MemoryRegion::new(self.adapter.domain(), bytes, rights)?,
            window: Window::new(self.adapter.domain(), WindowKind::Two)?,
        };
        Ok((site, pinned.pin))
    }

    /// Waits until the posted request has completed.
    fn done(&self) -> io::Result<()> {
        match self.queue.finish(REQUEST, DEVICE_TIMEOUT, |_| {})? {
            Some(0) => Ok(()),
            Some(status) => Err(io::Error::other(self.queue.explain(status))),
            None => Err(io::ErrorKind::TimedOut.into()),
        }
    }

    /// Times one operation of each kind. Each round begins with a different operation, because an operation depends on
    /// the state that the previous one has left.
    fn round(
        &self,
        number: usize,
        site: &mut Site,
        samples: &mut [Samples; RdmaOperation::ALL.len()],
    ) -> io::Result<()> {
        let jobs = [
            RdmaOperation::InAdvance,
            RdmaOperation::EachTime,
            RdmaOperation::Cached,
            RdmaOperation::Copied,
            RdmaOperation::Register,
            RdmaOperation::Bind,
        ];
        for turn in 0..jobs.len() {
            let what = jobs[(number + turn) % jobs.len()];
            let mut time =
                |what: RdmaOperation, begun: Instant| samples[what as usize].push(begun.elapsed().as_nanos() as f64);
            let begun = Instant::now();
            match what {
                RdmaOperation::Register | RdmaOperation::Deregister => {
                    let pinned = self.registrar.pin(site.range, ACCESS)?;
                    time(RdmaOperation::Register, begun);
                    let begun = Instant::now();
                    self.registrar.unpin(pinned.pin);
                    time(RdmaOperation::Deregister, begun);
                }
                RdmaOperation::Bind | RdmaOperation::Invalidate => {
                    let (region, len) = (&site.buffer, site.bytes.len());
                    let memory = Backing::Region(Arc::clone(region), 0, len);
                    let binding = Binding { memory, rights: Rights::REMOTE_WRITE };
                    site.window.bind(&self.pair, REQUEST, &binding)?;
                    self.done()?;
                    time(RdmaOperation::Bind, begun);
                    let begun = Instant::now();
                    site.window.invalidate(&self.pair, REQUEST)?;
                    self.done()?;
                    time(RdmaOperation::Invalidate, begun);
                }
                transfer => {
                    self.transfer(transfer, site)?;
                    time(transfer, begun);
                }
            }
        }
        Ok(())
    }

    fn transfer(&self, what: RdmaOperation, site: &mut Site) -> io::Result<()> {
        let start = site.range.start();
        match what {
            RdmaOperation::EachTime => {
                let pinned = self.registrar.pin(site.range, ACCESS)?;
                site.peer.write(&site.bytes, start, pinned.remote_key as u32)?;
                self.registrar.unpin(pinned.pin);
            }
            RdmaOperation::Cached => {
                let used = self.lane.get(site.range, ACCESS).map_err(io::Error::other)?;
                site.peer.write(&site.bytes, start, used.remote_key() as u32)?;
                self.lane.end(used);
            }
            RdmaOperation::Copied => {
                site.peer.write(&site.bytes, site.buffer.as_ptr() as u64, site.buffer.remote_key())?;
                site.buffer.copy_out(0, site.bytes.len(), &mut site.bytes);
            }
            _ => site.peer.write(&site.bytes, start, site.key)?,
        }
        Ok(())
    }

    /// Checks that the data of the device arrives at both ends of the memory, with the key registered in advance and
    /// with the key from the cache.
    fn check(&self, site: &mut Site) -> io::Result<()> {
        let process = rustix::process::getpid().as_raw_pid();
        let used = self.lane.get(site.range, ACCESS).map_err(io::Error::other)?;
        for (byte, key) in [(7, site.key), (8, used.remote_key() as u32)] {
            site.peer.write(&vec![byte; site.bytes.len()], site.range.start(), key)?;
            for at in [0, site.bytes.len() - 1] {
                let mut seen = [0];
                Foreign { process, address: site.range.start() }.read(at, &mut seen)?;
                if seen != [byte] {
                    return Err(io::Error::other(format!("wrong data at {at}: {} instead of {byte}", seen[0])));
                }
            }
        }
        self.lane.end(used);
        Ok(())
    }

    fn measure(&self, bytes: usize, time: Duration) -> io::Result<Vec<RdmaLine>> {
        let (mut site, pin) = self.site(bytes)?;
        self.check(&mut site)?;
        // The first round is not counted. Its operations depend on the state that other operations have left.
        self.round(0, &mut site, &mut Default::default())?;
        let (mut samples, begun) = (Default::default(), Instant::now());
        let mut rounds = 0;
        while rounds < 6 || begun.elapsed() < time {
            self.round(rounds, &mut site, &mut samples)?;
            rounds += 1;
        }
        self.registrar.unpin(pin);
        self.cache.flush();
        let summaries = samples.map(Samples::summary);
        let base = summaries[RdmaOperation::InAdvance as usize].map_or(f64::NAN, |summary| summary.p50);
        let lines = RdmaOperation::ALL.iter().zip(summaries).filter_map(|(&what, summary)| {
            let (summary, monitor) = (summary?, self.cache.monitor());
            Some(RdmaLine {
                what,
                bytes,
                p50_ns: summary.p50,
                ratio: summary.p50 / base,
                count: summary.count,
                monitor,
            })
        });
        Ok(lines.collect())
    }
}

/// Runs the measurement.
pub(super) fn run(args: &PerfArgs) -> Result<()> {
    let sizes = if args.size.is_empty() { &SIZES } else { args.size.as_slice() };
    let time = Duration::from_secs_f64(args.seconds.unwrap_or(SECONDS));
    let bench = Bench::open()?;
    let bar = progress_bar(sizes.len() as u64)?;
    let mut lines = Vec::new();
    for &bytes in sizes {
        let measured = bench.measure(bytes, time).map_err(failed("a measurement over RDMA"))?;
        if args.json {
            for line in &measured {
                print_line(&serde_json::to_string(line).map_err(Failure::system("writing JSON"))?)?;
            }
        }
        lines.extend(measured);
        bar.inc(1);
    }
    bar.finish_and_clear();
    if !args.json {
        print_line(&text(&lines))?;
    }
    Ok(())
}

fn text(lines: &[RdmaLine]) -> String {
    let mut table = Table::new();
    table.load_style(RULED);
    let right = |text: String| Cell::new(text).set_alignment(CellAlignment::Right);
    let head = ["size", "p50", "ratio", "timed"].map(|text| right(text.to_owned()));
    table.set_header(std::iter::once(Cell::new("what")).chain(head));
    for line in lines {
        let figures =
            [units::size(line.bytes), units::time(line.p50_ns), format!("{:.2}", line.ratio), line.count.to_string()];
        table.add_row(std::iter::once(Cell::new(line.what.name())).chain(figures.map(right)));
    }
    let monitor = lines.first().map_or("", |line| line.monitor);
    format!("{table}\nratio: to a transfer into memory that was registered in advance; the cache's monitor: {monitor}")
}

#[cfg(test)]
mod tests {
    use super::{RdmaLine, RdmaOperation, text};

    #[test]
    fn every_line_is_shown() {
        let line = |what| RdmaLine { what, bytes: 4096, p50_ns: 1500.0, ratio: 1.5, count: 7, monitor: "bpf" };
        let shown = text(&RdmaOperation::ALL.map(line));
        for what in RdmaOperation::ALL {
            assert!(shown.contains(what.name()), "{shown}");
        }
        assert!(shown.contains("4 KiB") && shown.contains("1.50") && shown.ends_with("monitor: bpf"), "{shown}");
        let json = serde_json::to_string(&line(RdmaOperation::EachTime)).unwrap();
        assert!(json.starts_with(r#"{"what":"each-time","bytes":4096,"#), "{json}");
    }
}
