//! Queue pairs being made: by threads of their own, as a device takes milliseconds for one, and where a peer's port is not found the
//! kernel looks for it for a second. There are a few such threads, while there is something to do, whatever peers ask for.

use std::io;
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::sync::{Arc, Weak};

use super::super::region::{MemoryRegion, Rights};
use super::super::{CompletionQueue, End, PairSize, Path, ProtectionDomain, QueuePair};
use super::lane::{DEPTH, SLOT};
use super::windows::REQUESTS;
use super::{Offered, WireParts};
use crate::memory::volatile::IOV_LIMIT;
use crate::transport::background::{Crew, Job};
use crate::transport::verbs::errno_of;

/// Reads that may be under way at a time, on either side: both sides must agree. A device that allows fewer makes no accesses.
pub(super) const READS: u8 = 4;

/// Something to be made or ended.
pub(in super::super) struct Task {
    work: Box<dyn FnOnce() + Send>,
    /// The work is dropped unstarted once this has expired.
    wanted: Option<Weak<()>>,
}

impl Job for Task {
    fn run(self) {
        (self.work)();
    }

    fn is_wanted(&self) -> bool {
        self.wanted.as_ref().is_none_or(|wanted| wanted.strong_count() > 0)
    }
}

/// The threads of a domain.
pub(in super::super) type Makers = Arc<Crew<Task>>;

/// Makes the thread pool of a new domain.
pub(in super::super) fn makers() -> Makers {
    Crew::new("percale-pairs")
}

/// Something being made. If it is dropped before that has begun, it is not made.
#[derive(Debug)]
pub(super) struct Making<T> {
    result: Receiver<io::Result<T>>,
    _alive: Arc<()>,
}

impl<T: Send + 'static> Making<T> {
    /// Begins.
    pub(super) fn start(makers: &Makers, make: impl FnOnce() -> io::Result<T> + Send + 'static) -> Self {
        let (made, result) = sync_channel(1);
        let alive = Arc::new(());
        let wanted = Some(Arc::downgrade(&alive));
        // A result that is no longer wanted is dropped on that thread.
        makers.start(Task { work: Box::new(move || drop(made.send(make()))), wanted });
        Self { result, _alive: alive }
    }

    /// Returns the result, once.
    pub(super) fn result(&self) -> Option<io::Result<T>> {
        match self.result.try_recv() {
            Ok(result) => Some(result),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some(Err(io::ErrorKind::OutOfMemory.into())),
        }
    }
}

/// Ends something without waiting for it.
pub(super) fn end(makers: &Makers, what: impl Send + 'static) {
    makers.start(Task { work: Box::new(move || drop(what)), wanted: None });
}

/// A queue pair, and how its peer is to name it.
#[derive(Debug)]
pub(super) struct Made {
    pub(super) pair: QueuePair,
    path: Path,
    pub(super) ours: End,
}

/// One for accesses of ours, with room for them in its buffers.
pub(super) fn initiators(wire: &WireParts) -> io::Result<Made> {
    let buffers = MemoryRegion::new(wire.adapter.domain(), DEPTH * SLOT, Rights::LOCAL_WRITE)?;
    let pieces = wire.adapter.limits().pieces.min(IOV_LIMIT as u32);
    let size = PairSize { sends: DEPTH as u32, receives: 1, inline: 0, pieces };
    suffices(wire)?;
    make(wire, (&wire.queue, &buffers), size, Rights::empty())
}

/// The other end of a peer's, in this protection domain, through which it reaches what is registered there.
pub(super) fn targets(wire: &WireParts, domain: &Arc<ProtectionDomain>, peer: &End) -> io::Result<Made> {
    suffices(wire)?;
    let none = MemoryRegion::new(domain, 1, Rights::LOCAL_WRITE)?;
    let size = PairSize { sends: REQUESTS, receives: 1, inline: 0, pieces: 1 };
    // What binds and invalidates windows looks for completions itself, in any thread, and is woken by none.
    let queue = match wire.adapter.windows() {
        Some(_) => CompletionQueue::new(wire.queue.channel(), REQUESTS + 1)?,
        None => Arc::clone(&wire.queue),
    };
    let made = make(wire, (&queue, &none), size, Rights::REMOTE_READ | Rights::REMOTE_WRITE)?;
    connect(made, peer)
}

/// Returns whether the device allows what queue pairs for accesses need; EPERM, which is not asked again, if it does not.
fn suffices(wire: &WireParts) -> io::Result<()> {
    let limits = wire.adapter.limits();
    let is_enough = limits.reads >= READS.into() && limits.requests >= DEPTH as u32;
    if is_enough { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::EPERM)) }
}

fn make(
    wire: &WireParts,
    (queue, buffers): (&Arc<CompletionQueue>, &Arc<MemoryRegion>),
    size: PairSize,
    rights: Rights,
) -> io::Result<Made> {
    let pair = QueuePair::new(queue, buffers, size)?;
    let path = wire.adapter.look_again()?;
    pair.prepare(path, rights)?;
    let ours = wire.adapter.end(pair.number())?;
    Ok(Made { pair, path, ours })
}

/// Connects it.
pub(super) fn connect(made: Made, peer: &End) -> io::Result<Made> {
    made.pair.connect_reading(made.path, &made.ours, peer, READS)?;
    Ok(made)
}

/// How a queue pair that was made, or not, is offered.
pub(super) fn offer(ours: &io::Result<End>) -> Offered {
    ours.as_ref().copied().map_err(|error| errno_of(error).cast_unsigned())
}
