//! Tests when hash tables are created and dropped. The tests detect this by the number of steps of the searches that
//! follow.

use crate::endpoint::matching::{Envelope, Matching, Pattern, SourceFilter, posted, steps, unexpected};

/// A number of messages with which a search creates a class.
const WAITING: u64 = 4 * unexpected::LINEAR;
/// The number of classes of the unexpected queue that can be in use at once.
const CLASSES: u32 = 4;

/// Returns a receive of class `class` that takes message `n` of [`full`]. It ignores two of the eight copies of `n` in
/// the tag.
fn receive(class: u32, n: u64) -> Pattern {
    Pattern { tag: n * 0x0101_0101_0101_0101, ignore: 0xffff << (8 * class), source: SourceFilter::Any }
}

fn message(n: u64) -> Envelope {
    Envelope { tag: n * 0x0101_0101_0101_0101, source: 1 }
}

fn full() -> Matching<(), u64> {
    let mut matching = Matching::new();
    for n in 0..WAITING {
        matching.hold(message(n), n);
    }
    matching
}

/// Searches for message `n` and returns the number of steps.
fn find(matching: &mut Matching<(), u64>, class: u32, n: u64) -> u64 {
    steps::taken();
    let found = matching.find(&receive(class, n)).and_then(|held| matching.held(held)).copied();
    assert_eq!(found, Some(n), "class {class}");
    steps::taken()
}

/// Takes all messages except the first `left`, with receives of different classes.
fn empty(matching: &mut Matching<(), u64>, left: u64) {
    for n in (left..WAITING).rev() {
        let class = n as u32 % 6;
        let held = matching.find(&receive(class, n)).expect("held");
        assert_eq!(matching.take(held), Some(n));
        for class in 0..6 {
            assert_eq!(matching.find(&receive(class, n)), None, "message {n} was taken, class {class}");
        }
    }
}

#[test]
fn least_recently_used_class_is_replaced() {
    let mut matching = full();
    for round in 0..3 {
        for class in 0..CLASSES + 2 {
            // The messages at the end are found by long walks until the class is created.
            let walked = find(&mut matching, class, WAITING - 1);
            assert!(
                round == 0 || walked >= WAITING - 1,
                "class {class} was kept although it was the least recently used one"
            );
            let steps: u64 = (0..WAITING).map(|n| find(&mut matching, class, n)).sum();
            assert!(steps < 4 * WAITING, "class {class} was created, but the searches took {steps} steps");
        }
    }
    empty(&mut matching, 0);
    assert_eq!(matching.unexpected_len(), 0);
}

#[test]
fn recently_used_class_is_not_replaced() {
    let mut matching = full();
    for class in 0..CLASSES {
        assert!(find(&mut matching, class, WAITING - 1) >= WAITING - 1);
    }
    for _ in 0..20 {
        assert_eq!(find(&mut matching, CLASSES, WAITING - 1), WAITING - 1, "a linear search that creates no class");
        let steps: u64 = (0..CLASSES).map(|class| find(&mut matching, class, WAITING - 1)).sum();
        assert!(steps < WAITING - 1, "the other classes stay: {steps} steps");
    }
}

#[test]
fn message_classes_are_dropped_when_few_messages_remain() {
    let mut matching = full();
    for class in 0..2 {
        assert!(find(&mut matching, class, WAITING - 1) >= WAITING - 1);
    }
    empty(&mut matching, 2);
    for n in 2..WAITING {
        matching.hold(message(n), n);
    }
    assert_eq!(find(&mut matching, 0, unexpected::LINEAR), unexpected::LINEAR, "a linear search");
}

#[test]
fn receives_are_scanned_linearly_when_few_remain() {
    let mut matching = Matching::<u64, ()>::new();
    let tag = |tag| Pattern { tag, ignore: 0, source: SourceFilter::Any };
    for n in 0..100 {
        matching.post(tag(n), n);
    }
    for n in 2..100 {
        assert_eq!(matching.arrive(Envelope { tag: n, source: 0 }), Some(n));
    }
    let full = posted::LINEAR as u64;
    for n in 2..full {
        matching.post(tag(n), n);
    }
    steps::taken();
    assert_eq!(matching.arrive(Envelope { tag: full - 1, source: 0 }), Some(full - 1));
    assert_eq!(steps::taken(), full, "a linear search");
}
