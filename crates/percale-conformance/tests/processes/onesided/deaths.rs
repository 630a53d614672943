//! Initiators and targets that are killed with outstanding accesses.

use std::time::Duration;

use percale::endpoint::safe::{Cause, OperationError};
use percale::{Buffer, Event, PeerAddress};
use percale_conformance::long;
use percale_conformance::measure::{ResourceCounts, descriptors, mappings};
use percale_conformance::memory::content;
use percale_conformance::peers::Open;
use percale_conformance::process::{Helper, ask, print_line, variable};
use percale_conformance::random::{Random, seed};
use percale_conformance::watchdog::Watchdog;

use super::ground::{GROUND, Ground, key_of};
use super::{ALL, Deadline, WAIT_TIMEOUT, all_of, open_as_told, serve};

crate::on!(shm, untrusting, tcp, verbs: { killed_initiators_and_targets_leak_nothing });

/// The key of the victim's region.
const VICTIM: u64 = 30;
/// The number of outstanding accesses to a target that is killed.
const OUTSTANDING: usize = 1000;
const WARM: u64 = 6;

/// 50 deaths (500 with `PERCALE_LONG`), in the helper `survivor`.
///
/// Requirements: RMA-013.
fn killed_initiators_and_targets_leak_nothing(kind: &str) {
    let _watchdog =
        Watchdog::within("killed initiators and targets", Duration::from_secs(if long() { 3600 } else { 300 }));
    for _ in 0..if long() { 10 } else { 1 } {
        let mut survivor = Helper::start("survivor", &[("PERCALE_FABRIC", kind)]);
        println!("{kind}: {}", survivor.receive_line());
        survivor.end();
    }
}

/// The role of the survivor: accesses the regions of victims, and lets them access its own, until they are killed.
pub(crate) fn survivor() {
    let seed = seed();
    eprintln!("PERCALE_SEED={seed}");
    let mut play = Survivor { open: open_as_told(), random: Random::new(seed), failed: 0, succeeded: 0, deaths: 0 };
    (0..WARM).for_each(|number| play.cycle(number));
    let before = ResourceCounts::now();
    (play.failed, play.succeeded) = (0, 0);
    (WARM..WARM + 50).for_each(|number| play.cycle(number));
    let deadline = Deadline::new("the resources of dead peers are released");
    let mut after = ResourceCounts::now();
    while !after.is_within(&before) {
        play.open.endpoint.progress();
        std::thread::sleep(Duration::from_millis(10));
        if std::panic::catch_unwind(|| deadline.check()).is_err() {
            panic!("{after:?} are held, before {before:?}: {:?}, {:?}", descriptors(), mappings());
        }
        after = ResourceCounts::now();
    }
    print_line(&format!(
        "{} failed, {} succeeded; held before {before:?}, after {after:?}",
        play.failed, play.succeeded
    ));
}

struct Survivor {
    open: Open,
    random: Random,
    failed: u64,
    succeeded: u64,
    deaths: u64,
}

impl Survivor {
    /// Runs one victim.
    fn cycle(&mut self, number: u64) {
        let ground = Ground::new(&self.open.domain, number % 4 < 2);
        let held = ground.register(&self.open.domain, key_of(number));
        let (kind, own, own_key) =
            (variable("PERCALE_FABRIC"), self.open.endpoint.address().to_string(), number.to_string());
        let variables = [("PERCALE_FABRIC", kind.as_str()), ("PERCALE_PEER", &own), ("PERCALE_NUMBER", &own_key)];
        let mut victim = Helper::start("victim", &variables);
        let peer = self.open.insert(&victim.receive_line());
        let got = self.open.endpoint.read(peer, all_of(VICTIM, 8), vec![0; 8]).wait().expect("the victim's region");
        assert_eq!(got.into_vec(), content(VICTIM, GROUND)[..8]);
        if number.is_multiple_of(2) {
            self.kill_initiator(&mut victim);
        } else {
            self.kill_target(&mut victim, peer, !number.is_multiple_of(3));
        }
        let deadline = Deadline::new("the death is detected");
        while !matches!(self.open.events.read(), Some(Event::PeerDown { .. })) {
            self.open.endpoint.progress();
            deadline.check();
        }
        self.deaths += 1;
        self.open.vector.remove(peer).expect("the peer is in the vector");
        // No live process accesses the region, so one call is sufficient.
        drop(held.close().expect("a dead peer does not prevent closing"));
    }

    /// Kills the victim while it reads and writes the survivor's region.
    fn kill_initiator(&mut self, victim: &mut Helper) {
        victim.send_line("access");
        let deadline = Deadline::new("the victim accesses our memory");
        while victim.try_receive_line().is_none() {
            self.open.endpoint.progress();
            deadline.check();
        }
        (0..self.random.below(500)).for_each(|_| _ = self.open.endpoint.progress());
        victim.kill();
    }

    /// Kills the victim while the survivor accesses its region. The victim makes progress unless `quiet` is set.
    fn kill_target(&mut self, victim: &mut Helper, peer: PeerAddress, quiet: bool) {
        if quiet {
            victim.send_line("quiet");
            assert_eq!(victim.receive_line(), "quiet");
        }
        let endpoint = &self.open.endpoint;
        let all = all_of(VICTIM, GROUND as u64);
        let kill_at = self.random.below(2 * OUTSTANDING);
        let (mut bytes, mut words) = (Vec::new(), Vec::new());
        for number in 0..OUTSTANDING {
            if number == kill_at {
                victim.kill();
            }
            let len = [8, 500, 9000, 20_000, 200_000][self.random.below(if number % 10 == 0 { 5 } else { 4 })];
            let start = self.random.below(GROUND - len) as u64;
            let part = all.slice(start..start + len as u64);
            let word = all.slice(start & !7..(start & !7) + 8);
            match number % 4 {
                0 => bytes.push(endpoint.write(peer, vec![7; len], part).start().expect("a write")),
                1 => bytes.push(endpoint.read(peer, part, vec![7; len]).start().expect("a read")),
                2 => words.push(endpoint.fetch_add(peer, word, 1_u64).start().expect("an addition")),
                _ => words.push(endpoint.compare_swap(peer, word, 1_u64, 2).start().expect("an exchange")),
            }
        }
        victim.kill();
        let mut count = |result: Result<(), OperationError>| match result {
            Ok(()) => self.succeeded += 1,
            Err(error) => {
                assert!(!matches!(error.cause, Cause::TimedOut), "an access still waits for a peer that was killed");
                self.failed += 1;
            }
        };
        bytes.into_iter().for_each(|access| count(access.wait_for(WAIT_TIMEOUT).map(drop)));
        words.into_iter().for_each(|access| count(access.wait_for(WAIT_TIMEOUT).map(drop)));
    }
}

/// The role of the victim: registers a region and, on request, accesses the survivor's region without end.
pub(crate) fn victim() {
    let open = open_as_told();
    let survivor = open.insert(&variable("PERCALE_PEER"));
    let number: u64 = variable("PERCALE_NUMBER").parse().expect("a number");
    // With ordinary memory, local peers execute reads and writes directly, but not atomic operations.
    let mut memory = Buffer::from(content(VICTIM, GROUND));
    if number % 4 == 1 {
        let mut sealed = open.domain.allocate(GROUND).expect("memory");
        sealed.write(0, &content(VICTIM, GROUND));
        memory = Buffer::from(sealed);
    }
    let _region = open.domain.registration(ALL).key(VICTIM).own(memory).expect("a region");
    open.say_address();
    serve(&open, |line| {
        assert_eq!(line, "access");
        access(&open, survivor, key_of(number));
    });
    drop(ask());
}

fn access(open: &Open, survivor: PeerAddress, key: u64) -> ! {
    let all = all_of(key, GROUND as u64);
    open.endpoint.read(survivor, all, vec![0; GROUND]).wait().expect("a read");
    print_line("accessing");
    loop {
        let reads = [0; 2].map(|_| open.endpoint.read(survivor, all, vec![0; GROUND]).start().expect("a read"));
        let writes = [0; 2].map(|_| open.endpoint.write(survivor, vec![3; GROUND], all).start().expect("a write"));
        reads.into_iter().for_each(|read| drop(read.wait().expect("the read")));
        writes.into_iter().for_each(|write| drop(write.wait().expect("the write")));
    }
}
