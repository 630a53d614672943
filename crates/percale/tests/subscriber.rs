//! A log subscriber is application code. In every thread of the library that emits an event, it may panic, and it may
//! use the library. This is a separate program, because the subscriber applies to the whole process.

#![forbid(unsafe_code)]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use percale::{Info, PeerAddress, SharedEndpoint};
use tracing::span;

/// The time after which a wait counts as hanging.
const EVENT_TIMEOUT: Duration = Duration::from_secs(60);

static EVENTS: AtomicU32 = AtomicU32::new(0);
static PANICS: AtomicBool = AtomicBool::new(true);
static COLLECTOR: Mutex<Option<(SharedEndpoint, PeerAddress)>> = Mutex::new(None);

/// A subscriber that panics, or that uses the library to send the events to a collector.
struct Subscriber;

impl tracing::Subscriber for Subscriber {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target().starts_with("percale") && *metadata.level() <= tracing::Level::WARN
    }

    fn event(&self, _: &tracing::Event<'_>) {
        if PANICS.load(Ordering::SeqCst) {
            EVENTS.fetch_add(1, Ordering::SeqCst);
            panic!("a subscriber that panics");
        }
        let collector = COLLECTOR.lock().unwrap().take();
        if let Some((endpoint, collector)) = collector {
            endpoint.send(collector, "a record").wait().expect("the message is sent");
            EVENTS.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

/// Connects as a client that does not use the protocol. The client is rejected, which is logged.
fn stranger(at: SocketAddr) {
    let mut socket = TcpStream::connect(at).expect("the endpoint listens");
    socket.set_read_timeout(Some(EVENT_TIMEOUT)).expect("a timeout");
    socket.write_all(&[0x55; 4096]).ok(); // The connection may already be closed.
    socket.read_to_end(&mut Vec::new()).ok();
}

fn logged(before: u32) {
    let until = std::time::Instant::now() + EVENT_TIMEOUT;
    while EVENTS.load(Ordering::SeqCst) == before {
        assert!(std::time::Instant::now() < until, "nothing was logged");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn log_subscribers_may_panic_and_use_the_library() {
    tracing::subscriber::set_global_default(Subscriber).expect("the only one");
    let open = || {
        let domain = Info::discover().expect("discovery").domain().open().expect("a domain");
        let vector = domain.address_vector().build().expect("a vector");
        let endpoint = domain.endpoint().vector(&vector).bind_shared("127.0.0.1:0").expect("an endpoint");
        (endpoint, vector)
    };
    let ((one, vector), (other, _)) = (open(), open());
    let other = Arc::new(other);
    let peer = vector.insert(other.address()).expect("an address");
    for panics in [true, false] {
        PANICS.store(panics, Ordering::SeqCst);
        let receiver = Arc::clone(&other);
        let received = std::thread::spawn(move || {
            let messages = if panics { 1 } else { 2 };
            (0..messages).for_each(|_| drop(receiver.recv(vec![0; 64]).wait().expect("a message")));
        });
        if !panics {
            // There is no connection to this peer yet, so the thread that makes connections is needed.
            let (fresh, vector) = open();
            let peer = vector.insert(other.address()).expect("an address");
            *COLLECTOR.lock().unwrap() = Some((fresh.clone(), peer));
            let before = EVENTS.load(Ordering::SeqCst);
            stranger(fresh.address());
            logged(before);
        } else {
            let before = EVENTS.load(Ordering::SeqCst);
            stranger(one.address());
            logged(before);
            stranger(one.address());
        }
        let sent = one.send(peer, vec![1; 8]).start().expect("the operation is posted").wait_for(EVENT_TIMEOUT);
        sent.expect("connections can still be established");
        received.join().expect("all messages were received");
    }
}
