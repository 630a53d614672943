//! The connection to a server.

use std::net::{SocketAddr, ToSocketAddrs, UdpSocket};
use std::time::Duration;

use percale::endpoint::Owned;
use percale::endpoint::safe::{Accessing, Receiving};
use percale::{Buffer, Endpoint, Info, PeerAddress, RemoteMemory};

use crate::failure::{Failure, Result, percale};
use crate::row::Transport;
use crate::transfer::protocol::{LINE, PROTOCOL, Reply, Request, TAG};

/// How long an answer, or a block, may take: long enough for a busy disk, and a server that dies is noticed at once.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long the server may take to make a large file permanent.
const PERMANENCE: Duration = Duration::from_secs(900);

/// A server that welcomed us.
#[derive(Debug)]
pub(super) struct Server {
    endpoint: Endpoint,
    peer: PeerAddress,
}

impl Server {
    /// Connects to the server at `HOST:PORT`.
    pub(super) fn connect(address: &str, key: Option<Vec<u8>>, transport: Option<Transport>) -> Result<Self> {
        let connecting = || format!("connecting to {address}");
        let target = address.to_socket_addrs().map_err(Failure::system(connecting()))?.next();
        let target = target.ok_or_else(|| Failure::Usage(format!("{address} has no address")))?;
        let here = local(target).map_err(Failure::system(connecting()))?;
        let mut domain = Info::discover().map_err(percale("looking what is here"))?.domain();
        if let Some(key) = key {
            domain = domain.authorization_key(key);
        }
        if let Some(transport) = transport {
            domain = domain.transport(transport.kind());
        }
        let domain = domain.open().map_err(percale("opening a domain"))?;
        let vector = domain.address_vector().build().map_err(percale("making an address vector"))?;
        let peer = vector.insert(target).map_err(percale("using the server's address"))?;
        let endpoint = domain.endpoint().vector(&vector).bind(here.to_string());
        let server = Self { endpoint: endpoint.map_err(percale("opening an endpoint"))?, peer };
        match server.greet() {
            Ok(PROTOCOL) => Ok(server),
            Ok(version) => Err(Failure::Protocol(format!("it speaks version {version}"))),
            Err(Failure::Percale { why, .. }) => {
                Err(Failure::System { what: connecting(), source: std::io::Error::other(why) })
            }
            Err(error) => Err(error),
        }
    }

    /// Waits to be welcomed. Which version the server speaks.
    fn greet(&self) -> Result<u32> {
        self.ask(&Request::Hello)?;
        loop {
            match self.next() {
                Ok(Reply::Welcome { protocol }) => return Ok(protocol),
                // Answers to somebody who had our address before.
                Ok(_) | Err(Failure::Server(_)) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Sends a request.
    pub(super) fn ask(&self, request: &Request) -> Result<()> {
        let bytes = serde_json::to_vec(request).map_err(Failure::system("writing JSON"))?;
        let sent = self.endpoint.tagged_send(self.peer, TAG, bytes).start();
        sent.and_then(|sending| sending.wait_for(PATIENCE)).map_err(percale("asking the server"))?;
        Ok(())
    }

    fn next_within(&self, patience: Duration) -> Result<Reply> {
        self.listen()?.wait(patience)
    }

    /// Listens for the next reply.
    pub(super) fn listen(&self) -> Result<Awaited<'_>> {
        let receiving = self.endpoint.tagged_recv(TAG, 0, vec![0; LINE]).from(self.peer).start();
        Ok(Awaited(receiving.map_err(percale("waiting for the server"))?))
    }

    /// Waits for the next reply; one that says that something failed is a failure here.
    pub(super) fn next(&self) -> Result<Reply> {
        self.next_within(PATIENCE)
    }

    /// Ends the copy.
    pub(super) fn finish(&self, request: &Request) -> Result<()> {
        self.ask(request)?;
        match self.next_within(PERMANENCE)? {
            Reply::Finished => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    /// Begins to read from the server's memory; the buffer is as long as that.
    pub(super) fn read(&self, from: RemoteMemory, into: Vec<u8>) -> Result<Moving<'_>> {
        Ok(Moving(self.endpoint.read(self.peer, from, into).start().map_err(percale("reading a block"))?))
    }

    /// Begins to write into the server's memory, which is as long as the buffer.
    pub(super) fn write(&self, from: Vec<u8>, to: RemoteMemory) -> Result<Moving<'_>> {
        Ok(Moving(self.endpoint.write(self.peer, from, to).start().map_err(percale("writing a block"))?))
    }
}

/// A reply that will come.
#[derive(Debug)]
pub(super) struct Awaited<'a>(Receiving<'a, Owned>);

impl Awaited<'_> {
    /// Whether it is here.
    pub(super) fn is_here(&self) -> bool {
        self.0.is_ready()
    }

    /// Waits for it; one that says that something failed is a failure here.
    pub(super) fn take(self) -> Result<Reply> {
        self.wait(PATIENCE)
    }

    fn wait(self, patience: Duration) -> Result<Reply> {
        let message = self.0.wait_for(patience).map_err(percale("waiting for the server"))?.to_vec();
        match serde_json::from_slice(&message) {
            Ok(Reply::Failed { why }) => Err(Failure::Server(why)),
            Ok(reply) => Ok(reply),
            Err(error) => Err(Failure::Protocol(error.to_string())),
        }
    }
}

/// A block on its way.
#[derive(Debug)]
pub(super) struct Moving<'a>(Accessing<'a, Owned, Buffer>);

impl Moving<'_> {
    /// Waits until it is there; gives the buffer.
    pub(super) fn wait(self) -> Result<Vec<u8>> {
        Ok(self.0.wait_for(PATIENCE).map_err(percale("moving a block"))?.into_vec())
    }
}

/// A reply that was not to be.
pub(super) fn unexpected(reply: &Reply) -> Failure {
    let mut text = format!("{reply:?}");
    text.truncate(text.char_indices().nth(80).map_or(text.len(), |(at, _)| at));
    Failure::Protocol(text)
}

/// The address of ours that traffic to `target` comes from, with any port. Nothing is sent.
fn local(target: SocketAddr) -> std::io::Result<SocketAddr> {
    let any: SocketAddr = if target.is_ipv4() { ([0; 4], 0).into() } else { ([0_u16; 8], 0).into() };
    let socket = UdpSocket::bind(any)?;
    socket.connect(target)?;
    let mut here = socket.local_addr()?;
    here.set_port(0);
    Ok(here)
}
