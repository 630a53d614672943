//! Log messages about rejected clients.
//!
//! A client that connects in a loop must not fill the log. The first rejection for a reason is logged at once, and later
//! ones are counted. The count is logged once a minute.

use std::time::{Duration, Instant};

use tracing::{info, warn};

use super::refusal::Denial;

/// The time between two messages about one reason.
const PAUSE: Duration = Duration::from_secs(60);

/// The rejections that were not logged yet, by reason.
#[derive(Debug, Default)]
pub(super) struct Rejections {
    counted: Vec<Counted>,
}

/// The rejections for one reason since the last message.
#[derive(Debug)]
struct Counted {
    why: Denial,
    count: u64,
    /// The user of the last rejected client.
    user: u32,
    next: Instant,
}

impl Rejections {
    /// Adds the rejection of a client, and logs it if it is the first for this reason in a minute.
    pub(super) fn add(&mut self, why: Denial, user: u32, now: Instant) {
        if let Some(counted) = self.counted.iter_mut().find(|counted| counted.why == why) {
            counted.count += 1;
            counted.user = user;
            return;
        }
        log(why, &format!("rejected a client of user {user}: {why}"));
        self.counted.push(Counted { why, count: 0, user, next: now + PAUSE });
    }

    /// Logs the counts of which the minute has ended.
    pub(super) fn tidy(&mut self, now: Instant) {
        self.counted.retain_mut(|counted| {
            if now < counted.next {
                return true;
            }
            if counted.count == 0 {
                return false;
            }
            let Counted { why, count, user, .. } = *counted;
            log(why, &format!("rejected {count} more clients in the last minute, the last one of user {user}: {why}"));
            (counted.count, counted.next) = (0, now + PAUSE);
            true
        });
    }
}

/// Reasons that the administrator can remove are warnings.
fn log(why: Denial, message: &str) {
    match why {
        Denial::TooManyClients
        | Denial::TooManySpaces
        | Denial::HelperFull
        | Denial::NoPidfd
        | Denial::Version
        | Denial::Kernel => warn!("{message}"),
        _ => info!("{message}"),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use tracing::field::{Field, Visit};
    use tracing::span::{Attributes, Id, Record};
    use tracing::{Event, Level, Metadata, Subscriber};

    use super::*;

    /// Collects the messages of this thread.
    #[derive(Clone, Default)]
    struct Collected(Arc<Mutex<Vec<(Level, String)>>>);

    struct Message(String);

    impl Visit for Message {
        fn record_debug(&mut self, _field: &Field, value: &dyn std::fmt::Debug) {
            self.0 = format!("{value:?}");
        }
    }

    impl Subscriber for Collected {
        fn enabled(&self, _metadata: &Metadata<'_>) -> bool {
            true
        }

        fn new_span(&self, _span: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }

        fn record(&self, _span: &Id, _values: &Record<'_>) {}

        fn record_follows_from(&self, _span: &Id, _follows: &Id) {}

        fn event(&self, event: &Event<'_>) {
            let mut message = Message(String::new());
            event.record(&mut message);
            self.0.lock().expect("no panic").push((*event.metadata().level(), message.0));
        }

        fn enter(&self, _span: &Id) {}

        fn exit(&self, _span: &Id) {}
    }

    #[test]
    fn many_rejections_are_counted_and_logged_once_a_minute() {
        let logged = Collected::default();
        let start = Instant::now();
        let mut rejections = Rejections::default();
        tracing::subscriber::with_default(logged.clone(), || {
            for _ in 0..100 {
                rejections.add(Denial::TooManyClients, 7, start);
            }
            rejections.add(Denial::TooManyClients, 8, start);
            rejections.add(Denial::Challenge, 9, start);
            rejections.tidy(start + PAUSE / 2);
            rejections.tidy(start + PAUSE);
            rejections.tidy(start + 2 * PAUSE);
            // Reasons without further rejections are forgotten, and logged again when they occur.
            assert!(rejections.counted.is_empty());
            rejections.add(Denial::Challenge, 9, start + 2 * PAUSE);
        });
        let logged = logged.0.lock().expect("no panic");
        let levels: Vec<Level> = logged.iter().map(|(level, _)| *level).collect();
        assert_eq!(levels, [Level::WARN, Level::INFO, Level::WARN, Level::INFO], "{logged:?}");
        assert!(logged[0].1.starts_with("rejected a client of user 7: "), "{logged:?}");
        assert!(logged[2].1.starts_with("rejected 100 more clients in the last minute, the last one of user 8: "));
        assert_eq!(logged[1].1, logged[3].1);
    }
}
