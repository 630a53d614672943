//! Loom models of the doorbell (`RUSTFLAGS="--cfg loom" cargo test --release -p percale-memory --lib loom_`). They fail
//! if any of the fences (in `publish_fenced`, `arm`, `going_cold` of this module, `ring`) is removed.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};

use super::{Asleep, Page, WakeMethod};
use crate::sync::{explore, publish_fenced};

/// A page, an event descriptor, and rings with one line each.
struct Shared {
    asleep: Asleep,
    page: Page,
    event: AtomicBool,
    marks: [AtomicU64; 2],
    cold: [AtomicU32; 2],
}

impl Shared {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            asleep: Asleep::new(),
            page: Page::for_model(),
            event: AtomicBool::new(false),
            marks: [AtomicU64::new(0), AtomicU64::new(0)],
            cold: [AtomicU32::new(0), AtomicU32::new(0)],
        })
    }

    /// Like `Sender::send` and `PeerDoorbell::notify`.
    fn send(&self, ring: usize) {
        publish_fenced(&self.marks[ring], 1);
        let cold = self.cold[ring].load(Ordering::SeqCst) != 0;
        if cold | self.page.is_asleep() {
            if cold {
                self.page.ring(ring as u32);
            }
            if self.page.must_wake().is_some() {
                assert!(!self.event.swap(true, Ordering::Relaxed), "two peers woke one sleeper");
            }
        }
    }

    /// Like `Doorbell::arm`.
    fn arm(&self) {
        self.asleep.arm(WakeMethod::Word);
        self.page.arm(WakeMethod::Word);
    }

    /// Like `Doorbell::wake`, called by a thread of the endpoint's own process that has published something.
    fn tell(&self) {
        publish_fenced(&self.marks[0], 1);
        if self.asleep.must_wake().is_some() {
            self.page.disarm();
            self.event.store(true, Ordering::Relaxed);
        }
    }

    fn arrived(&self, ring: usize) -> bool {
        self.marks[ring].load(Ordering::Acquire) != 0
    }

    /// Like `ShmLink::set_cold`: returns false if a message arrived.
    fn going_cold(&self, ring: usize) -> bool {
        self.cold[ring].store(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        !self.arrived(ring)
    }
}

/// Requirements: RES-008.
#[test]
fn loom_a_sleeper_that_watches_is_woken() {
    explore(None, 8, || {
        let shared = Shared::new();
        let sender = {
            let shared = Arc::clone(&shared);
            loom::thread::spawn(move || shared.send(0))
        };
        shared.arm();
        let sleeps = !shared.arrived(0);
        sender.join().unwrap();
        assert!(!sleeps || shared.event.load(Ordering::Relaxed), "no wake-up");
    });
}

/// Requirements: RES-008.
#[test]
fn loom_a_cold_ring_is_rung_and_its_sleeper_woken() {
    explore(None, 130, || {
        let shared = Shared::new();
        let sender = {
            let shared = Arc::clone(&shared);
            loom::thread::spawn(move || shared.send(1))
        };
        let cold = shared.going_cold(1);
        shared.arm();
        let mut rung = Vec::new();
        shared.page.take_rung(|bit| rung.push(bit));
        let sleeps = cold && rung.is_empty();
        sender.join().unwrap();
        assert!(!sleeps || shared.event.load(Ordering::Relaxed), "no wake-up");
        shared.page.take_rung(|bit| rung.push(bit));
        assert!(!cold || rung == [1], "the frame was not detected");
    });
}

/// Requirements: RES-008.
#[test]
fn loom_a_sleeper_with_cold_rings_is_woken_by_one() {
    explore(Some(3), 3500, || {
        let shared = Shared::new();
        let senders = [0, 1].map(|ring| {
            let shared = Arc::clone(&shared);
            loom::thread::spawn(move || shared.send(ring))
        });
        let mut seen = [false; 2];
        for ring in [0, 1] {
            seen[ring] = !shared.going_cold(ring);
        }
        // Ring 0 is hot again, and ring 1 stays cold.
        shared.cold[0].store(0, Ordering::Relaxed);
        shared.arm();
        seen[0] |= shared.arrived(0);
        shared.page.take_rung(|bit| seen[bit as usize] |= shared.arrived(bit as usize));
        let sleeps = !seen[0] & !seen[1];
        for sender in senders {
            sender.join().unwrap();
        }
        assert!(!sleeps || shared.event.load(Ordering::Relaxed), "no wake-up");
        // The endpoint is awake and checks the marked rings.
        shared.page.take_rung(|bit| seen[bit as usize] |= shared.arrived(bit as usize));
        assert!(seen[1], "the frame was not detected");
    });
}

/// Requirements: RES-008.
#[test]
fn loom_own_threads_wake_a_sleeper_although_a_peer_clears_its_page() {
    explore(None, 2000, || {
        let shared = Shared::new();
        let own = {
            let shared = Arc::clone(&shared);
            loom::thread::spawn(move || shared.tell())
        };
        let hostile = {
            let shared = Arc::clone(&shared);
            // Does not wake up the endpoint, like a process that is killed here.
            loom::thread::spawn(move || _ = shared.page.must_wake())
        };
        shared.arm();
        let sleeps = !shared.arrived(0);
        own.join().unwrap();
        hostile.join().unwrap();
        assert!(!sleeps || shared.event.load(Ordering::Relaxed), "no wake-up");
    });
}
