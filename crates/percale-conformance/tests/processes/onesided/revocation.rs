//! One large region is closed and registered again while four peers write it without pause.

use std::time::{Duration, Instant};

use percale::{Access, ErrorCode, PeerAddress, Region};
use percale_conformance::long;
use percale_conformance::peers::Open;
use percale_conformance::process::{Helper, ask, print_line, variable};
use percale_conformance::random::{Random, seed};
use percale_conformance::watchdog::Watchdog;

use super::ground::{Ground, Watch, key_of, stamp_of, write_until_refused};
use super::{Deadline, all_of, open_as_told, open_kind, refusal, work};

crate::on!(shm, untrusting, tcp, verbs: {
    a_closed_region_is_not_written_by_four_writers,
});

/// The key of the board, a word with the current epoch.
pub(super) const BOARD: u64 = 1;
/// The value on the board that ends the writers.
pub(super) const END: u64 = u64::MAX;
/// Helpers exit after ten minutes, so writers are replaced before that.
const SHIFT: Duration = Duration::from_secs(240);

/// 500 revocations for each kind of memory. With `PERCALE_LONG`, ten minutes in total.
///
/// Requirements: REV-001, MR-067, MR-068.
fn a_closed_region_is_not_written_by_four_writers(kind: &str) {
    let (rounds, time) = if long() { (u64::MAX, Duration::from_secs(600)) } else { (500, Duration::MAX) };
    let timeout = Duration::from_secs(if long() { 6 * 3600 } else { 300 });
    let _watchdog = Watchdog::within("a closed region is not written", timeout);
    let memories: &[bool] = if kind == "shm" { &[true, false] } else { &[true] };
    for &sealed in memories {
        revoke_under(kind, sealed, 4, rounds, time / memories.len() as u32);
    }
}

/// An owner with an open endpoint and its board.
pub(super) struct Owner {
    pub(super) open: Open,
    board: Region,
    own: String,
}

impl Owner {
    pub(super) fn new(open: Open) -> Self {
        let board = open.domain.allocate(8).expect("memory");
        let board = open.domain.registration(Access::REMOTE_READ).key(BOARD).own(board).expect("a region");
        let own = open.endpoint.address().to_string();
        Self { open, board, own }
    }

    pub(super) fn writer(&self, kind: &str) -> Helper {
        let seed = seed().to_string();
        let variables =
            [("PERCALE_FABRIC", kind), ("PERCALE_PEER", self.own.as_str()), ("PERCALE_SEED", seed.as_str())];
        Helper::start("writer", &variables)
    }

    pub(super) fn post(&mut self, epoch: u64) {
        self.board.write(0, &epoch.to_le_bytes());
    }

    /// Ends the writers. Returns their reports.
    pub(super) fn dismiss(&mut self, writers: Vec<Helper>) -> Vec<String> {
        self.post(END);
        let mut words = Vec::new();
        for mut writer in writers {
            let deadline = Deadline::new("a writer ends");
            let word = loop {
                match writer.try_receive_line() {
                    Some(word) => break word,
                    None => {
                        self.open.endpoint.progress();
                        deadline.check();
                    }
                }
            };
            words.push(word);
            writer.send_line("end");
            writer.end();
        }
        self.post(0);
        words
    }
}

fn revoke_under(kind: &str, sealed: bool, writers: usize, rounds: u64, time: Duration) {
    let mut random = Random::new(seed());
    let mut owner = Owner::new(open_kind(kind, |domain| domain));
    let mut ground = Ground::new(&owner.open.domain, sealed);
    let mut watch = Watch::new();
    let started = Instant::now();
    let (mut epoch, mut busy, mut bytes) = (0, 0, 0_u64);
    while epoch < rounds && started.elapsed() < time {
        let workers: Vec<Helper> = (0..writers).map(|_| owner.writer(kind)).collect();
        let shift = Instant::now();
        while epoch < rounds && started.elapsed() < time && shift.elapsed() < SHIFT {
            epoch += 1;
            watch.check(&ground, epoch);
            let mut held = ground.register(&owner.open.domain, key_of(epoch));
            owner.post(epoch);
            // Usually a writer is writing when the region is closed. Sometimes the region is closed immediately.
            if random.below(8) > 0 {
                let deadline = Deadline::new("a writer writes");
                while !watch.is_written(&held) {
                    work(&owner.open);
                    deadline.check();
                }
                (0..random.below(30)).for_each(|_| _ = owner.open.endpoint.progress());
                // Sometimes the owner makes progress for a while, so that it executes accesses for the writers.
                let (long, begun) = (random.below(4) == 0, Instant::now());
                let time = Duration::from_micros(random.below(2000) as u64);
                while long && begun.elapsed() < time {
                    work(&owner.open);
                }
                (0..random.below(20_000)).for_each(|_| std::hint::spin_loop());
            }
            let deadline = Deadline::new("closing ends");
            ground = loop {
                match held.close() {
                    Ok(ground) => break ground,
                    Err(again) => held = again, // The writer waits for a processor.
                }
                busy += 1;
                deadline.check();
            };
            bytes += watch.closed(&mut ground, epoch) as u64;
            (0..random.below(10)).for_each(|_| _ = owner.open.endpoint.progress());
            watch.check(&ground, epoch);
            if epoch % 64 == 0 {
                std::thread::sleep(Duration::from_micros(random.below(2000) as u64));
                owner.open.endpoint.progress();
                watch.check(&ground, epoch);
            }
        }
        println!("{kind}, sealed {sealed}: {epoch} revocations after {:?}", started.elapsed());
        for word in owner.dismiss(workers) {
            println!("{kind}, sealed {sealed}: {word}");
        }
    }
    let time = started.elapsed();
    println!("{kind}, sealed {sealed}, {writers} writers: {epoch} revocations in {time:?}, {busy} busy, {bytes} bytes");
    assert!(bytes > 0, "something was written");
}

/// The role of a writer: writes the region of the epoch on the board without pause until its key is rejected, and then
/// continues with the next epoch.
pub(crate) fn writer() {
    let open = open_as_told();
    let owner = open.insert(&variable("PERCALE_PEER"));
    let mut random = Random::new(seed());
    let (mut epoch, mut writes, mut refused, mut epochs) = (0, 0_u64, 0_u64, 0_u64);
    loop {
        let next = loop {
            match board(&open, owner) {
                now if now == epoch || now == 0 => (0..100).for_each(|_| std::hint::spin_loop()),
                now => break now,
            }
        };
        if next == END {
            break;
        }
        let dead = std::mem::replace(&mut epoch, next);
        epochs += 1;
        if dead != 0 && random.below(4) == 0 {
            let late = open.endpoint.write(owner, vec![stamp_of(dead); 8], all_of(key_of(dead), 8));
            assert_eq!(refusal(late.wait()), ErrorCode::KeyRejected, "the key of epoch {dead}");
        }
        let (done, failed) = write_until_refused(&open, owner, epoch, key_of(epoch), &mut random);
        writes += done;
        refused += failed;
    }
    let arenas = super::disclosed::arenas();
    print_line(&format!("{writes} writes in {epochs} epochs, {refused} refused, {arenas} arenas mapped"));
    drop(ask());
}

fn board(open: &Open, owner: PeerAddress) -> u64 {
    let word = open.endpoint.read(owner, all_of(BOARD, 8), vec![0; 8]).wait().expect("the board");
    u64::from_le_bytes(word.into_vec().try_into().expect("8 bytes"))
}
