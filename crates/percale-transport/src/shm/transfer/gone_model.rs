//! Loom models of a puller that opens a slot, reads or counts bytes while its pusher copies or releases all slots.

use std::convert::Infallible;

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use loom::thread;

use super::super::pair::{PusherHalf, StoppedMark, TransferHalf, TransferSlot};
use super::super::sync::{AtomicU32, explore};
use super::pull::{is_released, open, while_offered};
use super::{puller, pusher};

struct Model {
    slot: TransferSlot,
    gone: StoppedMark,
    /// Whether the request is in the ring.
    requested: AtomicBool,
    /// The number of copies that the pusher has made.
    copied: AtomicU64,
}

fn half() -> TransferHalf {
    TransferHalf { done: super::super::sync::AtomicU64::new(0), state: AtomicU32::new(0) }
}

#[test]
fn loom_no_copy_happens_after_the_pusher_released_an_abandoned_pull() {
    explore(None, 100, || {
        let slot =
            TransferSlot { claimed: super::super::sync::AtomicU64::new(0), puller: half(), pusher: PusherHalf(half()) };
        let (requested, copied) = (AtomicBool::new(false), AtomicU64::new(0));
        // The slot was used by an earlier transfer.
        slot.pusher.0.state.store(pusher::CLOSED, Ordering::Relaxed);
        let model = Arc::new(Model { slot, gone: StoppedMark::for_model(), requested, copied });
        let pusher = thread::spawn({
            let model = Arc::clone(&model);
            move || {
                // Poll once, then close.
                if model.requested.load(Ordering::Acquire) {
                    model.slot.pusher.0.state.store(pusher::ACCEPTED, Ordering::SeqCst);
                    if model.slot.puller.state.load(Ordering::SeqCst) == puller::OPEN {
                        model.copied.fetch_add(1, Ordering::Relaxed);
                    }
                }
                model.gone.set();
            }
        });
        // Open the slot, send the request, and give up at once.
        let Ok(()) = open(&model.slot, || Ok::<_, Infallible>(model.requested.store(true, Ordering::Release)));
        model.slot.puller.state.store(puller::LEFT, Ordering::SeqCst);
        let seen = is_released(&model.slot, &model.gone).then(|| model.copied.load(Ordering::Relaxed));
        pusher.join().unwrap();
        assert!(is_released(&model.slot, &model.gone), "the slot is never released");
        if let Some(seen) = seen {
            assert_eq!(seen, model.copied.load(Ordering::Relaxed), "copied after the release");
        }
    });
}

#[test]
fn loom_counted_bytes_were_read_before_memory_reuse() {
    explore(None, 10, || {
        let model = Arc::new((AtomicU64::new(7), StoppedMark::for_model()));
        let pusher = thread::spawn({
            let model = Arc::clone(&model);
            move || {
                model.1.set();
                model.0.store(9, Ordering::Relaxed);
            }
        });
        let read = while_offered(&model.1, || model.0.load(Ordering::Relaxed));
        assert!(read.is_none_or(|read| read == 7), "bytes were counted that were not sent");
        pusher.join().unwrap();
    });
}

#[test]
fn loom_reported_bytes_are_visible() {
    explore(None, 3, || {
        let model = Arc::new((AtomicU64::new(0), half()));
        let pusher = thread::spawn({
            let model = Arc::clone(&model);
            move || {
                model.0.store(7, Ordering::Relaxed);
                model.1.report(8);
            }
        });
        if model.1.reported() == 8 {
            assert_eq!(model.0.load(Ordering::Relaxed), 7, "bytes were reported before they were copied");
        }
        pusher.join().unwrap();
    });
}
