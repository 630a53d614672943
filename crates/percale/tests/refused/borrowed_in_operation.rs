//! An operation owns its buffer: memory that is only borrowed could be freed while the peer writes it.

fn read(endpoint: &percale::Endpoint, peer: percale::PeerAddress, remote: percale::RemoteMemory) {
    let mut bytes = [0_u8; 64];
    let reading = endpoint.read(peer, remote, &mut bytes[..]).start();
    std::mem::forget(reading);
}

fn main() {}
