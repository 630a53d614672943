//! The transports under test. Each has a function that opens its domains.
//!
//! The other traits state the capabilities of a transport. A test of the suite runs on each transport that implements
//! the traits in the test's bounds. The build script finds the implementations of the form `impl Trait for Type` in
//! this file.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};

use percale::domain::DomainBuilder;
use percale::transport::sim::{Network, SimOptions};
use percale::{Domain, Info, TransportKind, Trust};

/// A transport under test. Endpoints of two different values may be unable to reach each other.
pub trait Fabric: Sized {
    /// The name of the transport, as in `PERCALE_TRANSPORT`.
    const NAME: &'static str;
    /// Whether an endpoint can reach only itself.
    const ALONE: bool = false;
    /// Whether descriptors and other threads are used. A simulated network has its own clock and uses neither.
    const REAL: bool = true;
    /// The length of a message that is long for this transport.
    const BULK: usize = 1 << 20;

    /// Creates a transport. All its random choices follow from the seed.
    fn new(seed: u64) -> Self;

    /// Opens a domain after `adjust` has changed its builder.
    fn domain(&self, adjust: impl FnOnce(DomainBuilder) -> DomainBuilder) -> Domain;

    /// Returns an address to bind to. Endpoints of other tests have other addresses, so a test may open an endpoint
    /// again at the address of a closed one.
    fn address(&self) -> String {
        SocketAddr::from((own_host(), 0)).to_string()
    }

    /// Advances the time of a simulated network.
    fn tick(&self) {}

    /// Returns the reason why this machine lacks the transport, or `None` if it has the transport. Tests of a missing
    /// transport are skipped.
    fn missing() -> Option<String> {
        None
    }
}

/// Returns a loopback address that no other test of this process uses: one for each thread, because each test has its
/// own thread. Other processes have the same addresses only if their process ids have the same last 12 bits.
///
/// The kernel assigns the ports of 127.0.0.1 to all programs, so the port of a closed endpoint may be used by another
/// test or by a connection soon after.
#[must_use]
pub fn own_host() -> Ipv4Addr {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    thread_local!(static NUMBER: u32 = NEXT.fetch_add(1, Ordering::Relaxed));
    let number = NUMBER.with(|number| (std::process::id() << 11).wrapping_add(*number));
    // Tests expect that no endpoint exists at 127.0.0.x and 127.1.x.x.
    Ipv4Addr::from_bits(Ipv4Addr::new(127, 128, 0, 0).to_bits() | number & 0x007f_ffff)
}

/// A separate transport. A fabric without this trait is an existing transport that accesses regions in a different way.
/// Only the access tests run on it.
pub trait Transport: Fabric {}

/// Endpoints reach other endpoints, see [`Fabric::ALONE`].
pub trait Peers: Transport {}

/// An endpoint reaches only itself, see [`Fabric::ALONE`].
pub trait Alone: Transport {}

/// The transport uses descriptors, sockets, host names, and threads that sleep, see [`Fabric::REAL`].
pub trait Real: Transport {}

/// Peers' regions can be accessed while the peers make no progress.
pub trait Direct: Peers + Real {}

/// Device memory can be sent, received and accessed.
pub trait Devices: Transport {}

/// Runs a test of the suite. If the machine does not have the transport, it prints why the test is skipped.
pub fn run<F: Fabric>(test: fn()) {
    match F::missing() {
        Some(why) => println!("skipped (RDMA): no {} here: {why}", F::NAME),
        None => test(),
    }
}

fn pinned(kind: TransportKind, adjust: impl FnOnce(DomainBuilder) -> DomainBuilder) -> Domain {
    let info = Info::discover().expect("discovery");
    adjust(info.domain().transport(kind)).open().unwrap_or_else(|error| panic!("a domain of {kind}: {error}"))
}

/// An endpoint that sends to itself.
#[derive(Debug)]
pub struct Loopback;

impl Fabric for Loopback {
    const NAME: &'static str = "loopback";
    const ALONE: bool = true;

    fn new(_seed: u64) -> Self {
        Self
    }

    fn domain(&self, adjust: impl FnOnce(DomainBuilder) -> DomainBuilder) -> Domain {
        pinned(TransportKind::Loopback, adjust)
    }
}

impl Transport for Loopback {}
impl Alone for Loopback {}
impl Real for Loopback {}
impl Devices for Loopback {}

/// Shared memory.
#[derive(Debug)]
pub struct Shm;

impl Fabric for Shm {
    const NAME: &'static str = "shm";

    fn new(_seed: u64) -> Self {
        Self
    }

    fn domain(&self, adjust: impl FnOnce(DomainBuilder) -> DomainBuilder) -> Domain {
        pinned(TransportKind::Shm, adjust)
    }
}

impl Transport for Shm {}
impl Peers for Shm {}
impl Real for Shm {}
impl Direct for Shm {}
impl Devices for Shm {}

/// Shared memory between processes that do not trust each other with their regions. Targets execute every access.
#[derive(Debug)]
pub struct Untrusting;

impl Fabric for Untrusting {
    const NAME: &'static str = "shm-untrusting";

    fn new(_seed: u64) -> Self {
        Self
    }

    fn domain(&self, adjust: impl FnOnce(DomainBuilder) -> DomainBuilder) -> Domain {
        pinned(TransportKind::Shm, |domain| adjust(domain.trust(Trust::None)))
    }
}

/// Shared memory on a system where the kernel cannot copy between processes.
#[derive(Debug)]
pub struct Bounced;

impl Fabric for Bounced {
    const NAME: &'static str = "shm-bounced";

    fn new(_seed: u64) -> Self {
        Self
    }

    fn domain(&self, adjust: impl FnOnce(DomainBuilder) -> DomainBuilder) -> Domain {
        pinned(TransportKind::Shm, |domain| adjust(domain.cma(false)))
    }
}

/// RDMA through libibverbs.
#[derive(Debug)]
pub struct Verbs;

impl Fabric for Verbs {
    const NAME: &'static str = "verbs";

    fn new(_seed: u64) -> Self {
        Self
    }

    fn domain(&self, adjust: impl FnOnce(DomainBuilder) -> DomainBuilder) -> Domain {
        pinned(TransportKind::Verbs, adjust)
    }

    fn missing() -> Option<String> {
        let info = Info::discover().expect("discovery");
        let verbs = info.transports().iter().find(|one| one.kind == TransportKind::Verbs)?;
        (!verbs.available).then(|| verbs.reason.clone())
    }
}

impl Transport for Verbs {}
impl Peers for Verbs {}
impl Real for Verbs {}
impl Direct for Verbs {}

/// TCP.
#[derive(Debug)]
pub struct Tcp;

impl Fabric for Tcp {
    const NAME: &'static str = "tcp";

    fn new(_seed: u64) -> Self {
        Self
    }

    fn domain(&self, adjust: impl FnOnce(DomainBuilder) -> DomainBuilder) -> Domain {
        pinned(TransportKind::Tcp, adjust)
    }
}

impl Transport for Tcp {}
impl Peers for Tcp {}
impl Real for Tcp {}
impl Devices for Tcp {}

/// The simulated network.
#[derive(Debug)]
pub struct Sim {
    network: Network,
    port: AtomicU16,
}

impl Fabric for Sim {
    const NAME: &'static str = "sim";
    const REAL: bool = false;
    const BULK: usize = 40_000;

    fn new(seed: u64) -> Self {
        Self { network: Network::new(seed, SimOptions::default()), port: AtomicU16::new(1000) }
    }

    fn domain(&self, adjust: impl FnOnce(DomainBuilder) -> DomainBuilder) -> Domain {
        let info = Info::discover().expect("discovery");
        adjust(info.domain().simulated(&self.network)).open().expect("a domain of a simulated network")
    }

    fn address(&self) -> String {
        format!("10.0.0.1:{}", self.port.fetch_add(1, Ordering::Relaxed))
    }

    fn tick(&self) {
        self.network.advance(1_000);
    }
}

impl Transport for Sim {}
impl Peers for Sim {}
