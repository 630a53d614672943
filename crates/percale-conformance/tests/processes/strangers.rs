//! Connections from many processes that are not peers, to an endpoint without an authorization key. Checks their cost
//! and their effect on the endpoint's peers, and prints the measured values.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use percale::PeerAddress;
use percale_conformance::fabric::own_host;
use percale_conformance::peers::{Open, open};
use percale_conformance::process::Helper;
use percale_conformance::watchdog::Watchdog;
use percale_wire::head::{FrameKind, Head};
use percale_wire::hello::{HELLO_BYTES, Hello, HelloFlags, HostIdentity, Incarnation};
use rustix::process::{Resource, Rlimit};
use zerocopy::IntoBytes;

crate::on!(tcp: {
    silent_connections_use_bounded_memory_and_block_no_peer,
    unknown_peers_use_bounded_memory_and_block_no_peer,
    reconnecting_peers_use_bounded_memory_and_block_no_peer,
    misdirected_frames_use_bounded_memory_and_block_no_peer,
});

/// The number of strangers. It exceeds the number of each kind that an endpoint keeps.
const MANY: usize = 3000;

/// The maximum growth of an endpoint's memory, regardless of what strangers send: 1,024 strangers of each kind, with a
/// few kilobytes each.
const BOUND: usize = 16 << 20;

/// Raises the limit of descriptors of this process and its helpers to the maximum. Returns the limit.
fn descriptors() -> u64 {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    let most = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if let Err(error) = rustix::process::setrlimit(Resource::Nofile, most) {
        println!("the descriptor limit cannot be raised: {error}");
    }
    rustix::process::getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Returns the resident memory in bytes.
fn resident(pid: u32) -> usize {
    let statm = std::fs::read_to_string(format!("/proc/{pid}/statm")).expect("the process exists");
    let pages: usize = statm.split(' ').nth(1).and_then(|pages| pages.parse().ok()).expect("a number");
    pages * rustix::param::page_size()
}

/// Returns the median time of an echo.
fn latency(open: &Open, peer: PeerAddress) -> Duration {
    let mut times: Vec<Duration> = (0..200)
        .map(|number| {
            let begun = Instant::now();
            open.exchange(peer, number, 100).expect("an echo");
            begun.elapsed()
        })
        .collect();
    times.sort_unstable();
    times[times.len() / 2]
}

/// Connects as a stranger: sends a hello, and accepts the connection if the endpoint offers one.
fn meet(to: SocketAddr, advertised: SocketAddr, number: u64) -> Option<TcpStream> {
    let mut incarnation = [7; 16];
    incarnation[..8].copy_from_slice(&number.to_le_bytes());
    let hello = Hello {
        flags: HelloFlags::TCP,
        place: HostIdentity { boot: [0x5a; 16], namespace: (7, 7), user: 1 },
        address: advertised,
        called: to,
        context: 0,
        wanted: 0,
        incarnation: Incarnation(incarnation),
        reset: [0; 16],
        nonce: [number as u8; 32],
    };
    let mut stream = TcpStream::connect(to).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(20))).ok()?;
    stream.write_all(hello.to_bytes().as_bytes()).ok()?;
    let mut bytes = [0; HELLO_BYTES + 56];
    stream.read_exact(&mut bytes).ok()?;
    let (ruling, why) = (bytes[HELLO_BYTES], bytes[HELLO_BYTES + 1]);
    if ruling != 1 {
        return None;
    }
    stream.write_all(&[1, why, 0, 0, 0, 0, 0, 0]).ok()?;
    Some(stream)
}

/// Connects strangers to an endpoint in another process. `flood` receives the address of the endpoint and the number of
/// the stranger, and returns the objects that the stranger keeps open. Meanwhile one peer continues to exchange
/// messages, and another one connects.
fn endure<S>(name: &'static str, mut flood: impl FnMut(SocketAddr, usize) -> S) {
    let _watchdog = Watchdog::new(name);
    let limit = descriptors();
    if limit < 4 * MANY as u64 {
        println!("skipped (descriptors): {limit} descriptors are too few for {MANY} strangers (ulimit -n)");
        return;
    }
    let (first, second) = (open("tcp", "127.0.0.1:0", |domain| domain), open("tcp", "127.0.0.1:0", |domain| domain));
    let peers = format!("{},{}", first.endpoint.address(), second.endpoint.address());
    let mut helper = Helper::start("echo", &[("PERCALE_FABRIC", "tcp"), ("PERCALE_PEER", &peers)]);
    let at = helper.receive_line();
    let (by_first, by_second) = (first.insert(&at), second.insert(&at));
    let at: SocketAddr = at.parse().expect("an address");
    first.exchange(by_first, 1, 100).expect("an echo");
    let (alone, before) = (latency(&first, by_first), resident(helper.pid()));
    let (mut kept, mut peak, mut times) = (Vec::new(), before, Vec::new());
    for number in 0..MANY {
        kept.push(flood(at, number));
        if number % 20 == 0 {
            let begun = Instant::now();
            first.exchange(by_first, 7, 100).expect("an echo among strangers");
            times.push(begun.elapsed());
            peak = peak.max(resident(helper.pid()));
        }
    }
    let meanwhile = latency(&first, by_first);
    let begun = Instant::now();
    second.exchange(by_second, 1, 100).expect("a peer that connects among strangers");
    let connecting = begun.elapsed();
    peak = peak.max(resident(helper.pid()));
    times.sort_unstable();
    let during = times[times.len() / 2];
    println!(
        "{name}: {MANY} strangers; memory {} KiB before, {} KiB more at most (bound {} KiB); an echo: {alone:?} alone, \
         {during:?} while they connect, {meanwhile:?} while connected; a new peer's first echo: {connecting:?}",
        before >> 10,
        (peak - before) >> 10,
        BOUND >> 10
    );
    assert!(peak - before <= BOUND, "{} KiB more", (peak - before) >> 10);
    drop(kept);
    first.exchange(by_first, 2, 300_000).expect("an echo afterwards");
}

/// Requirements: FLT-007.
fn silent_connections_use_bounded_memory_and_block_no_peer(_: &str) {
    // Some send nothing, and others send half of a hello.
    endure("silent strangers", |to, number| {
        let mut stream = TcpStream::connect(to).expect("the kernel accepts connections");
        if number % 2 == 1 {
            stream.write_all(b"percale\0").expect("a few bytes");
        }
        stream
    });
}

/// Returns an address without a listener.
fn nowhere() -> SocketAddr {
    let listener = TcpListener::bind((own_host(), 0)).expect("a port");
    listener.local_addr().expect("the listener's address")
}

/// Requirements: FLT-007.
fn unknown_peers_use_bounded_memory_and_block_no_peer(_: &str) {
    let nowhere = nowhere();
    endure("strangers that connect", |to, number| meet(to, nowhere, number as u64));
}

/// Requirements: FLT-007.
fn reconnecting_peers_use_bounded_memory_and_block_no_peer(_: &str) {
    let nowhere = nowhere();
    endure("strangers that connect and disconnect", |to, number| drop(meet(to, nowhere, number as u64)));
}

/// Requirements: FLT-007.
fn misdirected_frames_use_bounded_memory_and_block_no_peer(_: &str) {
    let nowhere = nowhere();
    let frame = Head { kind: FrameKind::Control, len: 3, ..Head::default() };
    let mut bytes = Vec::new();
    for _ in 0..1000 {
        bytes.extend_from_slice(frame.to_bytes().as_bytes());
        bytes.extend_from_slice(&[1; 3]);
    }
    endure("strangers that send control frames", |to, number| {
        let mut stream = meet(to, nowhere, number as u64)?;
        stream.set_write_timeout(Some(Duration::from_secs(20))).ok()?;
        // The endpoint closes the connection at some point.
        stream.write_all(&bytes).err();
        Some(stream)
    });
}
