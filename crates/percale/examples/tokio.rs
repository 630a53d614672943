//! Operations are futures for any runtime. Here two tasks of a single-threaded tokio runtime exchange messages.
//!
//! `cargo run -p percale --example tokio`

use std::error::Error;
use std::future::IntoFuture;
use std::time::Duration;

use percale::{Endpoint, Info, PeerAddress};

/// Answers requests with their sums, until a request is empty.
async fn serve(endpoint: &Endpoint, client: PeerAddress) -> Result<u32, Box<dyn Error>> {
    let mut served = 0;
    loop {
        let request = endpoint.recv(vec![0; 1024]).from(client).await?;
        if request.len == 0 {
            return Ok(served);
        }
        let sum: u64 = request.to_vec().iter().map(|&byte| u64::from(byte)).sum();
        endpoint.send(client, sum.to_le_bytes().to_vec()).await?;
        served += 1;
    }
}

async fn ask(endpoint: &Endpoint, server: PeerAddress) -> Result<(), Box<dyn Error>> {
    for len in 1..=100_u8 {
        endpoint.send(server, vec![len; usize::from(len)]).await?;
        let answer = endpoint.recv(vec![0; 8]).from(server).await?;
        assert_eq!(answer.to_vec(), (u64::from(len) * u64::from(len)).to_le_bytes());
    }
    // No further message arrives. A timer ends the wait, and dropping the receive cancels it.
    let silence = tokio::time::timeout(Duration::from_millis(50), endpoint.recv(vec![0; 8]).into_future()).await;
    assert!(silence.is_err());
    endpoint.send(server, Vec::new()).await?;
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let domain = Info::discover()?.best()?.open()?;
    let open = || -> Result<_, Box<dyn Error>> {
        let vector = domain.address_vector().build()?;
        Ok((domain.endpoint().vector(&vector).bind("127.0.0.1:0")?, vector))
    };
    let (server, clients) = open()?;
    let (client, servers) = open()?;
    let to_client = clients.insert(client.address())?;
    let to_server = servers.insert(server.address())?;
    let (served, requested) = tokio::join!(serve(&server, to_client), ask(&client, to_server));
    requested?;
    println!("{} requests were answered, every answer verified", served?);
    Ok(())
}
