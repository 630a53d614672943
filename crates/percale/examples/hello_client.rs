//! The client of the README: writes to a server's memory and increments a counter in it.
//!
//! ```text
//! cargo run -p percale --example hello_client
//! ```
//! Start the server (`hello_server`) first.

use percale::{Info, RemoteMemory};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let domain = Info::discover()?.best()?.open()?;
    let vector = domain.address_vector().build()?;
    let endpoint = domain.endpoint().vector(&vector).bind("127.0.0.1:0")?;

    let server = vector.insert("127.0.0.1:7471")?; // the first use connects
    endpoint.send(server, endpoint.address().to_string().into_bytes()).wait()?;
    let reply = endpoint.recv(vec![0; 64]).from(server).wait()?;
    let memory = RemoteMemory::from_bytes(&reply.to_vec())?;

    endpoint.write(server, b"hello".to_vec(), memory.slice(0..5)?).wait()?;
    let before: u64 = endpoint.fetch_add(server, memory.slice(8..16)?, 1).wait()?;
    println!("the counter was {before}");
    endpoint.send(server, b"done".to_vec()).wait()?;
    Ok(())
}
