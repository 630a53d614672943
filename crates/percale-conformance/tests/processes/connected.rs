//! Connected endpoints in several processes: killed peers, and several connections between the same two processes.

use std::time::{Duration, Instant};

use percale::{
    ConnectionError, ConnectionRequest, ConnectionState, Domain, Endpoint, EndpointBuilder, ErrorCode, Event,
    EventQueue, Listener, PostError,
};
use percale_conformance::memory::{content, same};
use percale_conformance::peers::domain;
use percale_conformance::process::{Helper, ask, print_line, variable};
use percale_conformance::watchdog::Watchdog;
use rustix::process::Signal;

crate::on!(shm, tcp, verbs: {
    a_killed_server_ends_its_connections,
    a_killed_client_ends_its_connection,
    request_of_killed_client_is_withdrawn,
    killed_listener_fails_waiting_clients,
    two_processes_have_two_connections,
});

/// The time limit for every wait of a test.
const WAIT_TIMEOUT: Duration = Duration::from_secs(60);

/// Endpoints of one process that are driven together, and their events.
struct Party {
    domain: Domain,
    listener: Listener,
    events: EventQueue,
    ends: Vec<Endpoint>,
}

impl Party {
    fn new(transport: &str) -> Self {
        let (domain, events) = (domain(transport, |domain| domain), EventQueue::default());
        let listener = domain.listener().events(&events).bind("127.0.0.1:0").expect("a listener");
        Self { domain, listener, events, ends: Vec::new() }
    }

    fn open(&mut self, open: impl FnOnce(EndpointBuilder<'_>) -> Result<Endpoint, ConnectionError>) -> usize {
        let endpoint = open(self.domain.endpoint().event_queue(&self.events)).expect("an endpoint");
        self.ends.push(endpoint);
        self.ends.len() - 1
    }

    /// Drives all endpoints until `done` returns a value.
    #[track_caller]
    fn until<R>(&self, mut done: impl FnMut() -> Option<R>) -> R {
        let until = Instant::now() + WAIT_TIMEOUT;
        loop {
            if let Some(result) = done() {
                return result;
            }
            let _any = self.listener.progress();
            for end in &self.ends {
                end.progress();
            }
            assert!(Instant::now() < until, "the condition was not met in time");
            std::thread::yield_now();
        }
    }

    #[track_caller]
    fn event(&self) -> Event {
        self.until(|| self.events.read())
    }

    #[track_caller]
    fn request(&self) -> ConnectionRequest {
        match self.event() {
            Event::ConnectionRequest(request) => request,
            other => panic!("no request, but {other:?}"),
        }
    }

    #[track_caller]
    fn stands(&self) {
        let event = self.event();
        assert!(matches!(event, Event::Connected { .. }), "{event:?}");
    }

    /// Waits for the event that a connection has ended because its peer died. No other event may occur.
    #[track_caller]
    fn dies(&self, end: usize) {
        match self.event() {
            Event::Shutdown { endpoint, error, reason, .. } => {
                println!("{error:?}: {reason}");
                assert_eq!((endpoint, error), (self.ends[end].id(), ErrorCode::PeerDied));
            }
            other => panic!("expected a shutdown event, got {other:?}"),
        }
        let until = Instant::now() + Duration::from_millis(20);
        self.until(|| (Instant::now() > until).then_some(()));
        assert_eq!(self.events.read(), None);
    }
}

/// The role of a server that accepts `PERCALE_COUNT` requests and echoes on all connections, until the test stops it.
pub(crate) fn server() {
    let mut party = Party::new(&variable("PERCALE_FABRIC"));
    print_line(&party.listener.address().to_string());
    let count: usize = variable("PERCALE_COUNT").parse().expect("a number");
    for _ in 0..count {
        let request = party.request();
        let end = party.open(|builder| builder.accept(&request, request.data()));
        party.stands();
        print_line(&party.ends[end].address().to_string());
    }
    let mut turn = 0;
    loop {
        let end = &party.ends[turn % count];
        let got = match end.recv(vec![0; 4096]).wait() {
            Ok(got) => got,
            // The test has ended and closed its endpoints.
            Err(error) if error.errno() == ErrorCode::Closed.errno() => return,
            Err(error) => panic!("no message: {error}"),
        };
        end.send(end.peer(), got.to_vec()).wait().expect("the echo");
        if got.to_vec() == b"quiet" {
            party.until(|| None::<()>); // Runs until the process is killed.
        }
        turn += 1;
    }
}

/// The role of a client that connects, and then waits to be killed.
pub(crate) fn client() {
    let mut party = Party::new(&variable("PERCALE_FABRIC"));
    let end = party.open(|builder| builder.answer_timeout(WAIT_TIMEOUT).connect(variable("PERCALE_PEER"), b"me"));
    if variable("PERCALE_STAGE") == "connected" {
        party.stands();
        party.ends[end].inject(party.ends[end].peer(), b"the last word").expect("room");
        print_line("connected");
    }
    drop(party.until(|| party.events.read()));
}

/// The role of a listener that does not answer requests.
pub(crate) fn silent_listener() {
    let party = Party::new(&variable("PERCALE_FABRIC"));
    print_line(&party.listener.address().to_string());
    let _request = party.request();
    print_line("asked");
    drop(ask());
}

/// Requirements: CON-019, FLT-001.
fn a_killed_server_ends_its_connections(transport: &str) {
    let _watchdog = Watchdog::new("a killed server ends its connections");
    let mut helper = Helper::start("server", &[("PERCALE_FABRIC", transport), ("PERCALE_COUNT", "1")]);
    let mut party = Party::new(transport);
    let address = helper.receive_line();
    let end = party.open(|builder| builder.connect(&address, b"hello"));
    party.stands();
    let endpoint = &party.ends[end];
    for message in [content(1, 4096), b"quiet".to_vec()] {
        endpoint.send(endpoint.peer(), message.clone()).wait().expect("a send");
        same(&endpoint.recv(vec![0; 4096]).wait().expect("the echo").to_vec(), &message, "the echo");
    }
    let receives: Vec<_> = (0..100).map(|_| endpoint.recv(vec![0; 8]).start().expect("a receive")).collect();
    let sends: Vec<_> = (0..100)
        .map(|_| endpoint.send(endpoint.peer(), vec![1; 300_000]).delivered().start().expect("a send"))
        .collect();
    helper.signal(Signal::KILL);
    for send in sends {
        send.wait_for(WAIT_TIMEOUT).map(drop).expect_err("the message was not delivered");
    }
    for receive in receives {
        let error = receive.wait_for(WAIT_TIMEOUT).map(drop).expect_err("no message was sent");
        assert_eq!(error.errno(), libc::ECONNRESET, "{error}");
    }
    party.dies(end);
    let endpoint = &party.ends[end];
    assert_eq!(endpoint.connection_state(), Some(ConnectionState::Shutdown));
    assert_eq!(endpoint.inject(endpoint.peer(), b"x"), Err(PostError::NotConnected));
}

/// Requirements: CON-019, FLT-001.
fn a_killed_client_ends_its_connection(transport: &str) {
    let _watchdog = Watchdog::new("a killed client ends its connection");
    let mut party = Party::new(transport);
    let address = party.listener.address().to_string();
    let variables = [("PERCALE_FABRIC", transport), ("PERCALE_PEER", &address), ("PERCALE_STAGE", "connected")];
    let mut helper = Helper::start("client", &variables);
    let request = party.request();
    let end = party.open(|builder| builder.accept(&request, b""));
    party.stands();
    assert_eq!(helper.receive_line(), "connected");
    helper.signal(Signal::KILL);
    party.dies(end);
    // Messages that the client sent before its death can still be received.
    let got = party.ends[end].recv(vec![0; 100]).wait().expect("the message was sent before the kill");
    assert_eq!(got.to_vec(), b"the last word");
    party.ends[end].recv(vec![0; 100]).wait().map(drop).expect_err("no more messages");
}

/// Requirements: CON-016.
fn request_of_killed_client_is_withdrawn(transport: &str) {
    let _watchdog = Watchdog::new("request of killed client is withdrawn");
    let mut party = Party::new(transport);
    let address = party.listener.address().to_string();
    let variables = [("PERCALE_FABRIC", transport), ("PERCALE_PEER", &address), ("PERCALE_STAGE", "waiting")];
    let helper = Helper::start("client", &variables);
    let request = party.request();
    assert_eq!(party.listener.pending(), 1);
    helper.signal(Signal::KILL);
    party.until(|| (party.listener.pending() == 0).then_some(()));
    let accepted = party.domain.endpoint().accept(&request, b"").map(drop);
    assert!(matches!(accepted, Err(ConnectionError::Gone)), "{accepted:?}");
    assert!(matches!(request.reject(b""), Err(ConnectionError::Gone)));
    // The listener can still be used.
    let mut helper = Helper::start("client", &[variables[0], variables[1], ("PERCALE_STAGE", "connected")]);
    let request = party.request();
    party.open(|builder| builder.accept(&request, b""));
    party.stands();
    assert_eq!(helper.receive_line(), "connected");
}

/// Requirements: CON-016.
fn killed_listener_fails_waiting_clients(transport: &str) {
    let _watchdog = Watchdog::new("killed listener fails waiting clients");
    let mut helper = Helper::start("silent-listener", &[("PERCALE_FABRIC", transport)]);
    let mut party = Party::new(transport);
    let address = helper.receive_line();
    let end = party.open(|builder| builder.answer_timeout(2 * WAIT_TIMEOUT).connect(&address, b""));
    party.until(|| helper.try_receive_line());
    helper.signal(Signal::KILL);
    match party.event() {
        Event::ConnectionRefused { error, reason, .. } => {
            println!("{reason}");
            assert_eq!(error, ErrorCode::PeerDied);
        }
        other => panic!("not refused, but {other:?}"),
    }
    assert_eq!(party.ends[end].connection_state(), Some(ConnectionState::Refused));
}

/// Requirements: CON-020.
fn two_processes_have_two_connections(transport: &str) {
    let _watchdog = Watchdog::new("two processes have two connections");
    let mut helper = Helper::start("server", &[("PERCALE_FABRIC", transport), ("PERCALE_COUNT", "2")]);
    let mut party = Party::new(transport);
    let address = helper.receive_line();
    let mut there = Vec::new();
    for data in [b"a", b"b"] {
        let end = party.open(|builder| builder.connect(&address, data));
        match party.event() {
            Event::Connected { endpoint, data: echoed, address, .. } => {
                assert_eq!((endpoint, &echoed[..]), (party.ends[end].id(), &data[..]));
                there.push(address.to_string());
            }
            other => panic!("not connected, but {other:?}"),
        }
        assert_eq!(&helper.receive_line(), there.last().expect("one"), "each has an endpoint of its own");
    }
    for batch in 0..10 {
        let numbers = 10 * batch..10 * (batch + 1);
        for number in numbers.clone() {
            let end = &party.ends[usize::from(number % 2)];
            end.inject(end.peer(), &[number; 100]).expect("room");
        }
        // The server receives messages from the connections in turn.
        for number in numbers {
            let end = &party.ends[usize::from(number % 2)];
            let echo = end.recv(vec![0; 100]).start().expect("a receive").wait_for(WAIT_TIMEOUT).expect("the echo");
            assert_eq!(echo.to_vec(), [number; 100], "each connection has its own messages");
        }
    }
    // One connection ends, and the other continues.
    party.ends[1].shutdown().expect("the connection is established");
    let end = &party.ends[0];
    end.send(end.peer(), "still here").wait().expect("a send");
    assert_eq!(end.recv(vec![0; 100]).wait().expect("the echo").to_vec(), b"still here");
    drop(helper);
}
