//! The information that is disclosed to a peer about memory that it may access.

use std::fs;
use std::os::unix::fs::FileExt;

use percale_conformance::memory::{content, same};
use percale_conformance::peers::Open;
use percale_conformance::process::{Helper, ask, print_line, variable};
use percale_conformance::watchdog::Watchdog;

use super::ground::{GROUND, Ground, key_of};
use super::{Deadline, all_of, open_as_told, open_kind};

/// Returns how many of the owner's arenas its peer holds, and how many copies of the address of the owner's memory,
/// after reads, writes and an atomic operation.
fn found_by(kind: &str, sealed: bool) -> (usize, usize) {
    let _watchdog = Watchdog::new("information disclosed to a peer");
    let open = open_kind(kind, |domain| domain);
    let ground = Ground::new(&open.domain, sealed);
    let address = match &ground {
        Ground::Sealed(allocation) => allocation.as_ptr().addr() as u64,
        Ground::Plain(memory) => memory.address(),
    };
    let held = ground.register(&open.domain, key_of(1));
    let masked = format!("{}", address ^ MASK);
    let own = open.endpoint.address().to_string();
    let variables = [("PERCALE_FABRIC", kind), ("PERCALE_PEER", own.as_str()), ("PERCALE_MASKED", masked.as_str())];
    let mut curious = Helper::start("curious", &variables);
    let deadline = Deadline::new("the peer has searched its memory");
    let word = loop {
        if let Some(word) = curious.try_receive_line() {
            break word;
        }
        open.endpoint.progress();
        deadline.check();
    };
    println!("{kind}, sealed {sealed}: {word}");
    curious.send_line("end");
    curious.end();
    drop(held.close().expect("no access is in progress"));
    let (arenas, addresses) = word.split_once(' ').expect("two numbers");
    (arenas.parse().expect("a number"), addresses.parse().expect("a number"))
}

/// The mask that hides an address sent to a helper. Only percale can then have written the address itself to the
/// helper's memory.
const MASK: u64 = 0x5a5a_5a5a_5a5a_5a5a;

/// The role of a peer that accesses a region in all ways. Reports how many mappings, descriptors and addresses of the
/// owner's memory the peer has.
pub(crate) fn curious() {
    let open = open_as_told();
    let owner = open.insert(&variable("PERCALE_PEER"));
    let all = all_of(key_of(1), GROUND as u64);
    for (number, len) in (1..).zip([8, 2000, 20_000, GROUND as u64]) {
        let bytes = content(number, len as usize);
        open.endpoint.write(owner, bytes.clone(), all.at(0..len)).wait().expect("a write");
        let got = open.endpoint.read(owner, all.at(0..len), vec![0; len as usize]).wait().expect("a read");
        same(&got.into_vec(), &bytes, "the data read");
    }
    let before: u64 = open.endpoint.fetch_add(owner, all.at(0..8), 1_u64).wait().expect("an atomic operation");
    assert_eq!(before.to_le_bytes(), content(4, GROUND)[..8]);
    let masked: u64 = variable("PERCALE_MASKED").parse().expect("a number");
    print_line(&format!("{} {}", arenas(), words_like(&open, masked)));
    drop(ask());
}

/// Returns the number of mappings and descriptors of percale's arenas in this process.
pub(crate) fn arenas() -> usize {
    let maps = fs::read_to_string("/proc/self/maps").expect("/proc is mounted");
    let held = percale_conformance::measure::descriptors();
    let ours = |name: &str| name.contains("percale-arena");
    maps.lines().filter(|line| ours(line)).count() + held.iter().filter(|name| ours(name)).count()
}

/// Returns the number of words in this process's writable memory that equal this word after masking. The endpoint is
/// open during the search.
fn words_like(_open: &Open, masked: u64) -> usize {
    let maps = fs::read_to_string("/proc/self/maps").expect("/proc is mounted");
    let memory = fs::File::open("/proc/self/mem").expect("/proc is mounted");
    let mut found = 0;
    for line in maps.lines() {
        let mut words = line.split_whitespace();
        let (Some(range), Some(rights)) = (words.next(), words.next()) else { continue };
        let Some((start, end)) = range.split_once('-').filter(|_| rights.starts_with("rw")) else { continue };
        let number = |text| u64::from_str_radix(text, 16).expect("an address");
        let (start, end) = (number(start), number(end));
        let mut bytes = vec![0; 1 << 16];
        for at in (start..end).step_by(bytes.len()) {
            let len = bytes.len().min((end - at) as usize);
            // Guard pages cannot be read.
            if memory.read_exact_at(&mut bytes[..len], at).is_err() {
                continue;
            }
            let words = bytes[..len].chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("8 bytes")));
            found += words.filter(|word| std::hint::black_box(*word) ^ MASK == masked).count();
        }
    }
    found
}

mod shm {
    mod rust {
        /// Requirements: RMA-015.
        #[test]
        fn an_untrusted_peer_gets_neither_mapping_nor_address() {
            assert_eq!(super::super::found_by("untrusting", true), (0, 0));
            assert_eq!(super::super::found_by("untrusting", false), (0, 0));
        }

        /// Checks that the search in the test of untrusted peers can find these objects.
        #[test]
        fn a_trusted_peer_has_mapping_or_address() {
            let (arenas, _) = super::super::found_by("shm", true);
            assert!(arenas > 0, "an arena is mapped");
            let (arenas, addresses) = super::super::found_by("shm", false);
            assert!(
                arenas == 0 && addresses > 0,
                "{arenas} arenas are mapped, the address was found {addresses} times"
            );
        }
    }
}
