//! Connected endpoints that several threads share, and threads that sleep until such an endpoint has an event.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use percale::endpoint::Ownership;
use percale::endpoint::Shared;
use percale::{
    CompletionQueue, ConnectionError, ConnectionRequest, Domain, Endpoint, Entry, ErrorCode, Event, EventQueue,
    OpFlags, PeerAddress, Progress, ReceiveWork, WaitSet,
};
use rustix::event::{PollFd, PollFlags, Timespec};

use crate::fabric::{Fabric, Peers, Real};
use crate::memory::{Memory, content, same};
use crate::watchdog::Watchdog;

/// The maximum time of a wait. A longer wait has missed a wake-up.
const BOUND: Option<Duration> = Some(Duration::from_secs(60));

fn domain<F: Fabric>(progress: Progress) -> (F, Domain) {
    let fabric = F::new(1);
    let domain = fabric.domain(|domain| domain.progress(progress).connect_timeout(Duration::from_secs(60)));
    (fabric, domain)
}

fn request(events: &EventQueue) -> ConnectionRequest {
    match events.wait(BOUND).expect("a request") {
        Event::ConnectionRequest(request) => request,
        other => panic!("no request, but {other:?}"),
    }
}

fn stands(events: &EventQueue) -> Vec<u8> {
    match events.wait(BOUND).expect("a connection") {
        Event::Connected { data, .. } => data,
        other => panic!("not connected, but {other:?}"),
    }
}

fn ends(events: &EventQueue) {
    match events.wait(BOUND).expect("the end") {
        Event::Shutdown { error: ErrorCode::Closed, .. } => {}
        other => panic!("expected a shutdown event, got {other:?}"),
    }
}

fn echo<A: Ownership>(endpoint: &Endpoint<A>, len: usize) {
    let got = endpoint.recv(vec![0; len]).wait().expect("a message");
    same(&got.to_vec(), &content(1, len), "the message");
    endpoint.send(endpoint.peer(), got.buffer).delivered().wait().expect("the echo");
}

fn call<A: Ownership>(endpoint: &Endpoint<A>, len: usize) {
    let mut receive = endpoint.recv(vec![0; len]).start().expect("a receive");
    endpoint.send(endpoint.peer(), content(1, len)).wait().expect("a send");
    same(&receive.wait().expect("the echo").to_vec(), &content(1, len), "the echo");
}

/// One thread on each side only waits for events. The listener and its connections share one queue.
///
/// Requirements: CON-021.
pub fn shared_endpoints_wait_for_connection_events<F: Peers + Real>() {
    let _watchdog = Watchdog::new("shared endpoints wait for connection events");
    both_sides::<F>(Progress::Manual);
}

/// Like [`shared_endpoints_wait_for_connection_events`], but with automatic progress, which does not depend on waiting
/// threads.
///
/// Requirements: CON-021.
pub fn automatic_progress_connects<F: Peers + Real>() {
    let _watchdog = Watchdog::new("automatic progress connects");
    both_sides::<F>(Progress::Automatic);
}

fn both_sides<F: Fabric>(progress: Progress) {
    let (fabric, domain) = domain::<F>(progress);
    let served = EventQueue::default();
    let listener = domain.listener().events(&served).bind(fabric.address()).expect("a listener");
    let address = listener.address().to_string();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..6_u8 {
                if round % 2 == 0 {
                    std::thread::sleep(Duration::from_millis(5)); // The other side sleeps now.
                }
                let events = EventQueue::default();
                let builder = domain.endpoint().event_queue(&events);
                let client = builder.connect_shared(&address, &[round]).expect("an endpoint");
                assert_eq!(stands(&events), [round, round]);
                [0, 8, 9000, F::BULK].into_iter().for_each(|len| call(&client, len));
                if round % 2 == 0 {
                    client.shutdown().expect("the connection is established");
                } else {
                    ends(&events);
                }
            }
        });
        let mut early = None;
        for round in 0..6_u8 {
            let request = early.take().unwrap_or_else(|| request(&served));
            assert_eq!(request.data(), [round]);
            if round % 3 == 0 {
                std::thread::sleep(Duration::from_millis(5)); // The other side sleeps now.
            }
            let builder = domain.endpoint().event_queue(&served);
            let server = builder.accept_shared(&request, &[round, round]).expect("an endpoint");
            assert_eq!(stands(&served), [round]);
            [0, 8, 9000, F::BULK].into_iter().for_each(|len| echo(&server, len));
            // The next request uses a different connection than the shutdown, so it may arrive first.
            let mut over = round % 2 != 0;
            while !over {
                match served.wait(BOUND).expect("the end") {
                    Event::Shutdown { endpoint, .. } => over = endpoint == server.id(),
                    Event::ConnectionRequest(request) => early = Some(request),
                    other => panic!("expected a shutdown event, got {other:?}"),
                }
            }
        }
    });
}

/// Tests endpoints with one owner. Each thread waits only for its own connection.
///
/// Requirements: CON-021.
pub fn wait_connected_sleeps_until_connected<F: Peers + Real>() {
    let _watchdog = Watchdog::new("wait connected sleeps until connected");
    let (fabric, domain) = domain::<F>(Progress::Manual);
    let listener = domain.listener().bind(fabric.address()).expect("a listener");
    let address = listener.address().to_string();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let client = domain.endpoint().connect(&address, b"one").expect("an endpoint");
            assert!(matches!(client.wait_connected(Some(Duration::ZERO)), Err(ConnectionError::NotYet)));
            assert_eq!(client.wait_connected(None).expect("the connection is accepted"), b"two");
            echo(&client, 8);
            let client = domain.endpoint().connect(&address, b"three").expect("an endpoint");
            match client.wait_connected(None) {
                Err(ConnectionError::Refused { error: ErrorCode::Refused, data, .. }) => assert_eq!(data, b"four"),
                other => panic!("expected a rejection, got {other:?}"),
            }
        });
        let first = request(listener.events());
        std::thread::sleep(Duration::from_millis(20)); // The other side sleeps now.
        let server = domain.endpoint().accept(&first, b"two").expect("an endpoint");
        assert_eq!(server.wait_connected(None).expect("the connection is established"), b"one");
        call(&server, 8);
        let second = request(listener.events());
        std::thread::sleep(Duration::from_millis(20));
        second.reject(b"four").expect("the request is pending");
    });
}

/// The answer timeout expires while all threads sleep: on the queue, on a wait set, on a descriptor, or for the
/// connection.
///
/// Requirements: CON-021.
pub fn answer_timeout_wakes_sleeping_threads<F: Peers + Real>() {
    let _watchdog = Watchdog::new("answer timeout wakes sleeping threads");
    let (fabric, domain) = domain::<F>(Progress::Manual);
    let listener = domain.listener().bind(fabric.address()).expect("a listener");
    let builder = || domain.endpoint().answer_timeout(Duration::from_millis(50));
    let ways: [fn(&EventQueue) -> Event; 3] = [
        |events| events.wait(BOUND).expect("the end of the wait"),
        |events| {
            let set = WaitSet::new();
            set.add(events).expect("a member");
            set.wait(BOUND).expect("the end of the wait");
            events.read().expect("the queue has an event")
        },
        |events| loop {
            if let Some(event) = events.read() {
                return event;
            }
            if events.try_wait().expect("a descriptor") {
                sleep(events.descriptor().expect("a descriptor"));
            }
        },
    ];
    for way in ways {
        let events = EventQueue::default();
        let _client = builder().event_queue(&events).connect_shared(listener.address().to_string(), b"").expect("one");
        let reported = way(&events);
        assert!(matches!(reported, Event::ConnectionRefused { error: ErrorCode::TimedOut, .. }), "{reported:?}");
    }
    let client = builder().connect(listener.address().to_string(), b"").expect("an endpoint");
    let error = client.wait_connected(BOUND).expect_err("no listener answers");
    assert_eq!(error.errno(), libc::ETIMEDOUT, "{error}");
}

fn sleep(descriptor: BorrowedFd<'_>) {
    let timeout = Timespec { tv_sec: 60, tv_nsec: 0 };
    let woken = rustix::event::poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], Some(&timeout));
    assert_eq!(woken, Ok(1), "the wait did not wake for the event");
}

/// Eight threads connect and four threads answer. Every second request is accepted.
///
/// Requirements: CON-021.
pub fn many_threads_call_one_listener<F: Peers + Real>() {
    const CALLERS: u64 = 8;
    const EACH: u64 = 6;
    let _watchdog = Watchdog::new("many threads connect to one listener");
    let (fabric, domain) = domain::<F>(Progress::Manual);
    let listener = domain.listener().bind(fabric.address()).expect("a listener");
    let address = listener.address().to_string();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..CALLERS * EACH / 4 {
                    let request = request(listener.events());
                    let number = u64::from_le_bytes(request.data().try_into().expect("eight bytes"));
                    if number % 2 == 0 {
                        request.reject(request.data()).expect("the request is pending");
                    } else {
                        let server = domain.endpoint().accept(&request, request.data()).expect("an endpoint");
                        server.wait_connected(None).expect("the connection is established");
                        echo(&server, number as usize);
                    }
                }
            });
        }
        for caller in 0..CALLERS {
            let (domain, address) = (&domain, &address);
            scope.spawn(move || {
                for number in (caller * EACH..).take(EACH as usize) {
                    let client = domain.endpoint().connect(address, &number.to_le_bytes()).expect("an endpoint");
                    match client.wait_connected(None) {
                        Ok(data) => {
                            assert_eq!((number % 2, data), (1, number.to_le_bytes().to_vec()));
                            call(&client, number as usize);
                        }
                        Err(ConnectionError::Refused { data, .. }) => {
                            assert_eq!((number % 2, data), (0, number.to_le_bytes().to_vec()));
                        }
                        Err(error) => panic!("{error}"),
                    }
                }
            });
        }
    });
    assert_eq!(listener.pending(), 0);
}

/// Posts a receive of eight bytes with this context.
#[expect(unsafe_code, reason = "posts through the raw API; the memory is never freed")]
fn post(endpoint: &Endpoint<Shared>, context: u64) {
    let (from, flags) = (PeerAddress::UNSPECIFIED, OpFlags::COMPLETION);
    let work = ReceiveWork { from, segments: Memory::blank(8).segments(), tag: None, context, flags };
    // SAFETY: segments are made of `Memory`, which is never freed, and no code accesses it.
    unsafe { endpoint.post_recv(&work) }.expect("a receive");
}

/// Four connections report to one queue, and one of them ends. Messages that the other connections have received are
/// read before the failures of the receives of the ended connection.
///
/// Requirements: CON-019.
pub fn received_messages_are_read_before_failures_of_other_connection<F: Peers + Real>() {
    const SPARE: u64 = 9;
    let _watchdog = Watchdog::new("received messages are read before failures of other connection");
    let (fabric, domain) = domain::<F>(Progress::Manual);
    let listener = domain.listener().bind(fabric.address()).expect("a listener");
    for round in 0..8 {
        let (queue, events) = (CompletionQueue::default(), EventQueue::default());
        let next = || loop {
            let mut entry = [Entry::default()];
            match queue.read(&mut entry) {
                Ok(0) => std::thread::yield_now(),
                Ok(_) => return Ok(entry[0].context),
                Err(_) => return Err(queue.read_error().expect("an error entry")),
            }
        };
        let (clients, mut servers): (Vec<_>, Vec<_>) = (0..4)
            .map(|_| {
                let builder = domain.endpoint().event_queue(&events).receive_queue(&queue);
                let client = builder.connect_shared(listener.address().to_string(), b"").expect("an endpoint");
                let mut server = None;
                while events.read().is_none() {
                    _ = listener.progress();
                    if let Some(Event::ConnectionRequest(request)) = listener.events().read() {
                        server = Some(domain.endpoint().accept(&request, b"").expect("an endpoint"));
                    }
                    server.iter().for_each(|server| _ = server.progress());
                }
                (client, server.expect("the connection was accepted"))
            })
            .unzip();
        let send = |server: &Endpoint| {
            while server.inject(server.peer(), b"message").is_err() {
                server.progress();
            }
            (0..100).for_each(|_| _ = server.progress());
        };
        // The connection that ends has more results than the others.
        post(&clients[0], 100);
        send(&servers[0]);
        assert_eq!(next().expect("a message"), 100);
        (0..100).for_each(|_| _ = queue.read(&mut []));
        (0..).zip(&clients).for_each(|(context, client)| post(client, context));
        post(&clients[0], SPARE);
        servers.iter().for_each(send);
        if round % 2 == 0 {
            drop(servers.remove(0));
        } else {
            servers[0].shutdown().expect("the connection is established");
        }
        std::thread::sleep(Duration::from_millis(5)); // The messages have arrived now.
        let mut got: Vec<_> = (0..4).map(|_| next().expect("a message sent before the shutdown")).collect();
        got.sort_unstable();
        assert_eq!(got, [0, 1, 2, 3]);
        let error = next().expect_err("no peer will send");
        assert_eq!((error.entry.context, error.error), (SPARE, ErrorCode::Closed), "{error}");
        ends(&events);
    }
}
