//! Tests of the windows that a target grants. They use a device if there is one. They check which accesses the device
//! allows to a peer that does not follow the protocol. All tests use windows of both types, bound to registrations of
//! both extents.

#![expect(unsafe_code, reason = "makes regions of the test's own memory; the block states its reason")]

mod ends;
mod late;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::super::window_use::{Extent, WindowUse};
use super::grantee::VerbsGrantee;
use super::windows::{REQUESTS, times_out};
use crate::local_memory::volatile::ViewExt as _;
use crate::local_memory::volatile::{Segment, Segments};
use crate::region::{Access, AccessScope, Grantee, Registered, Revocation, Slice};
use crate::table::WIRE_SLOTS;
use crate::verbs::tests::adapter;
use crate::verbs::{
    Adapter, CompletionChannel, CompletionQueue, MemoryRegion, PairSize, ProtectionDomain, QueuePair, Rights,
    VerbsError, WindowKind,
};
use crate::wire::located::{AccessGrant, LocateAnswer};

const LEN: usize = 20_000;
/// The time that the device may take for one request.
const DEVICE_TIMEOUT: Duration = Duration::from_secs(30);
const ALL: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);
const EVERY: [(WindowKind, Extent); 4] = [
    (WindowKind::One, Extent::Window),
    (WindowKind::One, Extent::Region),
    (WindowKind::Two, Extent::Window),
    (WindowKind::Two, Extent::Region),
];

/// A target and its peer's queue pair.
struct Bench {
    adapter: Arc<Adapter>,
    grantee: Arc<VerbsGrantee>,
    queue: Arc<CompletionQueue>,
    near: QueuePair,
}

/// Creates a bench for windows of this type. Returns `None` if the device has no such windows.
fn bench((kind, extent): (WindowKind, Extent)) -> Option<Bench> {
    let adapter = adapter()?;
    let (one, a2, b2) = adapter.domain().context().limits().expect("limits").windows;
    if !(kind == WindowKind::One && one || kind == WindowKind::Two && (a2 || b2)) {
        println!("skipped (RDMA windows): {} has no windows of type {kind:?}", adapter.describe());
        return None;
    }
    let domain = ProtectionDomain::new(adapter.domain().context()).expect("a protection domain");
    let grantee = Arc::new(VerbsGrantee::new(domain, Some(WindowUse::with(kind, extent))));
    let (queue, near, far) = pairs(&adapter, grantee.domain());
    assert!(grantee.change_pair(Some(far)).is_none());
    Some(Bench { adapter, grantee, queue, near })
}

/// Creates the peer's queue pair and the target's end of it.
fn pairs(adapter: &Adapter, domain: &Arc<ProtectionDomain>) -> (Arc<CompletionQueue>, QueuePair, QueuePair) {
    let channel = CompletionChannel::new(adapter.domain().context()).expect("a channel");
    let queues = [(); 2].map(|()| CompletionQueue::new(&channel, REQUESTS + 1).expect("a queue"));
    let buffers = [adapter.domain(), domain].map(|domain| MemoryRegion::new(domain, LEN, Rights::LOCAL_WRITE));
    let size = PairSize { sends: REQUESTS, receives: 1, inline: 0, pieces: 1 };
    let [near, far] = [0, 1].map(|at: usize| {
        let pair = QueuePair::new(&queues[at], buffers[at].as_ref().expect("memory"), size).expect("a queue pair");
        pair.prepare(adapter.path(), Rights::REMOTE_READ | Rights::REMOTE_WRITE).expect("the queue pair is prepared");
        pair
    });
    let (here, there) = (adapter.end(near.number()).expect("an end"), adapter.end(far.number()).expect("an end"));
    near.connect(adapter.path(), &here, &there).expect("the queue pair connects");
    far.connect(adapter.path(), &there, &here).expect("the queue pair connects");
    let [queue, _] = queues;
    (queue, near, far)
}

fn region(memory: &mut [u8]) -> Arc<Registered> {
    // SAFETY: the peers of the tests are queue pairs of the same test. The test ends all grants before it frees the
    // memory, and reads the memory only through raw copies.
    Registered::for_test(Segments::one(unsafe { Segment::new(memory.as_mut_ptr(), memory.len()) }))
}

fn window(region: &Arc<Registered>, offset: u64, len: u64, access: Access) -> Arc<Registered> {
    Arc::new(Registered::slice(region, &Slice { key: 7, offset, len, access, through: AccessScope::Domain }))
}

fn close(region: &Arc<Registered>) {
    assert!(Revocation::start(Arc::clone(region)).wait(Some(DEVICE_TIMEOUT)), "the region is not revoked");
}

impl Bench {
    fn grant(&self, region: &Arc<Registered>) -> AccessGrant {
        match self.grantee.grant(region) {
            LocateAnswer::Granted(grant) => grant,
            other => panic!("{other:?}"),
        }
    }

    /// Returns whether the device allows an access of the peer. If it does not, the queue pair is then in the error
    /// state.
    fn passes(&self, post: impl FnOnce(&QueuePair) -> Result<(), VerbsError>) -> bool {
        post(&self.near).expect("the operation is posted");
        self.queue.finish(1, DEVICE_TIMEOUT, |_| {}).expect("a queue that works").expect("an answer") == 0
    }

    /// Returns whether the device is known to enforce only the bounds of registrations, and to execute accesses that
    /// arrived before an invalidation completed.
    fn checks_registrations_alone(&self) -> bool {
        let limits = self.adapter.domain().context().limits().expect("limits");
        WindowUse::of(&limits).is_some_and(|using| using.extent == Extent::Window)
    }

    fn reads(&self, grant: &AccessGrant, from: i64, len: usize) -> bool {
        let address = grant.address.wrapping_add_signed(from);
        self.passes(|pair| pair.post_read(1, 0, len, (address, grant.remote_key)))
    }

    fn writes(&self, grant: &AccessGrant, byte: u8, len: usize) -> bool {
        assert_eq!(self.near.buffers().copy_in(&vec![byte; len], 0, len), len);
        self.passes(|pair| pair.post_write(1, 0, len, (grant.address, grant.remote_key)))
    }

    /// Replaces the peer's queue pair after it has failed.
    fn again(&mut self) {
        drop(self.grantee.change_pair(None));
        let (queue, near, far) = pairs(&self.adapter, self.grantee.domain());
        drop(self.grantee.change_pair(Some(far)));
        (self.queue, self.near) = (queue, near);
    }
}

fn bytes_of(region: &Registered) -> Vec<u8> {
    let mut bytes = vec![0; region.place().len()];
    let room = &mut bytes[..];
    region.place().as_slice().iter().for_each(|piece| {
        // SAFETY: the segment is memory of this test that is still allocated.
        let view = unsafe { crate::local_memory::volatile::View::new(piece.as_ptr(), piece.len()) };
        assert_eq!(view.read_into(room), piece.len());
    });
    bytes
}

/// Requirements: MW-015, MW-017, MW-018, MW-049.
#[test]
fn device_window_has_separate_rights() {
    for how in EVERY {
        let Some(mut bench) = bench(how) else { continue };
        let mut memory = vec![5; LEN];
        let region = region(&mut memory);
        for access in [Access::REMOTE_READ, Access::REMOTE_WRITE, ALL] {
            let window = window(&region, 1000, 5000, access);
            let grant = bench.grant(&window);
            assert_eq!((grant.reads, grant.writes), (access != Access::REMOTE_WRITE, access != Access::REMOTE_READ));
            assert_eq!((grant.base, grant.len), (1000, 5000));
            assert_eq!(bench.grantee.grant(&window), LocateAnswer::Granted(grant), "granted twice");
            let first = if grant.writes { bench.writes(&grant, 9, 5000) } else { bench.reads(&grant, 0, 5000) };
            assert!(first, "{how:?}, {access:?}: an allowed access was rejected");
            assert_eq!(bytes_of(&region)[1000..6000], vec![if grant.writes { 9 } else { 5 }; 5000]);
            let other = match (grant.reads, grant.writes) {
                (true, true) => bench.reads(&grant, 0, 5000),
                (true, false) => !bench.writes(&grant, 77, 5000),
                _ => !bench.reads(&grant, 0, 5000),
            };
            assert!(other, "{how:?}, {access:?}: the other kind of access");
            assert!(!bytes_of(&region).contains(&77), "{how:?}: written without a right");
            bench.again();
            close(&window);
            let filled = vec![5; LEN];
            assert_eq!(region.store(0, crate::local_memory::volatile::View::of(&filled)), Ok(()));
        }
        bench.grantee.end();
        close(&region);
    }
}

/// Requirements: MW-019.
#[test]
fn device_window_is_limited_to_its_range() {
    for how in EVERY {
        let Some(mut bench) = bench(how) else { continue };
        let mut memory = vec![5; LEN];
        let region = region(&mut memory);
        for (from, len) in [(-1, 1), (4999, 2), (5000, 1), (-1, 2), (0, 5001)] {
            let window = window(&region, 1001, 5000, Access::REMOTE_READ);
            let grant = bench.grant(&window);
            assert!(bench.reads(&grant, 0, 5000) && bench.reads(&grant, 4999, 1), "{how:?}: inside");
            let passes = bench.reads(&grant, from, len);
            // Such a device enforces only the bounds of registrations. Here the registration of the region contains
            // these bytes.
            assert_eq!(
                passes,
                how.1 == Extent::Region && bench.checks_registrations_alone(),
                "{how:?}: {len} from {from}"
            );
            if !passes {
                bench.again();
            }
            close(&window);
        }
        // No device allows accesses outside the registration to which the window is bound.
        for (from, len) in [(-1002, 1), (LEN as i64 - 1001, 1), (LEN as i64 - 1002, 2)] {
            let window = window(&region, 1001, 5000, Access::REMOTE_READ);
            let grant = bench.grant(&window);
            assert!(!bench.reads(&grant, from, len), "{how:?}: {len} from {from}, outside of the region");
            bench.again();
            close(&window);
        }
        bench.grantee.end();
        close(&region);
    }
}

/// Requirements: MW-021, MW-043, REV-001.
#[test]
fn window_key_is_not_reused_before_peer_release() {
    for how in EVERY {
        let Some(bench) = bench(how) else { continue };
        let mut memory = vec![0; LEN];
        let region = region(&mut memory);
        let (mut keys, mut numbers, mut places) = (HashSet::new(), HashSet::new(), HashSet::new());
        for round in 0..700_u64 {
            let window = window(&region, round, 100, ALL);
            let grant = bench.grant(&window);
            assert!(keys.insert(grant.remote_key), "{how:?}: a key was reused after {round} binds");
            assert!(numbers.insert(grant.number), "{how:?}: a number was reused after {round} binds");
            places.insert(grant.number as usize % WIRE_SLOTS);
            close(&window);
        }
        assert_eq!(bench.grantee.beneath(), usize::from(how.1 == Extent::Region), "registered once");
        let gone = bench.grantee.take_changes().0;
        assert_eq!(gone.len(), 700);
        gone.iter().for_each(|(number, _)| bench.grantee.forgotten(*number).expect("the peer was notified"));
        for round in 0..700_u64 {
            let window = window(&region, round, 100, ALL);
            let number = bench.grant(&window).number;
            assert!(numbers.insert(number), "{how:?}: a number was reused in round {round}");
            places.insert(number as usize % WIRE_SLOTS);
            close(&window);
            let gone = bench.grantee.take_changes().0;
            gone.iter().for_each(|(number, _)| bench.grantee.forgotten(*number).expect("the peer was notified"));
        }
        assert!(places.len() <= 701, "{how:?}: slots are not reused: {}", places.len());
        println!("{how:?}: {}", bench.grantee.describe());
        bench.grantee.end();
        close(&region);
    }
}

/// Requirements: MW-003, MW-004.
#[test]
fn a_region_stays_registered_while_windows_are_bound() {
    for how in EVERY {
        let Some(bench) = bench(how) else { continue };
        let mut memory = vec![3; LEN];
        let region = region(&mut memory);
        let windows = [0, 50].map(|offset| window(&region, offset, 100, ALL));
        let grants = windows.each_ref().map(|window| bench.grant(window));
        // The region is dropped. Its memory stays until no window is bound to it.
        close(&region);
        assert!(bench.reads(&grants[0], 0, 100) && bench.writes(&grants[1], 4, 100), "{how:?}");
        let late = window(&region, 60, 10, ALL);
        assert!(bench.reads(&bench.grant(&late), 0, 10), "{how:?}: a window that was bound before");
        for one in windows.iter().chain([&late]) {
            assert_eq!(bench.grantee.beneath(), usize::from(how.1 == Extent::Region));
            close(one);
        }
        // The region is not registered any more and will not be registered again, so only the range of the window is
        // registered.
        let last = window(&region, 70, 10, ALL);
        let grant = bench.grant(&last);
        assert!(
            bench.writes(&grant, 6, 10) && bytes_of(&region)[70..80] == [6; 10],
            "{how:?}: a window without a region"
        );
        assert_eq!(bench.grantee.beneath(), 0);
        close(&last);
        assert!(
            !bench.writes(&grant, 99, 10) && !bytes_of(&region).contains(&99),
            "{how:?}: an invalid key was accepted"
        );
        assert_eq!((bench.grantee.beneath(), bench.grantee.is_stuck()), (0, false), "{how:?}");
        bench.grantee.end();
    }
}

/// Requirements: MW-034.
#[test]
fn devices_without_windows_grant_none() {
    let Some(adapter) = adapter() else { return };
    let limits = adapter.domain().context().limits().expect("limits");
    let using = |windows, window_count, vendor| {
        let using = WindowUse::of(&crate::verbs::DeviceLimits { windows, window_count, vendor, ..limits });
        using.map(|using| (using.kind, using.extent))
    };
    let hardware = 0x2c9;
    assert_eq!(using((false, false, false), 100, hardware), None);
    assert_eq!(using((true, true, true), 0, hardware), None);
    assert_eq!(using((true, false, false), 1, hardware), Some((WindowKind::One, Extent::Region)));
    for two in [(true, true, false), (true, false, true)] {
        assert_eq!(using(two, 1, hardware), Some((WindowKind::Two, Extent::Region)));
        assert_eq!(using(two, 1, 0xff_ffff), Some((WindowKind::One, Extent::Window)), "rdma_rxe");
    }
    if adapter.domain().context().name().starts_with("rxe") {
        assert_eq!(adapter.windows().map(|using| using.extent), Some(Extent::Window), "{limits:?}");
    }
    let domain = ProtectionDomain::new(adapter.domain().context()).expect("a protection domain");
    let grantee = Arc::new(VerbsGrantee::new(domain, None));
    let mut memory = vec![0; LEN];
    let region = region(&mut memory);
    assert_eq!(grantee.grant(&window(&region, 0, 10, ALL)), LocateAnswer::Executed);
    grantee.end();
}

/// Prints the times, and does not check them.
///
/// Requirements: MW-027.
#[test]
fn bind_and_registration_times_are_printed() {
    const ROUNDS: u32 = 300;
    for how in EVERY {
        let Some(bench) = bench(how) else { continue };
        let mut memory = vec![0; 1 << 20];
        let all = region(&mut memory);
        let each = |grant: &dyn Fn()| {
            let begun = Instant::now();
            for _ in 0..ROUNDS {
                grant();
                let gone = bench.grantee.take_changes().0;
                assert_eq!(gone.len(), 1);
                gone.iter().for_each(|(number, _)| bench.grantee.forgotten(*number).expect("the peer was notified"));
            }
            begun.elapsed() / ROUNDS
        };
        let bound = each(&|| {
            let window = window(&all, 0, all.len(), ALL);
            assert_eq!(bench.grant(&window).len, 1 << 20);
            close(&window);
        });
        let registered = each(&|| {
            // SAFETY: as in `region`.
            let memory = unsafe { Segment::new(all.place().as_slice()[0].as_ptr(), 1 << 20) };
            let region = Registered::for_test(Segments::one(memory));
            assert_eq!(bench.grant(&region).len, 1 << 20);
            close(&region);
        });
        println!("{how:?}: 1 MiB granted and taken back: bound {bound:?}, registered {registered:?}");
        bench.grantee.end();
        close(&all);
    }
}
