//! An RPC server and many calls in flight. The server runs each request in a task of its own, and the client makes each
//! call in one. Short answers are messages; long answers are written into the client's memory. The server does not know
//! the addresses of its clients.
//!
//! `cargo run -p percale --example rpc`

use std::error::Error;
use std::time::Duration;

use percale::rpc::{Client, RpcError, Server, Service};
use percale::{Info, PeerAddress, SharedEndpoint};

const SERVICE: Service = Service { number: 1, request_limit: 64, requests: 32, calls: 64 };
const CALLS: u64 = 500;

/// The time within which the server has to answer.
const DEADLINE: Duration = Duration::from_secs(20);

/// Answers requests with as many bytes as they request, until one requests none. Returns the number of requests.
async fn serve(endpoint: SharedEndpoint) -> Result<u64, RpcError> {
    let mut server = Server::new(&endpoint, SERVICE)?;
    let mut served = 0;
    loop {
        let request = server.next_request_async().await?;
        let wanted = request.bytes().try_into().map_or(0, u64::from_le_bytes);
        // Never trust a length from a peer.
        let len = wanted.min(request.answer_limit()) as usize;
        let reply = request.reply(vec![len as u8; len]);
        if len == 0 {
            reply.await?;
            return Ok(served);
        }
        served += 1;
        tokio::spawn(async move {
            if let Err(error) = reply.await {
                eprintln!("a client has no answer: {error}");
            }
        });
    }
}

/// Makes one call, and returns the length of its answer.
async fn call(client: Client, server: PeerAddress, len: usize) -> Result<usize, Box<dyn Error + Send + Sync>> {
    let request = (len as u64).to_le_bytes();
    let answer = loop {
        let room = vec![0; len];
        match client.call_into(server, &request, room) {
            Ok(call) => break tokio::time::timeout(DEADLINE, call).await??,
            Err(RpcError::TooManyCalls(_)) => tokio::task::yield_now().await,
            Err(error) => return Err(error.into()),
        }
    };
    assert!(answer.len() == len && answer.iter().all(|&byte| byte == len as u8));
    Ok(answer.len())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    // In a real program the server and its clients would be different processes, on one machine or many.
    let domain = Info::discover()?.best()?.open()?;
    let server = domain.endpoint().bind_shared("127.0.0.1:0")?;
    let vector = domain.address_vector().build()?;
    let endpoint = domain.endpoint().vector(&vector).bind_shared("127.0.0.1:0")?;
    let peer = vector.insert(server.address())?;

    let served = tokio::spawn(serve(server));
    let client = Client::new(&endpoint, SERVICE);
    let calls: Vec<_> = (1..=CALLS)
        .map(|number| {
            let len = if number % 10 == 0 { 100_000 } else { number as usize };
            tokio::spawn(call(client.clone(), peer, len))
        })
        .collect();
    let mut bytes = 0;
    for call in calls {
        bytes += call.await??;
    }
    // A call can also be waited for, on a thread that may block.
    let last = tokio::task::spawn_blocking(move || client.call(peer, &[])?.deadline(DEADLINE).wait());
    assert_eq!(last.await??, b"");
    assert_eq!(served.await??, CALLS);
    println!("{CALLS} calls were answered with {bytes} bytes");
    Ok(())
}
