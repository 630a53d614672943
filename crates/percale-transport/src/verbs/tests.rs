//! Shared code of the tests that use a device. Without a device each test prints the reason and is skipped.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::*;

/// Opens the adapter of this machine, or prints the reason why there is none.
pub(super) fn adapter() -> Option<Arc<Adapter>> {
    match Adapter::open() {
        Ok(adapter) => Some(adapter),
        Err(why) => {
            println!("skipped (RDMA): no verbs here: {why}");
            None
        }
    }
}

/// An owner of a registration cache that cannot be opened.
#[cfg(not(loom))]
#[derive(Debug)]
pub(super) struct NoCache;

#[cfg(not(loom))]
impl Registers for NoCache {
    fn cache(&self, _: VerbsRegistrar) -> Option<&pindown::Cache<VerbsRegistrar>> {
        None
    }
}

/// One end of a connection, with a page to send from and a page to receive into.
pub(super) struct Side {
    pub(super) queue: Arc<CompletionQueue>,
    pub(super) pair: Arc<QueuePair>,
    end: QueuePairEnd,
}

const PAGE: usize = 4096;

fn side(adapter: &Adapter) -> Side {
    let channel = CompletionChannel::new(adapter.domain().context()).expect("a channel");
    let queue = CompletionQueue::new(&channel, 32).expect("a queue");
    let rights = Rights::LOCAL_WRITE | Rights::REMOTE_WRITE | Rights::REMOTE_READ | Rights::BIND;
    let buffers = MemoryRegion::new(adapter.domain(), 2 * PAGE, rights).expect("a region");
    let pair =
        QueuePair::new(&queue, &buffers, PairSize { sends: 8, receives: 8, inline: 64, pieces: 1 }).expect("a pair");
    pair.prepare(adapter.path(), Rights::REMOTE_WRITE | Rights::REMOTE_READ).expect("a prepared pair");
    let end = adapter.end(pair.number()).expect("an end");
    Side { queue, pair: Arc::new(pair), end }
}

pub(super) fn sides(adapter: &Adapter) -> (Side, Side) {
    let (one, two) = (side(adapter), side(adapter));
    two.pair.post_receive(100, PAGE, PAGE).expect("a receive");
    one.pair.connect(adapter.path(), &one.end, &two.end).expect("a connected pair");
    two.pair.connect(adapter.path(), &two.end, &one.end).expect("a connected pair");
    (one, two)
}

impl Side {
    /// Returns the next completion. Waits for at most ten seconds. The caller expects only one.
    pub(super) fn next(&self) -> Completion {
        let until = Instant::now() + Duration::from_secs(10);
        let mut found = Vec::new();
        while found.is_empty() {
            self.queue.poll(|one| found.push(one)).expect("a queue that works");
            assert!(Instant::now() < until, "no completion arrived");
        }
        assert_eq!(found.len(), 1, "more than one completion: {found:?}");
        found[0]
    }
}

#[test]
fn missing_device_error_gives_a_reason() {
    match Adapter::open() {
        Ok(adapter) => assert!(adapter.describe().contains("port"), "{}", adapter.describe()),
        Err(why) => assert!(why.len() > 10, "{why:?} is too short"),
    }
}
