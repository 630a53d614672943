//! Tests of log subscribers. They are application code, so they may use the endpoint that logs, and they may panic.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use tracing::span::{Attributes, Id, Record};
use tracing::{Event as LogEvent, Metadata, Subscriber};

use super::*;
use crate::SharedEndpoint;
use crate::endpoint::Ownership;
use crate::later::later;

/// Performs an action at every event of this module.
struct Uses {
    does: Box<dyn Fn() + Send + Sync>,
    events: Arc<AtomicU32>,
}

impl Subscriber for Uses {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == module_path!()
    }

    fn event(&self, _: &LogEvent<'_>) {
        self.events.fetch_add(1, Ordering::Relaxed);
        (self.does)();
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// Logs two events from inside the engine. Returns the number of events that were emitted afterwards.
fn events<A: Ownership>(endpoint: &Endpoint<A>, does: impl Fn() + Send + Sync + 'static) -> u32 {
    let events = Arc::new(AtomicU32::new(0));
    let subscriber = Uses { does: Box::new(does), events: Arc::clone(&events) };
    tracing::subscriber::with_default(subscriber, || {
        endpoint.access.with(|_| {
            let (error, number) = (std::fmt::Error, 7);
            later!(warn: %error, number, twice = 2 * 7, "an event inside the engine");
            later!(error: ?error, "another");
            assert_eq!(events.load(Ordering::Relaxed), 0, "emitted while the engine is borrowed");
        });
    });
    events.load(Ordering::Relaxed)
}

thread_local! {
    static ENDPOINT: Cell<Option<&'static Endpoint>> = const { Cell::new(None) };
}

#[test]
fn log_subscriber_may_use_the_endpoint_and_panic() {
    let test_endpoint: &'static TestEndpoint = Box::leak(Box::new(TestEndpoint::new("tcp")));
    ENDPOINT.set(Some(&test_endpoint.endpoint));
    let uses = || _ = ENDPOINT.get().map(|endpoint| endpoint.progress());
    assert_eq!(events(&test_endpoint.endpoint, uses), 2);
    assert_eq!(events(&test_endpoint.endpoint, || panic!("a subscriber that panics")), 2);
    let shared: SharedEndpoint = test_endpoint.domain.endpoint().bind_shared("127.0.0.1:0").unwrap();
    let other = shared.clone();
    assert_eq!(events(&shared, move || _ = other.progress()), 2);
    assert_eq!(events(&shared, || panic!("a subscriber that panics")), 2);
    assert_eq!(events(&shared, || ()), 2, "logging still works after the panic");
}
