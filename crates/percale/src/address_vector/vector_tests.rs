//! Tests of address vectors.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::*;

fn vector() -> AddressVector {
    AddressVector::new(VectorOptions::default()).unwrap()
}

fn v4(n: u32) -> SocketAddr {
    SocketAddr::new(Ipv4Addr::from_bits(0x0a00_0000 + n).into(), 7471)
}

fn v6(n: u32) -> SocketAddr {
    SocketAddr::new(Ipv6Addr::from_bits((0xfd00u128 << 112) + (u128::from(n) << 70) + u128::from(n)).into(), 7471)
}

/// Requirements: AV-002, AV-003.
#[test]
fn insert_uses_the_lowest_free_index() {
    let vector = vector();
    for n in 0..5 {
        assert_eq!(vector.insert(v4(n)), Ok(PeerAddress(n.into())));
    }
    for removed in [3, 1, 4] {
        vector.remove(PeerAddress(removed)).unwrap();
    }
    let next: Vec<_> = vector.insert_all((10..14).map(v4)).into_iter().map(|peer| peer.unwrap().0).collect();
    assert_eq!(next, [1, 3, 4, 5]);
    assert_eq!(vector.len(), 6);
}

/// Requirements: AV-004, AV-048.
#[test]
fn lookup_returns_the_inserted_address() {
    for kind in [VectorType::Table, VectorType::Map] {
        let vector = AddressVector::new(VectorOptions { kind, ..VectorOptions::default() }).unwrap();
        for text in ["10.0.0.1:1", "[fd00::1]:65535", "[fe80::1234:5678%70000]:80", "[::ffff:10.0.0.9]:5"] {
            let peer = vector.insert(text).unwrap();
            assert_eq!(vector.lookup(peer), Some(text.parse().unwrap()));
            assert_eq!(vector.find(text.parse().unwrap()), Some(peer));
        }
        assert_eq!(
            vector.find("10.0.0.9:5".parse().unwrap()),
            Some(PeerAddress(3)),
            "an IPv4-mapped address is the same address"
        );
    }
}

/// Requirements: AV-006.
#[test]
fn insert_accepts_thousands_of_addresses() {
    let vector = vector();
    let results = vector.insert_all((0..5000).map(v4));
    assert!((0..).zip(&results).all(|(n, result)| *result == Ok(PeerAddress(n))));
    assert_eq!(vector.find(v4(4999)), Some(PeerAddress(4999)));
}

/// Requirements: AV-023, AV-024, AV-025, AV-026.
#[test]
fn insert_all_reports_each_address_separately() {
    let options = VectorOptions { family: Some(Family::V4), ..VectorOptions::default() };
    let vector = AddressVector::new(options).unwrap();
    assert!(vector.insert_all([] as [SocketAddr; 0]).is_empty());
    assert_eq!(vector.changes(), 0);
    let results = vector.insert_all([v4(0), v6(1), v4(2)]);
    assert_eq!(results[0], Ok(PeerAddress(0)));
    assert_eq!(results[1].as_ref().unwrap_err().errno(), libc::EAFNOSUPPORT);
    assert_eq!(vector.lookup(PeerAddress(0)), Some(v4(0)));
    assert_eq!(vector.len(), 2);
}

/// Requirements: AV-027, AV-031.
#[test]
fn failed_insertions_keep_the_indices_of_others() {
    let vector = vector();
    let results = vector.insert_all(["10.0.0.1:1", "0.0.0.0:1", "10.0.0.3:0", "10.0.0.4:1"]);
    assert_eq!(results[3], Ok(PeerAddress(3)));
    assert!(matches!(results[1], Err(AddressError::NotAnEndpoint(_))));
    let there: Vec<_> = (0..4).map(|n| vector.lookup(PeerAddress(n)).is_some()).collect();
    assert_eq!(there, [true, false, false, true]);
    assert_eq!(vector.insert(v4(9)), Ok(PeerAddress(1)), "the holes are unused");
}

/// Requirements: AV-040, AV-041.
#[test]
fn failed_name_resolution_leaves_vector_unchanged() {
    let vector = vector();
    let peer = vector.insert("localhost:80").unwrap();
    assert!(vector.lookup(peer).unwrap().ip().is_loopback());
    let changes = vector.changes();
    assert!(matches!(vector.insert("not a name:80"), Err(AddressError::Name { .. })));
    assert_eq!((vector.len(), vector.changes()), (1, changes));
}

/// Requirements: AV-046, AV-047, AV-050.
#[test]
fn removed_address_is_unknown_until_reinserted() {
    let vector = vector();
    for address in [v4(1), v6(1)] {
        let peer = vector.insert(address).unwrap();
        let changes = vector.changes();
        vector.remove(peer).unwrap();
        assert_ne!(vector.changes(), changes);
        assert_eq!((vector.lookup(peer), vector.find(address)), (None, None));
        assert_eq!(vector.remove(peer).unwrap_err().errno(), libc::EINVAL);
        assert_eq!(vector.insert(address), Ok(peer));
        vector.remove(peer).unwrap();
    }
    for unknown in [PeerAddress(77), PeerAddress::UNSPECIFIED, PeerAddress(u64::MAX - 1)] {
        assert_eq!(vector.lookup(unknown), None);
        assert_eq!(vector.remove(unknown), Err(AddressError::Unknown(unknown)));
    }
}

/// Requirements: AV-008, AV-051.
#[test]
fn receive_context_of_a_peer_resolves_to_its_address() {
    let options = VectorOptions { receive_context_bits: 4, ..VectorOptions::default() };
    let vector = AddressVector::new(options).unwrap();
    let peer = vector.insert(v4(1)).unwrap();
    assert_eq!(vector.lookup(peer.receive_context(15, 4).unwrap()), Some(v4(1)));
    let options = VectorOptions { receive_context_bits: 32, ..VectorOptions::default() };
    assert!(matches!(AddressVector::new(options), Err(AddressError::ReceiveContextBits(32))));
}

#[test]
fn readers_never_see_a_mixture_of_two_addresses() {
    // The port is in the word of an entry, and the rest of the address in its record.
    let numbered = |n: u32| {
        let mut address = v6(n);
        address.set_port(n as u16 + 1);
        address
    };
    let vector = vector();
    vector.insert(numbered(0)).unwrap();
    std::thread::scope(|scope| {
        // A read overlaps with a write only while both threads run, so the changes that the reader sees are counted.
        let reader = scope.spawn(|| {
            let end = Instant::now() + Duration::from_secs(5);
            let (mut last, mut changes) = (0, 0);
            while changes < 20_000 && Instant::now() < end {
                for _ in 0..100 {
                    let Some(SocketAddr::V6(address)) = vector.lookup(PeerAddress(0)) else { continue };
                    let n = u32::try_from(address.ip().to_bits() & 0xffff_ffff).unwrap();
                    assert_eq!(SocketAddr::V6(address), numbered(n));
                    changes += u32::from(n != last);
                    last = n;
                }
            }
        });
        let mut n = 0;
        while !reader.is_finished() {
            n = (n + 1) % 0xffff;
            vector.remove(PeerAddress(0)).unwrap();
            vector.insert(numbered(n)).unwrap();
        }
        reader.join().unwrap();
    });
}

/// Requirements: AV-009, AV-042.
#[test]
fn symmetric_range_is_one_entry_until_modified() {
    let vector = vector();
    vector.insert(v4(7)).unwrap();
    let inserted = vector.insert_symmetric("10.1.0.0", 10_000, "5000", 100).unwrap();
    assert_eq!((inserted.count(), vector.len()), (1_000_000, 1_000_001));
    let at = |index: u64| vector.lookup(PeerAddress(index)).map(|address| address.to_string());
    assert_eq!(at(1).as_deref(), Some("10.1.0.0:5000"));
    assert_eq!(at(1_000_000).as_deref(), Some("10.1.39.15:5099"));
    assert_eq!(at(1_000_001), None);
    assert_eq!(vector.find("10.1.0.1:5007".parse().unwrap()), Some(PeerAddress(108)));
    assert_eq!(vector.find("10.1.0.1:5100".parse().unwrap()), None);
    // An address in the middle is removed and replaced by another one.
    vector.remove(PeerAddress(108)).unwrap();
    assert_eq!((at(108), vector.find("10.1.0.1:5007".parse().unwrap())), (None, None));
    assert!(vector.remove(PeerAddress(108)).is_err());
    assert_eq!(vector.insert(v6(3)), Ok(PeerAddress(108)));
    assert_eq!((at(107).as_deref(), at(109).as_deref()), (Some("10.1.0.1:5006"), Some("10.1.0.1:5008")));
    assert_eq!(vector.lookup(PeerAddress(108)), Some(v6(3)));
    assert_eq!(vector.find(v6(3)), Some(PeerAddress(108)));
    // The lowest free indices are used first, then indices behind all entries.
    for removed in [500, 600_000] {
        vector.remove(PeerAddress(removed)).unwrap();
    }
    let more: Vec<_> =
        vector.insert_symmetric("10.9.0.0", 1, "1", 20).unwrap().iter().map(|peer| peer.unwrap().0).collect();
    assert_eq!((more[0], more[1]), (500, 600_000));
    assert_eq!(more[2..], (1_000_001..1_000_019).collect::<Vec<_>>());
    assert_eq!((at(500).as_deref(), at(1_000_018).as_deref()), (Some("10.9.0.0:1"), Some("10.9.0.0:20")));
}

/// Requirements: AV-045.
#[test]
fn failed_symmetric_insertion_leaves_vector_unchanged() {
    let vector = vector();
    for (node, nodes, service, services) in
        [("name", 2, "5", 1), ("10.0.0.1", 1, "65535", 2), ("10.0.0.1", 1, "none", 1)]
    {
        assert!(vector.insert_symmetric(node, nodes, service, services).is_err());
    }
    assert_eq!((vector.len(), vector.changes()), (0, 0));
    assert_eq!(vector.insert_service("10.1.1.1", "5000"), Ok(PeerAddress(0)));
    assert_eq!(vector.lookup(PeerAddress(0)), "10.1.1.1:5000".parse().ok());
}

#[test]
fn named_vectors_of_different_families_are_separate() {
    let name = format!("unit-family-{}", std::process::id());
    let open = |family| {
        AddressVector::new(VectorOptions { name: Some(name.clone()), family, ..VectorOptions::default() }).unwrap()
    };
    let [any, four, six] = [None, Some(Family::V4), Some(Family::V6)].map(open);
    assert_eq!([four.insert(v4(1)), six.insert(v6(2))], [Ok(PeerAddress(0)), Ok(PeerAddress(0))]);
    assert_eq!((any.len(), four.len(), six.len()), (0, 1, 1));
    assert_eq!(open(Some(Family::V4)).lookup(PeerAddress(0)), Some(v4(1)), "the vector of this family");
    assert_eq!(open(Some(Family::V6)).lookup(PeerAddress(0)), Some(v6(2)), "the vector of this family");
}

/// Requirements: AV-011.
#[test]
fn shared_vector_recovers_after_writer_death() {
    let name = format!("unit-{}", std::process::id());
    let options = VectorOptions { name: Some(name), ..VectorOptions::default() };
    let (ours, theirs) = (AddressVector::new(options.clone()).unwrap(), AddressVector::new(options).unwrap());
    ours.insert_all((0..600).map(v4));
    let range = ours.insert_symmetric("10.8.0.0", 10, "5000", 100).unwrap();
    assert_eq!(range.iter().next(), Some(Ok(PeerAddress(600))));
    ours.remove(PeerAddress(700)).unwrap();
    ours.remove(PeerAddress(3)).unwrap();
    // The writer died. It left an entry behind the end, an entry that was removed and not counted, and a range that the
    // end does not include.
    let store = &ours.shared.store;
    store.make_entry(1600).unwrap().store(store.entry(5).unwrap().load(Ordering::Relaxed), Ordering::Relaxed);
    store.make_entry(9).unwrap().store(store.entry(3).unwrap().load(Ordering::Relaxed), Ordering::Relaxed);
    for (cell, value) in [
        (TableField::Used, 7),
        (TableField::Removed, 0),
        (TableField::Hint, 1600),
        (TableField::End, 650),
        (TableField::Removals, 5),
    ] {
        store.cell(cell).store(value, Ordering::Relaxed);
    }
    // It also left an entry many pages further on, which belongs to an insertion of many addresses.
    store
        .make_entry(9000)
        .unwrap()
        .store(TableEntry::V4(Ipv4Addr::from_bits(0x0a00_0000), 1).pack(), Ordering::Relaxed);
    store.cell(TableField::Writing).store(1, Ordering::Relaxed);
    assert_eq!(theirs.insert(v4(1000)), Ok(PeerAddress(3)));
    assert_eq!((ours.lookup(PeerAddress(1600)), ours.lookup(PeerAddress(9000))), (None, None), "never inserted");
    assert_eq!((theirs.len(), theirs.removals()), (1598, 6));
    assert_eq!(theirs.insert_all((0..3).map(v6)), [9, 700, 1600].map(|n| Ok(PeerAddress(n))));
    assert_eq!(ours.lookup(PeerAddress(701)), "10.8.0.1:5001".parse().ok());
    assert_eq!(ours.lookup(PeerAddress(1600)), Some(v6(2)));
    assert_eq!(ours.find(v6(1)), Some(PeerAddress(700)));
}

/// Requirements: AV-016, AV-052.
#[test]
fn shared_map_indices_start_at_its_base() {
    let name = format!("unit-base-{}", std::process::id());
    let options = VectorOptions { kind: VectorType::Map, name: Some(name), ..VectorOptions::default() };
    let base = |base, bits| {
        let options = VectorOptions { base, receive_context_bits: bits, ..options.clone() };
        AddressVector::new(options)
    };
    let vector = base(1 << 32, 4).unwrap();
    let peer = vector.insert(v4(1)).unwrap();
    assert_eq!((peer, vector.numbers_in_memory().is_some()), (PeerAddress(1 << 32), true));
    assert_eq!(vector.lookup(peer.receive_context(15, 4).unwrap()), Some(v4(1)));
    assert_eq!(vector.lookup(PeerAddress(0)), None);
    assert_eq!(base(77, 0).unwrap().lookup(PeerAddress(77)), Some(v4(1)));
    assert!(matches!(base(1 << 60, 4), Err(AddressError::Base { .. })));
    let unnamed = VectorOptions { name: None, base: 77, ..options };
    assert_eq!(
        AddressVector::new(unnamed).unwrap().insert(v4(1)),
        Ok(PeerAddress(0)),
        "the base has no effect without a name"
    );
}

#[derive(Clone, Debug)]
enum Step {
    Insert(SocketAddr),
    InsertAll(Vec<SocketAddr>),
    InsertSymmetric(SocketAddr, usize, usize),
    Remove(u64),
    Find(SocketAddr),
}

fn address() -> impl Strategy<Value = SocketAddr> {
    prop_oneof![(0u32..8).prop_map(v4), (0u32..8).prop_map(v6), Just("0.0.0.0:0".parse().unwrap())]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => address().prop_map(Step::Insert),
        1 => proptest::collection::vec(address(), 0..6).prop_map(Step::InsertAll),
        1 => (address(), 1usize..5, 1usize..5).prop_map(|(first, nodes, ports)| Step::InsertSymmetric(first, nodes, ports)),
        3 => (0u64..40).prop_map(Step::Remove),
        2 => address().prop_map(Step::Find),
    ]
}

proptest! {
    /// Requirements: AV-003.
    #[test]
    fn behaves_like_a_plain_map(steps in proptest::collection::vec(step(), 1..80)) {
        let vector = vector();
        let mut model: BTreeMap<u64, SocketAddr> = BTreeMap::new();
        let lowest = |model: &BTreeMap<u64, SocketAddr>, taken: &[u64]| {
            (0..).find(|index| !model.contains_key(index) && !taken.contains(index)).unwrap()
        };
        for step in steps {
            match step {
                Step::Insert(address) => {
                    let result = vector.insert(address);
                    if address.port() == 0 {
                        prop_assert_eq!(result, Err(AddressError::NotAnEndpoint(address)));
                    } else {
                        let index = lowest(&model, &[]);
                        prop_assert_eq!(result, Ok(PeerAddress(index)));
                        model.insert(index, address);
                    }
                }
                Step::InsertAll(addresses) => {
                    let mut skipped = Vec::new();
                    for (result, address) in vector.insert_all(&addresses).into_iter().zip(&addresses) {
                        let index = lowest(&model, &skipped);
                        if address.port() == 0 {
                            prop_assert!(result.is_err());
                            skipped.push(index);
                        } else {
                            prop_assert_eq!(result, Ok(PeerAddress(index)));
                            model.insert(index, *address);
                        }
                    }
                }
                Step::InsertSymmetric(first, nodes, ports) => {
                    let (node, port) = (first.ip().to_string(), first.port().to_string());
                    let result = vector.insert_symmetric(&node, nodes, &port, ports);
                    if first.port() == 0 {
                        prop_assert!(result.is_err());
                        continue;
                    }
                    let inserted = result.unwrap();
                    prop_assert_eq!(inserted.count(), (nodes * ports) as u64);
                    for (at, outcome) in inserted.iter().enumerate() {
                        let index = lowest(&model, &[]);
                        prop_assert_eq!(outcome, Ok(PeerAddress(index)));
                        let ip = match first.ip() {
                            IpAddr::V4(ip) => Ipv4Addr::from_bits(ip.to_bits() + (at / ports) as u32).into(),
                            IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() + (at / ports) as u128).into(),
                        };
                        model.insert(index, SocketAddr::new(ip, first.port() + (at % ports) as u16));
                    }
                }
                Step::Remove(index) => {
                    prop_assert_eq!(vector.remove(PeerAddress(index)).is_ok(), model.remove(&index).is_some());
                }
                Step::Find(address) => {
                    let lowest = model.iter().find(|(_, other)| **other == address).map(|(index, _)| *index);
                    prop_assert_eq!(vector.find(address), lowest.map(PeerAddress));
                }
            }
            prop_assert_eq!(vector.len(), model.len());
            for index in 0..60 {
                prop_assert_eq!(vector.lookup(PeerAddress(index)), model.get(&index).copied());
            }
        }
    }
}
