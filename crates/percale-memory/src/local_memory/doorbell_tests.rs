//! Tests of the doorbell: which sleeping endpoints are woken up, by which method, and how often.

use super::*;

#[test]
fn every_bit_that_is_rung_is_taken_once() {
    let doorbell = Doorbell::new().unwrap();
    let peer = |bit| {
        let event = rustix::io::dup(doorbell.event_fd()).unwrap();
        PeerDoorbell::of(PeerDoorbell::map(doorbell.descriptors().unwrap()[0]).unwrap(), event, bit)
    };
    for bit in [0, 63, 64, 1023, DOORBELL_BITS - 1] {
        peer(bit).notify(true);
    }
    peer(7).notify(false);
    let mut rung = Vec::new();
    assert!(doorbell.is_rung());
    assert_eq!(doorbell.take_rung(|bit| rung.push(bit)), 5);
    assert_eq!(rung, [0, 63, 64, 1023, DOORBELL_BITS - 1]);
    assert!(!doorbell.is_rung());
    assert_eq!(doorbell.take_rung(|_| ()), 0);
}

#[test]
fn only_a_sleeper_is_woken_and_only_once() {
    let doorbell = Doorbell::new().unwrap();
    let count = || {
        let mut count = [0; 8];
        rustix::io::read(doorbell.event_fd(), &mut count).map(|_| u64::from_ne_bytes(count))
    };
    doorbell.wake();
    assert_eq!(count(), Err(Errno::AGAIN));
    doorbell.arm(WakeMethod::Event);
    doorbell.wake();
    doorbell.ring(3);
    assert_eq!(count(), Ok(1));
    assert_eq!(count(), Err(Errno::AGAIN));
    doorbell.arm(WakeMethod::Event);
    doorbell.disarm();
    doorbell.wake();
    assert_eq!(count(), Err(Errno::AGAIN));
    doorbell.arm(WakeMethod::Word);
    doorbell.wake();
    assert_eq!(count(), Err(Errno::AGAIN), "no thread waits for the event");
    doorbell.arm(WakeMethod::Both);
    doorbell.wake();
    assert_eq!(count(), Ok(1));
}

/// A peer that clears the page's mark without waking up the endpoint does not suppress wake-ups by the endpoint's own
/// threads.
#[test]
fn own_threads_wake_the_endpoint_regardless_of_the_page() {
    let doorbell = Doorbell::new().unwrap();
    let count = || {
        let mut count = [0; 8];
        rustix::io::read(doorbell.event_fd(), &mut count).map(|_| u64::from_ne_bytes(count))
    };
    for rings in [|doorbell: &Doorbell| doorbell.wake(), |doorbell: &Doorbell| doorbell.ring(3)] {
        for scribbled in [0, WakeMethod::Word.bits()] {
            doorbell.arm(WakeMethod::Event);
            doorbell.mapped.page().sleeper.asleep.store(scribbled, Ordering::SeqCst);
            rings(&doorbell);
            assert_eq!(count(), Ok(1));
            assert!(!doorbell.mapped.page().is_asleep(), "the doorbell is no longer asleep");
        }
        rings(&doorbell);
        assert_eq!(count(), Err(Errno::AGAIN), "an awake doorbell gets no event");
    }
}

/// A peer shares the descriptor's flags. If it clears the non-blocking flag, neither the thread that wakes up the
/// endpoint nor the thread that drains the descriptor blocks.
#[test]
fn event_flags_changed_by_a_peer_do_not_block_threads() {
    let (says, done) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let doorbell = Doorbell::new().unwrap();
        rustix::fs::fcntl_setfl(doorbell.event_fd(), rustix::fs::OFlags::empty()).unwrap();
        doorbell.drain();
        doorbell.arm(WakeMethod::Event);
        doorbell.wake();
        doorbell.drain();
        // The same with a full counter.
        rustix::io::write(doorbell.event_fd(), &(u64::MAX - 1).to_ne_bytes()).unwrap();
        doorbell.arm(WakeMethod::Event);
        doorbell.wake();
        let mut count = [0; 8];
        rustix::io::read(doorbell.event_fd(), &mut count).unwrap();
        says.send(u64::from_ne_bytes(count)).unwrap();
    });
    assert_eq!(done.recv_timeout(LONG), Ok(u64::MAX - 1));
}

/// A time longer than these tests take.
const LONG: Duration = Duration::from_secs(60);

#[test]
fn sleeper_on_the_word_is_woken() {
    let doorbell = Doorbell::new().unwrap();
    let event = rustix::io::dup(doorbell.event_fd()).unwrap();
    let peer = PeerDoorbell::of(PeerDoorbell::map(doorbell.descriptors().unwrap()[0]).unwrap(), event, 1);
    let since = std::time::Instant::now();
    for wake_method in [WakeMethod::Word, WakeMethod::Both] {
        doorbell.arm(wake_method);
        std::thread::scope(|threads| {
            let sleeps = || {
                while doorbell.mapped.page().is_asleep() {
                    doorbell.sleep(wake_method, LONG);
                }
                std::time::Instant::now()
            };
            let sleepers = [(), ()].map(|()| threads.spawn(sleeps));
            std::thread::sleep(Duration::from_millis(20));
            let wakes = std::time::Instant::now();
            peer.notify(true);
            for sleeper in sleepers {
                assert!(sleeper.join().unwrap() >= wakes, "the sleeper returned before the notification");
            }
        });
        // A wake-up that happened before the sleep ends the sleep at once.
        doorbell.arm(wake_method);
        peer.notify(true);
        doorbell.sleep(wake_method, LONG);
        doorbell.arm(wake_method);
        let sleeps = std::time::Instant::now();
        while sleeps.elapsed() < Duration::from_millis(1) {
            doorbell.sleep(wake_method, Duration::from_millis(1));
            assert!(peer.is_asleep(), "the doorbell is still asleep");
        }
        doorbell.disarm();
    }
    assert!(since.elapsed() < LONG);
}

#[test]
fn unknown_page_bits_still_wake_a_sleeper() {
    assert_eq!(WakeMethod::of(0), None);
    for wake_method in [WakeMethod::Event, WakeMethod::Word, WakeMethod::Both] {
        assert_eq!(WakeMethod::of(wake_method.bits()), Some(wake_method));
    }
    assert_eq!(WakeMethod::of(4), Some(WakeMethod::Event));
    assert_eq!(WakeMethod::of(u32::MAX), Some(WakeMethod::Both));
}
