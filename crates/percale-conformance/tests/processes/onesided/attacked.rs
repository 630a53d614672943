//! Many regions are closed one after another, each while a peer writes it without pause.
//!
//! The owner keeps [`SLOTS`] pieces of memory. Half of them are registered and attacked by the peer. The other half are
//! closed and resting. A board that the peer reads contains the registered epochs. A word that the peer writes contains
//! the epoch that it attacks. In most cases the owner closes that epoch, checks all of its bytes immediately, and
//! checks them again when the slot has rested: nothing may have changed. The first word of a region counts the peer's
//! writes, so it shows whether some ended while the region was being closed.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use percale::{Access, Buffer, ErrorCode, PeerAddress, Region};
use percale_conformance::long;
use percale_conformance::peers::Open;
use percale_conformance::process::{Helper, ask, print_line, variable};
use percale_conformance::random::{Random, seed};
use percale_conformance::watchdog::Watchdog;

use rustix::thread::CpuSet;

use super::ground::{Ground, HeldRegion, filling_of, key_of, stamp_of};
use super::{Deadline, all_of, code, open_as_told, open_kind, work};

crate::on!(shm, untrusting, tcp, verbs: { a_closed_region_is_not_written_by_one_writer });

/// The number of pieces of memory.
const SLOTS: usize = 64;
/// The number of resting pieces.
const RESTING: usize = SLOTS / 2;
/// The key of the board: the epoch of each slot, or 0, followed by [`END`] once the test is over.
const BOARD: u64 = 1;
const BOARD_LEN: usize = 8 * (SLOTS + 1);
const END: u64 = u64::MAX;
/// The key of the word with the epoch under attack.
const AIM: u64 = 2;
/// Lengths of writes.
const LENS: [usize; 8] = [8, 64, 500, 4000, 16 << 10, 40_000, 100_000, 200_000];
/// Helpers exit after ten minutes, so the peer is replaced before that.
const SHIFT: Duration = Duration::from_secs(240);

/// The number of polls of the peer's word before this thread yields. A peer that never pauses runs for milliseconds
/// after each yield.
const LOOKS: usize = 20_000;

/// Pins this thread to one of two processors, and its peer to the other. On one processor, no write would be in
/// progress when a region is closed. Returns the previous set of processors.
fn stay_on(number: usize) -> CpuSet {
    let allowed = rustix::thread::sched_getaffinity(None).expect("an affinity");
    if let Some(cpu) = (0..1024).filter(|&cpu| allowed.is_set(cpu)).nth(number) {
        let mut only = CpuSet::new();
        only.set(cpu);
        rustix::thread::sched_setaffinity(None, &only).expect("an affinity");
    }
    allowed
}

/// Returns the size of a slot's memory.
const fn len_of(slot: usize) -> usize {
    match slot % 16 {
        0 => 256 << 10,
        1 | 2 => 64 << 10,
        _ => 4096,
    }
}

/// 2,000 revocations for each kind of memory. With `PERCALE_LONG`, a million over shared memory and 100,000 over each
/// other transport.
///
/// Requirements: REV-001, MR-067, MR-068.
fn a_closed_region_is_not_written_by_one_writer(kind: &str) {
    let rounds = match (long(), kind) {
        (true, "shm") => 1_000_000,
        (true, _) => 100_000,
        (false, _) => 2000,
    };
    let timeout = Duration::from_secs(if long() { 3 * 3600 } else { 120 });
    let _watchdog = Watchdog::within("a closed region is not written", timeout);
    let memories: &[bool] = if kind == "shm" { &[true, false] } else { &[true] };
    for &sealed in memories {
        let mut owner = Owner::new(open_kind(kind, |domain| domain), sealed);
        let started = Instant::now();
        while owner.seen.closed < rounds {
            owner.shift(kind, rounds);
            println!("{kind}, sealed {sealed}: after {:?}: {:?}", started.elapsed(), owner.seen);
        }
        let Seen { closed, written, .. } = owner.seen;
        assert!(written > closed / 2, "{written} of {closed} regions had been written when they were closed");
    }
}

/// The observations of the owner.
#[derive(Debug, Default)]
struct Seen {
    /// The number of revocations that returned `Ok`.
    closed: u64,
    /// The number of revoked regions that had been written.
    written: u64,
    /// The number of regions in which a write ended after the owner's last check before it called close.
    moved: u64,
    /// The number of `Busy` errors from closing.
    busy: u64,
    /// The number of bytes that were written, and the number of checked bytes.
    stamped: u64,
    looked: u64,
}

/// One piece of memory.
#[derive(Debug, Default)]
struct Slot {
    epoch: u64,
    filling: u8,
    /// `Some` while the memory is registered.
    held: Option<HeldRegion>,
    /// `Some` while the memory is not registered, with its contents at the time of closing.
    rests: Option<(Ground, Vec<u8>)>,
}

struct Owner {
    open: Open,
    board: Region,
    aim: Region,
    slots: Vec<Slot>,
    resting: VecDeque<usize>,
    epoch: u64,
    random: Random,
    scratch: Vec<u8>,
    seen: Seen,
}

impl Owner {
    fn new(open: Open, sealed: bool) -> Self {
        let board = open.domain.allocate(BOARD_LEN).expect("memory");
        let board = open.domain.registration(Access::REMOTE_READ).key(BOARD).own(board).expect("a region");
        let aim = open.domain.allocate(8).expect("memory");
        let aim = open.domain.registration(Access::REMOTE_WRITE).key(AIM).own(aim).expect("a region");
        let rest = |slot| {
            let ground = Ground::of_size(&open.domain, sealed, len_of(slot));
            Slot { rests: Some((ground, vec![0; len_of(slot)])), ..Slot::default() }
        };
        let slots = (0..SLOTS).map(rest).collect();
        let resting = (0..SLOTS).collect();
        let (random, scratch) = (Random::new(seed()), Vec::new());
        let mut owner = Self { open, board, aim, slots, resting, epoch: 0, random, scratch, seen: Seen::default() };
        while owner.resting.len() > RESTING {
            owner.register();
        }
        owner
    }

    /// Closes regions that one peer is writing, until there were enough revocations or the peer's time has elapsed.
    fn shift(&mut self, kind: &str, rounds: u64) {
        let (seed, own) = (self.random.next().to_string(), self.open.endpoint.address().to_string());
        let variables = [("PERCALE_FABRIC", kind), ("PERCALE_PEER", own.as_str()), ("PERCALE_SEED", seed.as_str())];
        let mut attacker = Helper::start("attacker", &variables);
        let processors = stay_on(0);
        let begun = Instant::now();
        while self.seen.closed < rounds && begun.elapsed() < SHIFT {
            let slot = self.choose();
            self.close(slot);
            self.open.endpoint.progress();
            self.register();
        }
        self.board.write(8 * SLOTS, &END.to_le_bytes());
        let deadline = Deadline::new("the attacker ends");
        let word = loop {
            if let Some(word) = attacker.try_receive_line() {
                break word;
            }
            work(&self.open);
            deadline.check();
        };
        println!("{kind}: {word}");
        attacker.send_line("end");
        attacker.end();
        self.board.write(8 * SLOTS, &[0; 8]);
        // The next peer inherits this set of processors.
        rustix::thread::sched_setaffinity(None, &processors).expect("an affinity");
    }

    /// Chooses the next region to close. Usually this is the region that the peer is writing.
    fn choose(&mut self) -> usize {
        if self.random.below(8) == 0 {
            let live = |slot: &usize| self.slots[*slot].held.is_some();
            let first = self.random.below(SLOTS);
            return (first..SLOTS).chain(0..first).find(live).expect("half of them are registered");
        }
        let wanted = 1 + self.random.below(6) as u64;
        let deadline = Deadline::new("the peer writes the region that it announced");
        loop {
            for _ in 0..LOOKS {
                self.open.endpoint.progress();
                let mut aim = [0; 8];
                self.aim.read(0, &mut aim);
                let aim = u64::from_le_bytes(aim);
                if let Some(at) = self.slots.iter().position(|slot| slot.epoch == aim && slot.held.is_some())
                    && count_of(&self.slots[at], self.slots[at].held.as_ref().map_or([0; 8], HeldRegion::first))
                        >= wanted
                {
                    (0..self.random.below(200)).for_each(|_| std::hint::spin_loop());
                    return at;
                }
            }
            std::thread::yield_now(); // There may be only one processor.
            deadline.check();
        }
    }

    /// Closes a region and checks that each byte was written in its own epoch or is unchanged.
    fn close(&mut self, at: usize) {
        let slot = &mut self.slots[at];
        let mut held = slot.held.take().expect("the region is registered");
        let before = held.first();
        let deadline = Deadline::new("closing ends");
        let ground = loop {
            match held.close() {
                Ok(ground) => break ground,
                Err(again) => held = again, // The writer waits for a processor.
            }
            self.seen.busy += 1;
            deadline.check();
        };
        let mut bytes = slot.rests.take().map_or_else(|| std::mem::take(&mut self.scratch), |(_, bytes)| bytes);
        bytes.resize(len_of(at), 0);
        ground.read(&mut bytes);
        let (first, rest) = bytes.split_first_chunk::<8>().expect("a word and more");
        let (stamp, filling) = (stamp_of(slot.epoch), slot.filling);
        let stamped = rest.iter().filter(|byte| **byte == stamp).count();
        let filled = rest.iter().filter(|byte| **byte == filling).count();
        let whole = *first == [filling; 8] || count_of(slot, *first) > 0;
        if stamped + filled != rest.len() || !whole {
            let foreign = rest.iter().position(|byte| *byte != stamp && *byte != filling);
            let found = foreign.map(|at| rest[at]);
            panic!(
                "epoch {}: the region begins with {first:?} and has {found:?} at {foreign:?}; expected are {stamp} and {filling}",
                slot.epoch
            );
        }
        self.seen.closed += 1;
        self.seen.written += u64::from(before != [filling; 8]);
        self.seen.moved += u64::from(*first != before);
        self.seen.stamped += stamped as u64;
        self.seen.looked += bytes.len() as u64;
        slot.rests = Some((ground, bytes));
        self.resting.push_back(at);
    }

    /// Registers the memory that has rested longest, after checking that it was not written meanwhile.
    fn register(&mut self) {
        let at = self.resting.pop_front().expect("an unregistered slot");
        let slot = &mut self.slots[at];
        let (mut ground, left) = slot.rests.take().expect("the memory of the slot is unregistered");
        self.scratch.resize(left.len(), 0);
        ground.read(&mut self.scratch);
        if let Some(changed) = self.scratch.iter().zip(&left).position(|(now, then)| now != then) {
            let (then, now) = (left[changed], self.scratch[changed]);
            panic!(
                "byte {changed} became {now:#04x} from {then:#04x} after closing had returned (epoch {})",
                slot.epoch
            );
        }
        self.epoch += 1;
        let filling = filling_of(self.epoch);
        ground.fill(filling, &mut self.scratch);
        self.scratch = left;
        let held = ground.register(&self.open.domain, key_of(self.epoch));
        *slot = Slot { epoch: self.epoch, filling, held: Some(held), rests: None };
        self.board.write(8 * at, &self.epoch.to_le_bytes());
    }
}

/// Returns the write count in the first word of a region, or 0 if the word does not belong to the epoch.
fn count_of(slot: &Slot, first: [u8; 8]) -> u64 {
    let word = u64::from_le_bytes(first);
    if word >> 32 == slot.epoch { word & 0xffff_ffff } else { 0 }
}

const fn first_of(epoch: u64, count: u64) -> [u8; 8] {
    (epoch << 32 | count).to_le_bytes()
}

/// The role of the attacker: writes one region after another without pause, each until its key is rejected.
pub(crate) fn attacker() {
    stay_on(1);
    let open = open_as_told();
    let owner = open.insert(&variable("PERCALE_PEER"));
    let mut attack = Attack {
        open,
        owner,
        random: Random::new(seed()),
        touched: [0; SLOTS],
        dead: [0; SLOTS],
        writes: 0,
        refused: 0,
    };
    let mut epochs = 0_u64;
    while let Some(board) = attack.board() {
        attack.touch(&board);
        let first = attack.random.below(SLOTS);
        let next = (first..SLOTS)
            .chain(0..first)
            .find(|slot| !matches!(board[*slot], 0) && board[*slot] != attack.dead[*slot]);
        let Some(slot) = next else { continue };
        attack.write_until_refused(slot, board[slot]);
        epochs += 1;
    }
    print_line(&format!("{} writes in {epochs} epochs, {} refused", attack.writes, attack.refused));
    drop(ask());
}

struct Attack {
    open: Open,
    owner: PeerAddress,
    random: Random,
    /// The epoch in which each slot was last written, and the last rejected epoch.
    touched: [u64; SLOTS],
    dead: [u64; SLOTS],
    writes: u64,
    refused: u64,
}

impl Attack {
    /// Returns the epochs on the board, or `None` once the test is over.
    fn board(&self) -> Option<Vec<u64>> {
        let whole = all_of(BOARD, BOARD_LEN as u64);
        let bytes = self.open.endpoint.read(self.owner, whole, vec![0; BOARD_LEN]).wait().expect("the board");
        let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("8 bytes"));
        let board: Vec<u64> = bytes.into_vec().chunks_exact(8).map(word).collect();
        (board[SLOTS] != END).then_some(board)
    }

    /// Writes each new epoch on the board once, so that the access path to its region is known when it is attacked.
    fn touch(&mut self, board: &[u64]) {
        for (slot, &epoch) in board[..SLOTS].iter().enumerate() {
            if epoch != self.touched[slot] {
                self.touched[slot] = epoch;
                let word = first_of(epoch, 1).to_vec();
                let write = self.open.endpoint.write(self.owner, word, all_of(key_of(epoch), 8)).wait();
                self.ended(slot, epoch, write);
            }
        }
    }

    /// Records the result of a write. Returns whether it succeeded.
    fn ended(
        &mut self,
        slot: usize,
        epoch: u64,
        result: Result<Buffer, percale::endpoint::safe::OperationError>,
    ) -> bool {
        match result {
            Ok(_) => self.writes += 1,
            Err(error) => {
                assert_eq!(code(&error), ErrorCode::KeyRejected, "epoch {epoch}: {error}");
                self.refused += 1;
                self.dead[slot] = epoch;
            }
        }
        self.dead[slot] != epoch
    }

    fn write_until_refused(&mut self, slot: usize, epoch: u64) {
        if self.dead[slot] == epoch {
            return;
        }
        let all = all_of(key_of(epoch), len_of(slot) as u64);
        let fitting = LENS.iter().filter(|len| **len <= len_of(slot) - 8);
        let sources: Vec<Arc<[u8]>> = fitting.map(|len| Arc::from(vec![stamp_of(epoch); *len])).collect();
        self.open.endpoint.write(self.owner, epoch.to_le_bytes().to_vec(), all_of(AIM, 8)).wait().expect("the aim");
        let mut count = 1;
        loop {
            count += 1;
            // Its owner may have exited without closing the region.
            if count % 256 == 0 && self.board().is_none() {
                return;
            }
            let word = first_of(epoch, count).to_vec();
            let first = self.open.endpoint.write(self.owner, word, all.slice(0..8)).start().expect("a write");
            let source = &sources[self.random.below(sources.len())];
            let start = (8 + self.random.below(len_of(slot) - 8 - source.len() + 1)) as u64;
            let part = all.slice(start..start + source.len() as u64);
            let second = self.open.endpoint.write(self.owner, Arc::clone(source), part).start().expect("a write");
            let (first, second) = (first.wait(), second.wait());
            if !(self.ended(slot, epoch, first) & self.ended(slot, epoch, second)) {
                return;
            }
        }
    }
}
