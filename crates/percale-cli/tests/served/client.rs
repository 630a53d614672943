//! A client of `percale serve` that follows the protocol as far as a test requires.

use std::cell::Cell;
use std::time::{Duration, Instant};

use percale::endpoint::safe::OperationError;
use percale::{Endpoint, Info, PeerAddress, Progress, RemoteMemory, TransportKind};
use serde_json::{Value, json};

/// The tag of the protocol's messages.
pub(crate) const TAG: u64 = 0x7065_7263_6669_6c65;

/// The version of the protocol.
pub(crate) const PROTOCOL: u32 = 3;

/// The length of a block.
pub(crate) const BLOCK: usize = 4 << 20;

pub(crate) const CLIENT_TIMEOUT: Duration = Duration::from_secs(60);

/// A client.
pub(crate) struct TestClient {
    pub(crate) endpoint: Endpoint,
    pub(crate) server: PeerAddress,
    number: Cell<u64>,
}

impl TestClient {
    /// Connects a client. The server must accept it.
    pub(crate) fn new(server: &str, transport: TransportKind) -> Self {
        Self::at(server, transport, "127.0.0.1:0")
    }

    /// Like [`new`](Self::new), at this address.
    pub(crate) fn at(server: &str, transport: TransportKind, address: &str) -> Self {
        let client = Self::connect(server, transport, address).expect("the server accepts the client");
        assert_eq!(client.hear()["reply"]["Welcome"]["protocol"], PROTOCOL);
        client
    }

    /// Connects a client and sends the greeting.
    pub(crate) fn connect(server: &str, transport: TransportKind, address: &str) -> Result<Self, OperationError> {
        let domain = Info::discover().unwrap().domain().transport(transport).progress(Progress::Manual);
        let domain = domain.open().unwrap();
        let vector = domain.address_vector().build().unwrap();
        let peer = vector.insert(server).unwrap();
        // The address of a client that has just been closed may become free only after some time.
        let until = Instant::now() + CLIENT_TIMEOUT;
        let endpoint = loop {
            match domain.endpoint().vector(&vector).bind(address) {
                Ok(endpoint) => break endpoint,
                Err(error) if Instant::now() < until => eprintln!("{error}; trying again"),
                Err(error) => panic!("{error}"),
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        let client = Self { endpoint, server: peer, number: Cell::new(1) };
        client.try_say(json!({"number": 0, "request": "Hello"}).to_string().as_bytes())?;
        Ok(client)
    }

    /// Sends arbitrary bytes.
    pub(crate) fn try_say(&self, bytes: &[u8]) -> Result<(), OperationError> {
        let sending = self.endpoint.tagged_send(self.server, TAG, bytes.to_vec()).start()?;
        sending.wait_for(CLIENT_TIMEOUT).map(drop)
    }

    pub(crate) fn say(&self, bytes: &[u8]) {
        self.try_say(bytes).unwrap();
    }

    /// Receives the next message.
    pub(crate) fn try_hear(&self, timeout: Duration) -> Result<Value, OperationError> {
        let receiving = self.endpoint.tagged_recv(TAG, 0, vec![0; 1 << 16]).from(self.server).start()?;
        Ok(serde_json::from_slice(&receiving.wait_for(timeout)?.to_vec()).unwrap())
    }

    pub(crate) fn hear(&self) -> Value {
        self.try_hear(CLIENT_TIMEOUT).unwrap()
    }

    /// Sends a request with the next number. Returns the number.
    pub(crate) fn request(&self, request: &Value) -> u64 {
        let number = self.number.get();
        self.number.set(number + 1);
        self.say(json!({"number": number, "request": request}).to_string().as_bytes());
        number
    }

    /// Sends a request and returns the reply, which must have the number of the request.
    pub(crate) fn ask(&self, request: &Value) -> Value {
        let number = self.request(request);
        let answered = self.hear();
        assert_eq!(answered["number"], number, "{request}: {answered}");
        answered["reply"].clone()
    }

    /// Opens a file. Returns its slots.
    pub(crate) fn open(&self, request: &Value) -> Vec<RemoteMemory> {
        let opened = self.ask(request);
        let slots = opened["Opened"]["slots"].as_array().unwrap_or_else(|| panic!("{request}: {opened}"));
        let slot = |slot: &Value| {
            let bytes: Vec<u8> = serde_json::from_value(slot.clone()).unwrap();
            RemoteMemory::from_bytes(&bytes).unwrap()
        };
        slots.iter().map(slot).collect()
    }

    /// Returns the reason why a request was rejected, or `None` if it was accepted.
    pub(crate) fn refusal(&self, request: &Value) -> Option<String> {
        self.ask(request)["Failed"]["why"].as_str().map(str::to_owned)
    }

    /// Uploads a block.
    pub(crate) fn store(&self, slot: RemoteMemory, block: u64, bytes: &[u8], only: bool) -> Value {
        self.endpoint.write(self.server, bytes.to_vec(), slot.slice(0..bytes.len() as u64)).wait().unwrap();
        self.ask(&json!({"Store": {"block": block, "slot": 0, "digest": digest(block, bytes, only)}}))
    }
}

/// Returns the checksum of a block. `only` states that the file has no other block.
pub(crate) fn digest(block: u64, bytes: &[u8], only: bool) -> Vec<u8> {
    use blake3::hazmat::HasherExt;
    let mut hasher = blake3::Hasher::new();
    if only {
        return hasher.update(bytes).finalize().as_bytes().to_vec();
    }
    hasher.set_input_offset(block * BLOCK as u64);
    hasher.update(bytes);
    hasher.finalize_non_root().to_vec()
}

/// Returns the request that opens a file for reading.
pub(crate) fn get(path: &str) -> Value {
    json!({"Get": {"path": path}})
}

/// Returns the request that opens a file for writing.
pub(crate) fn put(path: &str, size: u64) -> Value {
    json!({"Put": {"path": path, "size": size, "mode": 0o644}})
}
