//! The connection to a server. The client accepts one reply to each of its requests, and a failure report that refers
//! to no particular request. It ignores replies to requests of earlier clients.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::{SocketAddr, ToSocketAddrs, UdpSocket};
use std::time::{Duration, Instant};

use percale::endpoint::Owned;
use percale::endpoint::safe::{Accessing, Receiving};
use percale::{Buffer, Endpoint, Info, PeerAddress, RemoteMemory};

use crate::failure::{Failure, Result, percale};
use crate::row::Transport;
use crate::transfer::protocol::{
    ClientRequest, GREETING, LINE, NumberedReply, NumberedRequest, PROTOCOL, ServerReply, TAG,
};
use crate::transfer::visible;

/// The timeout for an answer or a block. It is long enough for a busy disk. The end of the server is detected
/// immediately.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// The timeout for the server to write a file to its disk or to verify it a second time. It is extended for large files
/// at the end of a copy.
const PERMANENCE: Duration = Duration::from_secs(900);

/// The number of bytes for which the timeout is extended by one second.
const SLOW_DISK: u64 = 10_000_000;

/// How long, and at which interval, opening a file is retried while another copy uses it. If the process of the other
/// copy was killed, the server detects this after a delay.
const UNDER_WAY: Duration = Duration::from_secs(5);
const RETRY: Duration = Duration::from_millis(50);

/// How long to wait for an error that explains another error.
const EXPLAINING: Duration = Duration::from_secs(1);

/// A server that has accepted this client.
#[derive(Debug)]
pub(super) struct Server {
    endpoint: Endpoint,
    peer: PeerAddress,
    requests: RefCell<Requests>,
}

/// Requests by number.
#[derive(Debug)]
struct Requests {
    /// The first number. It is random, so that answers to an earlier process at this address have different numbers.
    first: u64,
    next: u64,
    /// The requests that have not been answered.
    open: BTreeMap<u64, ClientRequest>,
}

impl Requests {
    fn new() -> Result<Self> {
        let mut bytes = [0; 8];
        rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
            .map_err(Failure::system("drawing a random number"))?;
        // The first number is far from the number of the greeting and from the largest number.
        let first = u64::from_ne_bytes(bytes) >> 2 | 1 << 61;
        Ok(Self { first, next: first, open: BTreeMap::new() })
    }

    /// Assigns a number to a request.
    fn add(&mut self, request: &ClientRequest) -> u64 {
        let number = self.next;
        self.next += 1;
        self.open.insert(number, request.clone());
        number
    }

    /// Returns the reply if it answers a request of this client, otherwise `None`.
    fn take(&mut self, answered: NumberedReply) -> Result<Option<ServerReply>> {
        let NumberedReply { number, reply } = answered;
        match self.open.remove(&number) {
            Some(request) if reply.answers(&request) => Ok(Some(reply)),
            Some(request) => Err(Failure::Protocol(format!("{reply} was received in reply to {request}"))),
            None if (self.first..self.next).contains(&number) => {
                Err(Failure::Protocol(format!("second reply to one request: {reply}")))
            }
            // A failure report that refers to no particular request.
            None if number == GREETING && matches!(reply, ServerReply::Failed { .. }) => Ok(Some(reply)),
            None => Ok(None),
        }
    }
}

impl Server {
    /// Connects to the server at `HOST:PORT`.
    pub(super) fn connect(address: &str, key: Option<Vec<u8>>, transport: Option<Transport>) -> Result<Self> {
        let connecting = || format!("connecting to {address}");
        let target = address.to_socket_addrs().map_err(Failure::system(connecting()))?.next();
        let target = target.ok_or_else(|| Failure::Usage(format!("{address} does not resolve to an address")))?;
        let here = local(target).map_err(Failure::system(connecting()))?;
        let mut domain = Info::discover().map_err(percale("discovering transports"))?.domain();
        if let Some(key) = key {
            domain = domain.authorization_key(key);
        }
        if let Some(transport) = transport {
            domain = domain.transport(transport.kind());
        }
        let domain = domain.open().map_err(percale("opening a domain"))?;
        let vector = domain.address_vector().build().map_err(percale("creating an address vector"))?;
        let peer = vector.insert(target).map_err(percale("using the server's address"))?;
        let endpoint = domain.endpoint().vector(&vector).bind(here.to_string());
        let endpoint = endpoint.map_err(percale("opening an endpoint"))?;
        let server = Self { endpoint, peer, requests: RefCell::new(Requests::new()?) };
        match server.exchange_hellos() {
            Ok(PROTOCOL) => Ok(server),
            Ok(version) => Err(Failure::Protocol(format!("its protocol version is {version}"))),
            Err(Failure::Percale { why, .. }) => {
                Err(Failure::System { what: connecting(), source: std::io::Error::other(why) })
            }
            Err(error) => Err(error),
        }
    }

    /// Waits for the welcome. Returns the protocol version of the server.
    fn exchange_hellos(&self) -> Result<u32> {
        // The message establishes the connection, and the server replies once it is established.
        self.send(GREETING, ClientRequest::Hello)?;
        let start = Instant::now();
        loop {
            match self.listen()?.message(ANSWER_TIMEOUT.saturating_sub(start.elapsed()))? {
                NumberedReply { number: GREETING, reply: ServerReply::Welcome { protocol } } => return Ok(protocol),
                NumberedReply { number: GREETING, reply: ServerReply::Failed { why, .. } } => {
                    return Err(refused(&why));
                }
                // The reply is for an earlier client at this address.
                _ => {}
            }
        }
    }

    fn send(&self, number: u64, request: ClientRequest) -> Result<()> {
        let bytes =
            serde_json::to_vec(&NumberedRequest { number, request }).map_err(Failure::system("writing JSON"))?;
        let sent = self.endpoint.tagged_send(self.peer, TAG, bytes).start();
        sent.and_then(|sending| sending.wait_for(ANSWER_TIMEOUT))
            .map_err(percale("sending a request to the server"))?;
        Ok(())
    }

    /// Sends a request.
    pub(super) fn ask(&self, request: &ClientRequest) -> Result<()> {
        let number = self.requests.borrow_mut().add(request);
        self.send(number, request.clone())
    }

    /// Posts the receive for the next reply.
    pub(super) fn listen(&self) -> Result<Awaited<'_>> {
        let receiving = self.endpoint.tagged_recv(TAG, 0, vec![0; LINE]).from(self.peer).start();
        Ok(Awaited(receiving.map_err(percale("waiting for the server"))?))
    }

    /// Returns the reply in an awaited message. Returns `None` if it answers no request of this client. Returns a reply
    /// that reports a failure as an error.
    pub(super) fn reply(&self, awaited: Awaited<'_>) -> Result<Option<ServerReply>> {
        self.reply_within(awaited, ANSWER_TIMEOUT)
    }

    fn reply_within(&self, awaited: Awaited<'_>, timeout: Duration) -> Result<Option<ServerReply>> {
        match self.requests.borrow_mut().take(awaited.message(timeout)?)? {
            Some(ServerReply::Failed { why, again: false }) => Err(refused(&why)),
            reply => Ok(reply),
        }
    }

    fn next_within(&self, timeout: Duration) -> Result<ServerReply> {
        let start = Instant::now();
        loop {
            if let Some(reply) = self.reply_within(self.listen()?, timeout.saturating_sub(start.elapsed()))? {
                return Ok(reply);
            }
        }
    }

    /// Waits for the next reply. Returns a reply that reports a failure as an error.
    pub(super) fn next(&self) -> Result<ServerReply> {
        match self.next_within(ANSWER_TIMEOUT)? {
            ServerReply::Failed { why, .. } => Err(refused(&why)),
            reply => Ok(reply),
        }
    }

    /// Requests that the server open a file. Retries for a short time while another copy uses the file.
    pub(super) fn open(&self, request: &ClientRequest) -> Result<ServerReply> {
        let start = Instant::now();
        loop {
            self.ask(request)?;
            // The server first writes the file's pending data to its disk.
            match self.next_within(PERMANENCE)? {
                ServerReply::Failed { .. } if start.elapsed() < UNDER_WAY => std::thread::sleep(RETRY),
                ServerReply::Failed { why, .. } => return Err(refused(&why)),
                reply => return Ok(reply),
            }
        }
    }

    /// Ends the copy of a file of `size` bytes.
    pub(super) fn finish(&self, request: &ClientRequest, size: u64) -> Result<()> {
        self.ask(request)?;
        match self.next_within(PERMANENCE + Duration::from_secs(size / SLOW_DISK))? {
            ServerReply::Finished => Ok(()),
            ServerReply::Failed { why, .. } => Err(refused(&why)),
            other => Err(unexpected(&other)),
        }
    }

    /// Returns the error of a block that could not be transferred. If the server has ended the transfer and reported
    /// the reason, its memory is no longer registered, and the reason is returned instead of `error`. `awaited` is the
    /// reply that this client is already waiting for.
    pub(super) fn explain<'a>(&'a self, error: Failure, mut awaited: Option<Awaited<'a>>) -> Failure {
        let start = Instant::now();
        while let Some(left) = EXPLAINING.checked_sub(start.elapsed()) {
            let next = awaited.take().map_or_else(|| self.listen(), Ok);
            let answered = next.and_then(|awaited| awaited.message(left));
            match answered {
                Ok(NumberedReply { reply: ServerReply::Failed { why, .. }, .. }) => return refused(&why),
                Ok(_) => {}
                Err(_) => break,
            }
        }
        error
    }

    /// Starts to read the server's memory into a buffer of the same length.
    pub(super) fn read(&self, from: RemoteMemory, into: Vec<u8>) -> Result<Moving<'_>> {
        Ok(Moving(self.endpoint.read(self.peer, from, into).start().map_err(percale("reading a block"))?))
    }

    /// Starts to write a buffer to the server's memory of the same length.
    pub(super) fn write(&self, from: Vec<u8>, to: RemoteMemory) -> Result<Moving<'_>> {
        Ok(Moving(self.endpoint.write(self.peer, from, to).start().map_err(percale("writing a block"))?))
    }
}

/// A receive that was posted for a reply.
#[derive(Debug)]
pub(super) struct Awaited<'a>(Receiving<'a, Owned>);

impl Awaited<'_> {
    /// Returns whether the reply has arrived.
    pub(super) fn is_here(&self) -> bool {
        self.0.is_ready()
    }

    fn message(self, timeout: Duration) -> Result<NumberedReply> {
        let message = self.0.wait_for(timeout).map_err(percale("waiting for the server"))?.to_vec();
        serde_json::from_slice(&message).map_err(|error| no_reply(&error))
    }
}

/// A block in transfer.
#[derive(Debug)]
pub(super) struct Moving<'a>(Accessing<'a, Owned, Buffer>);

impl Moving<'_> {
    /// Waits until the transfer has completed. Returns the buffer.
    pub(super) fn wait(self) -> Result<Vec<u8>> {
        Ok(self.0.wait_for(ANSWER_TIMEOUT).map_err(percale("transferring a block"))?.into_vec())
    }
}

/// Returns the error for a reply of an unexpected kind.
pub(super) fn unexpected(reply: &ServerReply) -> Failure {
    match reply {
        ServerReply::Failed { why, .. } => refused(why),
        reply => Failure::Protocol(reply.to_string()),
    }
}

/// Returns the error for a message that is not a reply. The text of `error` may quote the message, so that text is
/// escaped and truncated.
fn no_reply(error: &serde_json::Error) -> Failure {
    let text: String = error.to_string().chars().take(200).collect();
    Failure::Protocol(format!("unknown reply: {}", visible::line(&text)))
}

/// Returns the error for a request that the server has rejected.
fn refused(why: &str) -> Failure {
    Failure::Server(visible::line(why))
}

/// Returns the local address for traffic to `target`, with port 0. Sends no data.
fn local(target: SocketAddr) -> std::io::Result<SocketAddr> {
    let any: SocketAddr = if target.is_ipv4() { ([0; 4], 0).into() } else { ([0_u16; 8], 0).into() };
    let socket = UdpSocket::bind(any)?;
    socket.connect(target)?;
    let mut here = socket.local_addr()?;
    here.set_port(0);
    Ok(here)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transfer::protocol::RegionDescription;

    /// Characters that a terminal interprets.
    const ESCAPES: &str = "\u{1b}[2J\u{9b}8m\u{202e}\r\n";

    /// Returns a request and a reply to it as text, after encoding.
    fn reply_text(request: ClientRequest, reply: ServerReply) -> String {
        let mut requests = Requests::new().unwrap();
        let number = requests.add(&request);
        requests.take(NumberedReply { number, reply }).unwrap_err().to_string()
    }

    #[test]
    fn unexpected_replies_are_described_in_words() {
        let digest = [7; 32];
        let fill = || ClientRequest::Fill { block: 3, slot: 1 };
        for (request, reply, words) in [
            (
                fill(),
                ServerReply::Stored { block: 3, slot: 1 },
                "block 3 stored from slot 1 was received in reply to a request to put block 3 into slot 1",
            ),
            (fill(), ServerReply::Filled { block: 4, slot: 1, digest }, "block 4 in slot 1 was received in reply to"),
            (fill(), ServerReply::Finished, "the end of the copy was received in reply to"),
            (
                ClientRequest::Hash { block: 9 },
                ServerReply::Welcome { protocol: 3 },
                "a welcome of protocol version 3 was received in reply to",
            ),
            (
                ClientRequest::Finish { digest },
                ServerReply::Hashed { block: 9, digest },
                "the checksum of block 9 was received in reply to",
            ),
        ] {
            let reply_text = reply_text(request, reply);
            assert!(reply_text.contains(words), "{reply_text}");
            assert!(!reply_text.contains(['{', '[']), "{reply_text}");
        }
        let slot = RegionDescription::from(RemoteMemory::default());
        let opened = ServerReply::Opened { size: 5, mode: 0, held: 0, slots: vec![slot; 40] };
        assert!(unexpected(&opened).to_string().contains("an open file of 5 bytes with 40 slots"));
        let mut requests = Requests::new().unwrap();
        let number = requests.add(&fill());
        let again = || NumberedReply { number, reply: ServerReply::Filled { block: 3, slot: 1, digest } };
        assert!(requests.take(again()).unwrap().is_some());
        let reply_text = requests.take(again()).unwrap_err().to_string();
        assert!(reply_text.contains("second reply to one request: block 3 in slot 1"), "{reply_text}");
    }

    #[test]
    fn control_characters_from_a_server_are_escaped() {
        let failed = ServerReply::Failed { why: format!("no{ESCAPES}"), again: true };
        let variant = serde_json::json!({"number": 1, "reply": {ESCAPES.repeat(1000): {}}}).to_string();
        let variant = serde_json::from_str::<NumberedReply>(&variant).unwrap_err();
        for failure in [unexpected(&failed), refused(ESCAPES), no_reply(&variant)] {
            let reply_text = failure.to_string();
            assert!(
                !reply_text.chars().any(|character| character.is_control() || character == '\u{202e}'),
                "{reply_text:?}"
            );
            assert!(reply_text.contains("\\u{1b}") && reply_text.len() < 3000, "{reply_text}");
        }
        assert!(
            unexpected(&failed).to_string().starts_with("the server returned: no"),
            "the text of the server is printed"
        );
    }
}
