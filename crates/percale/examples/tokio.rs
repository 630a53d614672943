//! Operations are futures for any runtime. Here tasks of a single-threaded tokio runtime exchange messages.
//!
//! Operations of a shared endpoint borrow nothing, so the server's loop is spawned as a task, and so is each reply.
//! Operations of an endpoint with one owner borrow it, so the client awaits them in the task that owns the endpoint.
//!
//! `cargo run -p percale --example tokio`

use std::error::Error;
use std::future::IntoFuture;
use std::time::Duration;

use percale::{Endpoint, Info, PeerAddress, SharedEndpoint};
use tokio::task::JoinSet;

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// Answers requests with their sums, until a request is empty. Each reply is a task of its own, so the next request is
/// received while replies are in progress.
async fn serve(endpoint: SharedEndpoint, client: PeerAddress) -> Outcome<usize> {
    let mut replies = JoinSet::new();
    loop {
        let request = endpoint.recv(vec![0; 1024]).from(client).await?;
        if request.len == 0 {
            break;
        }
        let sum: u64 = request.to_vec().iter().map(|&byte| u64::from(byte)).sum();
        // Posted here, so that the replies leave in the order of the requests. The task owns the operation.
        replies.spawn(endpoint.send(client, sum.to_le_bytes().to_vec()).start()?);
    }
    let mut served = 0;
    while let Some(reply) = replies.join_next().await {
        reply??;
        served += 1;
    }
    Ok(served)
}

async fn ask(endpoint: &Endpoint, server: PeerAddress) -> Outcome<()> {
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
async fn main() -> Outcome<()> {
    let domain = Info::discover()?.best()?.open()?;
    let (clients, servers) = (domain.address_vector().build()?, domain.address_vector().build()?);
    let server = domain.endpoint().vector(&clients).bind_shared("127.0.0.1:0")?;
    let client = domain.endpoint().vector(&servers).bind("127.0.0.1:0")?;
    let to_client = clients.insert(client.address())?;
    let to_server = servers.insert(server.address())?;

    let serving = tokio::spawn(serve(server, to_client));
    ask(&client, to_server).await?;
    println!("{} requests were answered, every answer verified", serving.await??);
    Ok(())
}
