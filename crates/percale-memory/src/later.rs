//! Log events of code that runs under a lock, or in a thread for which other threads wait. They are emitted later,
//! after the lock is released or by another thread. That thread also drops objects of the application
//! ([`drop_elsewhere`]).
//!
//! A subscriber of `tracing` is application code: it may call the library, and it may panic. Code that may run while an
//! engine is borrowed or locked, or while a table is being changed, therefore records its events with [`later!`].
//! [`flush`] emits them at the end of every call of an endpoint, and when a thread ends. Before that, not even the
//! subscriber's filter is called. A panic of the subscriber is caught at the event that caused it.
//!
//! Threads of the library that make connections or wake up tasks do not emit events: a subscriber that sends its
//! records through the library would wait for work that only such a thread does. Such a thread calls
//! [`emit_elsewhere`], and a separate thread, which exists only while there are events, emits its events.

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::deferred_actions::{contained, discard};
use crate::system::forked::PerProcess;
use crate::system::thread::start_thread;

/// The maximum number of events that a thread keeps, and the maximum number in total that are kept for threads that do
/// not emit events. Further events are lost.
const LIMIT: usize = 256;

/// The number of events that wait in all threads.
static WAITING: AtomicUsize = AtomicUsize::new(0);

type Event = Box<dyn FnOnce() + Send>;

/// The events of one thread.
struct Events(RefCell<Vec<Event>>);

impl Drop for Events {
    #[inline]
    fn drop(&mut self) {
        emit_all(std::mem::take(&mut *self.0.borrow_mut()));
    }
}

/// The events of the threads that do not emit events.
#[derive(Default)]
struct Elsewhere {
    events: Vec<Event>,
    /// Whether a thread that emits them exists. That thread checks the list once more before it ends.
    emitted: bool,
}

thread_local! {
    static EVENTS: Events = const { Events(RefCell::new(Vec::new())) };
    static EMITS_NONE: Cell<bool> = const { Cell::new(false) };
}

static ELSEWHERE: PerProcess<Mutex<Elsewhere>> = PerProcess::new();

/// Makes a separate thread emit the events that the calling thread records from now on.
#[inline]
pub fn emit_elsewhere() {
    EMITS_NONE.set(true);
}

/// Drops an object of the application in a separate thread. This is for code that runs while an engine is borrowed or
/// locked: the destructor is application code, which may call the library.
#[cold]
pub fn drop_elsewhere(value: impl Send + 'static) {
    hand_over(Box::new(move || discard(value)), usize::MAX);
}

/// Makes a separate thread emit an event, unless `limit` events wait already. If no thread can be started, the events
/// wait for the next call.
fn hand_over(event: Event, limit: usize) {
    let Ok(elsewhere) = ELSEWHERE.get_or_make() else { return };
    let lock = move || elsewhere.lock().unwrap_or_else(PoisonError::into_inner);
    let mut list = lock();
    if list.events.len() < limit {
        list.events.push(event);
    }
    if std::mem::replace(&mut list.emitted, true) {
        return;
    }
    drop(list);
    let emit = move || {
        loop {
            let mut list = lock();
            let events = std::mem::take(&mut list.events);
            if events.is_empty() {
                list.emitted = false;
                return;
            }
            drop(list);
            events.into_iter().for_each(emit_one);
        }
    };
    if start_thread("percale-log", emit).is_err() {
        lock().emitted = false;
    }
}

/// Records an event. `emit` emits it.
#[cold]
pub fn note(emit: impl FnOnce() + Send + 'static) {
    if EMITS_NONE.get() {
        return hand_over(Box::new(emit), LIMIT);
    }
    // A thread that is ending no longer has a list, and its events are lost.
    let noted = EVENTS.try_with(|events| {
        let events = &mut *events.0.borrow_mut();
        if events.len() < LIMIT {
            events.push(Box::new(emit));
            WAITING.fetch_add(1, Ordering::Relaxed);
        }
    });
    noted.ok();
}

/// Returns whether any thread has events to emit. This takes one load.
#[inline(always)]
pub fn any() -> bool {
    WAITING.load(Ordering::Relaxed) != 0
}

/// Emits the events of the calling thread, which must not hold a lock.
#[cold]
pub fn flush() {
    let events = EVENTS.try_with(|events| std::mem::take(&mut *events.0.borrow_mut()));
    emit_all(events.unwrap_or_default());
}

fn emit_all(events: Vec<Event>) {
    WAITING.fetch_sub(events.len(), Ordering::Relaxed);
    events.into_iter().for_each(emit_one);
}

fn emit_one(event: Event) {
    contained("a log subscriber panicked", event);
}

/// Like the macros of `tracing`, for code that may run under a lock: `later!(warn: %error, "what happened")`.
#[macro_export]
macro_rules! later {
    (@ $level:ident [$($done:tt)*] %$name:ident, $($rest:tt)*) => {{
        let $name = $name.to_string();
        $crate::later::later!(@ $level [$($done)* %$name,] $($rest)*)
    }};
    (@ $level:ident [$($done:tt)*] ?$name:ident, $($rest:tt)*) => {{
        let $name = format!("{:?}", $name);
        $crate::later::later!(@ $level [$($done)* %$name,] $($rest)*)
    }};
    (@ $level:ident [$($done:tt)*] $name:ident = %$value:expr, $($rest:tt)*) => {
        $crate::later::later!(@ $level [$($done)*] $name = $value, $($rest)*)
    };
    (@ $level:ident [$($done:tt)*] $name:ident = $value:expr, $($rest:tt)*) => {{
        let $name = ($value).to_string();
        $crate::later::later!(@ $level [$($done)* %$name,] $($rest)*)
    }};
    (@ $level:ident [$($done:tt)*] $name:ident, $($rest:tt)*) => {{
        let $name = $name.to_string();
        $crate::later::later!(@ $level [$($done)* %$name,] $($rest)*)
    }};
    (@ $level:ident [$($done:tt)*] $text:literal $(,)?) => {
        $crate::later::note(move || tracing::$level!($($done)* $text))
    };
    ($level:ident: $($rest:tt)*) => { $crate::later::later!(@ $level [] $($rest)*) };
}
pub use later;
