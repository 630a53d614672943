//! A bulk mover: one endpoint writes 256 MiB into the memory of another one, with 64 transfers in flight. Each buffer
//! is used again when its transfer has ended, so the mover needs the memory of 64 blocks only.
//!
//! `cargo run -p percale --example bulk_mover`

use std::collections::VecDeque;
use std::error::Error;
use std::thread;
use std::time::{Duration, Instant};

use percale::endpoint::safe::Cause;
use percale::{Access, Endpoint, ErrorCode, Info, PeerAddress, RemoteMemory};

/// The length of a block in bytes, the number of blocks, and the number in flight.
const BLOCK: usize = 256 << 10;
const BLOCKS: u64 = 1024;
const IN_FLIGHT: usize = 64;

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// Fills a block with the bytes that it has in the source.
fn fill(block: u64, buffer: &mut [u8]) {
    for (at, word) in (0_u64..).zip(buffer.as_chunks_mut().0) {
        *word = (block << 32 | at).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
    }
}

/// Writes all blocks.
fn push(endpoint: &Endpoint, sink: PeerAddress) -> Outcome<()> {
    // The sink sends the name of its memory.
    endpoint.send(sink, "ready").wait()?;
    let name = endpoint.recv(vec![0; RemoteMemory::BYTES]).from(sink).wait()?;
    let memory = RemoteMemory::from_bytes(&name.to_vec())?;
    let mut flying = VecDeque::with_capacity(IN_FLIGHT);
    for block in 0..BLOCKS {
        let mut buffer = if flying.len() < IN_FLIGHT {
            vec![0; BLOCK]
        } else {
            let mut oldest: percale::endpoint::safe::Operation<_, percale::Buffer> =
                flying.pop_front().ok_or("there are transfers in flight")?;
            oldest.wait()?.into_vec()
        };
        fill(block, &mut buffer);
        let start = block * BLOCK as u64;
        flying.push_back(endpoint.write(sink, buffer, memory.slice(start..start + BLOCK as u64)?).start()?);
    }
    for mut transfer in flying {
        transfer.wait()?;
    }
    // A message that is sent after the writes have ended arrives after them.
    endpoint.send(sink, "over").delivered().wait()?;
    Ok(())
}

/// Lends memory to a mover, which is not in the endpoint's vector, until the mover sends a message.
fn sink(endpoint: &Endpoint) -> Outcome<()> {
    let domain = endpoint.domain();
    let region = domain.register(domain.allocate(BLOCKS as usize * BLOCK)?, Access::REMOTE_WRITE)?;
    let mover = endpoint.recv(vec![0; 8]).wait()?.source.ok_or("a message has a source")?;
    endpoint.send(mover, region.remote().to_bytes().to_vec()).wait()?;
    let mut over = endpoint.recv(vec![0; 8]).from(mover).start()?;
    let message = loop {
        match over.wait_for(Duration::from_secs(1)) {
            Ok(message) => break message,
            Err(error) => match error.cause() {
                Cause::TimedOut => println!("the mover is still at work"),
                Cause::Completion(entry) if entry.error == ErrorCode::PeerDied => return Err("the mover died".into()),
                _ => return Err(error.into()),
            },
        }
    };
    assert_eq!(message.to_vec(), b"over");
    // When this returns, nobody can write there any more.
    let memory = region.close()?.into_vec();
    let mut expected = vec![0; BLOCK];
    for (block, bytes) in (0..).zip(memory.chunks(BLOCK)) {
        fill(block, &mut expected);
        assert!(bytes == expected, "block {block}");
    }
    Ok(())
}

fn main() -> Outcome<()> {
    // In a real program the two endpoints would be in two processes, on one machine or two.
    let domain = Info::discover()?.best()?.open()?;
    let vector = domain.address_vector().build()?;
    let target = domain.endpoint().bind("127.0.0.1:0")?;
    let peer = vector.insert(target.address())?;
    let mover = domain.endpoint().vector(&vector).bind("127.0.0.1:0")?;
    let start = Instant::now();
    thread::scope(|scope| -> Outcome<()> {
        let sinking = scope.spawn(move || sink(&target));
        push(&mover, peer)?;
        sinking.join().map_err(|_| "the sink panicked")?
    })?;
    let bytes = BLOCKS * BLOCK as u64;
    println!("{} MiB moved and verified in {:.1} s", bytes >> 20, start.elapsed().as_secs_f64());
    Ok(())
}
