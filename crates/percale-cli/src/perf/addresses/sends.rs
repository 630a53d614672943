//! The effect of a vector's size on sending: messages to the same 64 peers, addressed through vectors of different
//! sizes.
//!
//! The peers are endpoints of this process, over shared memory. Each vector has its own sender, and the senders take
//! turns. The timed operation is posting one message of eight bytes to each peer. Receiving is not timed.

use std::time::Instant;

use percale::address::vector::AddressVector;
use percale::{Domain, Endpoint, Info, PeerAddress, PostError, TransportKind};

use super::measure::{addresses, median, vector};
use crate::failure::{Failure, Result, percale};

/// The number of peers.
const PEERS: usize = 64;
/// The number of messages to each peer from each sender.
const TURNS: usize = 3000;
/// The number of initial messages that are not counted.
const WARM: usize = 200;

/// A vector, and the endpoint that sends through it.
struct Sender {
    endpoint: Endpoint,
    peers: Vec<PeerAddress>,
    ns: Vec<f64>,
    _vector: AddressVector,
}

impl Sender {
    /// Inserts the peers among `count` other addresses, far apart from each other.
    fn new(domain: &Domain, peers: &[Endpoint], count: usize) -> Result<Self> {
        let mut all = addresses(count);
        let places: Vec<_> = (0..PEERS).map(|peer| peer * (count / PEERS)).collect();
        for (place, peer) in places.iter().zip(peers) {
            all[*place] = peer.address();
        }
        let vector = vector(count)?;
        vector.insert_many(all).map_err(percale("inserting addresses"))?;
        let endpoint = domain
            .endpoint()
            .vector(&vector)
            .bind(crate::loopback::here().to_string())
            .map_err(percale("opening an endpoint"))?;
        let peers = places.iter().map(|place| PeerAddress(*place as u64)).collect();
        Ok(Self { endpoint, peers, ns: Vec::new(), _vector: vector })
    }

    /// Sends to each peer once.
    fn turn(&mut self, number: u64, count: bool) -> Result<()> {
        let start = Instant::now();
        for &peer in &self.peers {
            loop {
                match self.endpoint.inject(peer, &number.to_le_bytes()) {
                    Ok(()) => break,
                    Err(PostError::Again) => drop(self.endpoint.progress()),
                    Err(error) => return Err(percale("sending")(error)),
                }
            }
        }
        if count {
            self.ns.push(start.elapsed().as_nanos() as f64 / PEERS as f64);
        }
        Ok(())
    }
}

/// Returns the time in nanoseconds to post a message to one of the same 64 peers, for each size of the vector.
pub(super) fn measure(counts: &[usize]) -> Result<Vec<f64>> {
    let info = Info::discover().map_err(percale("discovering transports"))?;
    let domain = info.domain().transport(TransportKind::Shm).open().map_err(percale("opening a domain"))?;
    let mut peers = Vec::new();
    for _ in 0..PEERS {
        peers
            .push(domain.endpoint().bind(crate::loopback::here().to_string()).map_err(percale("opening an endpoint"))?);
    }
    let mut senders = Vec::new();
    for &count in counts {
        senders.push(Sender::new(&domain, &peers, count)?);
    }
    for turn in 0..TURNS {
        for sender in &mut senders {
            sender.turn(turn as u64, turn >= WARM)?;
            for peer in &peers {
                // The sender's progress in this thread establishes the connection.
                let mut receive = peer.recv(vec![0; 8]).start().map_err(percale("receiving"))?;
                while !receive.is_ready() {
                    sender.endpoint.progress();
                    peer.progress();
                }
                let received = receive.wait().map_err(percale("receiving"))?;
                if received.to_vec() != (turn as u64).to_le_bytes() {
                    return Err(Failure::Data("a received message differs from the one that was sent".into()));
                }
            }
        }
    }
    Ok(senders.iter().map(|sender| median(&sender.ns).unwrap_or_default()).collect())
}
