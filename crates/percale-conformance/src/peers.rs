//! Endpoints of helper processes, and the parts that helpers play.
//!
//! A part gets its transport (`shm`, `tcp`, `any`) and, where it matters, the address to bind and the addresses of its
//! peers. It sends its own address to the test first. A helper that finds something wrong fails, which its test notices.

use std::time::{Duration, Instant};

use percale::domain::DomainBuilder;
use percale::endpoint::EndpointBuilder;
use percale::{AddressVector, Domain, Endpoint, Event, EventQueue, Info, PeerAddress, PostError, TransportKind};

use crate::fabric::{Fabric, Verbs};
use crate::memory::{content, same};
use crate::process::{ask, say, told};

/// An endpoint and what belongs to it.
#[derive(Debug)]
pub struct Open {
    /// The endpoint; first, so that it is closed first.
    pub endpoint: Endpoint,
    /// Its vector, empty at first.
    pub vector: AddressVector,
    /// What happens to its peers.
    pub events: EventQueue,
    /// Its domain.
    pub domain: Domain,
}

/// A domain of this transport, or of all (`any`).
///
/// # Panics
/// If it cannot be opened.
pub fn domain(transport: &str, adjust: impl FnOnce(DomainBuilder) -> DomainBuilder) -> Domain {
    let mut builder = Info::discover().expect("discovery").domain();
    if transport != "any" {
        builder = builder.transport(transport.parse().expect("a transport"));
    }
    adjust(builder).open().unwrap_or_else(|error| panic!("a domain of {transport}: {error}"))
}

/// Why this machine has no RDMA device, where that is the transport; the others have to be here.
///
/// # Panics
/// If that cannot be found out.
#[must_use]
pub fn missing(transport: &str) -> Option<String> {
    if transport.parse() == Ok(TransportKind::Verbs) { Verbs::missing() } else { None }
}

/// An endpoint on this transport.
///
/// # Panics
/// If it cannot be opened.
pub fn open(transport: &str, bind: &str, adjust: impl FnOnce(DomainBuilder) -> DomainBuilder) -> Open {
    open_in(&domain(transport, adjust), bind, |endpoint| endpoint)
}

/// A further endpoint in a domain.
///
/// # Panics
/// If it cannot be opened.
pub fn open_in(
    domain: &Domain,
    bind: &str,
    adjust: impl for<'d> Fn(EndpointBuilder<'d>) -> EndpointBuilder<'d>,
) -> Open {
    let vector = domain.address_vector().build().expect("a vector");
    let events = EventQueue::default();
    // A killed predecessor's address may take a moment to be free.
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

/// What a helper is to open: `PERCALE_FABRIC`, at `PERCALE_BIND`.
#[must_use]
pub fn open_as_told() -> Open {
    let bind = std::env::var("PERCALE_BIND").unwrap_or_else(|_| "127.0.0.1:0".into());
    open(&told("PERCALE_FABRIC"), &bind, |domain| domain)
}

impl Open {
    /// Inserts a peer.
    ///
    /// # Panics
    /// If it is no address.
    pub fn insert(&self, address: &str) -> PeerAddress {
        self.vector.insert(address).expect("an address")
    }

    /// Injects, making progress while there is no room.
    ///
    /// # Panics
    /// If it is refused.
    pub fn inject(&self, peer: PeerAddress, tag: u64, bytes: &[u8]) {
        while let Err(error) = self.endpoint.tagged_inject(peer, tag, bytes) {
            assert_eq!(error, PostError::Again);
            self.endpoint.progress();
        }
    }

    /// Sends to a peer that echoes, and verifies the echo: whether that worked.
    ///
    /// # Errors
    /// What failed, in words.
    pub fn exchange(&self, peer: PeerAddress, tag: u64, len: usize) -> Result<(), String> {
        let bytes = content(tag, len);
        let patience = Duration::from_secs(60);
        let echo = self.endpoint.tagged_recv(tag, 0, vec![0; len + 1]).from(peer).start();
        let echo = echo.map_err(|error| error.to_string())?;
        let sending = self.endpoint.tagged_send(peer, tag, bytes.clone()).start().map_err(|error| error.to_string())?;
        let got = echo.wait_for(patience).map_err(|error| format!("no echo: {error}"))?;
        sending.wait_for(patience).map_err(|error| format!("the send: {error}"))?;
        same(&got.to_vec(), &bytes, "an echo");
        Ok(())
    }

    /// Makes progress until this is so.
    pub fn until(&self, mut done: impl FnMut() -> bool) {
        while !done() {
            if !self.endpoint.progress() {
                std::thread::yield_now();
            }
        }
    }

    /// How a peer is reached, once it is: the transport and why.
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
        say(&self.endpoint.address().to_string());
    }

    /// Echoes tagged messages of up to 4 MiB to the peers in the vector, for ever.
    ///
    /// # Panics
    /// If a receive cannot be posted.
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

/// A helper that makes progress and receives nothing.
pub fn silent() {
    let open = open_as_told();
    open.say_address();
    loop {
        open.endpoint.wait(Some(Duration::from_millis(100)));
    }
}

/// A helper that receives all tagged messages, and does nothing with them.
pub fn sink() {
    let open = open_as_told();
    open.say_address();
    loop {
        drop(open.endpoint.tagged_recv(0, !0, vec![0; 1 << 20]).wait());
    }
}

/// A helper that echoes what those of its vector send: `PERCALE_PEER`, separated by commas.
pub fn echo() {
    let open = open_as_told();
    for peer in told("PERCALE_PEER").split(',') {
        open.insert(peer);
    }
    open.say_address();
    open.echo();
}

/// A helper that sends 100 messages of each of some sizes to `PERCALE_PEER`, and closes in an orderly way when the test asks for it.
pub fn farewell() {
    let open = open_as_told();
    open.say_address();
    let peer = open.insert(&told("PERCALE_PEER"));
    for number in 0..100 {
        open.inject(peer, number, &content(number, [8, 500, 2048][number as usize % 3]));
    }
    say("sent");
    drop(ask());
    drop(open);
}
