//! Wakers that misbehave as those of applications might. When such a waker is called or dropped, it records the call,
//! panics, or calls an endpoint.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Wake, Waker};

use super::step::Waking;

/// The message of a waker's panic.
pub(super) const PANIC: &str = "a waker of the application panics";

/// The number of wakers that have not been dropped.
static LIVE: AtomicUsize = AtomicUsize::new(0);

type Call = Box<dyn Fn()>;

thread_local! {
    /// The function that wakers call, set by the run's thread.
    static CALLED: RefCell<Option<std::rc::Rc<Call>>> = const { RefCell::new(None) };
}

/// Sets the function that wakers of this thread call.
pub(super) fn set_call(call: Option<Call>) {
    CALLED.with(|called| *called.borrow_mut() = call.map(std::rc::Rc::new));
}

fn call() {
    let call = CALLED.try_with(|called| called.borrow().clone()).ok().flatten();
    if let Some(call) = call {
        (*call)();
    }
}

/// Returns the number of wakers that have not been dropped.
pub(super) fn live() -> usize {
    LIVE.load(Ordering::Acquire)
}

/// A waker that records its calls.
#[derive(Debug)]
pub(super) struct RecordingWaker {
    waking: Waking,
    pub(super) is_woken: AtomicBool,
}

impl RecordingWaker {
    pub(super) fn new(waking: Waking) -> (Arc<Self>, Waker) {
        LIVE.fetch_add(1, Ordering::AcqRel);
        let doorbell = Arc::new(Self { waking, is_woken: AtomicBool::new(false) });
        let waker = Waker::from(Arc::clone(&doorbell));
        (doorbell, waker)
    }
}

impl Wake for RecordingWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.is_woken.store(true, Ordering::Release);
        match self.waking {
            Waking::Quiet | Waking::CallsOnDrop => {}
            Waking::Panics => std::panic::panic_any(PANIC),
            Waking::Calls => call(),
        }
    }
}

impl Drop for RecordingWaker {
    fn drop(&mut self) {
        LIVE.fetch_sub(1, Ordering::AcqRel);
        if self.waking == Waking::CallsOnDrop {
            call();
        }
    }
}
