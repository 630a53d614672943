//! Endpoints of helper processes, and the roles of those processes.
//!
//! A role receives its transport (`shm`, `tcp`, `any`) and, if needed, the address to bind to and the addresses of its
//! peers. It first sends its address to the test. A helper fails when it detects an error, and its test detects the
//! failure.

use std::time::{Duration, Instant};

use percale::domain::DomainBuilder;
use percale::endpoint::EndpointBuilder;
use percale::{AddressVector, Domain, Endpoint, Event, EventQueue, Info, PeerAddress, PostError, TransportKind};

use crate::fabric::{Fabric, Verbs};
use crate::memory::{content, same};
use crate::process::{ask, print_line, variable};

/// An endpoint and the objects that belong to it.
#[derive(Debug)]
pub struct Open {
    /// The endpoint. It is the first field, so that it is closed first.
    pub endpoint: Endpoint,
    /// The address vector, initially empty.
    pub vector: AddressVector,
    /// The peer events.
    pub events: EventQueue,
    /// The domain.
    pub domain: Domain,
}

/// Opens a domain of this transport, or of all transports (`any`).
///
/// # Panics
/// Panics if it cannot be opened.
pub fn domain(transport: &str, adjust: impl FnOnce(DomainBuilder) -> DomainBuilder) -> Domain {
    let mut builder = Info::discover().expect("discovery").domain();
    if transport != "any" {
        builder = builder.transport(transport.parse().expect("a transport"));
    }
    adjust(builder).open().unwrap_or_else(|error| panic!("a domain of {transport}: {error}"))
}

/// Returns the reason why a test must be skipped, if the transport is RDMA and this machine has no RDMA device. The
/// other transports are required.
///
/// # Panics
/// Panics if the devices cannot be listed.
#[must_use]
pub fn missing(transport: &str) -> Option<String> {
    if transport.parse() == Ok(TransportKind::Verbs) { Verbs::missing() } else { None }
}

/// Opens an endpoint on this transport.
///
/// # Panics
/// Panics if it cannot be opened.
pub fn open(transport: &str, bind: &str, adjust: impl FnOnce(DomainBuilder) -> DomainBuilder) -> Open {
    open_in(&domain(transport, adjust), bind, |endpoint| endpoint)
}

/// Opens another endpoint in a domain.
///
/// # Panics
/// Panics if it cannot be opened.
pub fn open_in(
    domain: &Domain,
    bind: &str,
    adjust: impl for<'d> Fn(EndpointBuilder<'d>) -> EndpointBuilder<'d>,
) -> Open {
    let vector = domain.address_vector().build().expect("a vector");
    let events = EventQueue::default();
    // The address of a killed predecessor may become free only after some time.
    let until = Instant::now() + Duration::from_secs(5);
    let endpoint = loop {
        match adjust(domain.endpoint().vector(&vector).event_queue(&events)).bind(bind) {
            Ok(endpoint) => break endpoint,
            Err(error) if Instant::now() < until => eprintln!("{error}; trying again"),
            Err(error) => panic!("{error}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    Open { endpoint, vector, events, domain: domain.clone() }
}

/// Opens the endpoint described by the environment: on transport `PERCALE_FABRIC`, at address `PERCALE_BIND`.
#[must_use]
pub fn open_as_told() -> Open {
    let bind = std::env::var("PERCALE_BIND").unwrap_or_else(|_| "127.0.0.1:0".into());
    open(&variable("PERCALE_FABRIC"), &bind, |domain| domain)
}

impl Open {
    /// Inserts a peer.
    ///
    /// # Panics
    /// Panics if the text is not an address.
    pub fn insert(&self, address: &str) -> PeerAddress {
        self.vector.insert(address).expect("an address")
    }

    /// Injects a message. Makes progress while there is no room for it.
    ///
    /// # Panics
    /// Panics if the message is rejected.
    pub fn inject(&self, peer: PeerAddress, tag: u64, bytes: &[u8]) {
        while let Err(error) = self.endpoint.tagged_inject(peer, tag, bytes) {
            assert_eq!(error, PostError::Again);
            self.endpoint.progress();
        }
    }

    /// Sends to a peer that echoes, and verifies the echo.
    ///
    /// # Errors
    /// Returns a description of the failure.
    pub fn exchange(&self, peer: PeerAddress, tag: u64, len: usize) -> Result<(), String> {
        let bytes = content(tag, len);
        let timeout = Duration::from_secs(60);
        let echo = self.endpoint.tagged_recv(tag, 0, vec![0; len + 1]).from(peer).start();
        let echo = echo.map_err(|error| error.to_string())?;
        let sending = self.endpoint.tagged_send(peer, tag, bytes.clone()).start().map_err(|error| error.to_string())?;
        let got = echo.wait_for(timeout).map_err(|error| format!("no echo: {error}"))?;
        sending.wait_for(timeout).map_err(|error| format!("the send: {error}"))?;
        same(&got.to_vec(), &bytes, "an echo");
        Ok(())
    }

    /// Makes progress until `done` returns true.
    pub fn until(&self, mut done: impl FnMut() -> bool) {
        while !done() {
            if !self.endpoint.progress() {
                std::thread::yield_now();
            }
        }
    }

    /// Waits until a peer is connected. Returns the transport and the reason for its choice.
    #[must_use]
    pub fn connected(&self) -> (&'static str, String) {
        let mut found = None;
        self.until(|| {
            if let Some(Event::Connected { transport, reason, .. }) = self.events.read() {
                found = Some((transport, reason));
            }
            found.is_some()
        });
        found.unwrap_or_default()
    }

    /// Sends the endpoint's address to the test.
    pub fn say_address(&self) {
        print_line(&self.endpoint.address().to_string());
    }

    /// Echoes tagged messages of up to 4 MiB to the peers in the vector. Never returns.
    ///
    /// # Panics
    /// Panics if a receive cannot be posted.
    pub fn echo(&self) -> ! {
        loop {
            let got = self.endpoint.tagged_recv(0, !0, vec![0; 4 << 20]).wait();
            let Ok(got) = got else { continue };
            let Some(source) = got.source else { continue };
            let (tag, bytes) = (got.tag, got.to_vec());
            // The peer may have exited by now.
            if let Err(error) = self.endpoint.tagged_send(source, tag, bytes).wait() {
                eprintln!("an echo: {error}");
            }
        }
    }
}

/// The role of a helper that makes progress and receives nothing.
pub fn silent() {
    let open = open_as_told();
    open.say_address();
    loop {
        open.endpoint.wait(Some(Duration::from_millis(100)));
    }
}

/// The role of a helper that receives and ignores all tagged messages.
pub fn sink() {
    let open = open_as_told();
    open.say_address();
    loop {
        drop(open.endpoint.tagged_recv(0, !0, vec![0; 1 << 20]).wait());
    }
}

/// The role of a helper that echoes the messages of the peers in `PERCALE_PEER`, which are separated by commas.
pub fn echo() {
    let open = open_as_told();
    for peer in variable("PERCALE_PEER").split(',') {
        open.insert(peer);
    }
    open.say_address();
    open.echo();
}

/// The role of a helper that sends 100 messages of each size to `PERCALE_PEER`, and closes in an orderly way when the
/// test requests it.
pub fn farewell() {
    let open = open_as_told();
    open.say_address();
    let peer = open.insert(&variable("PERCALE_PEER"));
    for number in 0..100 {
        open.inject(peer, number, &content(number, [8, 500, 2048][number as usize % 3]));
    }
    print_line("sent");
    drop(ask());
    drop(open);
}
