//! A server has one address and one thread for each of its contexts, which share only the address. A client exchanges
//! messages with each of them. Then two endpoints share their receives.
//!
//! `cargo run -p percale --example contexts`

use std::error::Error;
use std::thread;

use percale::endpoint::safe::OperationError;
use percale::{Endpoint, Info};

const CONTEXTS: u16 = 3;
/// The number of address bits that select contexts, which is enough for four contexts.
const BITS: u32 = 2;

/// Runs in the thread of a context, and answers one message with its number.
fn serve(context: &Endpoint, number: u16) -> Result<(), OperationError> {
    let request = context.recv(vec![0; 64]).wait()?;
    let client = request.source.expect("the client is in the vector");
    context.send(client, format!("context {number} got {} bytes", request.len).into_bytes()).delivered().wait()?;
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let domain = Info::discover()?.best()?.open()?;
    let vector = domain.address_vector().receive_context_bits(BITS).build()?;
    let server = domain.scalable_endpoint().contexts(CONTEXTS).bind("127.0.0.1:0")?;
    let address = vector.insert(server.address())?;
    let client = domain.endpoint().vector(&vector).bind("127.0.0.1:0")?;
    vector.insert(client.address())?;

    thread::scope(|scope| {
        let mut threads = Vec::new();
        for number in 0..CONTEXTS {
            let context = server.open(number, domain.endpoint().vector(&vector))?;
            threads.push(scope.spawn(move || serve(&context, number).map_err(|error| error.to_string())));
        }
        for number in 0..CONTEXTS {
            let name = address.receive_context(number.into(), BITS).ok_or("no room for so many contexts")?;
            let mut answer = client.recv(vec![0; 64]).start()?;
            client.send(name, vec![0; 10 + usize::from(number)]).wait()?;
            println!("{}", String::from_utf8_lossy(&answer.wait()?.to_vec()));
        }
        for thread in threads {
            thread.join().expect("no context panics")?;
        }
        Ok::<_, Box<dyn Error>>(())
    })?;

    // These receives are posted once, for messages to either of two endpoints.
    let shared = domain.shared_receive();
    let bind = || domain.endpoint().vector(&vector).shared_receive(&shared).bind("127.0.0.1:0");
    let sharers = [bind()?, bind()?];
    for sharer in &sharers {
        let receiving = shared.recv(vec![0; 64])?;
        client.inject(vector.insert(sharer.address())?, b"to one of two")?;
        while !receiving.is_ready() {
            client.progress();
            sharers.iter().for_each(|endpoint| _ = endpoint.progress());
        }
        let got = receiving.take().ok_or("the receive is not ready")??;
        println!("shared: {}", String::from_utf8_lossy(&got.to_vec()));
    }
    Ok(())
}
