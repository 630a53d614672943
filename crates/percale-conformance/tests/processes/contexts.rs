//! Killed peers of scalable endpoints, and of endpoints that share receives.

use std::collections::HashMap;
use std::future::IntoFuture;

use percale::endpoint::safe::{OperationError, Received};
use percale::{AddressVector, Endpoint, ErrorCode, PeerAddress, SharedReceiving};
use percale_conformance::memory::{content, same};
use percale_conformance::peers::domain;
use percale_conformance::polled::polled;
use percale_conformance::process::{Helper, ask, print_line, variable};
use percale_conformance::watchdog::Watchdog;
use rustix::process::Signal;

crate::on!(shm, tcp: {
    killed_peer_ends_operations_of_two_contexts,
    a_killed_peer_ends_shared_receives_from_it,
});

/// The number of address bits for receive contexts.
const BITS: u32 = 2;

/// The role of a helper that, on request, sends a given number of bytes to one of the contexts in `PERCALE_PEER`.
pub(crate) fn caller() {
    let domain = domain(&variable("PERCALE_FABRIC"), |domain| domain);
    let vector = domain.address_vector().receive_context_bits(BITS).build().expect("a vector");
    let endpoint = domain.endpoint().vector(&vector).bind("127.0.0.1:0").expect("an endpoint");
    let (there, mut known) = (variable("PERCALE_PEER"), HashMap::new());
    let names = there.split(',').map(|name| name.split_once('/').expect("an address and a context"));
    let peers: Vec<PeerAddress> = names
        .map(|(address, context)| {
            let peer = *known.entry(address).or_insert_with(|| vector.insert(address).expect("an address"));
            peer.receive_context(context.parse().expect("a number"), BITS).expect("the context fits into the address")
        })
        .collect();
    print_line(&endpoint.address().to_string());
    loop {
        let order = ask();
        let (to, len) = order.split_once(' ').expect("a context and a length");
        let [to, len]: [usize; 2] = [to, len].map(|number| number.parse().expect("a number"));
        endpoint.send(peers[to], content(to as u64, len)).wait().expect("a send");
        print_line("sent");
    }
}

/// Endpoints that are driven together.
struct Party {
    ends: Vec<Endpoint>,
    vector: AddressVector,
    transport: String,
}

impl Party {
    fn turn(&self) {
        self.ends.iter().for_each(|end| _ = end.progress());
        std::thread::yield_now();
    }

    /// Drives all endpoints until an operation is over.
    fn finish<T>(&self, operation: impl IntoFuture<Output = T>) -> T {
        let mut poll = polled(operation);
        loop {
            if let Some(result) = poll() {
                return result;
            }
            self.turn();
        }
    }

    fn finish_shared(&self, receiving: SharedReceiving) -> Result<Received, OperationError> {
        while !receiving.is_ready() {
            self.turn();
        }
        receiving.take().expect("the receive is ready")
    }

    /// Starts a helper that sends to these contexts.
    fn caller(&self, there: &str) -> (Helper, PeerAddress) {
        let mut helper = Helper::start("caller", &[("PERCALE_FABRIC", &self.transport), ("PERCALE_PEER", there)]);
        let peer = self.vector.insert(helper.receive_line()).expect("an address");
        (helper, peer)
    }

    /// Makes a helper send to one of its peers.
    fn send(&self, helper: &mut Helper, to: usize, len: usize) {
        helper.send_line(&format!("{to} {len}"));
        while helper.try_receive_line().is_none() {
            self.turn();
        }
    }

    /// Makes a helper send to the first two endpoints.
    fn meet(&self, (helper, peer): &mut (Helper, PeerAddress)) {
        for (to, end) in self.ends.iter().enumerate().take(2) {
            let receive = end.recv(vec![0; 100]).start().expect("a receive");
            self.send(helper, to, 100);
            message(self.finish(receive), *peer, to, 100);
        }
    }
}

/// Checks that an operation failed because the peer died.
#[track_caller]
fn died<T: std::fmt::Debug>(result: Result<T, OperationError>) {
    let error = result.expect_err("the peer is dead");
    assert_eq!(error.errno(), ErrorCode::PeerDied.errno(), "{error}");
}

#[track_caller]
fn message(got: Result<Received, OperationError>, from: PeerAddress, to: usize, len: usize) {
    let got = got.expect("a message");
    same(&got.to_vec(), &content(to as u64, len), "a message");
    assert_eq!(got.source, Some(from));
}

/// The killed peer had sent to two of three contexts. Operations of these contexts that wait for the peer end. The
/// contexts and the other peer continue.
///
/// Requirements: FLT-001, CTX-005.
fn killed_peer_ends_operations_of_two_contexts(transport: &str) {
    let _watchdog = Watchdog::new("killed peer ends operations of two contexts");
    let domain = domain(transport, |domain| domain);
    let vector = domain.address_vector().receive_context_bits(BITS).build().expect("a vector");
    let scalable = domain.scalable_endpoint().contexts(3).bind("127.0.0.1:0").expect("a scalable endpoint");
    let open = |index| scalable.open(index, domain.endpoint().vector(&vector)).expect("a context");
    let party = Party { ends: (0..3).map(open).collect(), vector: vector.clone(), transport: transport.into() };
    let there = [0, 1, 2].map(|context| format!("{}/{context}", scalable.address())).join(",");
    let [mut victim, mut survivor] = [(); 2].map(|()| party.caller(&there));
    party.meet(&mut victim);
    party.meet(&mut survivor);
    let receive = |to: usize| party.ends[to].recv(vec![0; 8]);
    let from_victim = [0, 1].map(|to| receive(to).from(victim.1).start().expect("a receive"));
    let from_survivor = [0, 1].map(|to| receive(to).from(survivor.1).start().expect("a receive"));
    let from_anybody = [0, 1, 2].map(|to| receive(to).start().expect("a receive"));
    let long = |to: usize| party.ends[to].send(victim.1, content(9, 300_000)).delivered();
    let sends = [0, 1].map(|to| long(to).start().expect("a send"));
    (0..100).for_each(|_| party.turn());
    victim.0.signal(Signal::KILL);
    from_victim.into_iter().for_each(|receive| died(party.finish(receive)));
    sends.into_iter().for_each(|send| died(party.finish(send)));
    assert!(
        from_survivor.iter().chain(&from_anybody).all(|receive| !receive.is_ready()),
        "receives from other peers still wait"
    );
    for (to, receive) in from_survivor.into_iter().chain(from_anybody).enumerate() {
        let to = if to < 2 { to } else { to - 2 };
        party.send(&mut survivor.0, to, 8);
        message(party.finish(receive), survivor.1, to, 8);
    }
    for end in &party.ends {
        party.finish(end.send(survivor.1, content(1, 100))).expect("the other peer still runs");
    }
    // Another peer can communicate in the same way afterwards.
    party.meet(&mut party.caller(&there));
}

/// The killed peer had sent to two endpoints that share receives. Shared receives directed at the peer end, other
/// receives still wait, and the messages of the peer are kept.
///
/// Requirements: FLT-001, CTX-009.
fn a_killed_peer_ends_shared_receives_from_it(transport: &str) {
    let _watchdog = Watchdog::new("a killed peer ends shared receives from it");
    let domain = domain(transport, |domain| domain);
    let vector = domain.address_vector().receive_context_bits(BITS).build().expect("a vector");
    let shared = domain.shared_receive();
    let open = |_| {
        let builder = domain.endpoint().vector(&vector).shared_receive(&shared);
        builder.bind("127.0.0.1:0").expect("an endpoint")
    };
    let party = Party { ends: (0..2).map(open).collect(), vector: vector.clone(), transport: transport.into() };
    let there: Vec<_> = party.ends.iter().map(|end| format!("{}/0", end.address())).collect();
    let [(mut victim, gone), (mut survivor, here)] = [(); 2].map(|()| party.caller(&there.join(",")));
    for to in 0..2 {
        for (helper, peer) in [(&mut victim, gone), (&mut survivor, here)] {
            let receiving = shared.recv(vec![0; 100]).expect("a receive");
            party.send(helper, to, 100);
            message(party.finish_shared(receiving), peer, to, 100);
        }
    }
    for to in 0..2 {
        party.send(&mut victim, to, 50);
    }
    let from_victim = shared.recv_from(gone, Some((1, 0)), vec![0; 8]).expect("a receive");
    let from_survivor = shared.recv_from(here, None, vec![0; 8]).expect("a receive");
    victim.signal(Signal::KILL);
    died(party.finish_shared(from_victim));
    assert!(!from_survivor.is_ready(), "the other peer still runs");
    let kept = [(); 2].map(|()| shared.recv(vec![0; 50]).expect("a receive"));
    for (to, receiving) in kept.into_iter().enumerate() {
        message(party.finish_shared(receiving), gone, to, 50);
    }
    let from_anybody = shared.recv(vec![0; 8]).expect("a receive");
    for (to, receiving) in [from_survivor, from_anybody].into_iter().enumerate() {
        assert!(!receiving.is_ready(), "nothing was sent to it");
        party.send(&mut survivor, to, 8);
        message(party.finish_shared(receiving), here, to, 8);
    }
}
