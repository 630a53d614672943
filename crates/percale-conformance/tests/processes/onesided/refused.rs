//! Initiators that request accesses without permission: with foreign and guessed keys of regions and windows, with
//! ranges that exceed the region or wrap around, and without the required rights.

use percale::endpoint::safe::Operation;
use percale::{Access, Buffer, ErrorCode, PeerAddress, Region, RemoteMemory, WindowAccess, WindowType};
use percale_conformance::long;
use percale_conformance::memory::{content, same};
use percale_conformance::peers::{Open, open_in};
use percale_conformance::process::{Helper, print_line};
use percale_conformance::random::{Random, seed};
use percale_conformance::watchdog::Watchdog;
use std::time::Duration;

use super::{ALL, Deadline, open_as_told, open_kind, refusal, serve};

crate::on!(shm, untrusting, bounced, tcp, verbs: {
    random_accesses_with_wrong_keys_are_all_rejected,
});

/// The size of each region in bytes.
const LEN: u64 = 100_000;
/// The rights of regions in the target's order, first with sealed memory, then with other memory. The last region
/// belongs to a foreign domain.
const RIGHTS: [Access; 4] = [ALL, Access::REMOTE_READ, Access::REMOTE_WRITE, Access::empty()];
const FOREIGN: usize = 8;
/// The index of the window, which follows the regions and covers the whole first region.
const WINDOW: usize = 9;
/// The number of outstanding tries.
const DEPTH: usize = 64;

/// The role of the target, which has eight regions of its domain, one of another domain, and a window.
pub(crate) fn target() {
    let open = open_as_told();
    let foreign = open_in(&percale_conformance::peers::domain("any", |domain| domain), "127.0.0.1:0", |e| e);
    let mut regions: Vec<Region> = Vec::new();
    for sealed in [true, false] {
        for access in RIGHTS {
            let bytes = content(regions.len() as u64, LEN as usize);
            let memory = if sealed {
                let mut memory = open.domain.allocate(bytes.len()).expect("memory");
                memory.write(0, &bytes);
                Buffer::from(memory)
            } else {
                Buffer::from(bytes)
            };
            regions.push(open.domain.register(memory, access).expect("a region"));
        }
    }
    regions.push(foreign.domain.register(content(FOREIGN as u64, LEN as usize), ALL).expect("a region"));
    let mut window = open.domain.window(WindowType::One).expect("a window");
    let bound = window.bind(&regions[0], 0..LEN, WindowAccess::all()).expect("a bind");
    let keys: Vec<String> = regions.iter().map(Region::key).chain([bound.key]).map(|key| key.to_string()).collect();
    print_line(&format!("{} {}", open.endpoint.address(), keys.join(" ")));
    serve(&open, |_| {
        for (number, region) in (0..).zip(&regions) {
            let mut bytes = vec![0; region.len()];
            region.read(0, &mut bytes);
            same(&bytes, &content(number, LEN as usize), "a region");
        }
        "unchanged".into()
    });
}

/// 5,000 tries over each of five kinds of transport (2,500,000 with `PERCALE_LONG`).
///
/// Requirements: REV-008, MR-002, MR-003, MR-014, MR-050, MR-052, MW-008.
fn random_accesses_with_wrong_keys_are_all_rejected(kind: &str) {
    let _watchdog = Watchdog::within("random tries", Duration::from_secs(if long() { 7200 } else { 300 }));
    let seed = seed();
    println!("PERCALE_SEED={seed}");
    let mut left = if long() { 2_500_000 } else { 5000 };
    let mut shift = 0;
    while left > 0 {
        // The target is a helper, which exits after ten minutes even on a slow machine.
        let tries = left.min(100_000);
        left -= tries;
        shift += 1;
        Tries::new(kind, seed.wrapping_add(shift)).make(tries);
    }
}

mod quiet {
    crate::on!(shm, verbs: { regions_are_accessed_while_their_target_makes_no_progress });

    /// Requirements: RMA-012.
    fn regions_are_accessed_while_their_target_makes_no_progress(kind: &str) {
        super::accesses_of_a_quiet_target(kind);
    }
}

fn accesses_of_a_quiet_target(kind: &str) {
    let _watchdog = Watchdog::new("accesses of a quiet target");
    let mut tries = Tries::new(kind, seed());
    tries.warm();
    // Establishing a queue pair takes some time. If the device has no windows, there are only six regions.
    let reached = |tries: &Tries, what: &str| {
        let peers = tries.open.endpoint.describe_peers();
        peers.iter().any(|(_, how)| how.contains(what))
    };
    let (deadline, mut rounds) = (Deadline::new("the device accesses six regions and a window"), 0);
    while kind == "verbs"
        && !reached(&tries, "RDMA to 7 of its")
        && !(rounds > 300 && reached(&tries, "RDMA to 6 of its"))
    {
        tries.warm();
        rounds += 1;
        deadline.check();
    }
    let known: &[usize] = if reached(&tries, "RDMA to 7 of its") { &[0, 4, WINDOW] } else { &[0, 4] };
    tries.target.send_line("quiet");
    assert_eq!(tries.target.receive_line(), "quiet");
    for number in 0..if long() { 100_000 } else { 1000 } {
        let (len, region) = (tries.len(), known[number % known.len()]);
        let at = tries.random.next() % (LEN - len);
        // The window belongs to the first region.
        let wanted = content(if region == WINDOW { 0 } else { region as u64 }, LEN as usize)[at as usize..]
            [..len as usize]
            .to_vec();
        let part = tries.part(region, at, len);
        let mut read = tries.open.endpoint.read(tries.peer, part, vec![0; len as usize]).start().expect("a read");
        same(&read.wait_for(super::WAIT_TIMEOUT).expect("the read").into_vec(), &wanted, "the data read");
        let mut write = tries.open.endpoint.write(tries.peer, wanted, part).start().expect("a write");
        write.wait_for(super::WAIT_TIMEOUT).expect("the write");
    }
    tries.end();
}

mod executed {
    mod shm {
        mod rust {
            /// Requirements: RMA-014.
            #[test]
            fn target_executes_accesses_that_peers_cannot_make() {
                for kind in ["untrusting", "bounced"] {
                    super::super::super::accesses_that_the_target_carries_out(kind);
                }
            }
        }
    }
}

/// If memory is neither mapped nor accessible through the kernel, accesses wait until the target makes progress and
/// executes them.
fn accesses_that_the_target_carries_out(kind: &str) {
    let _watchdog = Watchdog::new("accesses that the target carries out");
    let mut tries = Tries::new(kind, seed());
    tries.warm();
    tries.target.send_line("quiet");
    assert_eq!(tries.target.receive_line(), "quiet");
    // Sealed memory is mapped, even if the kernel may not copy.
    let regions: &[usize] = if kind == "untrusting" { &[0, 4] } else { &[4] };
    let (mut reads, mut writes) = (Vec::new(), Vec::new());
    for &region in regions {
        for len in [1, 8, 4096, 20_000] {
            let at = tries.random.next() % (LEN - len);
            let wanted = content(region as u64, LEN as usize)[at as usize..][..len as usize].to_vec();
            let part = tries.part(region, at, len);
            let (endpoint, peer) = (&tries.open.endpoint, tries.peer);
            writes.push(endpoint.write(peer, wanted.clone(), part).start().expect("a write"));
            reads.push((wanted, endpoint.read(peer, part, vec![0; len as usize]).start().expect("a read")));
        }
    }
    for _ in 0..10_000 {
        tries.open.endpoint.progress();
    }
    let done = writes.iter().filter(|write| write.is_ready()).count();
    let done = done + reads.iter().filter(|(_, read)| read.is_ready()).count();
    assert_eq!(done, 0, "{kind}: accesses completed although no process could execute them");
    tries.target.send_line("check");
    assert_eq!(tries.target.receive_line(), "unchanged");
    for mut write in writes {
        write.wait_for(super::WAIT_TIMEOUT).expect("the write");
    }
    for (wanted, mut read) in reads {
        same(&read.wait_for(super::WAIT_TIMEOUT).expect("the read").into_vec(), &wanted, "the data read");
    }
    tries.end();
}

struct Tries {
    kind: String,
    open: Open,
    target: Helper,
    peer: PeerAddress,
    keys: Vec<u64>,
    random: Random,
}

impl Tries {
    fn new(kind: &str, seed: u64) -> Self {
        let mut target = Helper::start("refusing", &[("PERCALE_FABRIC", kind)]);
        let open = open_kind(kind, |domain| domain);
        let words = target.receive_line();
        let mut words = words.split(' ');
        let peer = open.insert(words.next().expect("an address"));
        let keys = words.map(|key| key.parse().expect("a key")).collect();
        Self { kind: kind.to_owned(), open, target, peer, keys, random: Random::new(seed) }
    }

    /// Accesses each accessible region once, so that the access path to each of them is known.
    fn warm(&self) {
        let windowed = self.part(WINDOW, 0, 8);
        let got = self.open.endpoint.read(self.peer, windowed, vec![0; 8]).wait().expect("a read");
        same(&got.into_vec(), &content(0, LEN as usize)[..8], "a read through the window");
        for region in [0, 1, 4, 5] {
            let word = self.part(region, 0, 8);
            let got = self.open.endpoint.read(self.peer, word, vec![0; 8]).wait().expect("a read");
            same(&got.into_vec(), &content(region as u64, LEN as usize)[..8], "a read");
        }
        for region in [2, 6] {
            let word = self.part(region, 0, 8);
            let bytes = content(region as u64, LEN as usize)[..8].to_vec();
            self.open.endpoint.write(self.peer, bytes, word).wait().expect("a write");
        }
    }

    /// Checks that the target's memory is unchanged.
    fn end(mut self) {
        self.target.send_line("check");
        assert_eq!(self.target.receive_line(), "unchanged");
        self.target.send_line("end");
        self.target.end();
    }

    fn make(mut self, tries: usize) {
        self.warm();
        let mut made = 0;
        if self.kind == "shm" {
            made = tries / 2;
            // The target makes no progress, so the initiator must reject the accesses itself.
            self.target.send_line("quiet");
            assert_eq!(self.target.receive_line(), "quiet");
            (0..made).for_each(|_| self.refused_at_once());
            self.target.send_line("check");
            assert_eq!(self.target.receive_line(), "unchanged");
        }
        for _ in 0..(tries - made).div_ceil(DEPTH) {
            self.refused_by_the_target();
        }
        println!("{}: {made} tries without the target, {} with it", self.kind, tries - made);
        self.end();
    }

    fn part(&self, region: usize, address: u64, len: u64) -> RemoteMemory {
        RemoteMemory { key: self.keys[region], address, len }
    }

    fn len(&mut self) -> u64 {
        [1, 8, 8, 100, 4096, 20_000][self.random.below(6)]
    }

    /// Returns the start of a range that is not within a region.
    fn beyond(&mut self, len: u64) -> u64 {
        let some = self.random.next();
        match some % 6 {
            0 => LEN - len + 1 + some / 6 % 100,
            1 => LEN,
            2 => u64::MAX - some / 6 % (2 * len), // The range wraps around, or ends near the highest address.
            3 => 1 << (17 + some / 6 % 47),
            4 => (u64::MAX - len).wrapping_add(1),
            _ => (some | 1 << 40) & !7,
        }
    }

    /// Makes accesses to a known region. The error is detected when the access is posted.
    fn refused_at_once(&mut self) {
        let (len, writes) = (self.len(), self.random.below(2) == 0);
        let region = [0, 1, 2, 4, 5, 6][self.random.below(6)];
        let lacks = if writes { region % 4 == 1 } else { region % 4 == 2 };
        let address = if lacks { self.random.next() % (LEN - len) } else { self.beyond(len) };
        let part = self.part(region, address, len);
        let endpoint = &self.open.endpoint;
        let result = if writes {
            endpoint.write(self.peer, vec![0x55; len as usize], part).start()
        } else {
            endpoint.read(self.peer, part, vec![0x55; len as usize]).start()
        };
        let result = result.expect("the operation is posted").wait_for(super::WAIT_TIMEOUT);
        assert_eq!(refusal(result), ErrorCode::Denied, "{part:?}, writes {writes}");
        // The initiator also executes atomic operations on mapped memory.
        if self.random.below(4) == 0 {
            let region = self.random.below(3);
            let address = if region == 0 { self.beyond(8).max(LEN) & !7 } else { 8 * (self.random.next() % 1000) };
            let word = self.part(region, address, 8);
            let mut result =
                self.open.endpoint.fetch_add(self.peer, word, 1_u64).start().expect("the operation is posted");
            assert_eq!(refusal(result.wait_for(super::WAIT_TIMEOUT)), ErrorCode::Denied, "{word:?}");
        }
    }

    /// Posts several accesses with unknown keys, missing rights, or invalid ranges.
    fn refused_by_the_target(&mut self) {
        let mut under_way: Vec<(RemoteMemory, ErrorCode, Try<'_>)> = Vec::new();
        let mut plan = Vec::new();
        for _ in 0..DEPTH {
            let len = self.len();
            plan.push(match self.random.below(10) {
                0 => (self.part(FOREIGN, 0, len), ErrorCode::KeyRejected),
                1 => {
                    let none = [3, 7][self.random.below(2)];
                    (self.part(none, 0, len), ErrorCode::Denied)
                }
                2 => {
                    let (address, all) = (self.beyond(len), [0, 4][self.random.below(2)]);
                    (self.part(all, address, len), ErrorCode::Denied)
                }
                3 => {
                    let bit = 1 << (self.random.next() % 64);
                    let near = self.keys[self.random.below(8)] ^ bit;
                    (RemoteMemory { key: near, address: 0, len }, ErrorCode::KeyRejected)
                }
                4 => {
                    let near = self.keys[WINDOW] ^ 1 << (self.random.next() % 32);
                    (RemoteMemory { key: near, address: 0, len }, ErrorCode::KeyRejected)
                }
                5 | 6 => {
                    let small = self.random.next() >> 32;
                    let key = if small == self.keys[WINDOW] { small ^ 1 } else { small };
                    (RemoteMemory { key, address: self.random.next() % LEN, len }, ErrorCode::KeyRejected)
                }
                _ => {
                    let (key, address) = (self.random.next(), self.random.next() % LEN);
                    (RemoteMemory { key, address, len }, ErrorCode::KeyRejected)
                }
            });
        }
        let kinds: Vec<usize> = plan.iter().map(|_| self.random.below(4)).collect();
        for ((part, wanted), kind) in plan.into_iter().zip(kinds) {
            let (endpoint, len) = (&self.open.endpoint, part.len as usize);
            let word = RemoteMemory { len: 8, address: part.address & !7, ..part };
            let made = match kind {
                0 => Try::Bytes(
                    endpoint.write(self.peer, vec![0x55; len], part).start().expect("the operation is posted"),
                ),
                1 => Try::Bytes(
                    endpoint.read(self.peer, part, vec![0x55; len]).start().expect("the operation is posted"),
                ),
                // A word at the start of the range may be within the region.
                _ if [self.keys[0], self.keys[4]].contains(&part.key) && word.address < LEN => Try::Bytes(
                    endpoint.read(self.peer, part, vec![0x55; len]).start().expect("the operation is posted"),
                ),
                2 => Try::Word(endpoint.fetch_add(self.peer, word, 1_u64).start().expect("the operation is posted")),
                _ => Try::Word(
                    endpoint.compare_swap(self.peer, word, 0_u64, 1).start().expect("the operation is posted"),
                ),
            };
            under_way.push((part, wanted, made));
        }
        for (part, wanted, made) in under_way {
            let code = match made {
                Try::Bytes(mut access) => refusal(access.wait_for(super::WAIT_TIMEOUT)),
                Try::Word(mut access) => refusal(access.wait_for(super::WAIT_TIMEOUT)),
            };
            assert_eq!(code, wanted, "{part:?}");
        }
    }
}

enum Try<'e> {
    Bytes(Operation<&'e percale::endpoint::Owned, Buffer>),
    Word(Operation<&'e percale::endpoint::Owned, u64>),
}
