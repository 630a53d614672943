//! Tests of reads and writes, rights and ranges.

#![expect(unsafe_code, reason = "registers memory that is not mapped; each block states its own reason")]

use super::*;
use crate::local_memory::volatile::Segment;
use crate::local_memory::volatile::SegmentsExt as _;
use crate::owner::Counter;
use crate::shm::direct::ENTRIES;

const MAPPED_AND_NOT: [bool; 2] = [true, false];

/// Requirements: MR-051, MR-053.
#[test]
fn reads_and_writes_work_whole_and_in_segments() {
    for mapped in MAPPED_AND_NOT {
        let mut two = Two::new(true);
        let region = two.region(600_000, mapped, BOTH);
        let (key, mut expected) = (region.key(), vec![0; 600_000]);
        let ranges = [
            (0, 1),
            (8, 8),
            (17, 8),
            (20, 4),
            (33, 4),
            (40, 0),
            (600_000, 0),
            (599_999, 1),
            (100, 65_536),
            (7, 590_001),
        ];
        for (seed, (address, len)) in ranges.into_iter().enumerate() {
            let bytes = content(seed, len);
            two.write(key, address as u64, &bytes).unwrap();
            expected[address..address + len].copy_from_slice(&bytes);
            assert!(bytes_of(&region) == expected, "written: {address}, {len}, mapped: {mapped}");
            assert_eq!(two.read(key, address as u64, len).unwrap(), bytes);
        }
        // Three pieces on the local side. Some are longer than the part that is copied under one announcement.
        let grant = two.grant(key);
        for len in [24, 300_000] {
            let from = Lent::new(content(99, len));
            two.initiator.direct_write(grant, 1001, &from.cut(&[7, len / 2])).unwrap();
            expected[1001..1001 + len].copy_from_slice(&content(99, len));
            assert!(bytes_of(&region) == expected);
            let into = Lent::new(vec![0; len]);
            two.initiator.direct_read(grant, 1001, &into.cut(&[len / 3, len / 3 + 1])).unwrap();
            assert!(into.bytes() == content(99, len));
        }
        assert!(region.close().is_ok());
    }
}

/// Requirements: MR-014.
#[test]
fn access_outside_a_region_is_rejected() {
    for mapped in MAPPED_AND_NOT {
        let mut two = Two::new(true);
        let memory: crate::local_memory::buffer::Buffer =
            if mapped { allocate(64).unwrap().into() } else { vec![0; 64].into() };
        let low = two.domain.registration(BOTH).base(1000).own(memory).unwrap();
        let high = two.domain.registration(BOTH).base(u64::MAX - 7).own(vec![0; 8]).unwrap();
        for (address, len, good) in [
            (1000, 64, true),
            (1000, 65, false),
            (999, 1, false),
            (0, 8, false),
            (1063, 1, true),
            (1064, 0, true),
            (1064, 1, false),
            (1065, 0, false),
            (u64::MAX, 1, false),
            (u64::MAX, 64, false),
        ] {
            let expected = if good { Ok(()) } else { Err(DirectError::Range) };
            assert_eq!(two.write(low.key(), address, &vec![0; len]), expected, "{address} {len}");
            assert_eq!(two.read(low.key(), address, len).map(|_| ()), expected, "{address} {len}");
        }
        assert_eq!(two.write(high.key(), u64::MAX, &[3]), Ok(()));
        assert_eq!(two.write(high.key(), u64::MAX, &[3, 4]), Err(DirectError::Range));
        assert_eq!(two.write(high.key(), 0, &[3]), Err(DirectError::Range));
        assert_eq!(bytes_of(&high), [0, 0, 0, 0, 0, 0, 0, 3]);
    }
}

/// Requirements: MR-050, MR-052.
#[test]
fn access_rights_are_enforced() {
    for mapped in MAPPED_AND_NOT {
        let mut two = Two::new(true);
        let readable = two.region(64, mapped, Access::REMOTE_READ);
        let writable = two.region(64, mapped, Access::REMOTE_WRITE);
        assert_eq!(two.write(readable.key(), 0, &[1; 8]), Err(DirectError::Right));
        assert_eq!(two.read(readable.key(), 0, 8), Ok(vec![0; 8]));
        assert_eq!(two.read(writable.key(), 0, 8), Err(DirectError::Right));
        assert_eq!(two.write(writable.key(), 0, &[1; 8]), Ok(()));
        assert_eq!(
            (bytes_of(&readable), bytes_of(&writable)[..9].to_vec()),
            (vec![0; 64], vec![1, 1, 1, 1, 1, 1, 1, 1, 0])
        );
        for region in [&readable, &writable] {
            assert_eq!(two.add(region.key(), 0, 1), Err(DirectError::Right));
        }
        // Without remote rights, the answer does not disclose a location.
        let local = two.region(64, mapped, Access::READ | Access::WRITE);
        assert_eq!(two.look_up(local.key()), Lookup::Executed);
    }
}

/// Returns the permissions of the mappings of this region's arena in this process.
fn mappings(two: &Two, key: u64) -> Vec<String> {
    let region = two.domain.inner.keys.find(key, AccessOrigin::default()).unwrap();
    let inode = rustix::fs::fstat(&region.located().unwrap().fd).unwrap().st_ino.to_string();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let of_arena = maps.lines().filter(|line| line.split_whitespace().nth(4) == Some(&inode));
    let mut rights: Vec<_> = of_arena.map(|line| line.split_whitespace().nth(1).unwrap().to_owned()).collect();
    rights.sort();
    rights
}

/// Requirements: MR-052.
#[test]
fn unwritable_memory_is_mapped_read_only() {
    let mut two = Two::new(false);
    // The region is large, so that it has an arena of its own.
    let region = two.region(1 << 20, true, Access::REMOTE_READ);
    assert_eq!(mappings(&two, region.key()), ["rw-s"], "the mapping of the owner");
    assert_eq!(two.read(region.key(), 1 << 19, 8), Ok(vec![0; 8]));
    assert_eq!(mappings(&two, region.key()), ["r--s", "rw-s"]);
    // The same memory is registered under another key for writing. This uses another descriptor.
    let (key, memory) = (region.key(), region.close().unwrap());
    let region = two.domain.register(memory, BOTH).unwrap();
    assert_eq!(two.write(region.key(), 0, &[5; 8]), Ok(()));
    assert_eq!(mappings(&two, region.key()), ["r--s", "rw-s", "rw-s"]);
    assert_eq!(two.read(key, 0, 8), Err(DirectError::Stale));
}

#[test]
fn counted_region_requires_notices() {
    let mut two = Two::new(true);
    let counter = Arc::new(Counter::new());
    let counted = two.domain.registration(BOTH).counter(&counter).own(vec![0; 8]).unwrap();
    let plain = two.region(8, true, BOTH);
    let (counted, plain) = (two.grant(counted.key()), two.grant(plain.key()));
    assert!(two.initiator.grant_notifies(counted) && !two.initiator.grant_notifies(plain));
    assert!(two.initiator.grant_can_atomic(plain) && !two.initiator.grant_can_atomic(counted));
}

#[test]
fn atomic_operation_changes_the_target_memory() {
    let mut two = Two::new(false);
    let region = two.region(64, true, BOTH | Access::REMOTE_FETCH | Access::REMOTE_ATOMIC);
    assert_eq!((two.add(region.key(), 8, 5), two.add(region.key(), 8, 5)), (Ok(0), Ok(5)));
    assert_eq!(bytes_of(&region)[8], 10);
    assert_eq!(two.add(region.key(), 57, 5), Err(DirectError::Range));
    assert_eq!(two.add(region.key(), 12, 5), Err(DirectError::Misaligned));
    assert_eq!(bytes_of(&region)[12..], [0; 52]);
}

/// Returns the results of in-place accesses: the bytes that a read returns, the bytes of a write, and the previous
/// value of an addition. A result is `None` if the access was not executed in place.
fn in_place(two: &mut Two, key: u64, address: u64) -> [Option<Vec<u8>>; 3] {
    let (from, into) = (Lent::new(vec![9; 8]), Lent::new(vec![0xEE; 8]));
    let read = two.initiator.read_in_place(key, address, into.whole().as_slice()[0]).map(|()| into.bytes());
    let written = two.initiator.write_in_place(key, address, from.whole().as_slice()[0]).map(|()| from.bytes());
    let (one, before) = (Lent::new(1_u64.to_ne_bytes().to_vec()), Lent::new(vec![0xEE; 8]));
    let [one, result] = [&one, &before].map(|memory| memory.whole().as_slice()[0]);
    let word = Word::new(one, None, result).unwrap();
    let added = two.initiator.atomic_in_place(key, address, &word).map(|()| before.bytes());
    [read, written, added]
}

#[test]
fn in_place_accesses_are_checked_like_others() {
    let all = BOTH | Access::REMOTE_FETCH | Access::REMOTE_ATOMIC;
    let (zeroes, nines) = (Some(vec![0; 8]), Some(vec![9; 8]));
    for mapped in MAPPED_AND_NOT {
        let mut two = Two::new(true);
        let [readable, whole] = [Access::REMOTE_READ, all].map(|access| two.region(64, mapped, access));
        let added = mapped.then(|| vec![9; 8]);
        assert_eq!(in_place(&mut two, whole.key(), 0), [None, None, None], "a key without a request");
        two.grant(whole.key());
        assert_eq!(in_place(&mut two, whole.key(), 0), [zeroes.clone(), nines.clone(), added.clone()]);
        assert_eq!(in_place(&mut two, whole.key(), 57), [None, None, None], "out of range");
        assert_eq!(in_place(&mut two, whole.key(), u64::MAX), [None, None, None], "out of range");
        assert_eq!(in_place(&mut two, readable.key(), 0), [None, None, None], "a key that was not granted");
        two.grant(readable.key());
        assert_eq!(
            in_place(&mut two, readable.key(), 0),
            [zeroes.clone(), None, None],
            "an operation without the access right"
        );
        // After the close the grant is stale.
        two.grant(whole.key());
        assert_eq!(bytes_of(&whole)[0], 9 + u8::from(mapped));
        let key = whole.key();
        let _memory = whole.close().unwrap();
        assert_eq!(in_place(&mut two, key, 0), [None, None, None]);
    }
    // The target needs notifications of writes to a region that counts them, so only the read is executed in place.
    let mut two = Two::new(true);
    let counted = two.domain.registration(all).counter(&Arc::new(Counter::new())).own(allocate(64).unwrap()).unwrap();
    two.grant(counted.key());
    assert_eq!(in_place(&mut two, counted.key(), 0), [zeroes, None, None]);
    // Memory that is not mapped. After that, a peer that has ended.
    // SAFETY: only the kernel uses this address, and it refuses the copy.
    let nowhere = unsafe { Segment::new(std::ptr::without_provenance_mut(4096), 4096) };
    // SAFETY: the region is not backed, so only the kernel touches it.
    let region = unsafe { two.domain.registration(all).raw(&[nowhere], false) }.unwrap();
    two.grant(region.key());
    assert_eq!(in_place(&mut two, region.key(), 0), [None, None, None]);
    let ordinary = two.region(64, false, all);
    two.grant(ordinary.key());
    assert_eq!(in_place(&mut two, ordinary.key(), 0)[1], nines);
    two.initiator.connection_end().set("killed");
    assert_eq!(in_place(&mut two, ordinary.key(), 0), [None, None, None]);
}

#[test]
fn accesses_to_unreachable_memory_are_executed_by_the_target() {
    // CMA is not available on the initiator's side.
    let mut two = Two::new(false);
    let heap = two.region(64, false, BOTH);
    assert_eq!(two.look_up(heap.key()), Lookup::Executed);
    // The memory consists of several pieces.
    let mut two = Two::new(true);
    let memory = Lent::new(vec![0; 100]);
    // SAFETY: the memory outlives the region, and no other code uses it.
    let region = unsafe { two.domain.registration(BOTH).raw(memory.cut(&[50]).as_slice(), true) }.unwrap();
    assert_eq!(two.look_up(region.key()), Lookup::Executed);
    // A target that does not allow direct access gives this answer for every key, including keys that it does not have.
    let domain = domain();
    let [initiator, target] = parts(true);
    let (initiator, target) = (ShmLink::new(initiator).unwrap(), ShmLink::new(target).unwrap());
    let mut two = Two { initiator, target, domain };
    let region = two.region(64, true, BOTH);
    assert_eq!((two.look_up(region.key()), two.look_up(1)), (Lookup::Executed, Lookup::Executed));
}

/// Requirements: MR-028.
#[test]
fn unmapped_memory_is_an_error() {
    let mut two = Two::new(true);
    // SAFETY: only the kernel uses this address, and it refuses the copy.
    let nowhere = unsafe { Segment::new(std::ptr::without_provenance_mut(4096), 4096) };
    // SAFETY: the region is not backed, so only the kernel touches it.
    let region = unsafe { two.domain.registration(BOTH).raw(&[nowhere], false) }.unwrap();
    assert_eq!(two.write(region.key(), 0, &[1; 100]), Err(DirectError::Fault));
    assert_eq!(two.read(region.key(), 0, 100), Err(DirectError::Fault));
    // SAFETY: as above; the memory that is accessed below exists, and is lent.
    let everything = unsafe { two.domain.registration(BOTH).everything() }.unwrap();
    let memory = Lent::new(vec![0; 100]);
    let address = memory.whole().as_slice()[0].as_ptr().expose_provenance() as u64;
    two.write(everything.key(), address + 10, &[7; 5]).unwrap();
    assert_eq!(memory.bytes()[9..16], [0, 7, 7, 7, 7, 7, 0]);
    assert_eq!(two.read(everything.key(), 64, 8), Err(DirectError::Fault));
}

#[test]
fn the_kernel_does_not_copy_for_a_dead_peer() {
    let mut two = Two::new(true);
    let region = two.region(64, false, BOTH);
    two.write(region.key(), 0, &[1; 8]).unwrap();
    two.initiator.connection_end().set("killed");
    let grant = two.grant(region.key());
    let written = Segments::lend(&[2; 8], |from| two.initiator.direct_write(grant, 0, from));
    assert_eq!((written, bytes_of(&region)[0]), (Err(DirectError::Stale), 1));
}

#[test]
fn full_key_page_falls_back_to_execution_until_regions_close() {
    let mut two = Two::new(true);
    let mut regions: Vec<_> = (0..ENTRIES + 1).map(|at| (at, two.region(8, false, BOTH))).collect();
    for (at, region) in &regions {
        two.initiator.look_up(region.key());
        if at % 32 == 31 {
            two.turn();
        }
    }
    let granted: Vec<_> =
        regions.iter().map(|(_, region)| matches!(two.look_up(region.key()), Lookup::Ready(_))).collect();
    assert_eq!(granted.iter().filter(|granted| **granted).count(), ENTRIES);
    let refused = granted.iter().position(|granted| !granted).unwrap();
    // Each key still refers to its own region.
    for (at, region) in regions.iter().filter(|(at, _)| *at != refused && at % 7 == 0) {
        two.write(region.key(), 0, &at.to_le_bytes()).unwrap();
    }
    for (at, region) in regions.iter().filter(|(at, _)| *at != refused && at % 7 == 0) {
        assert_eq!(bytes_of(region), at.to_le_bytes());
    }
    let (_, late) = regions.remove(refused);
    assert_eq!(two.look_up(late.key()), Lookup::Executed);
    let (_, closed) = regions.remove(5);
    let key = closed.key();
    closed.close().unwrap();
    assert_eq!(two.write(key, 0, &[1]), Err(DirectError::Stale));
    two.initiator.forget(key);
    assert_eq!(two.look_up(key), Lookup::NoKey);
    // The initiator sends a new request to the target, but not for each access.
    let executed = (0..).take_while(|_| two.initiator.look_up(late.key()) == Lookup::Executed).count();
    assert!((1000..100_000).contains(&executed), "a new request was sent after {executed} accesses");
    assert_eq!(two.write(late.key(), 0, &[9; 8]), Ok(()));
    assert_eq!(bytes_of(&late), [9; 8]);
}
