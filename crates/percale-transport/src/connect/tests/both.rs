//! Tests of several connections between two endpoints: several addresses of one peer, second attempts, new
//! incarnations, and simultaneous calls.

use std::collections::HashMap;

use super::*;

#[test]
fn connecting_to_self_or_another_peer_address_is_an_alias() {
    let [one, two] = services();
    let any = |service| Peer::with(service, |options| options.bind = "0.0.0.0:0".parse().unwrap());
    let (a, b) = (any(&one), any(&two));
    a.registration.connect(1, SocketAddr::new("127.0.0.1".parse().unwrap(), a.address().port()));
    let ServiceNotice::Aliased { attempt: 1, incarnation } = a.one() else { panic!() };
    assert_eq!(incarnation, a.registration.incarnation());
    assert!(!b.address().ip().is_unspecified());

    let names =
        ["127.0.0.1", "127.0.0.2", "127.0.0.3"].map(|ip| SocketAddr::new(ip.parse().unwrap(), b.address().port()));
    a.registration.connect(2, names[0]);
    let up = a.up();
    assert_eq!(up.identity.address, b.address());
    a.registration.connect(3, names[1]);
    let ServiceNotice::Aliased { attempt: 3, incarnation } = a.one() else { panic!() };
    assert_eq!(incarnation, b.registration.incarnation());
    // All are started at once. One becomes the connection, and the others become its aliases.
    let c = any(&one);
    (0..30).for_each(|n| c.registration.connect(n, names[n as usize % 3]));
    let mut notices = Vec::new();
    while notices.len() < 30 {
        notices.extend(c.wait());
    }
    let up =
        notices.iter().filter(|notice| matches!(notice, ServiceNotice::Established { attempt: Some(_), .. })).count();
    let aliased = notices.iter().filter(|notice| matches!(notice, ServiceNotice::Aliased { .. })).count();
    assert_eq!((up, aliased), (1, 29), "{notices:?}");
}

#[test]
fn connection_lost_on_one_side_is_reestablished() {
    let [one, two] = services();
    let (a, b) = (Peer::tcp(&one), Peer::tcp(&two));
    a.registration.connect(1, b.address());
    let (old_a, old_b) = (a.up(), b.up());
    // The end of the connection is not reported to b immediately.
    a.registration.closed(old_a.serial);
    a.registration.connect(2, b.address());
    assert_eq!(a.up().attempt, Some(2));
    let mut notices = b.wait();
    while notices.len() < 2 {
        notices.extend(b.wait());
    }
    assert!(matches!(&notices[0], ServiceNotice::Dead { serial, .. } if *serial == old_b.serial), "{notices:?}");
    assert!(matches!(&notices[1], ServiceNotice::Established { .. }), "{notices:?}");
}

#[test]
fn unrelated_caller_cannot_end_a_shared_memory_connection() {
    let [one, two] = services();
    let (a, b) = (Peer::shm(&one), Peer::shm(&two));
    a.registration.connect(1, b.address());
    let (up_a, up_b) = (a.up(), b.up());
    assert!(matches!(up_a.link, EstablishedTransport::Shm(_)));
    // The third party uses the peer's incarnation, receives the connection's token, and claims to have lost the
    // connection.
    let stranger = Peer::with(&two, |options| {
        options.incarnation = b.registration.incarnation();
        options.timeouts = ConnectTimeouts::of(Duration::from_millis(600));
        options.transports = Transports::TCP;
    });
    stranger.registration.connect(1, a.address());
    assert!(matches!(stranger.error(), ConnectError::Timeout { .. }));
    assert!(a.mailbox.take().is_empty(), "the connection was closed");
    // The peer itself can replace the connection: it closes its end.
    b.registration.closed(up_b.serial);
    drop(up_b.link);
    b.registration.connect(2, a.address());
    assert_eq!(b.up().attempt, Some(2));
    let mut notices = a.wait();
    while notices.len() < 2 {
        notices.extend(a.wait());
    }
    assert!(matches!(&notices[0], ServiceNotice::Dead { serial, .. } if *serial == up_a.serial), "{notices:?}");
    assert!(matches!(&notices[1], ServiceNotice::Established { .. }), "{notices:?}");
}

#[test]
fn another_incarnation_at_an_address_replaces_the_first() {
    let [one, two] = services();
    let (a, b) = (Peer::tcp(&one), Peer::tcp(&two));
    a.registration.connect(1, b.address());
    let old = a.up();
    let address = b.address();
    drop(b.registration);
    let again = Peer::with(&two, |options| (options.bind, options.transports) = (address, Transports::TCP));
    a.registration.connect(2, address);
    let mut notices = a.wait();
    while notices.len() < 2 {
        notices.extend(a.wait());
    }
    let ServiceNotice::Replaced { serial, new, .. } = &notices[0] else { panic!("{notices:?}") };
    assert_eq!((*serial, *new), (old.serial, again.registration.incarnation()));
    assert!(matches!(&notices[1], ServiceNotice::Established { attempt: Some(2), .. }), "{notices:?}");
}

/// Each peer of `left` and each peer of `right` call each other at the same time.
fn settle(left: &[Peer], right: &[Peer]) {
    for (i, a) in left.iter().enumerate() {
        for (j, b) in right.iter().enumerate() {
            a.registration.connect(j as u64, b.address());
            b.registration.connect(i as u64, a.address());
        }
    }
    let mut links = HashMap::new();
    for (peers, others) in [(left, right), (right, left)] {
        for peer in peers {
            let mut answered = vec![0; others.len()];
            let mut established = HashMap::new();
            let deadline = Instant::now() + Duration::from_secs(60);
            while answered.iter().sum::<usize>() < others.len() || established.len() < others.len() {
                assert!(Instant::now() < deadline);
                for notice in peer.wait() {
                    match notice {
                        ServiceNotice::Established { attempt, identity, link, .. } => {
                            attempt.into_iter().for_each(|attempt| answered[attempt as usize] += 1);
                            assert!(established.insert(identity.incarnation, link).is_none(), "two links");
                        }
                        ServiceNotice::Aliased { attempt, incarnation } => {
                            answered[attempt as usize] += 1;
                            assert_eq!(incarnation, others[attempt as usize].registration.incarnation());
                        }
                        other => panic!("{other:?}"),
                    }
                }
            }
            assert!(answered.iter().all(|count| *count == 1));
            let own = peer.registration.incarnation();
            links.extend(established.into_iter().map(|(other, link)| ((own, other), link)));
        }
    }
    for a in left {
        for b in right {
            let (a, b) = (a.registration.incarnation(), b.registration.incarnation());
            let [one, two] = [(a, b), (b, a)].map(|pair| links.remove(&pair).expect("a link on both sides"));
            match (one, two) {
                (EstablishedTransport::Shm(one), EstablishedTransport::Shm(two)) => {
                    assert_eq!(one.side + two.side, 1);
                    let inode = |parts: &ShmParts| rustix::fs::fstat(&parts.pair).unwrap().st_ino;
                    assert_eq!(inode(&one), inode(&two), "both sides agree");
                }
                (EstablishedTransport::Tcp(one), EstablishedTransport::Tcp(two)) => {
                    let name = |socket: &crate::system::process_socket::ProcessSocket| {
                        SocketAddr::try_from(rustix::net::getsockname(socket).unwrap())
                    };
                    let peer = rustix::net::getpeername(&one).unwrap().unwrap();
                    assert_eq!(SocketAddr::try_from(peer), name(&two), "both sides agree");
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

#[test]
fn simultaneous_connects_settle_on_one_link_a_pair() {
    let [one, two] = services();
    for pairs in [1, 20] {
        for make in [Peer::tcp, Peer::shm] {
            let left: Vec<Peer> = (0..pairs).map(|_| make(&one)).collect();
            let right: Vec<Peer> = (0..10).map(|_| make(&two)).collect();
            settle(&left, &right);
        }
    }
}

#[test]
fn many_calls_to_one_endpoint_settle() {
    let [one, two] = services();
    let left = [Peer::tcp(&one)];
    let right: Vec<Peer> = (0..250).map(|_| Peer::tcp(&two)).collect();
    settle(&left, &right);
}

#[test]
fn simultaneous_connects_with_a_key_settle() {
    let [one, two] = services();
    let left: Vec<Peer> = (0..10).map(|_| keyed(&one, Some("k"))).collect();
    let right: Vec<Peer> = (0..10).map(|_| keyed(&two, Some("k"))).collect();
    settle(&left, &right);
}
