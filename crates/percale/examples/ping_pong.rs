//! Two endpoints in two threads exchange messages over shared memory and over TCP, if they are available, and verify
//! the contents.
//!
//! `cargo run -p percale --example ping_pong`

use std::error::Error;
use std::thread;

use percale::{Endpoint, Info, PeerAddress, TransportKind};

/// The number of messages in each direction.
const ROUNDS: u32 = 1000;

/// Opens an endpoint that uses only this transport. In a real program the two endpoints would be in two processes, on
/// one machine or two.
fn open(kind: TransportKind) -> Result<(Endpoint, percale::AddressVector), Box<dyn Error>> {
    let domain = Info::discover()?.domain().transport(kind).open()?;
    let vector = domain.address_vector().build()?;
    let endpoint = domain.endpoint().vector(&vector).bind("127.0.0.1:0")?;
    Ok((endpoint, vector))
}

/// Sends back every message.
fn pong(endpoint: &Endpoint, peer: PeerAddress) -> Result<(), percale::endpoint::safe::OperationError> {
    let mut buffer = percale::Buffer::zeroed(64);
    for _ in 0..ROUNDS {
        let got = endpoint.recv(buffer).from(peer).wait()?;
        buffer = endpoint.send(peer, got.buffer).wait()?; // Every operation returns its buffer.
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    for kind in [TransportKind::Shm, TransportKind::Tcp] {
        let info = Info::discover()?;
        let Some(one) = info.transports().iter().find(|one| one.kind == kind && one.available) else {
            println!("{kind}: not available here; `percale info` prints the reason");
            continue;
        };
        println!("{kind}: {}", one.reason);
        let (ping, to_pong) = open(kind)?;
        let (ponging, to_ping) = open(kind)?;
        let peer = to_pong.insert(ponging.address())?;
        let back = to_ping.insert(ping.address())?;
        thread::scope(|scope| {
            let other = scope.spawn(move || pong(&ponging, back).map_err(|error| error.to_string()));
            for round in 0..ROUNDS {
                let message = [round.to_le_bytes(); 16].concat();
                ping.send(peer, message.clone()).wait()?;
                let got = ping.recv(vec![0; 64]).from(peer).wait()?;
                assert_eq!(got.to_vec(), message);
            }
            other.join().expect("the other thread does not panic")?;
            Ok::<_, Box<dyn Error>>(())
        })?;
        println!("{kind}: {ROUNDS} messages in each direction, every byte verified");
    }
    Ok(())
}
