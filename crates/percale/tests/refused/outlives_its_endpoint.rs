//! What is under way does not outlive its endpoint.

fn send(endpoint: percale::Endpoint, peer: percale::PeerAddress) {
    let sending = endpoint.send(peer, vec![1, 2, 3]).start();
    drop(endpoint);
    drop(sending);
}

fn main() {}
