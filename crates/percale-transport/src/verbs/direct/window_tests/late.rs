//! Tests of late answers, of peers that invalidate another peer's windows, and of failing requests. They use the double
//! of libibverbs.

use super::super::super::double;
use super::super::super::tests::sides;
use super::*;

/// Creates a bench for another peer on the same device.
fn other(bench: &Bench, using: WindowUse) -> Bench {
    let domain = ProtectionDomain::new(bench.adapter.domain().context()).expect("a protection domain");
    let grantee = Arc::new(VerbsGrantee::new(domain, Some(using)));
    let (queue, near, far) = pairs(&bench.adapter, grantee.domain());
    assert!(grantee.change_pair(Some(far)).is_none());
    Bench { adapter: Arc::clone(&bench.adapter), grantee, queue, near }
}

/// The number of a grant that has ended does not affect the next grant in its slot, in any state of that grant.
///
/// Requirements: REV-001.
#[test]
fn stale_grant_number_does_not_affect_the_next_grant() {
    const TAKES: Duration = Duration::from_millis(500);
    double::on("device double0; delay double0 invalidate 500", || {
        for how in [(WindowKind::Two, Extent::Region), (WindowKind::Two, Extent::Window)] {
            let bench = bench(how).expect("a device");
            let mut memory = vec![0; LEN];
            let region = region(&mut memory);
            let first = window(&region, 0, 100, ALL);
            let number = bench.grant(&first).number;
            close(&first);
            assert_eq!(bench.grantee.take_changes().0.len(), 1);
            bench.grantee.forgotten(number).expect("the peer was notified");
            bench.grantee.forgotten(number).expect("a repeated confirmation is ignored");
            let second = window(&region, 100, 100, ALL);
            let next = bench.grant(&second);
            assert_ne!(next.number, number);
            assert_eq!(
                next.number as usize % WIRE_SLOTS,
                number as usize % WIRE_SLOTS,
                "{how:?}: the grants use different slots"
            );
            let late: &dyn Grantee = &*bench.grantee;
            let has_retired =
                |number| late.has_retired(number, crate::local_memory::rundown::AnnouncementLine::default().snapshot());
            // The next grant is in use.
            bench.grantee.forgotten(number).expect("a repeated confirmation is ignored");
            late.revoke(number);
            assert!(has_retired(number) && bench.writes(&next, 1, 100), "{how:?}: the next grant was revoked");
            // The device has not unbound the window of the next grant yet.
            let begun = Instant::now();
            let mut revocation = Revocation::start(Arc::clone(&second));
            let answer = has_retired(number);
            if begun.elapsed() < TAKES {
                assert!(answer, "{how:?}: the answer was for the next grant");
            }
            // The device has unbound the window, but the owner has not polled.
            std::thread::sleep(2 * TAKES);
            assert!(has_retired(number));
            late.revoke(number);
            assert!(!bench.grantee.has_changes(), "{how:?}: the completion was attributed to another grant");
            assert!(revocation.wait(Some(DEVICE_TIMEOUT)));
            // The peer has not confirmed yet that the grant is unused.
            assert_eq!(bench.grantee.take_changes().0, [(next.number, 7)]);
            bench.grantee.forgotten(number).expect("a repeated confirmation is ignored");
            let third = window(&region, 200, 100, ALL);
            let LocateAnswer::Granted(last) = bench.grantee.grant(&third) else {
                panic!("{how:?}: the completion was lost, and the peer gets no windows")
            };
            assert_ne!(
                last.number as usize % WIRE_SLOTS,
                number as usize % WIRE_SLOTS,
                "{how:?}: the slot was freed too early"
            );
            assert!(bench.writes(&last, 1, 100));
            bench.grantee.end();
            close(&third);
            close(&region);
        }
    });
}

/// The key of a grant is not given to another one before the peer has confirmed the end of the grant, also while the
/// device unbinds its window.
///
/// Requirements: REV-001.
#[test]
fn key_stays_in_use_while_its_window_is_unbound() {
    double::on("device double0; delay double0 invalidate 500", || {
        for how in [(WindowKind::Two, Extent::Region), (WindowKind::Two, Extent::Window)] {
            let bench = bench(how).expect("a device");
            let mut memory = vec![0; LEN];
            let region = region(&mut memory);
            let part = window(&region, 0, 100, ALL);
            let AccessGrant { number, remote_key, .. } = bench.grant(&part);
            assert!(!bench.grantee.was_used(remote_key));
            let mut revocation = Revocation::start(Arc::clone(&part));
            assert!(bench.grantee.was_used(remote_key), "{how:?}: the device unbinds the window");
            assert!(revocation.wait(Some(DEVICE_TIMEOUT)));
            assert!(bench.grantee.was_used(remote_key), "{how:?}: the peer may use the key");
            assert_eq!(bench.grantee.take_changes().0, [(number, 7)]);
            bench.grantee.forgotten(number).expect("the peer was notified");
            assert!(!bench.grantee.was_used(remote_key));
            bench.grantee.end();
            close(&region);
        }
    });
}

/// A failing request disables windows for one peer for a while.
///
/// Requirements: FLT-002.
#[test]
fn failed_request_disables_windows_of_its_peer_only() {
    double::on("device double0 windows=6", || {
        let adapter = adapter().expect("a device");
        let using = *adapter.windows().expect("the device has windows");
        let mut bench = bench((using.kind, using.extent)).expect("a device");
        let mut memory = vec![0; LEN];
        let region = region(&mut memory);
        let one = window(&region, 0, 100, ALL);
        bench.grant(&one);
        double::tell("fail double0 invalidate 1 status 6");
        close(&one);
        let two = window(&region, 100, 100, ALL);
        assert_eq!(bench.grantee.grant(&two), LocateAnswer::Executed, "the device has failed");
        let second = other(&bench, using);
        assert!(second.writes(&second.grant(&two), 3, 100), "the windows of another peer still work");
        // With another queue pair, the first peer gets windows again after a while.
        bench.again();
        let until = Instant::now() + DEVICE_TIMEOUT;
        while bench.grantee.grant(&two) == LocateAnswer::Executed {
            assert!(Instant::now() < until, "the peer gets no windows again");
            std::thread::sleep(Duration::from_millis(20));
        }
        assert!(bench.writes(&bench.grant(&two), 4, 100));
        bench.grantee.end();
        second.grantee.end();
        close(&two);
        close(&region);
    });
}

/// Soft-RoCE executes an invalidation by any peer's message for any window of type 2.
///
/// Requirements: MW-044.
#[test]
fn peer_cannot_invalidate_windows_of_another_peer() {
    double::on("device double0 vendor=16777215 lax=1", || {
        let adapter = adapter().expect("a device");
        let using = *adapter.windows().expect("the device has windows");
        let bench = bench((using.kind, using.extent)).expect("a device");
        let mut memory = vec![0; LEN];
        let region = region(&mut memory);
        let whole = window(&region, 0, 100, ALL);
        let grant = bench.grant(&whole);
        assert!(bench.writes(&grant, 1, 100));
        let (peer, ours) = sides(&bench.adapter);
        double::post_invalidating(&peer.pair, 5, grant.remote_key).expect("the operation is posted");
        println!("peer: {:?}, this side: {:?}", peer.next(), ours.next());
        assert!(bench.writes(&grant, 2, 100), "the window was invalidated by another peer");
        close(&whole);
        bench.grantee.end();
        close(&region);
    });
}
