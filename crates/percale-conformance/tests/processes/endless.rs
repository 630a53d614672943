//! Processes that are not peers and send without end, and peers that start to send random bytes.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use percale_conformance::measure::status_kib;
use percale_conformance::peers::open_as_told;
use percale_conformance::process::{Helper, ask, print_line};
use percale_conformance::random::{Random, seed};
use percale_conformance::watchdog::Watchdog;

crate::on!(shm, tcp: { endless_and_truncated_input_uses_bounded_memory });

/// The number of bytes that counts as endless. It exceeds the kernel's buffers.
const BYTES: usize = 64 << 20;
/// The permitted growth of the victim's memory in KiB, which is far less than the data sent to it.
const GROWTH_KIB: usize = 8 << 10;

/// Processes that are not peers send to the helper `endured`, which measures its own memory. Meanwhile it exchanges
/// messages with a well-behaved peer.
///
/// Requirements: FLT-008.
fn endless_and_truncated_input_uses_bounded_memory(transport: &str) {
    let _watchdog = Watchdog::new("endless and truncated input uses bounded memory");
    let mut victim = Helper::start("endured", &[("PERCALE_FABRIC", transport)]);
    let address = victim.receive_line();
    let variables = [("PERCALE_FABRIC", transport), ("PERCALE_PEER", address.as_str())];
    let mut friend = Helper::start("echo", &variables);
    victim.send_line(&friend.receive_line());
    let measure = |victim: &mut Helper| -> usize {
        victim.send_line("measure");
        victim.receive_line().parse().expect("KiB")
    };
    let seed = seed();
    let mut random = Random::new(seed);
    println!("PERCALE_SEED={seed}");
    let at: SocketAddr = address.parse().expect("an address");
    // After a first round, all memory that is kept for reuse has been allocated.
    let mut before = 0;
    for round in 0..3 {
        let taken = endless(at, &mut random) + cut(at, &mut random);
        let peers = babble(&variables, &mut victim);
        let now = measure(&mut victim);
        println!("{transport}: {taken} bytes of strangers were taken, {peers} of peers; RssAnon {now} KiB");
        if round == 0 {
            before = now;
        }
        assert!(now <= before + GROWTH_KIB, "memory has grown from {before} KiB to {now} KiB");
    }
    victim.send_line("end");
    victim.end();
}

/// Sends random bytes without end to the listener at this address. Returns the number of accepted bytes. The
/// connections start in different ways, some like percale's.
fn endless(at: SocketAddr, random: &mut Random) -> usize {
    let mut taken = 0;
    for stranger in 0..8 {
        let mut bytes = vec![0; 64 << 10];
        random.fill(&mut bytes);
        if stranger % 2 == 0 {
            bytes[..10].copy_from_slice(b"percale\0\x02\0");
        }
        let mut stream = TcpStream::connect(at).expect("the listener accepts connections");
        stream.set_write_timeout(Some(Duration::from_secs(1))).expect("a limit");
        let mut accepted = 0;
        // The connection was closed, or there is no listener any more.
        while let Ok(written @ 1..) = stream.write(&bytes) {
            accepted += written;
            assert!(accepted < BYTES, "the endpoint kept reading from a stranger that began with {:?}", &bytes[..10]);
        }
        taken += accepted;
    }
    taken
}

/// Sends the beginnings of connections like percale's, truncated at random positions. Returns the number of accepted
/// bytes.
fn cut(at: SocketAddr, random: &mut Random) -> usize {
    let accepted = |_| {
        let mut bytes = vec![0; 1 + random.below(300)];
        random.fill(&mut bytes);
        for (byte, known) in bytes.iter_mut().zip(b"percale\0\x02\0") {
            *byte = *known;
        }
        let mut stream = TcpStream::connect(at).expect("the listener accepts connections");
        stream.write(&bytes).unwrap_or(0)
    };
    (0..200).map(accepted).sum()
}

/// Runs two real peers that send random bytes once they are connected. Returns the number of accepted bytes.
fn babble(variables: &[(&str, &str)], victim: &mut Helper) -> usize {
    let one = |_| {
        let mut peer = Helper::start("babbler", variables);
        let address = peer.receive_line();
        victim.send_line(&address);
        let accepted: usize = peer.receive_line().parse().expect("a number of bytes");
        peer.kill();
        accepted
    };
    (0..2).map(one).sum()
}

/// The role of a peer that connects correctly, and then writes without end to all of its sockets.
pub(crate) fn babbler() {
    let open = open_as_told();
    open.say_address();
    let peer = open.insert(&percale_conformance::process::variable("PERCALE_PEER"));
    open.inject(peer, 1, b"hello");
    drop(open.connected());
    let mut random = Random::new(seed());
    let mut bytes = vec![0; 4 << 10];
    let (mut accepted, mut refused) = (0, 0);
    let sockets = crate::hostile::sockets();
    // Ends when no byte has been accepted for a while.
    while accepted < BYTES && refused < 500 {
        random.fill(&mut bytes);
        let written: usize = sockets.iter().map(|&socket| crate::hostile::write(socket, &bytes)).sum();
        accepted += written;
        refused += 1;
        if written > 0 {
            refused = 0;
        } else {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    print_line(&accepted.to_string());
    drop(ask());
}

/// The role of the victim. It continuously exchanges messages with its well-behaved peer, and reports its memory on
/// request.
pub(crate) fn endured() {
    let open = open_as_told();
    open.say_address();
    let friend = open.insert(&ask());
    let (orders, ordered) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut order = String::new();
        while order != "end" {
            order = ask();
            orders.send(order.clone()).expect("the endpoint's thread runs");
        }
    });
    let mut exchanged = 0;
    loop {
        exchanged += 1;
        let len = [8, 100, 2048, 9000, 200_000][exchanged as usize % 5];
        open.exchange(friend, exchanged, len).unwrap_or_else(|error| panic!("the regular peer: {error}"));
        while open.events.read().is_some() {}
        match ordered.try_recv().as_deref() {
            Ok("measure") => print_line(&status_kib("RssAnon").to_string()),
            Ok("end") => return,
            Ok(address) => drop(open.insert(address)),
            Err(_) => {}
        }
    }
}
