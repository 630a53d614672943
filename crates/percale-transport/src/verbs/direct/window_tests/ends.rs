//! Tests of the revocation of windows: late accesses, many late accesses, many windows at once, and queue pairs in the
//! error state.

use super::*;
use crate::local_memory::volatile::ViewExt as _;

/// Requirements: MW-044, MW-048, REV-001.
#[test]
fn revoked_window_is_dead_and_others_stay_valid() {
    for how in EVERY {
        let Some(mut bench) = bench(how) else { continue };
        let mut memory = vec![0; LEN];
        let region = region(&mut memory);
        for round in 1..=3 {
            let windows = [0, 2000, 4000].map(|offset| window(&region, offset, 4000, ALL));
            let grants = windows.each_ref().map(|window| bench.grant(window));
            assert!(grants.iter().all(|grant| bench.writes(grant, round, 4000)), "{how:?}");
            close(&windows[1]);
            assert_eq!(bench.grantee.grant(&windows[1]), LocateAnswer::Unknown, "the window is closed");
            let others = [0, 2].map(|at| bench.writes(&grants[at], round + 100, 4000));
            assert_eq!(others, [true, true], "{how:?}: another window became invalid");
            let before = bytes_of(&region);
            assert!(!bench.writes(&grants[1], 99, 4000), "{how:?}: an invalid key was accepted");
            assert_eq!(bytes_of(&region), before, "{how:?}: bytes were written with an invalid key");
            // All windows have ended with the queue pair. A new grant has a different key.
            bench.again();
            let again = bench.grant(&windows[0]);
            assert_ne!(again.remote_key, grants[0].remote_key);
            assert!(bench.writes(&again, round, 4000), "{how:?}: a write over the new queue pair");
            windows.iter().for_each(|window| _ = Revocation::start(Arc::clone(window)));
        }
        bench.grantee.end();
        close(&region);
    }
}

/// Requirements: REV-001, MW-044.
#[test]
fn more_windows_than_requests_can_be_revoked_together() {
    for how in EVERY {
        let Some(mut bench) = bench(how) else { continue };
        let mut memory = vec![0; LEN];
        let region = region(&mut memory);
        let windows: Vec<_> = (0..50).map(|at| window(&region, at * 100, 100, ALL)).collect();
        let grants: Vec<_> = windows.iter().map(|window| bench.grant(window)).collect();
        assert!(bench.writes(&grants[49], 1, 100), "{how:?}");
        // All revocations are started before any is polled. They are then polled in reverse order.
        let mut revocations: Vec<_> = windows.iter().map(|window| Revocation::start(Arc::clone(window))).collect();
        // Meanwhile another window is bound.
        let other = window(&region, 6000, 100, ALL);
        assert!(bench.writes(&bench.grant(&other), 2, 100), "{how:?}");
        assert!(revocations.iter_mut().rev().all(|revocation| revocation.wait(Some(DEVICE_TIMEOUT))), "{how:?}");
        assert_eq!(bench.grantee.take_changes().0.len(), 50, "{how:?}");
        assert!(
            !bench.writes(&grants[7], 99, 100) && !bytes_of(&region).contains(&99),
            "{how:?}: an invalid key was accepted"
        );
        bench.again();
        // Revocations that are not polled end with the queue pair.
        let again: Vec<_> = windows.iter().map(|one| window(&region, one.base(), 100, ALL)).collect();
        again.iter().for_each(|window| _ = bench.grant(window));
        let mut revocations: Vec<_> = again.iter().map(|window| Revocation::start(Arc::clone(window))).collect();
        bench.grantee.end();
        assert!(revocations.iter_mut().all(Revocation::is_over), "{how:?}");
        close(&other);
        close(&region);
    }
}

/// Requirements: MW-041, FLT-001.
#[test]
fn failed_queue_pair_does_not_block_revocation() {
    for how in EVERY {
        let Some(bench) = bench(how) else { continue };
        let mut memory = vec![3; LEN];
        let region = region(&mut memory);
        let windows = [0, 50, 100].map(|offset| window(&region, offset, 100, ALL));
        let grants = windows.each_ref().map(|window| bench.grant(window));
        assert!(bench.reads(&grants[0], 0, 100), "{how:?}");
        bench.grantee.fail();
        let begun = Instant::now();
        assert!(!bench.grantee.has_changes(), "{how:?}: no notice yet");
        close(&windows[0]);
        close(&windows[1]);
        let (gone, is_over) = bench.grantee.take_changes();
        assert_eq!((gone.len(), is_over), (2, true), "{how:?}: the peer is notified");
        let unbound = window(&region, 0, 10, ALL);
        assert_eq!(bench.grantee.grant(&unbound), LocateAnswer::Unknown, "{how:?}: a grant over a queue pair in error");
        assert!(!bench.grantee.has_changes(), "{how:?}: the peer is notified once");
        assert!(
            !bench.writes(&grants[0], 99, 100) && !bytes_of(&region).contains(&99),
            "{how:?}: an invalid key was accepted"
        );
        // As far as this side knows, the third window is still bound.
        bench.grantee.end();
        assert!(begun.elapsed() < Duration::from_secs(40), "{how:?}: the end took {:?}", begun.elapsed());
        let me: Arc<dyn Grantee> = Arc::clone(&bench.grantee) as _;
        assert!(windows[2].grants().find(&me).is_none());
        close(&windows[2]);
        close(&region);
        assert!(!bench.grantee.is_stuck(), "{how:?}");
    }
}

/// Requirements: FLT-001.
#[test]
fn unanswered_request_is_not_awaited() {
    let Some(adapter) = adapter() else { return };
    let (_, near, _far) = pairs(&adapter, adapter.domain());
    let begun = Instant::now();
    assert!(times_out(&near));
    assert!(begun.elapsed() < Duration::from_secs(30));
}

/// A peer writes continuously, and does not stop when its window is revoked.
///
/// Requirements: MW-050, REV-001.
#[test]
fn no_write_lands_after_window_revocation() {
    const OWNERS: u8 = 200;
    for how in EVERY {
        let Some(mut bench) = bench(how) else { continue };
        let mut memory = vec![0; LEN];
        let region = region(&mut memory);
        let mut landed = 0;
        for round in 1..=12 {
            let window = window(&region, 0, LEN as u64, ALL);
            let grant = bench.grant(&window);
            std::thread::scope(|scope| {
                let storm = scope.spawn(|| (0_u32..).take_while(|_| bench.writes(&grant, round, LEN)).count());
                while bytes_of(&region)[LEN - 1] != round {
                    assert!(!storm.is_finished(), "{how:?}: nothing is written");
                }
                std::thread::sleep(Duration::from_micros(100 * u64::from(round)));
                close(&window);
                // From here on the memory belongs to its owner alone.
                let filled = vec![OWNERS; LEN];
                assert_eq!(region.store(0, crate::local_memory::volatile::View::of(&filled)), Ok(()));
                assert!(storm.join().expect("writes") > 0);
            });
            landed += u32::from(bytes_of(&region) != vec![OWNERS; LEN]);
            bench.again();
        }
        println!("{how:?}: in {landed} of 12 rounds, bytes were written after the end");
        let may_land = how.1 == Extent::Region && bench.checks_registrations_alone();
        assert!(landed == 0 || may_land && landed < 12, "{how:?}: in {landed} rounds");
        bench.grantee.end();
        close(&region);
    }
}
