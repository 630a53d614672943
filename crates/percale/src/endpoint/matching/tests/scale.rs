//! Tests that the number of entries that a search examines does not depend on the number of waiting entries, and that
//! memory grows only with the number of waiting entries.
//!
//! The tests count steps and not time. Hash tables are seeded at random, so the bounds are those of an average chain
//! (below two) with a wide margin, over thousands of searches.

use crate::endpoint::matching::{Envelope, Matching, Pattern, SourceFilter, posted, steps, unexpected};

const MANY: u64 = 10_000;

/// A function that makes the pattern with this number.
type Numbered = fn(u64) -> Pattern;

/// Returns the classes of patterns that real programs use. Each class has a name and a function that makes its
/// patterns.
fn classes() -> [(&'static str, Numbered); 5] {
    [
        ("tags", |n| Pattern { tag: n, ignore: 0, source: SourceFilter::Any }),
        ("tags from one", |n| Pattern { tag: n, ignore: 0, source: SourceFilter::From(7) }),
        ("one tag, from each", |n| Pattern { tag: 3, ignore: 0, source: SourceFilter::From(n) }),
        ("tags except two protocol bits", |n| Pattern { tag: n, ignore: 3 << 60, source: SourceFilter::Any }),
        ("any tag, from each", |n| Pattern { tag: 0, ignore: u64::MAX, source: SourceFilter::From(n) }),
    ]
}

/// Returns a message that fits the pattern.
fn message(pattern: &Pattern) -> Envelope {
    let source = match pattern.source {
        SourceFilter::Any => 9,
        SourceFilter::From(source) => source,
    };
    Envelope { tag: pattern.tag | (pattern.ignore & (1 << 60)), source }
}

/// Returns the numbers below `MANY` in random order, which is the worst case for a list.
fn shuffled() -> impl Iterator<Item = u64> {
    (0..MANY).map(|n| n * 7_919 % MANY)
}

fn assert_few(what: &str, steps: u64, searches: u64) {
    assert!(steps > 0, "{what}: the steps of {searches} searches were not counted");
    assert!(steps < searches * 4, "{what}: {steps} steps for {searches} searches");
}

#[test]
fn arrival_does_not_scan_posted_receives() {
    for (name, pattern) in classes() {
        let mut matching = Matching::<u64, ()>::new();
        steps::taken();
        for n in 0..MANY / 2 {
            matching.post(pattern(n), n);
        }
        assert_eq!(steps::taken(), 0, "{name}: no class exists before a search");
        let missing = Envelope { tag: MANY, source: MANY };
        assert_eq!(matching.arrive(missing), None, "{name}");
        assert_few(name, steps::taken(), MANY / 2);
        for n in MANY / 2..MANY {
            matching.post(pattern(n), n);
        }
        assert_few(name, steps::taken(), MANY / 2);
        for n in shuffled() {
            assert_eq!(matching.arrive(message(&pattern(n))), Some(n), "{name}");
            assert_eq!(matching.arrive(missing), None, "{name}");
        }
        assert_few(name, steps::taken(), 2 * MANY);
    }
}

#[test]
fn receive_does_not_scan_held_messages() {
    for (name, pattern) in classes() {
        let mut matching = Matching::<(), u64>::new();
        steps::taken();
        for n in 0..MANY {
            matching.hold(message(&pattern(n)), n);
        }
        // The first search walks the list once, and creates the class.
        let missing = Pattern { tag: MANY, source: SourceFilter::From(MANY), ..pattern(0) };
        let missing = match pattern(0).source {
            SourceFilter::Any => Pattern { source: SourceFilter::Any, ..missing },
            SourceFilter::From(_) => missing,
        };
        assert_eq!(matching.find(&missing), None, "{name}");
        let first = steps::taken();
        assert!(first >= MANY, "{name}: no class exists before a search");
        assert!(first < MANY * 4, "{name}: {first} steps to learn a class");
        for n in shuffled() {
            let held = matching.find(&pattern(n)).expect("held");
            assert_eq!(matching.take(held), Some(n), "{name}");
            assert_eq!(matching.find(&missing), None, "{name}");
        }
        assert_few(name, steps::taken(), 2 * MANY);
    }
}

#[test]
fn disconnect_scans_held_messages_twice() {
    let mut matching = Matching::<(), u64>::new();
    let pattern = Pattern { tag: 0, ignore: 0, source: SourceFilter::From(0) };
    for n in 0..MANY {
        matching.hold(Envelope { tag: 0, source: n % 2 }, n);
    }
    assert_eq!(matching.find(&Pattern { tag: 1, ..pattern }), None, "creates a class");
    steps::taken();
    for source in [0, 1] {
        matching.leave(source, &[1 - source]);
        let steps = steps::taken();
        // Each walk examines every message, and the bin of each message of the label is looked up.
        assert!((MANY..4 * MANY).contains(&steps), "source {source}: {steps} steps");
    }
    for n in 0..MANY {
        let held = matching.find(&pattern).expect("held");
        assert_eq!(matching.take(held), Some(n));
    }
    assert_few("of two senders", steps::taken(), MANY);
}

#[test]
fn hash_chains_are_short_for_any_seed() {
    const KEYS: u64 = 2_000;
    let numberings: [fn(u64) -> Pattern; 4] = [
        |n| Pattern { tag: n, ignore: 0, source: SourceFilter::Any },
        |n| Pattern { tag: n << 40, ignore: 0, source: SourceFilter::Any },
        |n| Pattern { tag: 3, ignore: 0, source: SourceFilter::From(n) },
        |n| Pattern { tag: n, ignore: 0, source: SourceFilter::From(n) },
    ];
    // Each table has its own seeds.
    for round in 0..300 {
        let mut matching = Matching::<u64, ()>::new();
        let pattern = numberings[round % numberings.len()];
        for n in 0..KEYS {
            matching.post(pattern(n), n);
        }
        assert_eq!(matching.arrive(Envelope { tag: KEYS, source: KEYS }), None);
        steps::taken();
        for n in 0..KEYS {
            assert_eq!(matching.arrive(message(&pattern(n))), Some(n));
        }
        // A search examines about one and a half bins of a chain, and the entry.
        let steps = steps::taken();
        assert!(steps < KEYS * 3, "round {round}: {steps} steps for {KEYS} searches");
    }
}

#[test]
fn two_classes_take_two_lookups() {
    let mut matching = Matching::<u64, u64>::new();
    let named = |n| Pattern { tag: n, ignore: 0, source: SourceFilter::From(n) };
    let from_any = |n| Pattern { tag: n, ignore: 0, source: SourceFilter::Any };
    for n in 0..MANY {
        matching.post(if n % 2 == 0 { named(n) } else { from_any(n) }, n);
        matching.hold(message(&named(n)), n);
    }
    assert_eq!((matching.find(&named(MANY)), matching.find(&from_any(MANY))), (None, None));
    steps::taken();
    for n in shuffled() {
        assert_eq!(matching.arrive(Envelope { tag: n, source: n }), Some(n));
        let held = matching.find(&if n % 3 == 0 { named(n) } else { from_any(n) }).expect("held");
        assert_eq!(matching.take(held), Some(n));
    }
    assert_few("both", steps::taken(), 3 * MANY);
}

#[test]
fn wildcard_receive_costs_one_more_lookup() {
    let mut matching = Matching::<u64, ()>::new();
    for n in 0..MANY {
        matching.post(Pattern { tag: n, ignore: 0, source: SourceFilter::Any }, n);
    }
    matching.post(Pattern { tag: 0, ignore: u64::MAX, source: SourceFilter::Any }, MANY);
    steps::taken();
    for n in shuffled() {
        assert_eq!(matching.arrive(Envelope { tag: n, source: 0 }), Some(n), "posted earlier");
    }
    assert_few("with a wildcard", steps::taken(), MANY);
    assert_eq!(matching.arrive(Envelope { tag: 5, source: 0 }), Some(MANY));
}

#[test]
fn identical_entries_match_in_fifo_order() {
    let mut matching = Matching::<u64, u64>::new();
    let pattern = Pattern { tag: 0, ignore: 0, source: SourceFilter::Any };
    for n in 0..MANY {
        matching.post(pattern, n);
        matching.hold(Envelope { tag: 0, source: 1 }, n);
    }
    steps::taken();
    for n in 0..MANY {
        assert_eq!(matching.arrive(Envelope { tag: 0, source: 1 }), Some(n));
        let held = matching.find(&pattern).expect("held");
        assert_eq!(matching.take(held), Some(n));
    }
    assert_few("of one kind", steps::taken(), 2 * MANY);
}

#[test]
fn receives_matched_in_order_are_never_indexed() {
    let mut matching = Matching::<u64, ()>::new();
    for n in 0..MANY {
        matching.post(Pattern { tag: n / 2, ignore: 0, source: SourceFilter::Any }, n);
    }
    steps::taken();
    for n in 0..MANY {
        assert_eq!(matching.arrive(Envelope { tag: n / 2, source: 0 }), Some(n));
    }
    assert_eq!(steps::taken(), MANY, "one step for each search");
}

#[test]
fn few_entries_are_scanned_not_hashed() {
    let mut matching = Matching::<u64, ()>::new();
    for n in 0..posted::LINEAR as u64 {
        matching.post(Pattern { tag: n, ignore: 0, source: SourceFilter::Any }, n);
    }
    steps::taken();
    assert_eq!(
        matching.arrive(Envelope { tag: posted::LINEAR as u64 - 1, source: 0 }),
        Some(posted::LINEAR as u64 - 1)
    );
    assert_eq!(steps::taken(), posted::LINEAR as u64);
}

#[test]
fn memory_is_reused() {
    let mut matching = Matching::<u64, u64>::new();
    let pattern = |n| Pattern { tag: n, ignore: 0, source: SourceFilter::Any };
    let mut next = 0;
    for round in 0..200 {
        let wait = 40 + unexpected::LINEAR;
        for n in next..next + wait {
            matching.post(pattern(n), n);
            matching.hold(Envelope { tag: n, source: 0 }, n);
        }
        for n in (next..next + wait).rev() {
            assert_eq!(matching.arrive(Envelope { tag: n, source: 0 }), Some(n));
            let held = matching.find(&pattern(n)).expect("held");
            assert_eq!(matching.take(held), Some(n));
        }
        next += wait;
        assert_eq!(matching.posted.places(), wait as usize, "round {round}");
        assert_eq!(matching.unexpected.places(), wait as usize, "round {round}");
    }
}
