//! Windows over the same memory are invalidated and bound again while four peers write through them without pause. Some
//! peers are killed.
//!
//! An epoch has one window of type 1 for all writers, or one window of type 2 for each writer. Writers write one byte
//! value, which identifies the epoch. No write may arrive between two epochs.

use std::time::{Duration, Instant};

use percale::domain::DomainBuilder;
use percale::memory::window::WindowError;
use percale::{Access, Bind, Buffer, ErrorCode, PeerAddress, Region, Window, WindowAccess, WindowType};
use percale_conformance::long;
use percale_conformance::peers::Open;
use percale_conformance::process::{Helper, ask, print_line, variable};
use percale_conformance::random::{Random, seed};
use percale_conformance::watchdog::Watchdog;

use super::ground::{GROUND, filling_of, stamp_of, write_until_refused};
use super::{Deadline, all_of, code, open_as_told, open_kind, refusal, work};

crate::on!(shm, untrusting, tcp, verbs: {
    nothing_is_written_through_a_window_after_its_invalidation,
});

const WRITERS: usize = 4;
/// The key of the board. It has a word for each writer, with the epoch in the upper bits and the key to write through
/// in the lower bits.
const BOARD: u64 = 1;
/// The value on the board that ends the writers.
const END: u64 = u64::MAX;
/// Helpers exit after ten minutes, so all are replaced before that.
const SHIFT: Duration = Duration::from_secs(240);

/// Takes 2 seconds for each kind of memory, and 20 over verbs, where an epoch takes a long time because its last writes
/// break queue pairs. With `PERCALE_LONG`, ten minutes in total.
///
/// Requirements: MW-050, REV-001.
fn nothing_is_written_through_a_window_after_its_invalidation(kind: &str) {
    let memories: &[bool] = if kind == "shm" { &[true, false] } else { &[true] };
    let short = Duration::from_secs(if kind == "verbs" { 20 } else { 2 });
    let time = if long() { Duration::from_secs(600) / memories.len() as u32 } else { short };
    let timeout = Duration::from_secs(if long() { 6 * 3600 } else { 300 });
    let _watchdog = Watchdog::within("nothing is written through an invalid window", timeout);
    for &sealed in memories {
        Run::new(kind, sealed).run(time);
    }
}

/// A writer and its window of type 2.
struct Writer {
    helper: Helper,
    address: PeerAddress,
    window: Window,
    since: Instant,
}

struct Run<'k> {
    kind: &'k str,
    sealed: bool,
    open: Open,
    own: String,
    board: Region,
    region: Region,
    all: Window,
    writers: Vec<Writer>,
    random: Random,
    scratch: Vec<u8>,
    filling: u8,
}

impl<'k> Run<'k> {
    fn new(kind: &'k str, sealed: bool) -> Self {
        let open = open_kind(kind, |domain: DomainBuilder| domain);
        let domain = &open.domain;
        let board = domain.allocate(8 * WRITERS).expect("memory");
        let board = domain.registration(Access::REMOTE_READ).key(BOARD).own(board).expect("a region");
        let memory =
            if sealed { Buffer::from(domain.allocate(GROUND).expect("memory")) } else { Buffer::from(vec![0; GROUND]) };
        // The region's own key gives peers no rights.
        let region = domain.register(memory, Access::empty()).expect("a region");
        let all = domain.window(WindowType::One).expect("a window");
        let own = open.endpoint.address().to_string();
        let (writers, random, scratch) = (Vec::new(), Random::new(seed()), vec![0; GROUND]);
        Self { kind, sealed, open, own, board, region, all, writers, random, scratch, filling: 0 }
    }

    fn hire(&self, place: usize) -> Writer {
        // The upper half of the keys of all windows. The lower halves are on the board.
        let upper = (self.all.key() >> 32).to_string();
        let (seed, place) = (seed().to_string(), place.to_string());
        let variables = [
            ("PERCALE_FABRIC", self.kind),
            ("PERCALE_PEER", self.own.as_str()),
            ("PERCALE_SEED", seed.as_str()),
            ("PERCALE_PLACE", place.as_str()),
            ("PERCALE_UPPER", upper.as_str()),
        ];
        let mut helper = Helper::start("window-writer", &variables);
        let address = self.open.insert(&helper.receive_line());
        let window = self.open.domain.window(WindowType::TwoB).expect("a window");
        Writer { helper, address, window, since: Instant::now() }
    }

    fn post(&mut self, place: usize, word: u64) {
        self.board.write(8 * place, &word.to_le_bytes());
    }

    /// Ends a writer. Returns its report.
    fn dismiss(&mut self, place: usize, mut writer: Writer) -> String {
        self.post(place, END);
        let deadline = Deadline::new("a writer ends");
        let word = loop {
            match writer.helper.try_receive_line() {
                Some(word) => break word,
                None => {
                    self.open.endpoint.progress();
                    deadline.check();
                }
            }
        };
        writer.helper.send_line("end");
        writer.helper.end();
        self.post(place, 0);
        word
    }

    /// Passes keys to the writers. Returns the keys of type 2.
    fn admit(&mut self, epoch: u64) -> Vec<u64> {
        let one = self.random.below(2) == 0;
        if one {
            let name = self.all.bind(&self.region, 0..GROUND as u64, WindowAccess::WRITE).expect("a bind");
            (0..WRITERS).for_each(|place| self.post(place, epoch << 32 | name.key & LOWER));
            return Vec::new();
        }
        let mut keys = Vec::new();
        for place in 0..WRITERS {
            let writer = &self.writers[place];
            let bind = Bind { range: 0..GROUND as u64, access: WindowAccess::WRITE, key: epoch as u8 };
            let bound = self.open.endpoint.bind_window(writer.address, &writer.window, &self.region, bind);
            let name = bound.wait().expect("a bind");
            keys.push(name.key);
            self.post(place, epoch << 32 | name.key & LOWER);
        }
        keys
    }

    fn is_written(&self) -> bool {
        let mut first = [0];
        self.region.read(0, &mut first);
        first[0] != self.filling
    }

    /// Revokes all keys. Returns how often the call had to be repeated because of a writer.
    fn expel(&mut self, keys: &[u64]) -> u64 {
        let mut busy = 0;
        let deadline = Deadline::new("an invalidation ends");
        while let Err(error) = self.all.bind(&self.region, 0..0, WindowAccess::empty()) {
            assert_eq!(error, WindowError::Busy);
            busy += 1;
            deadline.check();
        }
        for (writer, key) in self.writers.iter().zip(keys) {
            while let Err(error) = self.open.endpoint.invalidate(writer.address, *key).wait() {
                assert_eq!(code(&error), ErrorCode::Busy, "{error}"); // The writer waits for a processor.
                busy += 1;
                deadline.check();
            }
        }
        busy
    }

    /// Checks that the memory was not written since the invalidation.
    fn check(&mut self, epoch: u64) {
        self.region.read(0, &mut self.scratch);
        if let Some(at) = self.scratch.iter().position(|byte| *byte != self.filling) {
            let byte = self.scratch[at];
            panic!(
                "byte {at} became {byte:#04x} after an invalidation had ended (epoch {epoch}, {:#04x})",
                stamp_of(epoch)
            );
        }
    }

    /// Checks at the end of an epoch that the memory contains only its writes, and fills the memory again. Returns the
    /// number of written bytes.
    fn over(&mut self, epoch: u64) -> u64 {
        let (filling, stamp) = (self.filling, stamp_of(epoch));
        self.region.read(0, &mut self.scratch);
        let stamped = self.scratch.iter().filter(|byte| **byte == stamp).count();
        if let Some(at) = self.scratch.iter().position(|byte| *byte != stamp && *byte != filling) {
            panic!(
                "epoch {epoch}: byte {at} is {:#04x}, which belongs to another epoch (expected {stamp:#04x})",
                self.scratch[at]
            );
        }
        self.filling = filling_of(epoch);
        self.scratch.fill(self.filling);
        self.region.write(0, &self.scratch);
        stamped as u64
    }

    fn run(mut self, time: Duration) {
        self.writers = (0..WRITERS).map(|place| self.hire(place)).collect();
        let started = Instant::now();
        let (mut epoch, mut busy, mut bytes, mut killed) = (0, 0, 0, 0_u64);
        while started.elapsed() < time {
            epoch += 1;
            self.check(epoch);
            let keys = self.admit(epoch);
            // Usually a writer is writing when the keys are revoked. Sometimes they are revoked immediately.
            if self.random.below(8) > 0 {
                let deadline = Deadline::new("a writer writes");
                while !self.is_written() {
                    work(&self.open);
                    deadline.check();
                }
                (0..self.random.below(30)).for_each(|_| _ = self.open.endpoint.progress());
                let (long, begun) = (self.random.below(4) == 0, Instant::now());
                let time = Duration::from_micros(self.random.below(2000) as u64);
                while long && begun.elapsed() < time {
                    work(&self.open);
                }
                (0..self.random.below(20_000)).for_each(|_| std::hint::spin_loop());
            }
            let victim = (self.random.below(48) == 0).then(|| self.random.below(WRITERS));
            if let Some(victim) = victim {
                self.writers[victim].helper.kill();
                killed += 1;
            }
            busy += self.expel(&keys);
            bytes += self.over(epoch);
            (0..self.random.below(10)).for_each(|_| _ = self.open.endpoint.progress());
            self.check(epoch);
            let tired = self.writers.iter().position(|writer| writer.since.elapsed() > SHIFT);
            match (victim, tired) {
                (Some(place), _) => self.writers[place] = self.hire(place),
                (None, Some(place)) => self.relieve(place),
                (None, None) => {}
            }
        }
        self.check(epoch);
        let how = self.open.endpoint.describe_peers();
        if self.kind == "verbs" {
            // Counts the windows of the device, if there are any.
            let by_processor = |how: &str| how.contains("windows (0 binds)");
            assert!(how.iter().any(|(_, how)| how.contains("binds") && !by_processor(how)), "{how:?}");
        }
        how.iter().for_each(|(_, how)| println!("{how}"));
        for (place, writer) in std::mem::take(&mut self.writers).into_iter().enumerate() {
            let word = self.dismiss(place, writer);
            println!("{}, sealed {}: {word}", self.kind, self.sealed);
        }
        self.check(epoch);
        let (kind, sealed, time) = (self.kind, self.sealed, started.elapsed());
        println!("{kind}, sealed {sealed}: {epoch} epochs in {time:?}, {busy} busy, {killed} killed, {bytes} bytes");
        assert!(bytes > 0, "something was written");
        drop(self.all);
        self.region.close().expect("nothing is bound");
    }

    /// Replaces a writer before it exits.
    fn relieve(&mut self, place: usize) {
        let tired = self.writers.remove(place);
        let word = self.dismiss(place, tired);
        println!("{}, sealed {}: {word}", self.kind, self.sealed);
        self.writers.insert(place, self.hire(place));
    }
}

/// The lower half of a key.
const LOWER: u64 = 0xFFFF_FFFF;

/// The role of a writer: writes through the key in its word of the board without pause until the key is rejected, and
/// then continues with the next key.
pub(crate) fn window_writer() {
    let open = open_as_told();
    open.say_address();
    let owner = open.insert(&variable("PERCALE_PEER"));
    let place: u64 = variable("PERCALE_PLACE").parse().expect("a number");
    let upper = variable("PERCALE_UPPER").parse::<u64>().expect("a number") << 32;
    let mut random = Random::new(seed() + place);
    let (mut word, mut writes, mut refused, mut epochs) = (0, 0_u64, 0_u64, 0_u64);
    loop {
        let next = loop {
            let name = all_of(BOARD, 8 * WRITERS as u64).slice(8 * place..8 * place + 8);
            let read = open.endpoint.read(owner, name, vec![0; 8]).wait().expect("the board").into_vec();
            match u64::from_le_bytes(read.try_into().expect("8 bytes")) {
                now if now == word || now == 0 => (0..100).for_each(|_| std::hint::spin_loop()),
                now => break now,
            }
        };
        if next == END {
            break;
        }
        let dead = std::mem::replace(&mut word, next);
        epochs += 1;
        let (epoch, key) = (next >> 32, upper | next & LOWER);
        let old = upper | dead & LOWER;
        if old != key && dead != 0 && random.below(4) == 0 {
            let late = open.endpoint.write(owner, vec![stamp_of(dead >> 32); 8], all_of(old, 8));
            assert_eq!(refusal(late.wait()), ErrorCode::KeyRejected, "the key of epoch {}", dead >> 32);
        }
        let (done, failed) = write_until_refused(&open, owner, epoch, key, &mut random);
        writes += done;
        refused += failed;
    }
    print_line(&format!("{writes} writes in {epochs} epochs, {refused} refused"));
    drop(ask());
}
