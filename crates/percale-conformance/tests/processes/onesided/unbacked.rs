//! Regions of memory that is not mapped, not yet mapped, or no longer mapped.

#![expect(unsafe_code, reason = "maps, protects and unmaps memory under regions; each block states its own reason")]

use std::ffi::c_void;
use std::time::Duration;

use percale::{ErrorCode, PeerAddress, RemoteMemory, Segment};
use percale_conformance::long;
use percale_conformance::memory::{content, same};
use percale_conformance::peers::Open;
use percale_conformance::process::Helper;
use percale_conformance::watchdog::Watchdog;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags};

use super::{ALL, WAIT_TIMEOUT, all_of, open_as_told, open_kind, refusal, serve};

crate::on!(shm, untrusting, bounced, tcp, verbs: { memory_under_a_region_may_be_unmapped_and_remapped });

/// The address where the target maps its memory. Nothing else is mapped there.
const HOLE: usize = 0x5734_5600_0000;
const LEN: usize = 256 << 10;
/// The keys of a region of the hole, and of a region of all memory.
const PART: u64 = 20;
const EVERYTHING: u64 = 21;

/// The role of the target: registers the regions before any memory is mapped at their addresses. It maps, fills,
/// protects and unmaps the memory on request.
pub(crate) fn target() {
    let open = open_as_told();
    let start = std::ptr::without_provenance_mut::<u8>(HOLE);
    // SAFETY: the kernel checks the address for all users of the segment. No other code uses the memory that will be
    // mapped there.
    let segment = unsafe { Segment::new(start, LEN) };
    // SAFETY: the memory is not mapped, and is used only by peers that read and write it.
    let part = unsafe { open.domain.registration(ALL).key(PART).raw(&[segment], false) }.expect("a region");
    // SAFETY: the only peer accesses only the hole, and addresses that are not mapped.
    let all = unsafe { open.domain.registration(ALL).key(EVERYTHING).everything() }.expect("a region");
    open.say_address();
    serve(&open, |line| {
        let (verb, number) = line.split_once(' ').unwrap_or((line, "0"));
        let number = number.parse().expect("a number");
        match verb {
            "map" => map(number as usize),
            "fill" => fill(&content(number, LEN)),
            "check" => {
                same(&held(), &content(number, LEN), "the memory");
                0
            }
            "protect" => protect(),
            "unmap" => unmap(),
            other => panic!("{other}?"),
        };
        "done".into()
    });
    part.close().expect("no access is in progress");
    all.close().expect("no access is in progress");
}

/// Writes all of the mapped memory.
fn fill(bytes: &[u8]) -> usize {
    assert_eq!(bytes.len(), LEN);
    // SAFETY: the test calls this only while all of the memory is mapped and writable, and no peer is accessing it.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), hole().cast(), LEN) };
    LEN
}

/// Returns the contents.
fn held() -> Vec<u8> {
    let mut bytes = vec![0; LEN];
    // SAFETY: as in `fill`. The memory is only read.
    unsafe { std::ptr::copy_nonoverlapping(hole().cast(), bytes.as_mut_ptr(), LEN) };
    bytes
}

fn hole() -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(HOLE)
}

/// Maps the first `len` bytes.
fn map(len: usize) -> usize {
    let (rights, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE);
    // SAFETY: nothing else is mapped there, and with this flag the kernel would not replace an existing mapping.
    let start = unsafe { rustix::mm::mmap_anonymous(hole(), len, rights, flags) }.expect("the hole is free");
    start.expose_provenance()
}

fn protect() -> usize {
    // SAFETY: the mapping belongs to this test, and is written only through percale.
    unsafe { rustix::mm::mprotect(hole(), LEN, MprotectFlags::READ) }.expect("the memory is mapped");
    0
}

fn unmap() -> usize {
    // SAFETY: the mapping belongs to this test, and is used only through percale.
    unsafe { rustix::mm::munmap(hole(), LEN) }.expect("the mapping exists");
    0
}

struct Test {
    open: Open,
    peer: PeerAddress,
    target: Helper,
}

/// The expected result of an access to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Works,
    Faults,
}

/// Requirements: MR-026, MR-027, MR-028, MR-029.
fn memory_under_a_region_may_be_unmapped_and_remapped(kind: &str) {
    let _watchdog =
        Watchdog::within("memory is mapped and unmapped", Duration::from_secs(if long() { 500 } else { 300 }));
    let mut target = Helper::start("unbacked", &[("PERCALE_FABRIC", kind)]);
    let open = open_kind(kind, |domain| domain);
    let peer = open.insert(&target.receive_line());
    let mut test = Test { open, peer, target };
    for round in 0..if long() { 100 } else { 3 } {
        test.round(round);
    }
    test.nowhere();
    test.target.send_line("end");
    test.target.end();
}

impl Test {
    /// Sends a command to the target, and waits until it is executed.
    fn send_line(&mut self, line: &str) {
        self.target.send_line(line);
        assert_eq!(self.target.receive_line(), "done");
    }

    /// Returns the descriptions of bytes of the hole in both regions.
    fn names(at: usize, len: usize) -> [RemoteMemory; 2] {
        let everything = RemoteMemory { key: EVERYTHING, address: (HOLE + at) as u64, len: len as u64 };
        [all_of(PART, LEN as u64).at(at as u64..(at + len) as u64), everything]
    }

    fn round(&mut self, round: u64) {
        for (at, len) in [(0, 8), (4090, 12), (0, 100_000), (0, LEN)] {
            self.access(at, len, Answer::Faults, Answer::Faults);
        }
        // Map half of the memory.
        self.send_line(&format!("map {}", LEN / 2));
        self.access(LEN / 2 - 4, 8, Answer::Faults, Answer::Faults);
        self.access(LEN / 2 - 60_000, 100_000, Answer::Faults, Answer::Faults);
        self.access(LEN / 2 - 8, 8, Answer::Works, Answer::Works);
        self.send_line("unmap");
        self.send_line(&format!("map {LEN}"));
        self.reads(0, &vec![0; LEN]);
        self.send_line(&format!("fill {round}"));
        let old = content(round, LEN);
        for (at, len) in [(0, 8), (4090, 12), (777, 100_000), (0, LEN)] {
            self.reads(at, &old[at..at + len]);
        }
        let new = content(round + 1, LEN);
        for (at, len) in [(0, 8), (8, 5000), (5008, 150_000), (155_008, LEN - 155_008)] {
            for (number, name) in Self::names(at, len).into_iter().enumerate() {
                let bytes = if number == 0 { vec![1; len] } else { new[at..at + len].to_vec() };
                let mut write = self.open.endpoint.write(self.peer, bytes, name).start().expect("a write");
                write.wait_for(WAIT_TIMEOUT).expect("the write");
            }
        }
        self.send_line(&format!("check {}", round + 1));
        self.adds(64, u64::from_le_bytes(new[64..72].try_into().expect("8 bytes")));
        self.send_line("protect");
        self.access(0, 8, Answer::Works, Answer::Faults);
        self.access(0, 100_000, Answer::Works, Answer::Faults);
        self.send_line("unmap");
        self.access(0, 8, Answer::Faults, Answer::Faults);
    }

    fn reads(&self, at: usize, wanted: &[u8]) {
        for name in Self::names(at, wanted.len()) {
            let mut got = self.open.endpoint.read(self.peer, name, vec![0xEE; wanted.len()]).start().expect("a read");
            same(&got.wait_for(WAIT_TIMEOUT).expect("the read").into_vec(), wanted, "the data read");
        }
    }

    fn adds(&self, at: usize, mut wanted: u64) {
        for name in Self::names(at, 8) {
            let mut before = self.open.endpoint.fetch_add(self.peer, name, 5_u64).start().expect("an addition");
            assert_eq!(before.wait_for(WAIT_TIMEOUT).expect("the addition"), wanted);
            wanted = wanted.wrapping_add(5);
        }
    }

    fn access(&self, at: usize, len: usize, read: Answer, write: Answer) {
        for name in Self::names(at, len) {
            self.access_one(name, read, write, ErrorCode::Fault);
        }
    }

    fn access_one(&self, name: RemoteMemory, read: Answer, write: Answer, code: ErrorCode) {
        let (endpoint, len) = (&self.open.endpoint, name.len as usize);
        let answer = |result: Result<(), _>| {
            if result.is_ok() {
                return Answer::Works;
            }
            assert_eq!(refusal(result), code, "{name:?}");
            Answer::Faults
        };
        let got = endpoint.read(self.peer, name, vec![0; len]).start().expect("a read").wait_for(WAIT_TIMEOUT);
        assert_eq!(answer(got.map(drop)), read, "reading {name:?}");
        let put = endpoint.write(self.peer, vec![0x33; len], name).start().expect("a write").wait_for(WAIT_TIMEOUT);
        assert_eq!(answer(put.map(drop)), write, "writing {name:?}");
        if len == 8 && name.address.is_multiple_of(8) {
            let add = endpoint.fetch_add(self.peer, name, 1_u64).start().expect("an addition").wait_for(WAIT_TIMEOUT);
            assert_eq!(answer(add.map(drop)), write, "adding to {name:?}");
        }
    }

    /// Addresses that are never mapped.
    fn nowhere(&self) {
        for address in [8, 4096, 1 << 47, 1 << 63, u64::MAX << 12, u64::MAX - 23, u64::MAX - 15] {
            let name = RemoteMemory { key: EVERYTHING, address, len: 8 };
            self.access_one(name, Answer::Faults, Answer::Faults, ErrorCode::Fault);
        }
        for (address, len) in [(0, 8), (u64::MAX - 7, 8), (u64::MAX - 100, 20_000)] {
            let name = RemoteMemory { key: EVERYTHING, address, len };
            self.access_one(name, Answer::Faults, Answer::Faults, ErrorCode::Denied);
        }
    }
}
