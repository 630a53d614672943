//! The server of the README: registers memory and sends its description to a client.
//!
//! ```text
//! cargo run -p percale --example hello_server
//! ```
//! It ends when a client (`hello_client`) has finished.

use percale::{Access, Info};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let domain = Info::discover()?.best()?.open()?; // all transports of this machine
    let vector = domain.address_vector().build()?;
    let endpoint = domain.endpoint().vector(&vector).bind("127.0.0.1:7471")?;
    let region = domain.register(domain.allocate(1 << 20)?, Access::REMOTE_READ | Access::REMOTE_WRITE)?;

    let hello = endpoint.recv(vec![0; 64]).wait()?; // a client sends its address
    let client = vector.insert(String::from_utf8(hello.to_vec())?.as_str())?;
    endpoint.send(client, region.remote().to_bytes().to_vec()).wait()?; // key, address and length
    endpoint.recv(vec![0; 8]).from(client).wait()?; // the client has finished

    let mut text = [0; 5];
    region.read(0, &mut text);
    println!("the client wrote {:?}", String::from_utf8_lossy(&text));
    region.close()?; // when this returns, no peer accesses the memory any more
    Ok(())
}
