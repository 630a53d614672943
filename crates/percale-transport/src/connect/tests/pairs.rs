//! Tests of queue pairs on a device. Without a device each test prints the reason and is skipped.

use std::io::{Read, Write};

use super::*;
use crate::connect::handshake::{Handshake, HandshakeEvent};
use crate::connect::pairing::{CROWDED, UNDECIDED};
use crate::verbs::{Adapter, double};
use crate::wire::hello::HelloFlags;
use crate::wire::queue_pair::Offered;

fn adapter() -> Option<Arc<Adapter>> {
    Adapter::open().inspect_err(|why| println!("skipped (RDMA): no verbs here: {why}")).ok()
}

fn verbs(service: &Arc<Service>, adapter: &Arc<Adapter>, (transports, timeout): (Transports, u64)) -> Peer {
    Peer::with(service, |options| {
        options.transports = transports;
        options.verbs = Some(Arc::clone(adapter));
        options.timeouts = ConnectTimeouts::of(Duration::from_secs(timeout));
    })
}

/// A caller that sends a queue pair, receives the acceptor's queue pair, and then sends nothing more.
struct Caller {
    socket: TcpStream,
    handshake: Handshake,
}

impl Caller {
    fn call(number: u8, to: SocketAddr) -> Self {
        let mut hello = handshake::fuzz::hello(number, false);
        hello.flags = HelloFlags::TCP | HelloFlags::VERBS;
        let socket = TcpStream::connect(to).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        Self { socket, handshake: Handshake::new(true, &hello, None) }
    }

    /// Returns the next event.
    fn next_event(&mut self) -> HandshakeEvent {
        loop {
            let output = std::mem::take(self.handshake.output());
            self.socket.write_all(&output).unwrap();
            let mut bytes = vec![0; self.handshake.wants()];
            self.socket.read_exact(&mut bytes).unwrap();
            if let Some(event) = self.handshake.feed(&bytes).unwrap() {
                return event;
            }
        }
    }

    fn pair(&mut self, adapter: &Adapter) -> Offered {
        assert!(matches!(self.next_event(), HandshakeEvent::Verdict(..)));
        self.handshake.offer(&Ok(adapter.end(0x11).unwrap()));
        match self.next_event() {
            HandshakeEvent::Offered(offered) => offered,
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn endpoints_with_devices_connect_by_queue_pairs() {
    let Some(adapter) = adapter() else { return };
    let [one, two] = services();
    let [a, b] = [&one, &two].map(|service| verbs(service, &adapter, (Transports::empty(), 60)));
    a.registration.connect(1, b.address());
    for up in [a.up(), b.up()] {
        assert!(matches!(up.link, EstablishedTransport::Verbs(..)), "{:?}", up.link);
    }
}

/// Requirements: FLT-007.
#[test]
fn undecided_queue_pair_callers_lock_bounded_memory() {
    let Some(adapter) = adapter() else { return };
    let [one, two] = services();
    let b = verbs(&two, &adapter, (Transports::TCP, 600));
    let mut callers: Vec<Caller> = (0..UNDECIDED).map(|number| Caller::call(number as u8 + 1, b.address())).collect();
    for caller in &mut callers {
        assert!(caller.pair(&adapter).is_ok());
    }
    let mut next = Caller::call(200, b.address());
    assert_eq!(next.pair(&adapter), Err(CROWDED), "each has locked memory");
    // A caller that may use TCP continues over TCP before its time is over.
    let a = verbs(&one, &adapter, (Transports::TCP, 4));
    a.registration.connect(1, b.address());
    let up = a.up();
    assert!(matches!(up.link, EstablishedTransport::Tcp(_)), "{:?}", up.link);
    assert!(up.reason.contains("queue pairs"), "{}", up.reason);
    b.up();
    // A caller that may not use TCP tries again until there is room.
    let c = verbs(&one, &adapter, (Transports::empty(), 60));
    c.registration.connect(2, b.address());
    std::thread::sleep(Duration::from_millis(50));
    assert!(!c.mailbox.has_notices(), "{:?}", c.mailbox.take());
    callers.truncate(UNDECIDED - 1);
    assert!(matches!(c.up().link, EstablishedTransport::Verbs(..)));
    b.up();
}

/// The kernel takes a second to search for a port that does not exist. This does not delay any other connection.
///
/// Requirements: FLT-009.
#[test]
fn unreachable_port_does_not_delay_other_connections() {
    let Some(adapter) = adapter() else { return };
    let [one, two] = services();
    let b = verbs(&two, &adapter, (Transports::TCP, 600));
    let mut lost = Caller::call(1, b.address());
    assert!(matches!(lost.next_event(), HandshakeEvent::Verdict(..)));
    // An address in the network of the port that does not belong to any port.
    let mut end = adapter.end(0x11).unwrap();
    end.gid[15] ^= 0x40;
    lost.handshake.offer(&Ok(end));
    let output = std::mem::take(lost.handshake.output());
    lost.socket.write_all(&output).unwrap();
    // Meanwhile other connections are made and closed.
    let a = verbs(&one, &adapter, (Transports::empty(), 60));
    a.registration.connect(1, b.address());
    assert!(matches!(a.up().link, EstablishedTransport::Verbs(..)));
    b.up();
    let reported = lost.next_event();
    println!("answer: {reported:?}");
    assert!(matches!(reported, HandshakeEvent::Offered(_)));
}

/// Both ports are active, but nothing that one sends arrives at the other.
///
/// Requirements: CON-008.
#[test]
fn ports_without_mutual_reachability_are_not_used() {
    double::on("device double0 drop=1", || {
        let adapter = adapter().expect("a device");
        let [one, two] = services();
        let b = verbs(&two, &adapter, (Transports::TCP, 60));
        for attempt in 1..=2 {
            let a = verbs(&one, &adapter, (Transports::TCP, 60));
            a.registration.connect(attempt, b.address());
            for up in [a.up(), b.up()] {
                assert!(matches!(up.link, EstablishedTransport::Tcp(_)), "{:?}", up.link);
                assert!(up.reason.contains("queue pair"), "{}", up.reason);
            }
            let gid = adapter.end(0).unwrap().gid;
            assert!(adapter.was_unreached(gid), "the unreachable address is remembered");
        }
        // If TCP is not allowed, the attempt fails.
        let c = verbs(&two, &adapter, (Transports::empty(), 60));
        let a = verbs(&one, &adapter, (Transports::empty(), 60));
        a.registration.connect(3, c.address());
        let until = Instant::now() + Duration::from_secs(60);
        while !a.mailbox.has_notices() {
            assert!(Instant::now() < until, "the connection is neither established nor failed");
            std::thread::sleep(Duration::from_millis(5));
        }
        let notices = format!("{:?}", a.mailbox.take());
        assert!(!notices.contains("Verbs("), "{notices}");
    });
}
