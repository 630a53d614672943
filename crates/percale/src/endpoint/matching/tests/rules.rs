//! Tests of single rules that the random sequences rarely or never test.

use crate::endpoint::matching::{AfterMatch, Envelope, Matching, Pattern, SourceFilter, posted, unexpected};

fn tag(tag: u64) -> Pattern {
    Pattern { tag, ignore: 0, source: SourceFilter::Any }
}

fn message(tag: u64) -> Envelope {
    Envelope { tag, source: 1 }
}

#[test]
fn multi_receive_keeps_its_position_until_exhausted() {
    let mut matching = Matching::<u32, ()>::new();
    let first = matching.post(tag(1), 3);
    matching.post(tag(1), 100);
    for left in [2, 1] {
        let seen = matching.arrive_with(message(1), |handle, room| {
            assert_eq!(handle, first);
            *room -= 1;
            (AfterMatch::Stay, *room)
        });
        assert_eq!(seen, Some((left, None)));
    }
    assert_eq!(matching.arrive_with(message(1), |_, room| (AfterMatch::Remove, *room)), Some((1, Some(1))));
    assert_eq!(matching.arrive(message(1)), Some(100));
}

#[test]
fn stale_handle_does_not_reach_the_reused_slot() {
    let mut matching = Matching::<u32, u32>::new();
    let old = matching.post(tag(1), 1);
    assert_eq!(matching.arrive(message(1)), Some(1));
    assert_ne!(old, matching.post(tag(1), 2));

    let old = matching.hold(message(1), 1);
    assert_eq!(matching.take(old), Some(1));
    let new = matching.hold(message(1), 2);
    assert_eq!((matching.take(old), matching.claim(old), matching.held(old)), (None, false, None));
    assert_eq!(matching.take(new), Some(2));
}

#[test]
fn claimed_message_is_skipped_but_kept() {
    let mut matching = Matching::<(), u32>::new();
    let first = matching.hold(message(1), 1);
    let second = matching.hold(message(1), 2);
    assert!(matching.claim(first));
    assert!(!matching.claim(first), "claimed once");
    assert_eq!(matching.find(&tag(1)), Some(second));
    *matching.held_mut(first).expect("kept") = 11;
    assert_eq!(matching.extract_held(|envelope, _, _| envelope.source == 2).count(), 0);
    assert_eq!(matching.extract_held(|_, _, _| true).collect::<Vec<_>>(), [(message(1), 2), (message(1), 11)]);
    assert_eq!(matching.take(first), None);
}

#[test]
fn more_classes_than_hash_tables_still_match_in_posting_order() {
    let mut matching = Matching::<u64, ()>::new();
    // Every receive has a different class, and every message with low bit 1 fits it.
    let classes = 3 * posted::LINEAR as u64;
    let receive = |n: u64| Pattern { tag: u64::MAX, ignore: u64::MAX << (n + 1), source: SourceFilter::Any };
    for n in 0..classes {
        matching.post(receive(n), n);
    }
    for n in 0..classes {
        assert_eq!(matching.arrive(message(u64::MAX)), Some(n));
        matching.post(receive(n), classes + n);
    }
    assert_eq!(matching.arrive(message(0)), None);
    assert_eq!(matching.arrive(message(1)), Some(classes), "the class that compares one bit");
    assert_eq!(matching.arrive(message(3)), Some(classes + 1));
    assert_eq!(
        matching.drain_posted(SourceFilter::Any).collect::<Vec<_>>(),
        (classes + 2..2 * classes).collect::<Vec<_>>()
    );
}

#[test]
fn messages_of_senders_that_share_a_label_are_found_in_arrival_order() {
    /// The number of messages from another source. A search that examines all of them creates a class.
    const OTHERS: u32 = unexpected::LINEAR as u32 + 1;
    // The sender that disconnects last has the oldest messages, then the newest, then every other one.
    for sources in [[1, 1, 1, 0, 0, 0], [0, 0, 0, 1, 1, 1], [0, 1, 0, 1, 0, 1], [1, 0, 1, 0, 1, 0]] {
        for ignore in [0, 1, u64::MAX] {
            let directed = |tag, source| Pattern { tag, ignore, source: SourceFilter::From(source) };
            let mut matching = Matching::<(), u32>::new();
            for n in 0..OTHERS {
                matching.hold(Envelope { tag: 4, source: 2 }, n);
            }
            for (source, n) in sources.into_iter().zip(OTHERS..) {
                matching.hold(Envelope { tag: 2, source }, n);
            }
            assert_eq!(matching.find(&directed(2, 3)), None, "no message of this source, but a class");
            matching.leave(0, &[1]);
            matching.leave(1, &[0]);
            // Adds a later message of a sender that connected again.
            let newest = OTHERS + sources.len() as u32;
            matching.hold(Envelope { tag: 2, source: 0 }, newest);
            for n in OTHERS..=newest {
                let found = matching.find(&directed(2, 0)).and_then(|held| matching.take(held));
                assert_eq!(found, Some(n), "sources {sources:?}, ignored bits {ignore:#x}");
            }
        }
    }
}
