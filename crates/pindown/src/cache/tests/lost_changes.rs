//! A monitor that has missed changes, and has not reported that in its page.

use std::sync::atomic::AtomicBool;

use super::*;
use crate::journal::{JournalPage, MonitorDoorbell};
use crate::monitor::{MonitorBackend, Watched};

/// A monitor that watches all memory until it has ended, and reports nothing.
#[derive(Debug)]
struct Silent {
    ended: Arc<AtomicBool>,
}

impl MonitorBackend for Silent {
    fn name(&self) -> &'static str {
        "silent"
    }

    fn page(&self) -> Option<&'static JournalPage> {
        None
    }

    fn doorbell(&self) -> Option<&dyn MonitorDoorbell> {
        None
    }

    fn watch(&self, _range: Range, _access: Access) -> Result<Watched, Refusal> {
        if self.ended.load(Ordering::Acquire) { Err(Refusal::MonitorEnded) } else { Ok(Watched::default()) }
    }
}

/// Requirements: RCACHE-021.
#[test]
fn look_up_that_finds_the_end_of_the_monitor_drops_all_registrations() {
    let (memory, mut cache, _notifier) = cache();
    let ended = Arc::new(AtomicBool::new(false));
    let shared = Arc::get_mut(&mut cache.0).expect("the cache has no lane");
    shared.monitor = Box::new(Silent { ended: Arc::clone(&ended) });
    let lane = cache.lane();
    let ranges = [pages(1, 1), pages(10, 4), pages(30, 2)];
    let before = ranges.map(|range| key(&lane, range, READ));
    assert_eq!(ranges.map(|range| key(&lane, range, READ)), before);
    // These changes are not reported.
    ranges.iter().for_each(|range| memory.change(*range));
    ended.store(true, Ordering::Release);
    // The next miss finds the end, whatever memory it is for.
    let used = lane.get(pages(50, 1), READ).expect("registered");
    assert!(used.is_single(), "nothing is kept any more");
    lane.end(used);
    assert_eq!(cache.stats().invalidations, 3);
    for range in ranges {
        let used = lane.get(range, READ).expect("registered");
        assert!(used.is_single() && memory.is_current(used.local_key()), "a registration of old pages");
        lane.end(used);
    }
    cache.sweep();
    let stats = cache.stats();
    assert_eq!((stats.single_uses_for(Refusal::MonitorEnded), stats.entries), (4, 0), "{stats:?}");
    assert_eq!(memory.pinned.load(Ordering::Relaxed), memory.unpinned.load(Ordering::Relaxed));
}
