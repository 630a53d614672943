//! Poll sets and wait sets that contain the objects to which shared endpoints report.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use percale::{
    Access, CompletionQueue, Counter, Entry, EventQueue, PollSet, Progress, RemoteMemory, SharedEndpoint, WaitSet,
};
use rustix::event::{PollFd, PollFlags, Timespec};

use super::waiting::{PEER, two_shared};
use crate::fabric::{Fabric, Real};
use crate::memory::content;
use crate::watchdog::Watchdog;

/// The objects that report writes to a target.
#[derive(Debug, Default)]
struct ReportObjects {
    queue: CompletionQueue,
    counter: Counter,
    events: EventQueue,
}

impl ReportObjects {
    /// Returns an initiator, and a target that reports to these objects. Only waiting threads drive the target.
    fn two<F: Fabric>(&self) -> (SharedEndpoint, SharedEndpoint) {
        two_shared::<F>(Progress::Manual, |endpoint| {
            endpoint.receive_queue(&self.queue).remote_write_counter(&self.counter).event_queue(&self.events)
        })
    }

    /// Reads all results. Returns the data of the last write, if there was one.
    fn read(&self) -> Option<u64> {
        let mut entries = [Entry::default(); 4];
        let count = self.queue.read(&mut entries).expect("no error");
        while self.events.read().is_some() {}
        entries[..count].last().map(|entry| entry.data)
    }
}

const ROUNDS: u64 = 60;

/// Writes repeatedly, each time after the previous write has been detected, and sometimes after a pause, so that the
/// other side sleeps.
fn write(from: &SharedEndpoint, to: RemoteMemory, seen: &Counter) {
    for round in 0..ROUNDS {
        seen.wait(round, Some(Duration::from_secs(60))).expect("the other side reads");
        if round % 7 == 0 {
            std::thread::sleep(Duration::from_millis(2));
        }
        let len = if round % 2 == 0 { 8 } else { to.len as usize };
        let write = from.write(PEER, content(round, len), to.at(0..len as u64)).data(round);
        write.wait().expect("a write");
    }
}

/// The set returns the object to which a message was reported, and drives the endpoint.
///
/// Requirements: CMP-019.
pub fn a_poll_set_spans_endpoints<F: Real>() {
    let _watchdog = Watchdog::new("a poll set spans endpoints");
    let objects = ReportObjects::default();
    let (a, b) = objects.two::<F>();
    let region = b.domain().register(vec![0; 100_000], Access::REMOTE_WRITE).expect("a region");
    let (set, seen) = (PollSet::new(), Counter::new());
    set.add(&objects.queue, 'q').expect("a member");
    set.add(&objects.counter, 'c').expect("a member");
    set.add(&objects.events, 'e').expect("a member");
    std::thread::scope(|scope| {
        scope.spawn(|| write(&a, region.remote(), &seen));
        let (mut last, mut counted, mut met) = (None, 0, false);
        while last != Some(ROUNDS - 1) || counted == 0 {
            let mut names = ['-'; 3];
            let count = set.poll(&mut names);
            let names = &names[..count];
            met |= names.contains(&'e');
            counted += u64::from(names.contains(&'c'));
            if names.contains(&'q') {
                let data = objects.read();
                assert_eq!(
                    data,
                    last.map_or(Some(0), |last| Some(last + 1)),
                    "a queue is reported when it is not empty"
                );
                last = data;
                seen.add(1);
            }
            std::thread::yield_now();
        }
        // An endpoint that reaches only itself has no connections, and therefore no events.
        assert!((met || F::ALONE) && counted <= ROUNDS + 1, "{met}, {counted}");
    });
}

/// A thread waits for all objects at the same time, with the wait of the set or with its descriptor.
///
/// Requirements: CMP-020.
pub fn a_wait_set_spans_endpoints<F: Real>() {
    let _watchdog = Watchdog::new("a wait set spans endpoints");
    let ways: [fn(&WaitSet); 2] = [
        |set| set.wait(Some(Duration::from_secs(60))).expect("a member has an event"),
        |set| {
            if set.try_wait().expect("a descriptor") {
                sleep(set.descriptor().expect("a descriptor").as_fd());
            }
        },
    ];
    for way in ways {
        let objects = ReportObjects::default();
        let set = WaitSet::new();
        set.add(&objects.events).expect("a member");
        let (a, b) = objects.two::<F>();
        set.add(&objects.queue).expect("a member");
        set.add(&objects.counter).expect("a member");
        let region = b.domain().register(vec![0; 100_000], Access::REMOTE_WRITE).expect("a region");
        let seen = Counter::new();
        std::thread::scope(|scope| {
            scope.spawn(|| write(&a, region.remote(), &seen));
            let mut count = 0;
            while count < ROUNDS {
                way(&set);
                if let Some(data) = objects.read() {
                    assert_eq!(data, count);
                    count += 1;
                    seen.add(1);
                }
            }
        });
        assert_eq!(objects.counter.value(), ROUNDS);
    }
}

fn sleep(descriptor: BorrowedFd<'_>) {
    let timeout = Timespec { tv_sec: 60, tv_nsec: 0 };
    let woken = rustix::event::poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], Some(&timeout));
    assert_eq!(woken, Ok(1), "the wait did not wake for the event");
}
