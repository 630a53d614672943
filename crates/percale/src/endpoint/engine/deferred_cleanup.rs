//! Memory that outlives its endpoint, because a local peer may still be writing to it.
//!
//! A peer that was stopped in the middle of a copy continues the copy when it is resumed, even if the endpoint was
//! closed long before. So the memory that closing endpoints own for such operations is kept here until the peer has
//! released it or the peer process has ended. Operations on memory of the application are reported only then.
//!
//! While any memory is kept, a thread checks it. So the end of an operation is reported even if the application makes
//! no further calls: queues of the application may have outlived every endpoint, and a thread that waits for a queue
//! makes no progress on closed endpoints. The memory is also checked when endpoints are opened and closed, by progress
//! threads, and by readers of queues to which shared endpoints report. All of them check without an endpoint's lock,
//! because dropping the memory may run application code.
//!
//! Kept memory is never dropped early, regardless of its amount: otherwise a report, and the room that was reserved for
//! it, would be lost. The amount is bounded as follows:
//! * For one connection it is at most eight pulls and one long access, and only if the peer was stopped in the middle
//!   of a copy, or violates the protocol. Memory and operations are those that the application posted.
//! * For one peer process an endpoint keeps at most [`KEPT`](super::draining::KEPT) connections that ended before it
//!   was closed.
//! * Each kept connection holds descriptors that pin the peer's process, so the number of descriptors limits the number
//!   of connections.
//! * All of it is released when the peer's process ends.
//!
//! One check covers at most [`LOOKS`] closed endpoints, in turn, so that the cost for a reader of a queue is bounded.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::groups::Scratch;
use super::remote::Execution;
use super::staged::Staged;
use super::types::{Notify, PayloadPull};
use crate::completion::counter::Counter;
use crate::completion::entry::{CompletionFlags, ErrorEntry};
use crate::completion::queue::CompletionQueue;
use crate::deferred_actions::{contained, discard};
use crate::endpoint::pool::{EndedReceive, Many, Pool};
use crate::endpoint::submissions::Transfer;
use crate::local_memory::buffer::{Buffer, BufferExt as _};
use crate::system::forked::PerProcess;
use crate::transport::shm::DrainingLink;

/// The maximum number of closed endpoints that one check covers.
const LOOKS: usize = 64;
/// The time between two checks by the thread. It begins with the first value, doubles after each check, and is at most
/// the second value.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(50);

/// Memory of an operation. It is never used, only dropped.
#[derive(Debug)]
#[expect(dead_code, reason = "the values are owned, not used")]
pub(super) enum OperationMemory {
    Buffer(Option<Buffer>),
    Transfer(Box<Transfer>),
    Staged(Option<Box<Staged>>),
    Scratch(Scratch),
    Pull(PayloadPull),
    Access(Execution),
}

/// A report that is due when the application may use the memory again.
#[derive(Debug)]
pub(super) struct LateReport {
    /// Where the report is made.
    pub(super) place: ReportTarget,
    /// Whether room was reserved there.
    pub(super) reserved: bool,
    pub(super) error: ErrorEntry,
    pub(super) counters: Vec<Counter>,
    /// The buffer of a shared receive context that contains the operation's memory. The buffer is not released before
    /// this report.
    pub(super) part: Option<Arc<Many>>,
}

/// Where the late end of an operation is reported.
#[derive(Debug)]
pub(super) enum ReportTarget {
    /// In this queue.
    Queue(CompletionQueue),
    /// By another endpoint of this shared receive context.
    Pool(Arc<Pool>, Notify),
    /// Not reported: the endpoint's own queue was closed with it.
    Nowhere,
}

impl LateReport {
    fn end(self) {
        let Self { place, reserved, mut error, counters, part } = self;
        match (place, part) {
            (ReportTarget::Pool(pool, notify), part) => pool.report(EndedReceive { notify, part, result: Err(error) }),
            (ReportTarget::Queue(queue), Some(part)) => part.end_part(|released| {
                if released {
                    error.entry.flags |= CompletionFlags::MULTI_RECEIVE;
                }
                queue.update(|ring| ring.push_error_event(error));
            }),
            (ReportTarget::Queue(queue), None) if reserved => queue.push_error(error),
            (ReportTarget::Queue(queue), None) => queue.update(|ring| ring.push_error_event(error)),
            (ReportTarget::Nowhere, _) => {}
        }
        counters.into_iter().for_each(|counter| counter.add_error(1));
    }
}

/// The memory and the reports that remain from one closed endpoint.
#[derive(Debug)]
pub(super) struct DeferredCleanup {
    residues: Vec<DrainingLink>,
    memory: Vec<OperationMemory>,
    reports: Vec<LateReport>,
}

impl DeferredCleanup {
    pub(super) const fn new(residues: Vec<DrainingLink>, memory: Vec<OperationMemory>) -> Self {
        Self { residues, memory, reports: Vec::new() }
    }

    /// Returns whether no peer writes to the memory any more.
    pub(super) fn is_over(&self) -> bool {
        self.residues.iter().all(|draining| draining.release().is_some())
    }

    /// Adds a report that is made when no peer writes to the memory any more.
    pub(super) fn report(&mut self, late: LateReport) {
        self.reports.push(late);
    }

    /// Drops memory to which no peer writes any more, while the engine is borrowed or locked.
    pub(super) fn drop_under_lock(self) {
        for memory in self.memory {
            if let OperationMemory::Buffer(Some(buffer)) = memory {
                buffer.drop_under_lock();
            }
        }
    }

    fn end(self) {
        let Self { residues, memory, reports } = self;
        discard((residues, memory));
        reports.into_iter().for_each(LateReport::end);
    }
}

/// The memory and the reports that remain from closed endpoints.
#[derive(Debug, Default)]
struct CleanupQueue {
    list: VecDeque<DeferredCleanup>,
    /// Whether the thread runs. It ends when the list is empty.
    has_thread: bool,
}

static KEPT: PerProcess<Mutex<CleanupQueue>> = PerProcess::new();
/// The number of closed endpoints in [`KEPT`]. In a forked child, the number that its parent kept.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Keeps the memory and the reports of a closed endpoint until no peer writes to the memory any more.
#[cold]
pub(super) fn keep(aside: DeferredCleanup) {
    crate::later::later!(warn: "a local peer may still be copying to memory of a closed endpoint; the memory is kept until the peer releases it"
    );
    // This does not fail, because the mark of this process was created when the endpoint was opened.
    let Ok(kept) = KEPT.get_or_make() else { return std::mem::forget(aside) };
    let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
    kept.list.push_back(aside);
    COUNT.store(kept.list.len(), Ordering::Relaxed);
    kept.ensure_thread();
}

impl CleanupQueue {
    /// Starts the thread that checks, unless it runs or there is nothing to check. If the system refuses to start it,
    /// the next check by another thread tries again.
    fn ensure_thread(&mut self) {
        if self.has_thread || self.list.is_empty() {
            return;
        }
        match crate::system::thread::start_thread("percale-aside", check) {
            Ok(_) => self.has_thread = true,
            Err(error) => {
                crate::later::later!(warn: %error, "cannot start a thread: memory of closed endpoints is checked only when endpoints are opened and closed");
            }
        }
    }

    /// Takes out the memory to which no peer writes any more, of at most [`LOOKS`] closed endpoints.
    fn take_finished(&mut self) -> Vec<DeferredCleanup> {
        let mut over = Vec::new();
        for _ in 0..self.list.len().min(LOOKS) {
            let Some(aside) = self.list.pop_front() else { break };
            if aside.is_over() {
                over.push(aside);
            } else {
                self.list.push_back(aside);
            }
        }
        COUNT.store(self.list.len(), Ordering::Relaxed);
        over
    }
}

/// Checks the kept memory until there is none.
fn check() {
    let Some(kept) = KEPT.get() else { return };
    let mut pause = FIRST_PAUSE;
    loop {
        crate::system::thread::pause(pause);
        let (over, more) = {
            let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
            let over = kept.take_finished();
            kept.has_thread = !kept.list.is_empty();
            (over, kept.has_thread)
        };
        pause = if over.is_empty() { (pause * 2).min(LONGEST_PAUSE) } else { FIRST_PAUSE };
        // A panic would end the thread while `has_thread` is set, and no other would be started.
        over.into_iter().for_each(|aside| _ = contained("a completion callback panicked", || aside.end()));
        if !more {
            return;
        }
    }
}

/// Releases and reports memory to which no peer writes any more, for at most [`LOOKS`] closed endpoints. Costs one load
/// if nothing is kept.
#[inline]
pub(crate) fn settle() {
    if COUNT.load(Ordering::Relaxed) > 0 {
        settle_some();
    }
}

#[cold]
fn settle_some() {
    let Some(kept) = KEPT.get() else { return };
    let over = {
        let Ok(mut kept) = kept.try_lock() else { return }; // Another thread is checking.
        let over = kept.take_finished();
        kept.ensure_thread();
        over
    };
    over.into_iter().for_each(DeferredCleanup::end);
}
