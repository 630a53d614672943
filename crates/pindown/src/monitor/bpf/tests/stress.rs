//! Changes race with a small cache. The fixed buffers of io_uring are the pinned memory; reading through them returns
//! the contents of the pinned pages.
//!
//! A writer stores growing numbers into a page and publishes each number after storing it. A changer replaces the page,
//! in all ways that leave an address mapped. A user looks up its registration as a cache does, and reads *through the
//! registration*. A page that is mapped contains 0 (it is new) or at least the number that was published before the
//! look-up. A smaller number is from an old page: the writer had already written to the new page, so the look-up should
//! have missed. Such a hit is stale.
//!
//! `PINDOWN_STRESS_SECONDS` sets a longer duration.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use io_uring::{IoUring, opcode, types};

use super::super::btf::Hooks;
use super::super::kernel::Kernel;
use super::super::{Monitor, Slot, Watch, load, object};
use super::{ANONYMOUS, PAGE, READ_WRITE, alone, attempt, call, done, far_addresses, monitor, must, touched};

/// The size that one page table maps: the kernel frees the table only when the advice covers all of it.
const REGION: u64 = 512 * PAGE;

/// Memory. Its last page is registered and replaced.
struct Region {
    start: u64,
    fd: Option<u64>,
}

impl Region {
    fn new(shared: bool) -> Self {
        let start = far_addresses(2 * REGION).next_multiple_of(REGION);
        let fd = shared.then(|| {
            let fd = must(libc::SYS_memfd_create, [c"pindown".as_ptr() as u64, 0, 0, 0, 0, 0]);
            must(libc::SYS_ftruncate, [fd, REGION, 0, 0, 0, 0]);
            fd
        });
        let region = Self { start, fd };
        region.map();
        region
    }

    fn map(&self) {
        let (flags, fd) = match self.fd {
            Some(fd) => (libc::MAP_SHARED, fd),
            None => (ANONYMOUS, u64::MAX),
        };
        must(libc::SYS_mmap, [self.start, REGION, READ_WRITE, (flags | libc::MAP_FIXED) as u64, fd, 0]);
        must(libc::SYS_madvise, [self.start, REGION, libc::MADV_NOHUGEPAGE as u64, 0, 0, 0]);
    }

    fn page(&self) -> u64 {
        self.start + REGION - PAGE
    }

    fn word(&self) -> &AtomicU64 {
        // SAFETY: the address stays mapped while the test runs, although its pages change.
        unsafe { AtomicU64::from_ptr(std::ptr::with_exposed_provenance_mut(self.page() as usize)) }
    }

    /// Replaces the page in one of several ways.
    fn change(&self, way: u64, ring: &mut IoUring) {
        let whole = |advice: i32| done(libc::SYS_madvise, [self.start, REGION, advice as u64, 0, 0, 0]);
        let one = |advice: i32| done(libc::SYS_madvise, [self.page(), PAGE, advice as u64, 0, 0, 0]);
        // The pages before it make the change take longer.
        attempt(libc::SYS_madvise, [self.start, REGION, libc::MADV_POPULATE_WRITE as u64, 0, 0, 0]);
        match (self.fd, way % 5) {
            (Some(fd), 0) => done(libc::SYS_fallocate, [fd, 3, REGION - PAGE, PAGE, 0, 0]),
            (Some(fd), 1) => done(libc::SYS_fallocate, [fd, 3, 0, REGION, 0, 0]),
            (Some(_), 2) => one(libc::MADV_REMOVE),
            (Some(_), 3) => whole(libc::MADV_REMOVE),
            (Some(fd), _) => {
                // An io_uring worker makes the change.
                let hole = opcode::Fallocate::new(types::Fd(fd as i32), PAGE).offset(REGION - PAGE).mode(3).build();
                // SAFETY: the entry contains no pointer.
                unsafe { ring.submission().push(&hole) }.expect("there is room");
                ring.submit_and_wait(1).expect("the request is submitted");
                assert_eq!(ring.completion().next().map(|completion| completion.result()), Some(0));
            }
            (None, 0) => one(libc::MADV_DONTNEED),
            (None, 1) => whole(libc::MADV_DONTNEED),
            (None, 2) => self.map(),
            (None, _) => {
                let new = must(libc::SYS_mmap, [0, PAGE, READ_WRITE, ANONYMOUS as u64, u64::MAX, 0]);
                let flags = (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED) as u64;
                must(libc::SYS_mremap, [new, PAGE, PAGE, flags, self.page(), 0]);
            }
        }
    }
}

/// One registration, in slot 0 of a ring's buffer table, which is kept as in a cache.
struct Cache<'a> {
    monitor: &'a Monitor,
    region: &'a Region,
    slot: Option<Slot>,
    seen: u64,
    /// The inode's count when the memory was pinned.
    entry: Option<u64>,
    ring: IoUring,
    out: u64,
}

impl<'a> Cache<'a> {
    fn new(monitor: &'a Monitor, region: &'a Region) -> Self {
        let ring = IoUring::new(4).expect("io_uring is available");
        ring.submitter().register_buffers_sparse(1).expect("a table of one");
        let slot = match monitor.watch(region.page()..region.page() + PAGE).expect("the memory can be watched") {
            Watch::Records => None,
            Watch::Inode(slot) => Some(slot),
        };
        let out = must(libc::SYS_memfd_create, [c"out".as_ptr() as u64, 0, 0, 0, 0, 0]);
        must(libc::SYS_ftruncate, [out, PAGE, 0, 0, 0, 0]);
        Self { monitor, region, slot, seen: monitor.page().head(), entry: None, ring, out }
    }

    fn inode(&self) -> u64 {
        self.slot.map_or(0, |slot| self.monitor.page().inode(slot))
    }

    fn drain(&mut self) {
        let mut drain = self.monitor.page().drain(self.seen);
        self.seen = drain.head();
        let range = self.region.page()..self.region.page() + PAGE;
        if drain.any(|change| touched(&[change], &range)) {
            self.entry = None;
        }
    }

    fn hit(&self) -> bool {
        let entry = self.entry.is_some_and(|inode| self.inode() == inode);
        entry && self.monitor.page().head() == self.seen
    }

    fn miss(&mut self) {
        self.entry = None;
        self.drain();
        if self.monitor.page().busy() {
            return std::thread::yield_now();
        }
        let inode = self.inode();
        let buffer = libc::iovec {
            iov_base: std::ptr::with_exposed_provenance_mut(self.region.page() as usize),
            iov_len: PAGE as usize,
        };
        // SAFETY: the pinned pages are only read, through WRITE_FIXED.
        let pinned = unsafe { self.ring.submitter().register_buffers_update(0, &[buffer], None) };
        pinned.expect("the page is mapped and can be pinned");
        self.entry = Some(inode);
        self.drain();
        if self.monitor.page().busy() || self.inode() != inode {
            self.entry = None;
        }
    }

    /// Returns the number in the registered page.
    fn through_registration(&mut self) -> u64 {
        let from = std::ptr::with_exposed_provenance::<u8>(self.region.page() as usize);
        let entry = opcode::WriteFixed::new(types::Fd(self.out as i32), from, 8, 0).build();
        // SAFETY: the registered buffer stays until the ring is dropped.
        unsafe { self.ring.submission().push(&entry) }.expect("there is room");
        self.ring.submit_and_wait(1).expect("the request is submitted");
        let completion = self.ring.completion().next().expect("a completion");
        assert_eq!(completion.result(), 8);
        let mut number = 0_u64;
        must(libc::SYS_pread64, [self.out, (&raw mut number) as u64, 8, 0, 0, 0]);
        number
    }
}

#[derive(Debug, Default)]
struct Counts {
    changes: u64,
    hits: u64,
    misses: u64,
    stale: u64,
}

fn race(monitor: &Monitor, shared: bool, time: Duration, until_stale: bool) -> Counts {
    let region = Region::new(shared);
    let (stop, published, changes) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let mut counts = Counts::default();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 1.. {
                region.word().store(number, Ordering::SeqCst);
                published.store(number, Ordering::SeqCst);
                if stop.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        scope.spawn(|| {
            let mut ring = IoUring::new(4).expect("io_uring is available");
            let mut random = 0x9e37_79b9_7f4a_7c15_u64;
            while !stop.load(Ordering::Relaxed) {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                region.change(random >> 60, &mut ring);
                changes.fetch_add(1, Ordering::Relaxed);
                for _ in 0..(random >> 32) % 4000 {
                    std::hint::spin_loop();
                }
            }
        });
        let mut cache = Cache::new(monitor, &region);
        let end = Instant::now() + time;
        while Instant::now() < end && !(until_stale && counts.stale > 0) {
            let before = published.load(Ordering::SeqCst);
            if cache.hit() {
                let number = cache.through_registration();
                counts.hits += 1;
                counts.stale += u64::from(number != 0 && number < before);
            } else {
                counts.misses += 1;
                cache.miss();
            }
        }
        stop.store(true, Ordering::Relaxed);
        call(libc::SYS_close, [cache.out, 0, 0, 0, 0, 0]).ok();
        if let Some(slot) = cache.slot {
            monitor.unwatch(slot);
        }
    });
    counts.changes = changes.into_inner();
    eprintln!("{}: {counts:?}", if shared { "shared" } else { "anonymous" });
    call(libc::SYS_munmap, [region.start, REGION, 0, 0, 0, 0]).ok();
    region.fd.map(|fd| call(libc::SYS_close, [fd, 0, 0, 0, 0, 0]));
    counts
}

fn seconds(default: u64) -> Duration {
    let wish = std::env::var("PINDOWN_STRESS_SECONDS").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(wish.unwrap_or(default))
}

/// Requirements: MON-013, MON-046.
#[test]
fn no_hit_is_stale_while_changes_race() {
    let _alone = alone();
    let Some(monitor) = monitor() else { return };
    for shared in [false, true] {
        let counts = race(monitor, shared, seconds(2), false);
        assert!(counts.hits > 0 && counts.misses > 0 && counts.changes > 0, "no attempt was made: {counts:?}");
        assert_eq!(counts.stale, 0, "{counts:?}");
    }
    monitor.check().expect("no program was skipped");
}

/// Requirements: MON-046.
#[test]
fn stale_hits_of_entry_only_reports_are_detected() {
    let _alone = alone();
    if monitor().is_none() {
        return;
    }
    let hooks = Hooks { starts: true, ..load::check().expect("the call succeeded before") };
    let loaded = object::load_object(object::ENTRY_ONLY, hooks).expect("the kernel accepts the faulty programs, too");
    let monitor = Monitor::with(Box::new(Kernel::with(loaded))).expect("the call succeeded before");
    let counts = race(&monitor, false, Duration::from_secs(30), true);
    assert!(counts.stale > 0, "the oracle detects nothing: {counts:?}");
}
