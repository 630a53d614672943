//! Two processes that use the Rust API, one of which is denied a system call.

use std::time::{Duration, Instant};

use super::limits;
use percale::{
    Access, AddressVector, Domain, Endpoint, Event, EventQueue, Info, PeerAddress, Region, RemoteMemory, TransportKind,
};
use percale_conformance::denial::{self, Case, Clock, SideOutcome, SystemCall};
use percale_conformance::long;
use percale_conformance::memory::content;
use percale_conformance::process::{Helper, ask, print_line, variable};
use percale_conformance::watchdog::Watchdog;
use rustix::event::{PollFd, PollFlags, Timespec};

/// Lengths of messages and accesses: one that fits in a cache line, one that fits in a ring, and one that exceeds a
/// ring.
const LENGTHS: [usize; 3] = [8, 3000, 700_000];

/// The key of the memory that peers access.
const KEY: u64 = 7;

/// The time limit of an operation. It exceeds the time limit of a case, so a case fails if an operation ends only by
/// this limit.
const OPERATION_TIMEOUT: Duration = Duration::from_secs(60);

const ALL: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);

struct Side {
    endpoint: Endpoint,
    vector: AddressVector,
    events: EventQueue,
    region: Region,
    _domain: Domain,
}

/// The role of one of the two processes.
pub(crate) fn pair() {
    let call = std::env::var("PERCALE_CALL").ok().map(|name| SystemCall::named(&name));
    let deny = |when: &str| {
        if let Some(call) = call.filter(|_| variable("PERCALE_WHEN") == when) {
            let error = variable("PERCALE_ERROR").parse().expect("a number");
            denial::deny(call, error).expect("a filter of system calls");
        }
    };
    limits::apply("start");
    deny("start");
    let start = Instant::now();
    let result = open().and_then(|side| {
        print_line(&format!("address {}", side.endpoint.address()));
        let peer = side.vector.insert(ask()).map_err(|error| error.to_string())?;
        side.exchange(peer, 0)?;
        print_line("half");
        drop(ask());
        limits::apply("middle");
        deny("middle");
        for round in 1..4 {
            side.exchange(peer, round)?;
        }
        let how = side.how();
        print_line(&format!("works {how}"));
        // The peer may still be reading. No thread is started to wait for the end of the test, because there may be no
        // memory for one.
        while !is_over() {
            side.endpoint.wait(Some(Duration::from_millis(1)));
        }
        Ok(())
    });
    if let Err(error) = result {
        print_line(&format!("error {error} (after {} ms)", start.elapsed().as_millis()));
    }
}

/// Returns whether the test has sent a line or has ended.
fn is_over() -> bool {
    let input = std::io::stdin();
    let mut input = [PollFd::new(&input, PollFlags::IN)];
    matches!(rustix::event::poll(&mut input, Some(&Timespec::default())), Ok(1..))
}

fn open() -> Result<Side, String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let mut domain = Info::discover().map_err(|error| text(&error))?.domain();
    if variable("PERCALE_FABRIC") == "tcp" {
        domain = domain.transport(TransportKind::Tcp);
    }
    let domain = domain.open().map_err(|error| text(&error))?;
    let vector = domain.address_vector().build().map_err(|error| text(&error))?;
    let events = EventQueue::default();
    let memory = domain.allocate(1 << 20).map_err(|error| text(&error))?;
    let region = domain.registration(ALL).key(KEY).own(memory).map_err(|error| text(&error))?;
    let endpoint = domain.endpoint().vector(&vector).event_queue(&events).bind("127.0.0.1:0");
    Ok(Side { endpoint: endpoint.map_err(|error| text(&error))?, vector, events, region, _domain: domain })
}

impl Side {
    /// Exchanges messages in both directions at the same time, and then accesses the memory of the peer.
    fn exchange(&self, peer: PeerAddress, round: u64) -> Result<(), String> {
        for (number, len) in (10 * round..).zip(LENGTHS) {
            let (what, bytes) = (format!("a message of {len} bytes in round {round}"), content(number, len));
            let receive = self.endpoint.tagged_recv(number, 0, vec![0; len]).from(peer).start();
            let receive = receive.map_err(|error| format!("{what}: {error}"))?;
            let send = self.endpoint.tagged_send(peer, number, bytes.clone()).start();
            let send = send.map_err(|error| format!("{what}: {error}"))?;
            send.wait_for(OPERATION_TIMEOUT).map_err(|error| format!("{what} was not sent: {error}"))?;
            let got =
                receive.wait_for(OPERATION_TIMEOUT).map_err(|error| format!("{what} was not received: {error}"))?;
            assert!(got.to_vec() == bytes, "{what} arrived with other bytes");
        }
        for (number, len) in (100 + 10 * round..).zip(LENGTHS) {
            let (what, bytes) = (format!("an access of {len} bytes in round {round}"), content(number, len));
            let place = RemoteMemory { key: KEY, address: 8, len: len as u64 };
            let write = self.endpoint.write(peer, bytes.clone(), place).start().map_err(|error| error.to_string())?;
            write.wait_for(OPERATION_TIMEOUT).map_err(|error| format!("{what}: {error}"))?;
            let read = self.endpoint.read(peer, place, vec![0; len]).start().map_err(|error| error.to_string())?;
            let got = read.wait_for(OPERATION_TIMEOUT).map_err(|error| format!("{what}: {error}"))?;
            assert!(got.into_vec() == bytes, "{what} returned other bytes");
        }
        let word = RemoteMemory { key: KEY, address: 0, len: 8 };
        let add = self.endpoint.fetch_add(peer, word, 1_u64).start().map_err(|error| error.to_string())?;
        let before =
            add.wait_for(OPERATION_TIMEOUT).map_err(|error| format!("an addition in round {round}: {error}"))?;
        assert_eq!(before, round, "the word");
        // Waits until the peer has finished its round.
        let tag = 1000 + round;
        let receive = self.endpoint.tagged_recv(tag, 0, vec![0; 1]).from(peer).start().map_err(|e| e.to_string())?;
        self.endpoint.tagged_send(peer, tag, vec![1]).wait().map_err(|error| error.to_string())?;
        receive
            .wait_for(OPERATION_TIMEOUT)
            .map_err(|error| format!("waiting for the peer's round {round}: {error}"))?;
        let mut own = [0; 8];
        self.region.read(0, &mut own);
        assert!(u64::from_ne_bytes(own) > round, "the peer's addition has arrived");
        Ok(())
    }

    /// Returns the transport of the connection, and the reason for its choice.
    fn how(&self) -> String {
        while let Some(event) = self.events.read() {
            if let Event::Connected { transport, reason, .. } = event {
                return format!("{transport}: {reason}");
            }
        }
        "unknown: no connection was reported".into()
    }
}

/// Runs both sides. The call is denied in the first process.
fn run(case: &Case) -> (SideOutcome, Option<SideOutcome>, Duration) {
    let error = case.error.to_string();
    let transport = ("PERCALE_FABRIC", case.transport);
    let call = [("PERCALE_CALL", case.call.name), ("PERCALE_ERROR", error.as_str()), ("PERCALE_WHEN", case.when)];
    run_two(&[transport, call[0], call[1], call[2]], &[transport])
}

/// Runs both sides with these environment variables. Returns their outcomes and the elapsed time.
pub(crate) fn run_two(first: &[(&str, &str)], second: &[(&str, &str)]) -> (SideOutcome, Option<SideOutcome>, Duration) {
    let mut denied = Helper::start("pair", first);
    let mut clock = Clock::start();
    let first = receive_line(&mut denied, &clock);
    let Some(address) = address_of(&first) else { return (first, None, clock.elapsed()) };
    let mut peer = Helper::start("pair", second);
    let other = receive_line(&mut peer, &clock);
    let own = address_of(&other).expect("the peer has no denied system calls");
    clock = Clock::start();
    denied.send_line(&own);
    peer.send_line(&address);
    let both = |denied: &mut Helper, peer: &mut Helper, clock: &Clock| {
        (receive_line(denied, clock), receive_line(peer, clock))
    };
    let (mut a, mut b) = both(&mut denied, &mut peer, &clock);
    let half = SideOutcome::Ended("half".into());
    if (&a, &b) == (&half, &half) {
        clock = Clock::start();
        denied.send_line("go");
        peer.send_line("go");
        (a, b) = both(&mut denied, &mut peer, &clock);
    }
    let took = clock.elapsed();
    (a, Some(b), took)
}

fn receive_line(side: &mut Helper, clock: &Clock) -> SideOutcome {
    match side.receive_line_within(clock.left()) {
        Ok(line) => SideOutcome::of(&line),
        Err(Some(ended)) => SideOutcome::Ended(ended),
        Err(None) => SideOutcome::Silent,
    }
}

fn address_of(outcome: &SideOutcome) -> Option<String> {
    let SideOutcome::Ended(line) = outcome else { return None };
    line.strip_prefix("address ").map(str::to_owned)
}

/// Requirements: FLT-012.
#[test]
fn denied_system_call_gives_a_result_or_an_error_naming_it() {
    let _watchdog = Watchdog::within("refused system calls", Duration::from_secs(if long() { 3600 } else { 900 }));
    let cases = denial::cases();
    let (wrong, ways) = denial::run_all(&cases, run);
    println!("{} cases: {ways:?}", cases.len());
    assert!(wrong.is_empty(), "{} of {} cases:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}
