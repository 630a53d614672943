//! One word that several processes change on different paths at the same time.

use percale::{PeerAddress, RemoteMemory};
use percale_conformance::long;
use percale_conformance::peers::Open;
use percale_conformance::process::{Helper, ask, print_line, variable};
use percale_conformance::watchdog::Watchdog;
use std::time::Duration;

use super::{ALL, Deadline, all_of, open_as_told, open_kind, work};

/// Two processes use mapped memory and one uses TCP. The fourth process is the target itself.
const OTHERS: [&str; 3] = ["shm", "shm", "tcp"];

const WORD: u64 = 10;
const RESULTS: u64 = 11;
const LOCKED: u64 = 12;

/// Offsets in the locked memory.
const LOCK: u64 = 0;
const PLAIN: u64 = 64;

fn adds() -> usize {
    if long() { 500_000 } else { 3000 }
}

fn locks() -> usize {
    if long() { 20_000 } else { 200 }
}

/// Requirements: ATM-005.
#[test]
fn atomic_operations_of_mapped_remote_and_local_initiators_are_exact() {
    let _watchdog = Watchdog::within("atomic operations", Duration::from_secs(if long() { 3600 } else { 300 }));
    let open = open_kind("any", |domain| domain);
    let each = adds() * 8;
    let allocate = |len| open.domain.allocate(len).expect("memory");
    let word = open.domain.registration(ALL).key(WORD).own(allocate(8)).expect("a region");
    let results = open.domain.registration(ALL).key(RESULTS).own(allocate(OTHERS.len() * each)).expect("a region");
    let locked = open.domain.registration(ALL).key(LOCKED).own(allocate(72)).expect("a region");
    let own = open.endpoint.address().to_string();
    let me = open.insert(&own);
    let mut others: Vec<Helper> = Vec::new();
    for (number, kind) in OTHERS.iter().enumerate() {
        let number = number.to_string();
        let variables =
            [("PERCALE_FABRIC", *kind), ("PERCALE_PEER", own.as_str()), ("PERCALE_NUMBER", number.as_str())];
        others.push(Helper::start("adder", &variables));
    }
    hear_all(&open, &mut others, "connected");
    others.iter_mut().for_each(|other| other.send_line("add"));
    let mut values = add(&open, me);
    hear_all(&open, &mut others, "added");
    others.iter_mut().for_each(|other| other.send_line("lock"));
    lock(&open, me);
    hear_all(&open, &mut others, "locked");
    others.into_iter().for_each(|mut other| {
        other.send_line("end");
        other.end();
    });
    let count = (OTHERS.len() + 1) * adds();
    let number = |region: &percale::Region, offset| {
        let mut bytes = [0; 8];
        region.read(offset, &mut bytes);
        u64::from_le_bytes(bytes)
    };
    assert_eq!(number(&word, 0), count as u64, "the sum");
    values.extend((0..OTHERS.len() * adds()).map(|at| number(&results, 8 * at)));
    values.sort_unstable();
    let wrong = (0..).zip(&values).find(|(at, value)| *at != **value);
    assert_eq!((values.len(), wrong), (count, None), "each value was fetched once");
    let counter = number(&locked, PLAIN as usize);
    assert_eq!(counter, ((OTHERS.len() + 1) * locks()) as u64, "the counter that the lock protects");
    assert_eq!(number(&locked, LOCK as usize), 0, "unlocked");
    println!("{count} values fetched, {counter} times locked");
}

#[track_caller]
fn hear_all(open: &Open, others: &mut [Helper], wanted: &str) {
    for other in others {
        let deadline = Deadline::new("another initiator is done");
        let word = loop {
            if let Some(word) = other.try_receive_line() {
                break word;
            }
            work(open);
            if !long() {
                deadline.check();
            }
        };
        assert_eq!(word, wanted);
    }
}

fn add(open: &Open, target: PeerAddress) -> Vec<u64> {
    let word = all_of(WORD, 8);
    (0..adds()).map(|_| open.endpoint.fetch_add(target, word, 1_u64).wait().expect("an addition")).collect()
}

/// Increments a number under a lock, with separate reads and writes.
fn lock(open: &Open, target: PeerAddress) {
    let place = |address| RemoteMemory { key: LOCKED, address, len: 8 };
    let endpoint = &open.endpoint;
    for _ in 0..locks() {
        while endpoint.compare_swap(target, place(LOCK), 0_u64, 1).wait().expect("an exchange") != 0 {
            std::thread::yield_now();
        }
        let got = endpoint.read(target, place(PLAIN), vec![0; 8]).wait().expect("a read").into_vec();
        let count = u64::from_le_bytes(got.try_into().expect("8 bytes")) + 1;
        endpoint.write(target, count.to_le_bytes().to_vec(), place(PLAIN)).wait().expect("a write");
        let held = endpoint.compare_swap(target, place(LOCK), 1_u64, 0).wait().expect("an exchange");
        assert_eq!(held, 1, "no other process unlocks");
    }
}

/// The role of another initiator.
pub(crate) fn adder() {
    let open = open_as_told();
    let target = open.insert(&variable("PERCALE_PEER"));
    let number: u64 = variable("PERCALE_NUMBER").parse().expect("a number");
    open.endpoint.read(target, all_of(WORD, 8), vec![0; 8]).wait().expect("a read");
    print_line("connected");
    assert_eq!(ask(), "add");
    let values = add(&open, target);
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let len = bytes.len() as u64;
    let part = all_of(RESULTS, (number + 1) * len).slice(number * len..(number + 1) * len);
    open.endpoint.write(target, bytes, part).wait().expect("the values");
    let arenas = super::disclosed::arenas();
    assert_eq!(arenas > 0, variable("PERCALE_FABRIC") == "shm", "only local initiators map memory");
    print_line("added");
    assert_eq!(ask(), "lock");
    lock(&open, target);
    print_line("locked");
    drop(ask());
}
