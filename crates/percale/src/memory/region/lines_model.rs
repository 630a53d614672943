//! Loom models of the chains: one thread changes them, another looks.

use loom::sync::Arc;
use loom::thread;

use super::*;
use crate::memory::region::Access;
use crate::memory::region::via::Through;

fn bounded() -> loom::model::Builder {
    let mut bounded = loom::model::Builder::new();
    bounded.preemption_bound = Some(2);
    bounded
}

fn add(chains: &Chains, number: u32, key: u64) {
    let row = chains.rows.make(number).unwrap();
    row.line.write(&Said::live(key, Access::REMOTE_READ, (0, key), Through::Domain));
    chains.change(|| chains.hang(chains.heads().unwrap(), number, key));
}

fn remove(chains: &Chains, number: u32, key: u64) {
    chains.change(|| {
        chains.unhang(number, key);
        chains.rows.get(number).unwrap().line.write(&Said::default());
    });
}

/// A key that stays is found, or it is looked for again, while another in its chain goes and a third takes its row.
#[test]
fn loom_a_key_that_stays_is_never_missed() {
    bounded().check(|| {
        let chains = Arc::new(Chains::default());
        add(&chains, 0, 1);
        add(&chains, 1, 2);
        let writer = Arc::clone(&chains);
        let writer = thread::spawn(move || {
            remove(&writer, 1, 2);
            add(&writer, 1, 3);
        });
        for key in [1, 2] {
            match chains.look(key) {
                Ok(Some((_, said))) => assert!(said.is(key), "{said:?}"),
                Ok(None) => assert_ne!(key, 1, "a key that stays was missed"),
                Err(()) => {}
            }
        }
        writer.join().unwrap();
        assert!(matches!(chains.look(3), Ok(Some((_, said))) if said.is(3)));
        assert!(matches!(chains.look(2), Ok(None)));
    });
}

/// The same while the table grows.
#[test]
fn loom_a_key_that_stays_is_not_missed_by_growing() {
    bounded().check(|| {
        let chains = Arc::new(Chains::default());
        add(&chains, 0, 1);
        add(&chains, 1, 2);
        let writer = Arc::clone(&chains);
        let writer = thread::spawn(move || writer.grow([(0, 1), (1, 2)].into_iter()));
        match chains.look(1) {
            Ok(found) => assert!(found.is_some_and(|(_, said)| said.is(1)), "a key that stays was missed"),
            Err(()) => {}
        }
        writer.join().unwrap();
        assert!([1, 2].into_iter().all(|key| matches!(chains.look(key), Ok(Some(_)))));
    });
}
