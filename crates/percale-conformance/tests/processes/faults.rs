//! Peers that die, stop, close or restart. Also exhausted descriptors and forked children.

use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use percale::{ErrorCode, Event, PostError};
use percale_conformance::fabric::{Shm, own_host};
use percale_conformance::memory::{Memory, content, same};
use percale_conformance::mesh::{Mesh, Receive};
use percale_conformance::peers::{Open, open, open_as_told};
use percale_conformance::process::{Helper, ask, fork, print_line, variable};
use percale_conformance::random::{Random, seed};
use percale_conformance::watchdog::Watchdog;
use rustix::process::{Pid, Resource, Rlimit, Signal, WaitOptions};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

crate::on!(shm, tcp, verbs: {
    operations_of_a_killed_peer_fail,
    a_forked_child_does_not_hide_the_death_of_its_parent,
    a_forked_child_does_not_hide_that_its_parent_executes_another_program,
    messages_sent_before_an_orderly_close_arrive,
    a_killed_peer_is_reached_again_once_it_is_back,
    without_descriptors_only_new_connections_fail,
    stopped_peer_does_not_block_other_peers,
    connect_waits_for_a_stopped_peer,
});

mod patient {
    use super::a_peer_that_does_not_read_for_a_while_is_not_dead;
    crate::on!(tcp: { a_peer_that_does_not_read_for_a_while_is_not_dead });
}

/// The time limit for operations to fail. The test prints the measured time.
const FAILURE_TIMEOUT: Duration = Duration::from_secs(10);

fn connected(open: &Open, helper: &mut Helper) -> percale::PeerAddress {
    let peer = open.insert(&helper.receive_line());
    open.inject(peer, u64::MAX, b"connect");
    let (transport, _) = open.connected();
    println!("the transport is {transport}");
    peer
}

/// The test kills a peer with 1,000 outstanding operations. The peer either receives nothing, or receives continuously.
///
/// Requirements: FLT-001.
fn operations_of_a_killed_peer_fail(transport: &str) {
    let _watchdog = Watchdog::new("operations of a killed peer fail");
    let seed = seed();
    let mut random = Random::new(seed);
    println!("PERCALE_SEED={seed}");
    let rounds = if percale_conformance::long() { 40 } else { 4 };
    for round in 0..rounds {
        let part = if round % 2 == 0 { "silent" } else { "sink" };
        let mut helper = Helper::start(part, &[("PERCALE_FABRIC", transport)]);
        let open = open(transport, "127.0.0.1:0", |domain| domain);
        let peer = connected(&open, &mut helper);
        let long: Arc<[u8]> = content(1, 200_000).into();
        let mut sends = Vec::new();
        let mut receives = Vec::new();
        let kill_at = if round < 2 { 1000 } else { random.below(1000) };
        let mut killed = None;
        for number in 0..1000 {
            if number == kill_at {
                helper.signal(Signal::KILL);
                killed = Some(Instant::now());
            }
            let endpoint = &open.endpoint;
            match number % 3 {
                0 => sends.push(endpoint.tagged_send(peer, 1, Arc::clone(&long)).delivered().start().expect("a send")),
                1 => sends.push(endpoint.tagged_send(peer, 1, vec![1; 100]).delivered().start().expect("a send")),
                _ => receives.push(endpoint.recv(vec![0; 8]).from(peer).start().expect("a receive")),
            }
            (0..random.below(3)).for_each(|_| _ = endpoint.progress());
        }
        let killed = killed.unwrap_or_else(|| {
            helper.signal(Signal::KILL);
            Instant::now()
        });
        let (mut good, mut bad) = (0, 0);
        let mut count = |result: Result<(), percale::endpoint::safe::OperationError>| match result {
            Ok(()) => good += 1,
            Err(error) => {
                let timed_out = matches!(error.cause(), percale::endpoint::safe::Cause::TimedOut);
                assert!(!timed_out, "an operation still waits for a peer that was killed");
                bad += 1;
            }
        };
        sends.into_iter().for_each(|mut sending| count(sending.wait_for(FAILURE_TIMEOUT).map(drop)));
        receives.into_iter().for_each(|mut receiving| count(receiving.wait_for(FAILURE_TIMEOUT).map(drop)));
        println!("{transport}, {part}: {bad} failed, {good} succeeded; {:?} after the kill", killed.elapsed());
        assert_eq!(good + bad, 1000);
        assert!(part == "sink" || good == 0, "nothing could succeed");
        helper.kill();
    }
}

/// While the child lives, the operations end, and a successor can use the port.
///
/// Requirements: FLT-002.
fn a_forked_child_does_not_hide_the_death_of_its_parent(transport: &str) {
    let _watchdog = Watchdog::new("a forked child does not hide the death of its parent");
    let mut helper = Helper::start("forker", &[("PERCALE_FABRIC", transport)]);
    let open = open(transport, "127.0.0.1:0", |domain| domain);
    let address = helper.receive_line();
    let peer = open.insert(&address);
    open.inject(peer, u64::MAX, b"connect");
    println!("connected by {}", open.connected().0);
    helper.send_line("fork");
    let child = helper.receive_line().parse().ok().and_then(Pid::from_raw).expect("a process id");
    let mut receiving = open.endpoint.recv(vec![0; 8]).from(peer).start().expect("a receive");
    let mut sending = open.endpoint.send(peer, vec![0; 1 << 20]).start().expect("a send");
    helper.signal(Signal::KILL);
    let killed = Instant::now();
    let error = sending.wait_for(FAILURE_TIMEOUT).expect_err("the peer is dead");
    println!("{transport}: {error}, {:?} after the kill", killed.elapsed());
    let got = receiving.wait_for(FAILURE_TIMEOUT).expect_err("the peer is dead");
    // A process that exits releases its memory before its descriptors, and its end was detected through the memory.
    helper.kill();
    let successor = std::net::TcpListener::bind(&address);
    rustix::process::kill_process(child, Signal::KILL).expect("the child is still running");
    assert_eq!([error.errno(), got.errno()], [libc::ECONNRESET; 2], "{error}, {got}");
    successor.expect("the address is free");
}

/// Requirements: FLT-002.
fn a_forked_child_does_not_hide_that_its_parent_executes_another_program(transport: &str) {
    let _watchdog = Watchdog::new("a forked child does not hide that its parent executes another program");
    let mut helper = Helper::start("executor", &[("PERCALE_FABRIC", transport)]);
    let open = open(transport, "127.0.0.1:0", |domain| domain);
    let peer = connected(&open, &mut helper);
    helper.send_line("execute");
    let mut sending = open.endpoint.send(peer, vec![0; 1 << 20]).start().expect("a send");
    let error = sending.wait_for(FAILURE_TIMEOUT).expect_err("the peer is another program");
    println!("{transport}: {error}");
    assert_eq!(error.errno(), libc::ECONNRESET);
}

/// The role of a helper that forks a child, which holds all of its descriptors, and executes another program.
pub(crate) fn executor() {
    use std::os::unix::process::CommandExt;
    let open = open_as_told();
    open.say_address();
    open.until(|| matches!(open.events.read(), Some(Event::Connected { .. })));
    drop(ask());
    let parent = rustix::process::getpid();
    let _child = fork(|| {
        // The process ID remains that of the other program.
        while rustix::process::getppid() == Some(parent) {
            std::thread::sleep(Duration::from_millis(50));
        }
        true
    });
    let error = std::process::Command::new("sleep").arg("100").exec();
    panic!("{error}");
}

/// The role of a helper that forks a child, which holds all of its descriptors.
pub(crate) fn forker() {
    let open = open_as_told();
    open.say_address();
    open.until(|| matches!(open.events.read(), Some(Event::Connected { .. })));
    drop(ask());
    let child = fork(|| {
        std::thread::sleep(Duration::from_secs(100));
        true
    });
    print_line(&child.to_string());
    loop {
        open.endpoint.wait(Some(Duration::from_millis(50)));
    }
}

/// Messages that were sent before the close arrive. Later operations fail.
///
/// Requirements: FLT-003.
fn messages_sent_before_an_orderly_close_arrive(transport: &str) {
    let _watchdog = Watchdog::new("messages sent before an orderly close arrive");
    let open = open(transport, "127.0.0.1:0", |domain| domain);
    let own = open.endpoint.address().to_string();
    let mut helper = Helper::start("farewell", &[("PERCALE_FABRIC", transport), ("PERCALE_PEER", &own)]);
    let peer = open.insert(&helper.receive_line());
    let mut directed = open.endpoint.recv(vec![0; 8]).from(peer).start().expect("a receive");
    let mut received = false;
    open.until(|| {
        received |= helper.try_receive_line().is_some();
        received
    });
    helper.send_line("leave");
    let error = directed.wait_for(FAILURE_TIMEOUT).expect_err("nothing untagged was sent");
    assert_eq!(error.errno(), libc::ESHUTDOWN, "{error}");
    helper.end();
    for number in 0..100 {
        let got =
            open.endpoint.tagged_recv(number, 0, vec![0; 2048]).wait().expect("the message was sent before the close");
        same(&got.to_vec(), &content(number, [8, 500, 2048][number as usize % 3]), "a message sent before the close");
    }
    let mut sending = open.endpoint.send(peer, vec![1; 8]).start().expect("a send");
    let error = sending.wait_for(FAILURE_TIMEOUT).expect_err("no endpoint listens");
    println!("{transport}: {error}");
    assert!(error.errno() != ErrorCode::TimedOut.errno(), "the send must fail immediately: {error}");
}

/// An event reports the death. Operations before the restart fail. The restarted peer can be reached at the same
/// address.
///
/// Requirements: FLT-005, CON-004.
fn a_killed_peer_is_reached_again_once_it_is_back(transport: &str) {
    let _watchdog = Watchdog::new("a killed peer is reached again once it is back");
    let open = open(transport, "127.0.0.1:0", |domain| domain);
    let own = open.endpoint.address().to_string();
    let mut address = format!("{}:0", own_host());
    let mut peer = None;
    for life in 0..4 {
        let variables =
            [("PERCALE_FABRIC", transport), ("PERCALE_PEER", own.as_str()), ("PERCALE_BIND", address.as_str())];
        let mut helper = Helper::start("echo", &variables);
        address = helper.receive_line();
        let peer = *peer.get_or_insert_with(|| open.insert(&address));
        if life == 3
            && let Err(error) = open.exchange(peer, 77, 8)
        {
            println!("{transport}: {error}"); // The first operation detected the death of the previous process.
        }
        for len in [8, 2048, 100_000] {
            open.exchange(peer, life * 10 + 1, len).unwrap_or_else(|error| panic!("life {life}: {error}"));
        }
        let (used, reason) = open.connected();
        println!("{used}: {reason}");
        assert_eq!(used, transport);
        if life == 2 {
            continue; // Dropped without waiting. The death is detected at the next use.
        }
        helper.kill();
        let mut down = false;
        open.until(|| {
            down |= matches!(open.events.read(), Some(Event::PeerDown { .. } | Event::PeerReplaced { .. }));
            down
        });
        let error = open.exchange(peer, 99, 8).expect_err("no endpoint listens");
        println!("{transport}: {error}");
        while open.events.read().is_some() {}
    }
}

/// Runs the helper `exhaust` in a separate process.
///
/// Requirements: FLT-006.
fn without_descriptors_only_new_connections_fail(transport: &str) {
    let _watchdog = Watchdog::new("without descriptors only new connections fail");
    let mut exhausted = Helper::start("exhaust", &[("PERCALE_FABRIC", transport)]);
    let own = exhausted.receive_line();
    let variables = [("PERCALE_FABRIC", transport), ("PERCALE_PEER", own.as_str())];
    for _ in 0..2 {
        let mut peer = Helper::start("echo", &variables);
        exhausted.send_line(&peer.receive_line());
        println!("{transport}: {}", exhausted.receive_line());
        std::mem::forget(peer); // It echoes until it is killed at the end of this thread.
    }
    exhausted.end();
}

/// The role of a helper that uses one peer, then tries to use a second peer while there are no free descriptors, and
/// uses the second peer when there are free descriptors again.
pub(crate) fn exhaust() {
    let open = open_as_told();
    open.say_address();
    let first = open.insert(&ask());
    open.exchange(first, 1, 100_000).expect("an echo");
    print_line("the first peer answers");
    let second = open.insert(&ask());
    let limits = rustix::process::getrlimit(Resource::Nofile);
    let lowest_free = std::fs::File::open("/dev/null").expect("a descriptor").as_raw_fd();
    let low = Rlimit { current: Some(lowest_free as u64), maximum: limits.maximum };
    rustix::process::setrlimit(Resource::Nofile, low).expect("a lower limit");
    let failed =
        open.endpoint.send(second, vec![1; 8]).start().map(|mut sending| sending.wait_for(Duration::from_secs(20)));
    let failed = match failed {
        Ok(Ok(_)) => panic!("no descriptor was available for a connection"),
        Ok(Err(error)) | Err(error) => error,
    };
    for number in 0..10 {
        open.exchange(first, number, 100_000).expect("the established connection still works");
    }
    rustix::process::setrlimit(Resource::Nofile, limits).expect("the old limit");
    open.exchange(second, 7, 100_000).expect("a new connection, now that there are descriptors");
    assert_eq!(failed.errno(), libc::EMFILE, "{failed}");
    print_line(&format!("without descriptors: {failed}"));
}

/// Operations to a stopped peer wait, and operations to other peers do not. When the stopped peer continues, the
/// operations complete.
///
/// Requirements: FLT-009.
fn stopped_peer_does_not_block_other_peers(transport: &str) {
    let _watchdog = Watchdog::new("stopped peer does not block other peers");
    let open = open(transport, "127.0.0.1:0", |domain| domain);
    let own = open.endpoint.address().to_string();
    let variables = [("PERCALE_FABRIC", transport), ("PERCALE_PEER", own.as_str())];
    let mut helpers = [Helper::start("echo", &variables), Helper::start("echo", &variables)];
    let [first, second] = [0, 1].map(|at| open.insert(&helpers[at].receive_line()));
    open.exchange(first, 1, 100).expect("an echo");
    open.exchange(second, 1, 100).expect("an echo");
    helpers[0].signal(Signal::STOP);
    while !is_stopped(helpers[0].pid()) {
        std::thread::yield_now(); // A thread that runs on another processor stops slightly later.
    }
    let mut echo = open.endpoint.tagged_recv(5, 0, vec![0; 300_000]).from(first).start().expect("a receive");
    let mut sending = open.endpoint.tagged_send(first, 5, content(5, 300_000)).start().expect("a send");
    for number in 0..100 {
        open.exchange(second, 10 + number, 3000).expect("the other peer answers");
    }
    if echo.is_ready() {
        panic!("a stopped peer answered: {:?}", echo.wait().map(|got| got.len));
    }
    helpers[0].signal(Signal::CONT);
    same(&echo.wait().expect("the peer continues").to_vec(), &content(5, 300_000), "the echo of a stopped peer");
    sending.wait().expect("the send");
}

/// A peer is stopped, or too busy to answer, when a connection to it is requested for the first time. Its host accepts
/// the TCP connection. Therefore the client waits for the peer, and the connection uses the same transport as it would
/// use otherwise.
///
/// Requirements: CON-003.
fn connect_waits_for_a_stopped_peer(transport: &str) {
    let _watchdog = Watchdog::new("connect waits for a stopped peer");
    let open = open(transport, "127.0.0.1:0", |domain| domain);
    let own = open.endpoint.address().to_string();
    let mut helper = Helper::start("echo", &[("PERCALE_FABRIC", transport), ("PERCALE_PEER", own.as_str())]);
    let peer = open.insert(&helper.receive_line());
    helper.signal(Signal::STOP);
    while !is_stopped(helper.pid()) {
        std::thread::yield_now();
    }
    let mut echo = open.endpoint.tagged_recv(5, 0, vec![0; 3000]).from(peer).start().expect("a receive");
    let mut sending = open.endpoint.tagged_send(peer, 5, content(5, 3000)).start().expect("a send");
    // This is longer than a host may take to accept.
    let until = Instant::now() + Duration::from_secs(7);
    while Instant::now() < until {
        open.endpoint.wait(Some(Duration::from_millis(20)));
    }
    helper.signal(Signal::CONT);
    same(&echo.wait().expect("the peer answers").to_vec(), &content(5, 3000), "the echo of a late peer");
    sending.wait().expect("the send");
    assert_eq!(open.connected().0, transport);
}

/// A peer that is stopped for four times the timeout is not reported dead, even if more data is sent to it than its
/// kernel buffers.
///
/// Requirements: FLT-009.
fn a_peer_that_does_not_read_for_a_while_is_not_dead(transport: &str) {
    let _watchdog = Watchdog::new("a peer that does not read for a while is not dead");
    let timeout = Duration::from_secs(2);
    let open = open(transport, "127.0.0.1:0", |domain| domain.peer_timeout(timeout).socket_buffers(4096));
    let own = open.endpoint.address().to_string();
    let mut helper = Helper::start("echo", &[("PERCALE_FABRIC", transport), ("PERCALE_PEER", own.as_str())]);
    let peer = open.insert(&helper.receive_line());
    open.exchange(peer, 1, 100).expect("an echo");
    let echoes: Vec<_> = (0..2000)
        .map(|tag| open.endpoint.tagged_recv(10 + tag, 0, vec![0; 64]).from(peer).start().expect("a receive"))
        .collect();
    helper.signal(Signal::STOP);
    while !is_stopped(helper.pid()) {
        std::thread::yield_now();
    }
    let post = |tag| open.endpoint.tagged_send(peer, 10 + tag, content(tag, 64)).start().expect("a send");
    let sends: Vec<_> = (0..2000).map(post).collect();
    let until = Instant::now() + 4 * timeout;
    while Instant::now() < until {
        open.endpoint.wait(Some(Duration::from_millis(20)));
        while let Some(event) = open.events.read() {
            assert!(!matches!(event, Event::PeerDown { .. }), "{event:?}");
        }
    }
    helper.signal(Signal::CONT);
    for (mut sending, (tag, mut echo)) in sends.into_iter().zip((0..).zip(echoes)) {
        sending.wait().expect("the message is sent");
        same(&echo.wait().expect("the echo").to_vec(), &content(tag, 64), "an echo");
    }
}

/// Returns whether all threads of a process are stopped.
pub(crate) fn is_stopped(pid: u32) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).expect("the process exists");
    let stopped = |thread: std::fs::DirEntry| {
        let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T'))
    };
    threads.flatten().all(stopped)
}

/// Requirements: FLT-010.
#[test]
fn calls_in_a_forked_child_fail() {
    let mut helper = Helper::start("fork-calls", &[]);
    println!("{}", helper.receive_line());
    helper.end();
}

/// The role of a helper that forks while endpoints are open. The child's calls on inherited objects fail, its own
/// domain works, and the parent continues.
pub(crate) fn fork_calls() {
    let mesh = Mesh::<Shm>::connected(2);
    let waiting = mesh.receive(0, Receive::into(Memory::blank(8)));
    let child = fork(|| {
        let (endpoint, peer) = (mesh.endpoint(0), mesh.peer(1));
        assert_eq!(endpoint.inject(peer, b"child"), Err(PostError::Forked));
        assert_eq!(PostError::Forked.errno(), libc::ECHILD);
        let refused = mesh.try_receive(0, Receive::into(Memory::blank(8)));
        assert_eq!(refused, Err(PostError::Forked));
        assert!(endpoint.send(peer, vec![1]).wait().is_err());
        assert!(endpoint.recv(vec![1]).wait().is_err());
        assert!(!endpoint.progress());
        true
    });
    let crowded = fork(|| {
        // If another process runs on the same processor, a yield takes longer. A waiter then checks the memory that it
        // shares with the peer, if there is any.
        let one = sched_getaffinity(None).expect("an affinity");
        let one = (0..CpuSet::MAX_CPU).find(|&processor| one.is_set(processor)).expect("a processor");
        let mut set = CpuSet::new();
        set.set(one);
        sched_setaffinity(None, &set).expect("an affinity");
        let until = Instant::now() + Duration::from_millis(200);
        let other = fork(|| {
            while Instant::now() < until {
                std::thread::yield_now();
            }
            true
        });
        let waited = mesh.endpoint(0).wait(Some(Duration::from_millis(150)));
        let other = Pid::from_raw(other);
        rustix::process::waitpid(other, WaitOptions::empty()).expect("the other child");
        !waited
    });
    let status = |child| {
        let child = Pid::from_raw(child);
        let (_, status) =
            rustix::process::waitpid(child, WaitOptions::empty()).expect("the child").expect("the child's status");
        status.exit_status()
    };
    assert_eq!(status(child), Some(0), "the child's calls are refused");
    assert_eq!(status(crowded), Some(0), "a wait in the child times out");
    let own = fork(|| {
        let open = open("any", "127.0.0.1:0", |domain| domain);
        let me = open.insert(&open.endpoint.address().to_string());
        open.inject(me, 1, b"own");
        open.endpoint.tagged_recv(1, 0, vec![0; 3]).wait().is_ok_and(|got| got.to_vec() == b"own")
    });
    assert_eq!(status(own), Some(0), "the child's own domain works");
    mesh.inject(1, 0, None, b"parent");
    assert_eq!(mesh.done(waiting).len, 6);
    mesh.settle(0, 1);
    print_line(&format!("told {}", variable("PERCALE_ROLE")));
}
