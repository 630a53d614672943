//! One endpoint only registers memory. Another endpoint reads and writes this memory and increments a counter in it,
//! over shared memory and over TCP, if they are available. Then the owner closes the region, and later accesses are
//! rejected.
//!
//! `cargo run -p percale --example one_sided`

use std::error::Error;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use percale::{Access, Endpoint, ErrorCode, Info, PeerAddress, RemoteMemory, TransportKind};

const LEN: usize = 1 << 20;

/// Performs the initiator's operations. `word` is eight bytes of the region.
fn initiate(
    endpoint: &Endpoint,
    owner: PeerAddress,
    all: RemoteMemory,
) -> Result<(), percale::endpoint::safe::OperationError> {
    let pattern: Vec<u8> = (0..LEN).map(|at| at as u8).collect();
    // When the write completes, the data is in the owner's memory.
    let sent = endpoint.write(owner, pattern.clone(), all).wait()?;
    let got = endpoint.read(owner, all, sent).wait()?;
    assert_eq!(got.into_vec(), pattern);
    let word = all.at(0..8);
    let before: u64 = endpoint.fetch_add(owner, word, 1).wait()?;
    assert_eq!(endpoint.compare_swap(owner, word, before + 1, 42).wait()?, before + 1);
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    for kind in [TransportKind::Shm, TransportKind::Tcp] {
        let info = Info::discover()?;
        if !info.transports().iter().any(|one| one.kind == kind && one.available) {
            println!("{kind}: not available here; `percale info` prints the reason");
            continue;
        }
        // In a real program the two endpoints would be in two processes, on one machine or two.
        let domain = info.domain().transport(kind).open()?;
        let vector = domain.address_vector().build()?;
        let bind = || domain.endpoint().vector(&vector).bind("127.0.0.1:0");
        let (owner, initiator) = (bind()?, bind()?);
        let peer = vector.insert(owner.address())?;

        let region = domain.register(domain.allocate(LEN)?, Access::REMOTE_READ | Access::REMOTE_WRITE)?;
        let name = region.remote().to_bytes(); // Usually sent in a message to the peers that may use it.
        let all = RemoteMemory::from_bytes(&name)?;
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                // The owner only makes progress: over TCP the owner's endpoint reads and writes for the peer.
                while !over.load(Ordering::Relaxed) {
                    owner.progress();
                }
                owner
            });
            let result = initiate(&initiator, peer, all).map_err(|error| error.to_string());
            let mut word = [0; 8];
            region.read(0, &mut word);
            let memory = region.close().map_err(|error| error.to_string())?; // No peer can access it any more.
            let late = initiator.read(peer, all.at(0..8), vec![0; 8]).wait().expect_err("the region is closed");
            over.store(true, Ordering::Relaxed);
            result?;
            assert_eq!((u64::from_ne_bytes(word), memory.len()), (42, LEN));
            assert_eq!(late.errno(), ErrorCode::KeyRejected.errno());
            Ok::<_, Box<dyn Error>>(())
        })?;
        println!(
            "{kind}: {LEN} bytes written and read, a counter incremented; the region was closed, and the next read was rejected"
        );
    }
    Ok(())
}
