//! Loom models of the hash table, in which one thread changes it and another one reads it.
//!
//! The thread of the model is the one that changes the table. Loom remembers only the last access to each atomic, and
//! the table is read before it is changed. So if the other thread changed it, loom would not find that its changes
//! concern earlier reads, and would try only one order.

use loom::sync::Arc;
use loom::thread;

use super::*;
use crate::Access;
use crate::access_origin::AccessScope;
use crate::sync::explore;

fn of(key: u64) -> KeySnapshot {
    KeySnapshot::live(key, Access::REMOTE_READ, (0, key), AccessScope::Domain)
}

fn four() -> Hashed {
    let hashed = Hashed::default();
    hashed.make(1).unwrap();
    hashed.level.store(1, Ordering::Relaxed);
    hashed
}

/// Returns two keys with the same home slot, in a table of 4 lines.
fn twins() -> [u64; 2] {
    let hashed = four();
    let home = |key| hashed.table().home(key);
    let mut keys = (1..).filter(|key| home(*key) == home(1));
    std::array::from_fn(|_| keys.next().unwrap())
}

/// A key that stays in the table is found, or the reader tries again, while the removal of a key before it moves its
/// line.
#[test]
fn loom_lookup_never_misses_a_present_key() {
    explore(Some(2), 25000, || {
        let (hashed, [first, second]) = (Arc::new(four()), twins());
        assert!(hashed.insert(&of(first), 1) && hashed.insert(&of(second), 2));
        let reader = Arc::clone(&hashed);
        let reader = thread::spawn(move || {
            let found = reader.look(second);
            assert!(found.is_err() || found == Ok(Some(of(second))), "an existing key was not found: {found:?}");
        });
        hashed.remove(first);
        reader.join().unwrap();
        assert_eq!((hashed.look(first), hashed.look(second)), (Ok(None), Ok(Some(of(second)))));
    });
}

/// A key that stays in the table is found while the table grows.
#[test]
fn loom_lookup_finds_a_present_key_while_growing() {
    explore(Some(2), 15, || {
        let hashed = Arc::new(Hashed::default());
        assert!(hashed.insert(&of(1), 1));
        let reader = Arc::clone(&hashed);
        let reader = thread::spawn(move || match reader.look(1) {
            Ok(found) => assert_eq!(found, Some(of(1)), "an existing key was not found"),
            Err(()) => {}
        });
        assert!(hashed.insert(&of(2), 2));
        hashed.remove(2);
        reader.join().unwrap();
        assert_eq!((hashed.look(1), hashed.look(2)), (Ok(Some(of(1))), Ok(None)));
    });
}
