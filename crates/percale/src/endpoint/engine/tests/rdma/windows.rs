//! Tests of windows that the device binds: accesses through them by RDMA, and their end.

use super::*;
use crate::endpoint::window_work::Bind;
use crate::memory::window::{Window, WindowState};
use crate::region::CloseError;
use crate::region::window::{WindowAccess, WindowType};

const KINDS: [WindowType; 2] = [WindowType::One, WindowType::TwoB];

/// Connects two test endpoints, if their device has windows.
fn with_windows() -> Option<(TestEndpoint, TestEndpoint, PeerAddress)> {
    let (a, b, peer) = connected()?;
    let region = b.domain.register(vec![0; 8], ALL).unwrap();
    reach(&a, &b, peer, &region);
    let how = how(&b, &a);
    if !how.contains("binds") {
        println!("skipped (RDMA windows): the device has no windows: {how}");
        return None;
    }
    Some((a, b, peer))
}

/// Returns the number of windows that the device has currently bound for the initiator, and the total number of binds.
fn bound(a: &TestEndpoint, b: &TestEndpoint) -> (u64, u64) {
    let text = how(b, a);
    (number_before(&text, "windows"), number_before(&text, "binds"))
}

/// Binds a window for the initiator. A window of type 2 gets the same key each time.
fn bind(
    b: &TestEndpoint,
    a: &TestEndpoint,
    window: &mut Window,
    region: &Region,
    range: std::ops::Range<u64>,
) -> RemoteMemory {
    let access = WindowAccess::READ | WindowAccess::WRITE;
    if window.kind() == WindowType::One {
        return window.bind(region, range, access).unwrap();
    }
    b.endpoint.bind_window(b.peer(a), window, region, Bind { range, access, key: 5 }).wait().unwrap()
}

/// Invalidates the key of a window. The initiator makes no progress meanwhile.
fn take_back(b: &TestEndpoint, a: &TestEndpoint, window: &mut Window, region: &Region) {
    if window.kind() == WindowType::One {
        window.bind(region, 0..0, WindowAccess::empty()).unwrap();
    } else {
        b.endpoint.invalidate(b.peer(a), window.key()).wait().unwrap();
    }
    assert_eq!(window.state(), WindowState::Unbound);
}

/// Requirements: MW-017, MW-049.
#[test]
fn windows_are_accessed_by_rdma_while_their_target_makes_no_progress() {
    let Some((a, b, peer)) = with_windows() else { return };
    let mut allocation = b.domain.allocate(LEN).unwrap();
    allocation.write(0, &[7; LEN]);
    let base = u64::MAX - LEN as u64 + 1;
    for memory in [crate::Buffer::from(vec![7; LEN]), crate::Buffer::from(allocation)] {
        let region = b.domain.registration(Access::empty()).base(base).own(memory).unwrap();
        for kind in KINDS {
            let mut window = b.domain.window(kind).unwrap();
            let name = bind(&b, &a, &mut window, &region, 1001..LEN as u64 - 1);
            let before = bound(&a, &b).1;
            reach_part(&a, &b, peer, name.at(0..8));
            assert_eq!(bound(&a, &b), (1, before + 1), "the access was not made by RDMA");
            // From here on only the initiator makes progress.
            for (number, len) in (1..).zip([1, 8, 4095, 4096, 4097, 70_000, name.len]) {
                let part = name.at(name.len - len..name.len);
                write(&a, peer, part, number).unwrap();
                assert_eq!(bytes_of(&region)[LEN - 1 - len as usize..LEN - 1], vec![number; len as usize]);
                assert_eq!(read(&a, peer, part), vec![number; len as usize]);
            }
            let bytes = bytes_of(&region);
            assert!(bytes[1000] == 7 && bytes[LEN - 1] == 7, "outside of the window");
            assert!(window.close().is_ok());
            assert_eq!(bound(&a, &b).0, 0);
        }
        region.close().unwrap();
    }
}

/// Requirements: MW-003, MW-004, MW-005.
#[test]
fn region_with_bound_device_window_is_not_closed() {
    let Some((a, b, peer)) = with_windows() else { return };
    for kind in KINDS {
        let mut window = b.domain.window(kind).unwrap();
        let region = b.domain.register(vec![9; LEN], Access::empty()).unwrap();
        let name = bind(&b, &a, &mut window, &region, 0..8);
        reach_part(&a, &b, peer, name);
        let Err(CloseError::Windows(region)) = region.close() else {
            panic!("the region was closed although a window was bound to it")
        };
        assert_eq!(window.state(), WindowState::Bound(name.key));
        let before = posted(&a, &b);
        assert_eq!((read(&a, peer, name), posted(&a, &b)), (vec![9; 8], before + 1));
        assert!(window.close().is_ok());
        region.close().unwrap();
        let mut late = a.endpoint.read(peer, name, vec![0; 8]).start().unwrap();
        until(&[&a, &b], || late.is_ready().then_some(()));
        assert_eq!(code(late.wait()), ErrorCode::KeyRejected);
    }
}

/// Requirements: MW-021, MW-022, MW-023, MW-048.
#[test]
fn windows_over_one_region_do_not_disturb_each_other() {
    let Some((a, b, peer)) = with_windows() else { return };
    let region = b.domain.register((0..LEN).map(|at| (at / 1000) as u8).collect::<Vec<_>>(), ALL).unwrap();
    let mut windows = [0, 1, 0, 1].map(|kind| b.domain.window(KINDS[kind]).unwrap());
    let mut names = Vec::new();
    for (at, window) in (0..).zip(&mut windows) {
        names.push(bind(&b, &a, window, &region, 1000 * at..1000 * at + 3000));
        reach_part(&a, &b, peer, names[at as usize].at(0..8));
    }
    reach(&a, &b, peer, &region);
    assert_eq!(bound(&a, &b).0, 4);
    for (at, window) in windows.iter_mut().enumerate() {
        take_back(&b, &a, window, &region);
        // Only the initiator makes progress, and no queue pair broke.
        let before = posted(&a, &b);
        let left = &names[at + 1..];
        for name in left {
            let start = (name.address / 1000) as u8;
            assert_eq!(read(&a, peer, *name)[..1001], [&[start; 1000][..], &[start + 1]].concat());
        }
        assert_eq!(read(&a, peer, region.remote())[..8], [0; 8]);
        assert_eq!(posted(&a, &b) - before, left.len() as u64 + 1);
    }
    region.close().unwrap();
}

/// Requirements: MW-029, MW-037, MW-043, REV-001.
#[test]
fn late_accesses_through_windows_are_refused() {
    let Some((a, b, peer)) = with_windows() else { return };
    let other = b.domain.register(vec![0; LEN], ALL).unwrap();
    let mut windows = KINDS.map(|kind| b.domain.window(kind).unwrap());
    for round in 1..=4_u8 {
        let window = &mut windows[usize::from(round) % 2];
        let region = b.domain.register(vec![round; LEN], Access::empty()).unwrap();
        let name = bind(&b, &a, window, &region, 0..LEN as u64);
        reach(&a, &b, peer, &other);
        reach_part(&a, &b, peer, name.at(0..8));
        // The initiator is not notified.
        take_back(&b, &a, window, &region);
        late_accesses(&a, &b, peer, &other, name, round);
        assert_eq!(region.close().unwrap().into_vec(), vec![round; LEN], "a late write");
    }
    // The same type 2 key refers to other memory, with another key of the device.
    let region = b.domain.register(vec![1; LEN], Access::empty()).unwrap();
    let name = bind(&b, &a, &mut windows[1], &region, 0..8);
    reach_part(&a, &b, peer, name);
    take_back(&b, &a, &mut windows[1], &region);
    let elsewhere = b.domain.register(vec![2; LEN], Access::empty()).unwrap();
    let mut late = a.endpoint.write(peer, vec![99; 8], name).start().unwrap();
    let again = bind(&b, &a, &mut windows[1], &elsewhere, 100..108);
    assert_eq!(again.key, name.key);
    until(&[&a, &b], || late.is_ready().then_some(()));
    // The access is outside of the memory that is bound now, or it arrived before the bind.
    assert!(matches!(code(late.wait()), ErrorCode::KeyRejected | ErrorCode::Denied));
    reach_part(&a, &b, peer, again);
    assert_eq!((bytes_of(&region), bytes_of(&elsewhere)), (vec![1; LEN], vec![2; LEN]));
}

/// Requirements: MW-044, MW-050.
#[test]
fn no_rdma_write_lands_after_window_revocation() {
    let Some((mut a, b, peer)) = with_windows() else { return };
    let mut region = b.domain.register(vec![0; LEN], Access::empty()).unwrap();
    let mut windows = KINDS.map(|kind| b.domain.window(kind).unwrap());
    for round in 1..=16 {
        let window = &mut windows[usize::from(round) % 2];
        let name = bind(&b, &a, window, &region, 0..LEN as u64);
        reach_part(&a, &b, peer, name.at(0..8));
        let over = Arc::new(AtomicBool::new(false));
        let (storming, me) = (Arc::clone(&over), b.peer(&a));
        let storm = std::thread::spawn(move || {
            let refused = storm(&a, peer, name, round, &storming);
            (a, refused)
        });
        until_written(&region, round, &storm);
        if window.kind() == WindowType::One {
            window.bind(&region, 0..0, WindowAccess::empty()).unwrap();
        } else {
            b.endpoint.invalidate(me, window.key()).wait().unwrap();
        }
        // From here on only the owner may access the memory.
        region.write(0, &[200; LEN]);
        std::thread::sleep(Duration::from_millis(5));
        assert!(bytes_of(&region) == vec![200; LEN], "written after the invalidation");
        over.store(true, Ordering::Relaxed);
        until(&[&b], || storm.is_finished().then_some(()));
        let refused;
        (a, refused) = storm.join().unwrap();
        assert!(refused > 0 && bytes_of(&region) == vec![200; LEN], "written after the invalidation");
    }
    println!("{}", how(&b, &a));
}

/// Requirements: MW-045, MW-046, MW-047.
#[test]
fn message_invalidates_a_device_window() {
    let Some((a, b, peer)) = with_windows() else { return };
    let region = b.domain.register(vec![1; LEN], Access::empty()).unwrap();
    let mut window = b.domain.window(WindowType::TwoB).unwrap();
    for round in 1..=3 {
        let name = bind(&b, &a, &mut window, &region, 0..LEN as u64);
        reach_part(&a, &b, peer, name.at(0..8));
        let mut receive = b.endpoint.recv(vec![0; 8]).start().unwrap();
        let mut write = a.endpoint.write(peer, vec![round; LEN], name).start().unwrap();
        let mut send = a.endpoint.send(peer, vec![1; 8]).invalidating(name.key).start().unwrap();
        until(&[&a, &b], || (receive.is_ready() && send.is_ready() && write.is_ready()).then_some(()));
        write.wait().unwrap();
        send.wait().unwrap();
        receive.wait().unwrap();
        assert_eq!((window.state(), bound(&a, &b).0), (WindowState::Unbound, 0));
        assert!(bytes_of(&region) == vec![round; LEN], "the write before it");
        let mut late = a.endpoint.write(peer, vec![99; 8], name.at(0..8)).start().unwrap();
        until(&[&a, &b], || late.is_ready().then_some(()));
        assert_eq!(code(late.wait()), ErrorCode::KeyRejected);
        // A second message does not reach the device.
        let mut again = a.endpoint.send(peer, vec![1; 8]).invalidating(name.key).start().unwrap();
        until(&[&a, &b], || again.is_ready().then_some(()));
        assert_eq!(code(again.wait()), ErrorCode::KeyRejected);
        assert!(bytes_of(&region) == vec![round; LEN]);
    }
}

/// Requirements: MW-038, MW-040, MW-041.
#[test]
fn type_2_window_is_bound_to_its_peer_and_endpoint() {
    let Some((a, b, peer)) = with_windows() else { return };
    let c = TestEndpoint::new("verbs");
    let other = connect(&c, &b);
    let region = b.domain.register(vec![1; LEN], Access::empty()).unwrap();
    let (mut one, mut two) = (b.domain.window(KINDS[0]).unwrap(), b.domain.window(KINDS[1]).unwrap());
    let (all, ours) = (bind(&b, &a, &mut one, &region, 0..8), bind(&b, &a, &mut two, &region, 8..16));
    reach_part(&c, &b, other, all);
    reach_part(&a, &b, peer, all);
    reach_part(&a, &b, peer, ours);
    assert_eq!((bound(&a, &b).0, bound(&c, &b).0), (2, 1));
    let mut foreign = c.endpoint.read(other, ours, vec![0; 8]).start().unwrap();
    until(&[&c, &b], || foreign.is_ready().then_some(()));
    assert_eq!(code(foreign.wait()), ErrorCode::KeyRejected);
    let TestEndpoint { endpoint, .. } = b;
    let begun = Instant::now();
    endpoint.close().expect("a 2B window does not keep the endpoint open");
    assert!(begun.elapsed() < Duration::from_secs(25), "the device stalls: {:?}", begun.elapsed());
    assert_eq!((two.state(), one.state()), (WindowState::Unbound, WindowState::Bound(all.key)));
    assert!(one.close().is_ok());
    region.close().unwrap();
}

/// Requirements: FLT-001, MW-044.
#[test]
fn queue_pair_error_releases_its_windows() {
    let Some((a, b, _)) = with_windows() else { return };
    for kind in KINDS {
        let region = b.domain.register(vec![1; LEN], Access::empty()).unwrap();
        let mut window = b.domain.window(kind).unwrap();
        let name = bind(&b, &a, &mut window, &region, 0..LEN as u64);
        let peer = a.peer(&b);
        reach_part(&a, &b, peer, name.at(0..8));
        let slot = b.slot(&a);
        b.engine(|engine| match &engine.links[slot as usize] {
            Some(AnyLink::Verbs(link)) => link.fail_granted(),
            other => panic!("{other:?}"),
        });
        let begun = Instant::now();
        take_back(&b, &a, &mut window, &region);
        assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
        let memory = region.close().unwrap().into_vec();
        // It is unknown whether the access was made. Its window no longer exists, so it may be made again.
        let mut late = a.endpoint.write(peer, vec![99; 8], name.at(0..8)).start().unwrap();
        until(&[&a, &b], || late.is_ready().then_some(()));
        assert_eq!(code(late.wait()), ErrorCode::KeyRejected);
        assert_eq!(memory, vec![1; LEN]);
        let region = b.domain.register(vec![2; LEN], Access::empty()).unwrap();
        let name = bind(&b, &a, &mut window, &region, 0..8);
        reach_part(&a, &b, peer, name);
        take_back(&b, &a, &mut window, &region);
        assert!(a.ended().is_none() && b.ended().is_none(), "the connection ended with the queue pair for accesses");
    }
}

/// Requirements: FLT-001.
#[test]
fn queue_pair_error_at_target_keeps_the_connection() {
    let Some((a, b, peer)) = with_windows() else { return };
    let ours = b.domain.register(vec![0; LEN], ALL).unwrap();
    let under = b.domain.register(vec![1; LEN], Access::empty()).unwrap();
    for (kind, lost) in [(KINDS[0], false), (KINDS[1], false), (KINDS[0], true), (KINDS[1], true)] {
        let mut window = b.domain.window(kind).unwrap();
        let name = bind(&b, &a, &mut window, &under, 0..8);
        reach_part(&a, &b, peer, name);
        reach(&a, &b, peer, &ours);
        let slot = b.slot(&a);
        b.engine(|engine| match &engine.links[slot as usize] {
            Some(AnyLink::Verbs(link)) => link.fail_granted(),
            other => panic!("{other:?}"),
        });
        let part = ours.remote().at(0..8);
        // These operations are under way when the failure is reported: the read is made again, and the write was
        // perhaps made.
        let read = a.endpoint.read(peer, part, vec![7; 8]).start().unwrap();
        let write = lost.then(|| a.endpoint.write(peer, vec![9; 8], part).start().unwrap());
        let behind = lost.then(|| a.endpoint.read(peer, part, vec![7; 8]).start().unwrap());
        take_back(&b, &a, &mut window, &under);
        for mut read in [Some(read), behind].into_iter().flatten() {
            until(&[&a, &b], || read.is_ready().then_some(()));
            assert_eq!(read.wait().unwrap().into_vec(), [0; 8]);
        }
        if let Some(mut write) = write {
            until(&[&a, &b], || write.is_ready().then_some(()));
            assert_eq!(code(write.wait()), ErrorCode::TimedOut);
        }
        assert_eq!(bytes_of(&ours)[..8], [0; 8]);
        // The next access uses another window.
        let before = bound(&a, &b).1;
        reach(&a, &b, peer, &ours);
        let mut write = a.endpoint.write(peer, vec![0; 8], part).start().unwrap();
        until(&[&a, &b], || write.is_ready().then_some(()));
        write.wait().unwrap();
        let name = bind(&b, &a, &mut window, &under, 0..8);
        reach_part(&a, &b, peer, name);
        assert_eq!(bound(&a, &b), (1, before + 1));
        assert!(window.close().is_ok());
        assert!(a.ended().is_none() && b.ended().is_none(), "{kind:?}: the connection ended");
    }
}
