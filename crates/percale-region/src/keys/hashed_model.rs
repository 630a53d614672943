//! Loom models of the hash table, in which one thread changes it and another one reads it.

use loom::sync::Arc;
use loom::thread;

use super::*;
use crate::Access;
use crate::access_origin::AccessScope;

fn bounded() -> loom::model::Builder {
    let mut bounded = loom::model::Builder::new();
    bounded.preemption_bound = Some(2);
    bounded
}

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

/// A key that stays in the table is found, or the reader tries again, while a key before it is removed (so that the
/// line of the first key is moved) and a third key is added.
#[test]
fn loom_lookup_never_misses_a_present_key() {
    bounded().check(|| {
        let (hashed, [first, second]) = (Arc::new(four()), twins());
        assert!(hashed.insert(&of(first), 1) && hashed.insert(&of(second), 2));
        let writer = Arc::clone(&hashed);
        let writer = thread::spawn(move || {
            writer.remove(first);
            assert!(writer.insert(&of(first), 2));
        });
        for key in [second, first] {
            if let Some(snapshot) = hashed.find_in_home_slot(key) {
                assert_eq!(snapshot, of(key));
            }
            match hashed.look(key) {
                Ok(Some(snapshot)) => assert!(snapshot == of(key), "{snapshot:?}"),
                Ok(None) => assert_ne!(key, second, "an existing key was not found"),
                Err(()) => {}
            }
        }
        writer.join().unwrap();
        assert!([first, second].into_iter().all(|key| hashed.look(key) == Ok(Some(of(key)))));
        assert_eq!(hashed.look(u64::MAX), Ok(None));
    });
}

/// A key that stays in the table is found while the table grows.
#[test]
fn loom_lookup_finds_a_present_key_while_growing() {
    bounded().check(|| {
        let hashed = Arc::new(Hashed::default());
        assert!(hashed.insert(&of(1), 1));
        let writer = Arc::clone(&hashed);
        let writer = thread::spawn(move || {
            assert!(writer.insert(&of(2), 2));
            writer.remove(2);
        });
        match hashed.look(1) {
            Ok(found) => assert_eq!(found, Some(of(1)), "an existing key was not found"),
            Err(()) => {}
        }
        writer.join().unwrap();
        assert_eq!((hashed.look(1), hashed.look(2)), (Ok(Some(of(1))), Ok(None)));
    });
}
