//! A peer that writes random bytes to all memory that it shares with its victim.

#![expect(unsafe_code, reason = "overwrites shared memory intentionally, in a separate process")]

use std::fs;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use percale::PostError;
use percale_conformance::peers::{open, open_as_told};
use percale_conformance::process::{Helper, print_line};
use percale_conformance::random::{Random, seed};
use percale_conformance::watchdog::Watchdog;

crate::on!(shm, tcp: { peer_corrupting_shared_memory_breaks_only_its_connection });

/// Peers connect and overwrite the shared memory, one after another. Meanwhile the messages of another peer are
/// verified.
///
/// Requirements: FLT-007, FLT-008.
fn peer_corrupting_shared_memory_breaks_only_its_connection(transport: &str) {
    let _watchdog = Watchdog::new("peer corrupting shared memory breaks only its connection");
    let time = Duration::from_secs(if percale_conformance::long() { 60 } else { 6 });
    let open = open(transport, "127.0.0.1:0", |domain| domain);
    let own = open.endpoint.address().to_string();
    let variables = [("PERCALE_FABRIC", transport), ("PERCALE_PEER", own.as_str())];
    let mut friendly = Helper::start("echo", &variables);
    let friend = open.insert(&friendly.receive_line());
    let start = Instant::now();
    let (mut exchanged, mut attackers, mut failed) = (0, 0, 0);
    let mut last = String::new();
    let mut longest = Duration::ZERO;
    while start.elapsed() < time {
        let seed = format!("{}", seed());
        let variables = [variables[0], variables[1], ("PERCALE_SEED", seed.as_str())];
        let mut attacker = Helper::start("scribbler", &variables);
        attackers += 1;
        let peer = open.insert(&attacker.receive_line());
        let attack = Instant::now();
        while attack.elapsed() < Duration::from_millis(300) {
            exchanged += 1;
            let len = [8, 100, 2048, 9000, 200_000][exchanged as usize % 5];
            let begun = Instant::now();
            open.exchange(friend, exchanged, len)
                .unwrap_or_else(|error| panic!("the regular peer (seed {seed}): {error}"));
            longest = longest.max(begun.elapsed());
            // A message to the attacker arrives, fails or waits. It never blocks the victim.
            match open.endpoint.tagged_inject(peer, 1, &[1; 100]) {
                Ok(()) | Err(PostError::Again) => {}
                Err(error) => panic!("{error}"),
            }
            while let Some(error) = open.endpoint.read_error() {
                failed += 1;
                last = error.to_string();
            }
            while let Some(event) = open.events.read() {
                if let percale::Event::PeerDown { reason, .. } = event {
                    failed += 1;
                    last = reason;
                }
            }
        }
        attacker.kill();
    }
    println!("{transport}: {attackers} attackers, {failed} failures detected; last: {last}");
    println!("{transport}: {exchanged} exchanges with the regular peer, the longest took {longest:?}");
    assert!(failed > 0, "an attack was detected");
}

/// The role of the attacker. It exchanges a few messages, and then writes random bytes to all shared objects: mapped
/// memory, and descriptors of sockets and events.
pub(crate) fn scribbler() {
    let open = open_as_told();
    open.say_address();
    let peer = open.insert(&percale_conformance::process::variable("PERCALE_PEER"));
    let mut random = Random::new(seed());
    for _ in 0..random.below(50) {
        open.inject(peer, 1000 + random.next() % 4, &[7; 64]);
    }
    drop(open.connected());
    print_line("scribbling");
    // Half of the attackers do not use the descriptors, because an accidental wake-up of the victim would hide a
    // missing one.
    let sockets = if random.below(2) == 0 { sockets() } else { Vec::new() };
    // From now on this process does not call percale, which would detect the corruption and close the connection.
    let maps = shared_maps();
    let (burst, pause) = (1 + random.below(200), random.below(300) as u64);
    loop {
        for _ in 0..burst {
            if !maps.is_empty() {
                let (start, len) = maps[random.below(maps.len())];
                // Rings begin with their indices, which are the target of half of the writes.
                let reach = if random.below(2) == 0 { len.min(4096) } else { len };
                let at = start + random.below(reach - 8) / 8 * 8;
                let value = if random.below(4) == 0 { random.next() % 70_000 } else { random.next() };
                // SAFETY: not sound, but contained: the mapping is shared memory of this process, which has no other
                // work.
                unsafe { std::ptr::with_exposed_provenance_mut::<u64>(at).write_volatile(value) };
            }
        }
        let mut bytes = vec![0; 1 + random.below(200)];
        random.fill(&mut bytes);
        for &socket in &sockets {
            write(socket, &bytes);
        }
        std::thread::sleep(Duration::from_micros(pause));
    }
}

/// Returns the shared writable mappings.
fn shared_maps() -> Vec<(usize, usize)> {
    let maps = fs::read_to_string("/proc/self/maps").expect("/proc is mounted");
    let parse = |line: &str| {
        let mut words = line.split_whitespace();
        let (range, rights) = (words.next()?, words.next()?);
        let (start, end) = range.split_once('-')?;
        let (start, end) = (usize::from_str_radix(start, 16).ok()?, usize::from_str_radix(end, 16).ok()?);
        (rights.starts_with("rw") && rights.ends_with('s')).then_some((start, end - start))
    };
    maps.lines().filter_map(parse).collect()
}

/// Returns sockets and event descriptors. (Writing to a listening socket has no effect.)
pub(crate) fn sockets() -> Vec<i32> {
    let own = fs::read_dir("/proc/self/fd").expect("/proc is mounted");
    let shared = |entry: fs::DirEntry| {
        let target = fs::read_link(entry.path()).ok()?.display().to_string();
        let number = entry.file_name().to_str()?.parse().ok()?;
        (number > 2 && (target.starts_with("socket:") || target.contains("eventfd"))).then_some(number)
    };
    own.flatten().filter_map(shared).collect()
}

/// Writes to one of [`sockets`]. Returns the number of accepted bytes.
pub(crate) fn write(socket: i32, bytes: &[u8]) -> usize {
    // SAFETY: the descriptor is open as long as the endpoint, which is never closed.
    let socket = unsafe { BorrowedFd::borrow_raw(socket) };
    // The socket is full, or the peer has closed it.
    rustix::io::write(socket, bytes).unwrap_or(0)
}
