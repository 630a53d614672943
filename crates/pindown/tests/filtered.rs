//! A program that installs a seccomp filter after it has opened a cache. From then on the kernel rejects membarrier(2),
//! which the cache uses to detect that uses have ended, or ioctl(2), with which it queries a userfaultfd for changes.
#![expect(unsafe_code, reason = "a filter of system calls; the block states its own reason")]

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use pindown::monitor::imported::Notifier;
use pindown::monitor::userfaultfd::Unseen;
use pindown::monitor::{Choice, Refusal};
use pindown::{Access, Cache, Lane, Pinned, Range, Registrar, page_size};

/// A registrar that records pins by key. Clones share one record.
#[derive(Clone, Default)]
struct Pins(Arc<Inner>);

#[derive(Default)]
struct Inner {
    all: Mutex<HashMap<u64, Range>>,
    made: AtomicU64,
}

impl Registrar for Pins {
    type Pin = u64;

    fn pin(&self, range: Range, _access: Access) -> io::Result<Pinned<u64>> {
        let key = self.0.made.fetch_add(1, Ordering::Relaxed);
        self.0.all.lock().expect("no panic").insert(key, range);
        Ok(Pinned { pin: key, local_key: key, remote_key: 0 })
    }

    fn unpin(&self, key: u64) {
        if self.0.all.lock().expect("no panic").remove(&key).is_none() {
            // The cache catches panics, so the process is aborted.
            eprintln!("a pin is undone twice");
            std::process::abort();
        }
    }
}

impl Pins {
    fn count(&self) -> usize {
        self.0.all.lock().expect("no panic").len()
    }
}

/// Makes the kernel reject membarrier(2) from this thread, and from those that it starts, from now on.
fn refuse_membarrier() {
    refuse(libc::SYS_membarrier);
}

/// Makes the kernel reject a system call from this thread, and from those that it starts, from now on.
fn refuse(call: libc::c_long) {
    let op = |code: u32, k: u32, jt, jf| libc::sock_filter { code: code as u16, jt, jf, k };
    let refused = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
    let mut program = [
        // The number of the system call is the first field.
        op(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        op(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, call as u32, 0, 1),
        op(libc::BPF_RET | libc::BPF_K, refused, 0, 0),
        op(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0, 0),
    ];
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the call takes numbers, and affects only this thread.
    let promised = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    // SAFETY: the program lives through the call, and the filter affects only this thread.
    let filtered = unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) };
    assert_eq!((promised, filtered), (0, 0), "{}", io::Error::last_os_error());
}

fn open(count: u32) -> (Pins, Cache<Pins>, Notifier) {
    let (notifier, imported) = Notifier::new(|_, _| true).expect("a descriptor");
    let pins = Pins::default();
    let cache = Cache::builder(pins.clone()).monitor(Choice::Imported(imported)).max_count(count);
    (pins, cache.open().expect("opens"), notifier)
}

fn transfer(pins: &Pins, lane: &Lane<Pins>, page: u64) {
    let range = Range::new((page + 1) * page_size(), page_size()).expect("a range");
    let used = lane.get(range, Access::empty()).expect("registered");
    let pinned = pins.0.all.lock().expect("no panic").get(&used.local_key()).copied();
    assert_eq!(pinned, Some(range), "the key of a registration of these bytes, which is pinned");
    lane.end(used);
}

/// Runs `work` in a separate thread, because a filter cannot be removed.
fn filtered(work: impl FnOnce() + Send) {
    std::thread::scope(|scope| scope.spawn(work).join()).unwrap_or_else(|panic| std::panic::resume_unwind(panic));
}

/// Requirements: RCACHE-005, RCACHE-010.
#[test]
fn cache_works_if_membarrier_is_denied_after_opening() {
    filtered(|| {
        let (pins, cache, notifier) = open(8);
        let lane = cache.lane();
        (0..8).for_each(|page| transfer(&pins, &lane, page));
        refuse_membarrier();
        for page in 0..400 {
            transfer(&pins, &lane, page % 23);
            transfer(&pins, &lane, page % 23);
            assert!(pins.count() <= 8, "{} pinned, {:?}", pins.count(), cache.stats());
        }
        notifier.changed_everything();
        cache.sweep();
        // The lane has held the lock once more.
        transfer(&pins, &lane, 50);
        cache.sweep();
        transfer(&pins, &lane, 51);
        cache.sweep();
        let stats = cache.stats();
        assert!(stats.hits > 0 && stats.evictions > 0 && stats.retired == 0, "{stats:?}");
        assert_eq!(pins.count() as u64, stats.entries, "{stats:?}");
        drop((lane, cache));
        assert_eq!(pins.count(), 0);
    });
}

/// Requirements: RCACHE-005, RCACHE-010.
#[test]
fn nothing_is_kept_while_an_idle_lane_cannot_be_fenced() {
    filtered(|| {
        let (pins, cache, _notifier) = open(8);
        let [lane, rests] = [cache.lane(), cache.lane()];
        transfer(&pins, &rests, 0);
        refuse_membarrier();
        (0..400).for_each(|page| transfer(&pins, &lane, page));
        let stats = cache.stats();
        assert!(stats.single_uses_for(Refusal::NotCaching) > 300, "{stats:?}");
        assert!(pins.count() <= 8, "{} pinned, {stats:?}", pins.count());
        drop(rests);
        for page in 0..100 {
            transfer(&pins, &lane, page % 4);
        }
        let now = cache.stats();
        assert!(now.hits > stats.hits + 50, "registrations are kept again: {now:?}");
        assert!(pins.count() <= 8, "{} pinned, {now:?}", pins.count());
    });
}

/// Requirements: RCACHE-010.
#[test]
fn nothing_is_kept_if_the_query_for_changes_is_denied() {
    filtered(|| {
        let pins = Pins::default();
        let userfaultfd = Choice::Userfaultfd(Unseen::NeverMade.into());
        let cache = match Cache::builder(pins.clone()).monitor(userfaultfd).open() {
            Ok(cache) => cache,
            Err(why) => return println!("skipped (userfaultfd): {why}"),
        };
        let lane = cache.lane();
        let memory = vec![0_u8; 1 << 20];
        let range = Range::of(&memory).expect("a range");
        let look_up = || {
            let used = lane.get(range, Access::empty()).expect("registered");
            let is_single = used.is_single();
            lane.end(used);
            is_single
        };
        assert!(!look_up() && !look_up(), "{:?}", cache.stats());
        let own = cache.register(range, Access::empty()).expect("registered");
        assert_eq!((own.unwatched, cache.check()), (None, None));
        refuse(libc::SYS_ioctl);
        assert!((0..120).all(|_| look_up()));
        let stats = cache.stats();
        assert_eq!(stats.single_uses_for(Refusal::MonitorEnded), 120, "{stats:?}");
        assert_eq!((cache.check(), cache.check()), (Some(own.handle), None), "the memory may have changed");
        cache.deregister(own.handle).expect("is a registration");
        cache.sweep();
        assert_eq!(pins.count(), 0, "{stats:?}");
    });
}
