//! Tests of the doorbell: which sleeping endpoints are woken up, by which method, and how often.

use super::*;

#[test]
fn every_bit_that_is_rung_is_taken_once() {
    let bell = Bell::new().unwrap();
    let peer = |bit| {
        let event = rustix::io::dup(bell.event_fd()).unwrap();
        PeerBell::of(PeerBell::map(bell.descriptors().unwrap()[0]).unwrap(), event, bit)
    };
    for bit in [0, 63, 64, 1023, BELL_BITS - 1] {
        peer(bit).notify(true);
    }
    peer(7).notify(false);
    let mut rung = Vec::new();
    assert!(bell.is_rung());
    assert_eq!(bell.take_rung(|bit| rung.push(bit)), 5);
    assert_eq!(rung, [0, 63, 64, 1023, BELL_BITS - 1]);
    assert!(!bell.is_rung());
    assert_eq!(bell.take_rung(|_| ()), 0);
}

#[test]
fn only_a_sleeper_is_woken_and_only_once() {
    let bell = Bell::new().unwrap();
    let count = || {
        let mut count = [0; 8];
        rustix::io::read(bell.event_fd(), &mut count).map(|_| u64::from_ne_bytes(count))
    };
    bell.wake();
    assert_eq!(count(), Err(Errno::AGAIN));
    bell.arm(Rouse::Event);
    bell.wake();
    bell.ring(3);
    assert_eq!(count(), Ok(1));
    assert_eq!(count(), Err(Errno::AGAIN));
    bell.arm(Rouse::Event);
    bell.disarm();
    bell.wake();
    assert_eq!(count(), Err(Errno::AGAIN));
    bell.arm(Rouse::Word);
    bell.wake();
    assert_eq!(count(), Err(Errno::AGAIN), "nobody waits for the event");
    bell.arm(Rouse::Both);
    bell.wake();
    assert_eq!(count(), Ok(1));
}

/// A peer that clears the page's mark without waking up the endpoint does not suppress wake-ups by the endpoint's own
/// threads.
#[test]
fn own_threads_wake_the_endpoint_regardless_of_the_page() {
    let bell = Bell::new().unwrap();
    let count = || {
        let mut count = [0; 8];
        rustix::io::read(bell.event_fd(), &mut count).map(|_| u64::from_ne_bytes(count))
    };
    for rings in [|bell: &Bell| bell.wake(), |bell: &Bell| bell.ring(3)] {
        for scribbled in [0, Rouse::Word.bits()] {
            bell.arm(Rouse::Event);
            bell.mapped.page().sleeper.asleep.store(scribbled, Ordering::SeqCst);
            rings(&bell);
            assert_eq!(count(), Ok(1));
            assert!(!bell.mapped.page().is_asleep(), "peers need not ring");
        }
        rings(&bell);
        assert_eq!(count(), Err(Errno::AGAIN), "it is awake");
    }
}

/// A peer shares the descriptor's flags. If it clears the non-blocking flag, neither the thread that wakes up the
/// endpoint nor the thread that drains the descriptor blocks.
#[test]
fn event_flags_changed_by_a_peer_do_not_block_threads() {
    let (says, done) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let bell = Bell::new().unwrap();
        rustix::fs::fcntl_setfl(bell.event_fd(), rustix::fs::OFlags::empty()).unwrap();
        bell.drain();
        bell.arm(Rouse::Event);
        bell.wake();
        bell.drain();
        // The same with a full counter.
        rustix::io::write(bell.event_fd(), &(u64::MAX - 1).to_ne_bytes()).unwrap();
        bell.arm(Rouse::Event);
        bell.wake();
        let mut count = [0; 8];
        rustix::io::read(bell.event_fd(), &mut count).unwrap();
        says.send(u64::from_ne_bytes(count)).unwrap();
    });
    assert_eq!(done.recv_timeout(LONG), Ok(u64::MAX - 1));
}

/// A time longer than these tests take.
const LONG: Duration = Duration::from_secs(60);

#[test]
fn sleeper_on_the_word_is_woken() {
    let bell = Bell::new().unwrap();
    let event = rustix::io::dup(bell.event_fd()).unwrap();
    let peer = PeerBell::of(PeerBell::map(bell.descriptors().unwrap()[0]).unwrap(), event, 1);
    let since = std::time::Instant::now();
    for rouse in [Rouse::Word, Rouse::Both] {
        bell.arm(rouse);
        std::thread::scope(|threads| {
            let sleeps = || {
                while bell.mapped.page().is_asleep() {
                    bell.sleep(rouse, LONG);
                }
                std::time::Instant::now()
            };
            let sleepers = [(), ()].map(|()| threads.spawn(sleeps));
            std::thread::sleep(Duration::from_millis(20));
            let wakes = std::time::Instant::now();
            peer.notify(true);
            for sleeper in sleepers {
                assert!(sleeper.join().unwrap() >= wakes, "it did not sleep");
            }
        });
        // A wake-up that happened before the sleep ends the sleep at once.
        bell.arm(rouse);
        peer.notify(true);
        bell.sleep(rouse, LONG);
        bell.arm(rouse);
        let sleeps = std::time::Instant::now();
        while sleeps.elapsed() < Duration::from_millis(1) {
            bell.sleep(rouse, Duration::from_millis(1));
            assert!(peer.is_asleep(), "nobody woke it");
        }
        bell.disarm();
    }
    assert!(since.elapsed() < LONG);
}

#[test]
fn unknown_page_bits_still_wake_a_sleeper() {
    assert_eq!(Rouse::of(0), None);
    for rouse in [Rouse::Event, Rouse::Word, Rouse::Both] {
        assert_eq!(Rouse::of(rouse.bits()), Some(rouse));
    }
    assert_eq!(Rouse::of(4), Some(Rouse::Event));
    assert_eq!(Rouse::of(u32::MAX), Some(Rouse::Both));
}
