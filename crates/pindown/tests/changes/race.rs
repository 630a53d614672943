//! Transfers race with changes.
#![expect(unsafe_code, reason = "one word in memory that is replaced; each block states its own reason")]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::oracle::{Memory, PAGE, World, advise, done, map_anew, map_at};

/// One thread replaces a page repeatedly, while another transfers through the cache. The transferred bytes are never
/// older than the page's content before the look-up.
///
/// Requirements: MON-046, MON-050, RCACHE-021, RCACHE-026.
#[test]
fn transfers_race_with_changes() {
    let Some(world) = World::open() else { return };
    let (private, (shared, fd)) = (Memory::new(4), Memory::shared(4));
    let replace: [(&Memory, &(dyn Fn() + Sync)); 4] = [
        (&private, &|| map_anew(private.start, private.len)),
        (&private, &|| advise(private.page(1), PAGE, libc::MADV_DONTNEED)),
        (&shared, &|| done(libc::SYS_fallocate, [fd, 3, PAGE, PAGE, 0, 0])),
        (&shared, &|| map_at(shared.start, shared.len, libc::MAP_SHARED, fd, 0)),
    ];
    for (way, (memory, replace)) in replace.into_iter().enumerate() {
        let (at, before) = (memory.page(1), world.cache.stats());
        // SAFETY: the page is mapped for as long as the test runs, and only accessed atomically.
        let word = unsafe { AtomicU64::from_ptr(std::ptr::with_exposed_provenance_mut(at as usize)) };
        let (published, stop) = (AtomicU64::new(0), AtomicBool::new(false));
        let mut right = 0_u64;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for number in 1.. {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    if number % 8 == 0 {
                        replace();
                    }
                    word.store(number, Ordering::SeqCst);
                    published.store(number, Ordering::SeqCst);
                    (0..number % 64).for_each(|_| std::hint::spin_loop());
                }
            });
            let deadline = Instant::now() + Duration::from_secs(60);
            // The other thread may not have run until then.
            while right < 4000 || world.cache.stats().invalidations == before.invalidations {
                assert!(Instant::now() < deadline, "{right} transfers in a minute");
                let least = published.load(Ordering::SeqCst);
                let sent = world.send(at, 8);
                let carried = sent.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte));
                // A new page contains 0, unless it is a page of the object.
                if carried < least && carried != 0 {
                    stop.store(true, Ordering::Relaxed);
                    panic!(
                        "stale: transferred {carried} after {least} had been stored, method {way}: {:?}",
                        world.cache.stats()
                    );
                }
                right += 1;
            }
            stop.store(true, Ordering::Relaxed);
        });
        let after = world.cache.stats();
        assert!(after.invalidations > before.invalidations, "method {way}: no race occurred: {after:?}");
        println!("method {way}: {after:?}");
    }
    world.cache.flush();
    world.cache.sweep();
    assert_eq!(world.oracle.registered(), 0);
}
