//! Named address vectors that processes share and change, while some of the processes are killed.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use percale::address::VectorBuilder;
use percale::address::error::AddressError;
use percale::address::vector::VectorType;
use percale::{AddressVector, PeerAddress};
use percale_conformance::process::{Helper, ask, print_line, variable};
use percale_conformance::random::Random;

/// The number of entries that are inserted and removed while other processes read.
const CHURNED: u64 = 3000;

fn new_name() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

fn builder(name: &str) -> VectorBuilder {
    VectorBuilder::default().name(name).kind(VectorType::Map)
}

/// Returns an address in which a torn read can be detected: its port and both of its halves are computed from one
/// number.
fn whole(n: u64) -> SocketAddr {
    let port = (n % 65_000) as u16 + 1;
    match n % 3 {
        0 => SocketAddr::new(Ipv4Addr::from_bits(0x0a00_0000 | (n & 0xff_ffff) as u32).into(), port),
        _ => SocketAddr::new(Ipv6Addr::from_bits(0xfd00u128 << 112 | u128::from(n) << 64 | u128::from(n)).into(), port),
    }
}

/// Returns whether an address is not torn.
fn is_whole(address: SocketAddr) -> bool {
    match address.ip() {
        // Addresses in 10.200/16 belong to a range with ports from 7000. All others are single entries.
        IpAddr::V4(ip) if ip.octets()[..2] == [10, 200] => (7000..7010).contains(&address.port()),
        IpAddr::V4(ip) => whole(u64::from(ip.to_bits() & 0xff_ffff)) == address,
        IpAddr::V6(ip) => whole(ip.to_bits() as u64) == address,
    }
}

/// Returns a random number below the number of 10.200.0.0, so that no single address equals an address of a range.
fn number(random: &mut Random) -> u64 {
    random.below(0xc0_0000) as u64
}

/// The role of a process that opens a vector, and inserts and looks up entries on request.
pub(crate) fn holder() {
    let name = variable("VECTOR");
    let vector = match variable("MODE").as_str() {
        "read" => builder(&name).read_only().build(),
        _ => builder(&name).build(),
    };
    let vector = match vector {
        Ok(vector) => vector,
        Err(error) => return print_line(&format!("no {}", error.errno())),
    };
    print_line("open");
    loop {
        let line = ask();
        let (command, rest) = line.split_once(' ').expect("a command and its argument");
        match command {
            "insert" => match vector.insert(rest) {
                Ok(peer) => print_line(&peer.0.to_string()),
                Err(error) => print_line(&format!("no {}", error.errno())),
            },
            "remove" => print_line(
                &vector.remove(PeerAddress(rest.parse().unwrap())).map_or_else(|e| e.errno(), |()| 0).to_string(),
            ),
            _ => print_line(
                &vector.lookup(PeerAddress(rest.parse().unwrap())).map_or_else(|| "none".to_owned(), |a| a.to_string()),
            ),
        }
    }
}

/// The role of a process that inserts and removes entries without end.
pub(crate) fn churner() {
    let vector = builder(&variable("VECTOR")).build().expect("a vector");
    let mut random = Random::new(variable("SEED").parse().unwrap());
    print_line("open");
    loop {
        churn(&vector, &mut random);
    }
}

fn churn(vector: &AddressVector, random: &mut Random) {
    let base = vector.options().base;
    let done = match random.below(20) {
        0 => vector.insert_symmetric("10.200.0.1", 3, "7000", 10).map(drop),
        1..=3 => {
            let many: Vec<_> = (0..random.below(30)).map(|_| whole(number(random))).collect();
            vector.insert_many(many).map(drop)
        }
        4..=10 if (vector.len() as u64) < CHURNED => vector.insert(whole(number(random))).map(drop),
        _ => {
            for _ in 0..40 {
                // The entry to remove may not exist.
                let _gone: Result<(), _> = vector.remove(PeerAddress(base + random.below(CHURNED as usize * 2) as u64));
            }
            Ok(())
        }
    };
    done.expect("the vector accepts the command");
}

/// The role of a process that looks up all entries without end.
pub(crate) fn reader() {
    let vector = builder(&variable("VECTOR")).read_only().build().expect("a vector");
    print_line("open");
    let until = Instant::now() + Duration::from_secs(variable("SECONDS").parse().unwrap());
    let (mut seen, mut rounds) = (0u64, 0u64);
    while Instant::now() < until {
        for index in 0..CHURNED * 2 {
            let peer = PeerAddress(vector.options().base + index);
            if let Some(address) = vector.lookup(peer) {
                if !is_whole(address) {
                    return print_line(&format!("{peer} is torn: {address}"));
                }
                seen += 1;
            }
        }
        rounds += 1;
    }
    print_line(&format!("whole {seen} {rounds}"));
}

/// The role of a process that looks up every entry. It reports whether all are correct, and how much memory of the
/// vector it uses.
pub(crate) fn resident() {
    let vector = builder(&variable("VECTOR")).read_only().build().expect("a vector");
    print_line("open");
    let count: u64 = ask().parse().expect("how many entries");
    let wrong = (0..count).find(|&n| vector.lookup(PeerAddress(vector.options().base + n)) != Some(single(n)));
    print_line(&wrong.map_or_else(|| "whole".to_owned(), |n| format!("entry {n} is wrong")));
    let _now = ask();
    let (resident, share) = memory_of_vectors();
    print_line(&format!("{resident} {share}"));
    let _end = ask();
}

/// Returns the address of an entry that is never removed.
fn single(n: u64) -> SocketAddr {
    SocketAddr::new(Ipv4Addr::from_bits(0x0a00_0000 + n as u32).into(), 7471)
}

/// Returns the resident memory of the mapped vectors in KiB, and this process's proportional share of it. Memory that
/// several processes use is divided among them.
fn memory_of_vectors() -> (u64, u64) {
    let maps = std::fs::read_to_string("/proc/self/smaps").expect("smaps");
    let (mut ours, mut resident, mut share) = (false, 0, 0);
    for line in maps.lines() {
        let (first, rest) = line.split_once(' ').unwrap_or((line, ""));
        let kib = || rest.trim().trim_end_matches(" kB").parse::<u64>().expect("a size");
        match first {
            "Rss:" if ours => resident += kib(),
            "Pss:" if ours => share += kib(),
            range if range.contains('-') => ours = line.contains("/memfd:percale-vector"),
            _ => {}
        }
    }
    (resident, share)
}

/// Checks the consistency of the table. Existing entries are not torn, are counted, and are found. Free entries are
/// assigned, lowest first.
fn check(vector: &AddressVector) {
    let base = vector.options().base;
    // This also repairs the table if a process died while changing it.
    let peer = vector.insert(whole(5)).unwrap();
    vector.remove(peer).unwrap();
    let there: Vec<_> = (0..CHURNED * 4).map(|index| vector.lookup(PeerAddress(base + index))).collect();
    assert_eq!(there.iter().flatten().count(), vector.len(), "counted");
    assert!(there.iter().flatten().all(|address| is_whole(*address)));
    let free = there.iter().position(Option::is_none).unwrap();
    assert_eq!(peer, PeerAddress(base + free as u64), "the lowest free index");
    assert_eq!(vector.lookup(peer), None);
}

fn start(role: &str, name: &str, more: (&str, &str)) -> Helper {
    let mut helper = Helper::start(role, &[("VECTOR", name), more]);
    let printed = helper.receive_line();
    assert_eq!(printed, "open");
    helper
}

fn query(helper: &mut Helper, what: &str) -> String {
    helper.send_line(what);
    helper.receive_line()
}

mod shm {
    mod rust {
        use super::super::*;

        /// Requirements: AV-010, AV-011, AV-014, AV-015.
        #[test]
        fn processes_share_a_vector_by_its_name() {
            let name = new_name();
            let mut first = start("vector-holder", &name, ("MODE", "write"));
            let number = query(&mut first, "insert 10.1.1.1:5");
            let vector = builder(&name).build().unwrap();
            let peer = PeerAddress(number.parse().unwrap());
            assert_eq!(peer, PeerAddress(vector.options().base));
            assert_eq!(vector.lookup(peer), "10.1.1.1:5".parse().ok());
            let ours = vector.insert("[fd00::7]:9").unwrap();
            assert_eq!(query(&mut first, &format!("lookup {}", ours.0)), "[fd00::7]:9");
            assert_eq!(query(&mut first, &format!("remove {}", ours.0)), "0");
            assert_eq!((vector.lookup(ours), vector.removals()), (None, 2));
            // When the process that created the vector dies, neither the vector nor its name changes.
            first.kill();
            assert_eq!(vector.lookup(peer), "10.1.1.1:5".parse().ok());
            let mut second = start("vector-holder", &name, ("MODE", "write"));
            assert_eq!(query(&mut second, &format!("lookup {}", peer.0)), "10.1.1.1:5");
            // Through a handle with another base, the numbers are different. Other handles are not affected.
            let elsewhere = builder(&name).base(1 << 20).build().unwrap();
            assert_eq!(elsewhere.lookup(PeerAddress(1 << 20)), "10.1.1.1:5".parse().ok());
            assert_eq!(elsewhere.find("10.1.1.1:5".parse().unwrap()), Some(PeerAddress(1 << 20)));
            assert_eq!(elsewhere.lookup(peer), None);
            // The vector is removed by the last process that uses it.
            drop((vector, elsewhere));
            second.kill();
            let fresh = builder(&name).build().unwrap();
            assert!(fresh.is_empty() && fresh.lookup(peer).is_none());
        }

        /// Requirements: AV-012, AV-013.
        #[test]
        fn read_only_vector_can_be_read_but_not_changed() {
            let name = new_name();
            let missing = builder(&name).read_only().build().unwrap_err();
            assert_eq!(missing.errno(), libc::ENOENT, "{missing}");
            assert!(matches!(VectorBuilder::default().read_only().build(), Err(AddressError::Unnamed)));
            let vector = builder(&name).build().unwrap();
            let inserted = vector.insert_symmetric("10.1.1.1", 1000, "5000", 1000).unwrap();
            let mut reader = start("vector-holder", &name, ("MODE", "read"));
            let last = inserted.iter().last().unwrap().unwrap();
            assert_eq!(query(&mut reader, &format!("lookup {}", last.0)), "10.1.4.232:5999");
            assert_eq!(query(&mut reader, "insert 10.1.1.1:5"), format!("no {}", libc::EACCES));
            assert_eq!(query(&mut reader, &format!("remove {}", last.0)), libc::EACCES.to_string());
            assert_eq!(vector.len(), 1_000_000);
        }

        /// Requirements: AV-011.
        #[test]
        fn readers_see_whole_entries_while_others_write() {
            let seconds = std::env::var("PERCALE_VECTOR_SECONDS").unwrap_or_else(|_| "2".to_owned());
            let name = new_name();
            let vector = builder(&name).build().unwrap();
            let churners: Vec<_> = ["1", "2"].map(|seed| start("vector-churner", &name, ("SEED", seed))).into();
            let mut readers: Vec<_> = (0..4).map(|_| start("vector-reader", &name, ("SECONDS", &seconds))).collect();
            for reader in &mut readers {
                let printed = reader.receive_line();
                let counts: Vec<u64> = printed
                    .strip_prefix("whole ")
                    .unwrap_or_else(|| panic!("{printed}"))
                    .split(' ')
                    .map(|n| n.parse().unwrap())
                    .collect();
                assert!(counts[0] > 1000 && counts[1] > 1, "{printed}");
            }
            for mut churner in churners {
                churner.kill();
            }
            check(&vector);
        }

        /// `PERCALE_VECTOR_ENTRIES=1000000` selects the full size.
        ///
        /// Requirements: AV-011.
        #[test]
        fn shared_vector_is_in_memory_once_for_eight_processes() {
            const READERS: u64 = 8;
            let count: u64 = std::env::var("PERCALE_VECTOR_ENTRIES").map_or(50_000, |n| n.parse().unwrap());
            let name = new_name();
            let vector = builder(&name).expected(count as usize).build().unwrap();
            assert_eq!(vector.insert_many((0..count).map(single)).unwrap().count(), count);
            let mut readers: Vec<_> =
                (0..READERS).map(|_| start("vector-resident", &name, ("ENTRIES", "all"))).collect();
            readers.iter_mut().for_each(|reader| reader.send_line(&count.to_string()));
            for reader in &mut readers {
                assert_eq!(reader.receive_line(), "whole");
            }
            // All processes have read all entries, and none has ended.
            let entries = count * 8 / 1024;
            let (own, mut sum) = memory_of_vectors();
            assert!(own >= entries, "{own} KiB here");
            for reader in &mut readers {
                let printed = query(reader, "now");
                let (resident, share) = printed.split_once(' ').unwrap();
                let (resident, share): (u64, u64) = (resident.parse().unwrap(), share.parse().unwrap());
                assert!(resident >= entries, "{resident} KiB of {entries}");
                assert!(share <= resident / 4, "this process accounts for {share} of {resident} KiB");
                sum += share;
            }
            let all = vector_bytes(count) / 1024;
            println!("{count} entries: {all} KiB; the shares of {READERS} readers sum to {sum} KiB");
            // Other tests of this process have small vectors as well.
            assert!(sum <= all + 1024, "{sum} KiB for {all}");
        }

        /// Requirements: AV-011.
        #[test]
        fn the_death_of_any_process_leaves_the_rest_working() {
            let times: u64 = std::env::var("PERCALE_VECTOR_DEATHS").map_or(25, |times| times.parse().unwrap());
            let name = new_name();
            let (mut random, mut readers) = (Random::new(7), 0);
            // In most cases, the process that created the vector has been killed.
            let mut last = start("vector-churner", &name, ("SEED", "99"));
            for seed in 0..times {
                let next = start("vector-churner", &name, ("SEED", &seed.to_string()));
                let mut reader = (random.below(3) == 0).then(|| start("vector-reader", &name, ("SECONDS", "100")));
                std::thread::sleep(Duration::from_micros(random.below(8000) as u64));
                if let Some(reader) = &mut reader {
                    reader.kill();
                    readers += 1;
                }
                last.kill();
                if random.below(4) == 0 {
                    let vector = builder(&name).build().unwrap();
                    assert!(vector.changes() > 0, "the existing vector was opened");
                    check_among(&vector);
                }
                last = next;
            }
            let vector = builder(&name).build().unwrap();
            last.kill();
            check(&vector);
            println!("{times} writers and {readers} readers were killed");
            drop(vector);
            assert_eq!(builder(&name).read_only().build().unwrap_err().errno(), libc::ENOENT, "the vector is removed");
        }
    }
}

/// Returns the size in bytes of a vector with `count` IPv4 entries: their words and their numbers in whole pages, and
/// some additional pages.
const fn vector_bytes(count: u64) -> u64 {
    count.next_multiple_of(512) * (8 + 8) + (64 << 10)
}

/// Like [`check`], for a vector that other processes are changing. Checks only properties that hold during changes.
fn check_among(vector: &AddressVector) {
    let base = vector.options().base;
    let mut there = (0..CHURNED * 4).filter_map(|index| vector.lookup(PeerAddress(base + index)));
    assert!(there.all(is_whole), "an entry is torn");
    let peer = vector.insert(whole(5)).expect("the vector is writable");
    // Another process may have removed the entry and inserted another one at its place.
    assert!(vector.lookup(peer).is_none_or(is_whole));
}
