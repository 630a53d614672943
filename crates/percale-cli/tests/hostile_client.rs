//! A client that does not keep to the protocol of `percale serve`.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use percale::endpoint::safe::Cause;
use percale::{Endpoint, ErrorCode, Info, PeerAddress, RemoteMemory, TransportKind};
use serde_json::{Value, json};

/// The tag of the protocol's messages.
const TAG: u64 = 0x7065_7263_6669_6c65;

const PATIENCE: Duration = Duration::from_secs(60);

struct Server(Child, String);

impl Drop for Server {
    fn drop(&mut self) {
        let _killed: std::io::Result<()> = self.0.kill();
        let _ended: std::io::Result<std::process::ExitStatus> = self.0.wait();
    }
}

fn serve(directory: &str, more: &[&str]) -> Server {
    let mut command = Command::new(env!("CARGO_BIN_EXE_percale"));
    command.args(["serve", directory, "--listen", "127.0.0.1:0", "--json"]).args(more);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut line = String::new();
    // Dropping the reader closes the pipe: the server must not mind.
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let line: Value = serde_json::from_str(&line).unwrap();
    Server(child, line["address"].as_str().unwrap().into())
}

struct Client {
    endpoint: Endpoint,
    server: PeerAddress,
}

impl Client {
    fn new(server: &Server, transport: TransportKind) -> Self {
        Self::at(server, transport, "127.0.0.1:0")
    }

    fn at(server: &Server, transport: TransportKind, address: &str) -> Self {
        let domain = Info::discover().unwrap().domain().transport(transport).open().unwrap();
        let vector = domain.address_vector().build().unwrap();
        let peer = vector.insert(server.1.as_str()).unwrap();
        // The address of one that has just closed may take a moment to be free.
        let until = Instant::now() + PATIENCE;
        let endpoint = loop {
            match domain.endpoint().vector(&vector).bind(address) {
                Ok(endpoint) => break endpoint,
                Err(error) if Instant::now() < until => eprintln!("{error}; trying again"),
                Err(error) => panic!("{error}"),
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        let client = Self { endpoint, server: peer };
        client.say(json!("Hello").to_string().as_bytes());
        assert_eq!(client.hear()["Welcome"]["protocol"], 2);
        client
    }

    fn say(&self, bytes: &[u8]) {
        let sending = self.endpoint.tagged_send(self.server, TAG, bytes.to_vec()).start().unwrap();
        sending.wait_for(PATIENCE).unwrap();
    }

    fn hear(&self) -> Value {
        let receiving = self.endpoint.tagged_recv(TAG, 0, vec![0; 1 << 16]).from(self.server).start().unwrap();
        serde_json::from_slice(&receiving.wait_for(PATIENCE).unwrap().to_vec()).unwrap()
    }

    fn ask(&self, request: &Value) -> Value {
        self.say(request.to_string().as_bytes());
        self.hear()
    }

    fn open(&self, request: &Value) -> RemoteMemory {
        let opened = self.ask(request);
        let slot: Vec<u8> = serde_json::from_value(opened["Opened"]["slots"][0].clone()).unwrap();
        RemoteMemory::from_bytes(&slot).unwrap()
    }
}

#[test]
fn requests_that_make_no_sense_are_refused_and_the_server_serves_on() {
    let directory = std::env::temp_dir().join(format!("percale-hostile-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let file = directory.join("a");
    std::fs::write(&file, vec![7; 5 << 20]).unwrap();
    let name = directory.to_str().unwrap();
    let server = serve(name, &["--writable"]);
    let (get, digest) = (json!({"Get": {"path": "a"}}), vec![0; 32]);
    let put = |size: u64| json!({"Put": {"path": "b", "size": size, "mode": 0o7777}});
    let store = |block: u64, slot: u64| json!({"Store": {"block": block, "slot": slot, "digest": digest}});
    for transport in [TransportKind::Shm, TransportKind::Tcp] {
        let client = Client::new(&server, transport);
        for nonsense in [b"".as_slice(), b"{", b"\xff\xfe", b"\"Destroy\"", b"{\"Get\":{}}", &[b'['; 30_000]] {
            client.say(nonsense);
            let why = client.hear()["Failed"]["why"].to_string();
            assert!(why.contains("no request"), "{why}");
        }
        for (open, request, said) in [
            (None, json!({"Fill": {"block": 0, "slot": 0}}), "no file is open"),
            (None, json!({"Finish": {"digest": digest}}), "no file is open"),
            (Some(&get), json!({"Fill": {"block": 2, "slot": 0}}), "no block 2"),
            (Some(&get), json!({"Fill": {"block": u64::MAX, "slot": 0}}), "no block"),
            (Some(&get), json!({"Fill": {"block": 0, "slot": 2}}), "no slot 2"),
            (Some(&get), store(0, 0), "opened to be read"),
            (Some(&get), json!({"Finish": {"digest": digest}}), "only 0 of 2"),
            (Some(&put(9)), json!({"Fill": {"block": 0, "slot": 0}}), "opened to be written"),
            (Some(&put(9)), store(1, 0), "no block 1"),
            (Some(&put(9)), store(0, 0), "another checksum"),
            (Some(&put(9)), json!({"Hash": {"block": 1}}), "no block 1"),
            (Some(&put(u64::MAX >> 1)), json!({"Finish": {"digest": digest}}), "only 0 of"),
            (None, put(u64::MAX), "File too large"),
        ] {
            if let Some(open) = open {
                client.open(open);
            }
            let answer = client.ask(&request);
            let why = answer["Failed"]["why"].as_str().unwrap_or_else(|| panic!("{request}: {answer}"));
            assert!(why.to_lowercase().contains(&said.to_lowercase()), "{request}: {why}");
        }
        // What may be read may not be written, and the other way round.
        let slot = client.open(&get);
        let written = client.endpoint.write(client.server, vec![1; 64], slot.slice(0..64)).wait().unwrap_err();
        assert!(matches!(written.cause, Cause::Completion(error) if error.error == ErrorCode::Denied));
        let slot = client.open(&put(9));
        let read = client.endpoint.read(client.server, slot.slice(0..64), vec![0; 64]).wait().unwrap_err();
        assert!(matches!(read.cause, Cause::Completion(error) if error.error == ErrorCode::Denied));
        // More requests than anybody is owed answers to.
        client.open(&get);
        for _ in 0..500 {
            client.say(json!({"Hash": {"block": 0}}).to_string().as_bytes());
        }
        assert!(client.hear()["Hashed"]["digest"].is_array());
    }
    assert!(!directory.join("b").exists());
    let copy = directory.join("copy");
    let output = Command::new(env!("CARGO_BIN_EXE_percale"))
        .args(["cp", &format!("{}/a", server.1), copy.to_str().unwrap()])
        .output()
        .unwrap();
    let same = std::fs::read(&copy).ok() == std::fs::read(&file).ok();
    std::fs::remove_dir_all(&directory).unwrap();
    assert!(output.status.success() && same, "{output:?}");
}

#[test]
fn a_client_that_comes_back_under_its_former_address_is_welcome() {
    let directory = std::env::temp_dir().join(format!("percale-again-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    std::fs::write(directory.join("a"), vec![7; 100]).unwrap();
    let server = serve(directory.to_str().unwrap(), &[]);
    for transport in [TransportKind::Shm, TransportKind::Tcp] {
        let other = Client::new(&server, transport);
        let address = Client::new(&server, transport).endpoint.address().to_string();
        for _ in 0..20 {
            let client = Client::at(&server, transport, &address);
            let slot = client.open(&json!({"Get": {"path": "a"}}));
            // It leaves in the middle of the file.
            assert!(client.ask(&json!({"Fill": {"block": 0, "slot": 0}}))["Filled"].is_object());
            assert_eq!(slot.len, 4 << 20);
        }
        other.open(&json!({"Get": {"path": "a"}}));
    }
    std::fs::remove_dir_all(&directory).unwrap();
}
