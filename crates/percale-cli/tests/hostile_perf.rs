//! Hostile connections to `percale perf --listen`. The next regular measurement succeeds, regardless of the data that
//! they send.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// How long a silent connection may block others, plus the duration of a measurement.
const BOUND: Duration = Duration::from_secs(60);

struct Listening {
    child: Child,
    address: String,
}

impl Listening {
    fn start(more: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_percale"))
            .args(["perf", "--listen", "127.0.0.1:0"])
            .args(more)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let address = lines.find_map(|line| {
            let line = line.ok()?;
            Some(line.strip_prefix("Waiting on ")?.split_once(';')?.0.to_owned())
        });
        // The lines must be read, so that the command never waits for room in the pipe.
        std::thread::spawn(move || lines.map_while(Result::ok).for_each(|line| println!("listening: {line}")));
        Self { child, address: address.unwrap() }
    }

    /// Returns whether a regular measurement succeeds.
    fn measures(&self, more: &[&str]) -> bool {
        let start = Instant::now();
        let mut child = Command::new(env!("CARGO_BIN_EXE_percale"))
            .args(["perf", &self.address, "--op", "tagged-latency,put", "--size", "8", "--iterations", "64", "--json"])
            .args(more)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        while child.try_wait().unwrap().is_none() && start.elapsed() < BOUND {
            std::thread::sleep(Duration::from_millis(5));
        }
        child.kill().ok();
        let output = child.wait_with_output().unwrap();
        output.status.success() && String::from_utf8_lossy(&output.stdout).lines().count() == 2
    }

    /// Connects without a key and sends these lines. Returns the data that arrives within a short time.
    fn stranger(&self, lines: &[Vec<u8>]) -> (TcpStream, String) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        for line in lines {
            // The server may disconnect before all lines are written.
            if stream.write_all(line).and_then(|()| stream.write_all(b"\n")).is_err() {
                break;
            }
        }
        stream.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        let mut received = Vec::new();
        let _ended: std::io::Result<usize> = stream.read_to_end(&mut received);
        (stream, String::from_utf8_lossy(&received).into_owned())
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

fn line(value: &Value) -> Vec<u8> {
    value.to_string().into_bytes()
}

/// Requests that no command line can produce, each preceded by the requests that open its subject.
fn odd() -> Vec<(&'static str, Vec<Vec<u8>>)> {
    let here = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let open = |kind: Value, address: &str| line(&json!({"Open": {"kind": kind, "address": address}}));
    let (messages, one_sided) = (json!({"Percale": ["tcp", "raw"]}), json!({"OneSided": ["tcp", "raw"]}));
    let (safe_messages, safe_one_sided) = (json!({"Percale": ["tcp", "safe"]}), json!({"OneSided": ["tcp", "safe"]}));
    let prepare = |kind: &Value, op: &str, bytes: u64, memory: &str| {
        line(&json!({"Prepare": {"kind": kind, "shape": {"op": op, "bytes": bytes, "memory": memory}}}))
    };
    let round = |kind: &Value, count: u64, batch: u64, setting: u64| {
        let round = json!({"number": 1, "warm": 0, "count": count, "batch": batch, "write": "whole", "check": "whole", "setting": setting});
        line(&json!({"Round": {"kind": kind, "round": round}}))
    };
    let mut odd = vec![
        ("no JSON", vec![b"{\"Open\": ".to_vec(), b"\xff\xfe".to_vec()]),
        ("two lines and silence", vec![open(one_sided.clone(), &here), prepare(&one_sided, "put", 8, "ordinary")]),
        ("a line that is too long", vec![vec![b'['; 200_000]]),
        ("another host's address", vec![open(messages.clone(), "127.0.0.2:7")]),
        ("no address", vec![open(messages.clone(), "nowhere")]),
        ("a round without an open session", vec![round(&messages, 1, 1, 0)]),
        ("a round without preparation", vec![open(messages.clone(), &here), round(&messages, 1, 1, 0)]),
        ("an unexpected proof", vec![line(&json!({"Prove": {"nonce": vec![0; 16], "proof": vec![0; 32]}}))]),
    ];
    for kind in [json!("Ring"), json!("Copy"), json!("Twice"), json!("Sockets"), json!({"Access": "Kernel"})] {
        odd.push(("a limit", vec![open(kind, &here)]));
    }
    for (kind, op, bytes, memory) in [
        (&one_sided, "tagged-latency", 4, "ordinary"),
        (&one_sided, "put-latency", 4, "ordinary"),
        (&one_sided, "put-latency", 0, "ordinary"),
        (&one_sided, "bandwidth", 8, "ordinary"),
        (&one_sided, "fetch-add", 1 << 20, "ordinary"),
        (&one_sided, "put", u64::MAX, "ordinary"),
        (&one_sided, "put", 8, "bounced"),
        (&messages, "put", 8, "ordinary"),
        (&safe_messages, "put", 8, "ordinary"),
        (&safe_one_sided, "put", u64::MAX, "ordinary"),
        (&messages, "put-latency", 8, "percale"),
        (&messages, "tagged-latency", 0, "ordinary"),
        (&messages, "tagged-rate", 1 << 40, "ordinary"),
    ] {
        let lines = vec![open(kind.clone(), &here), prepare(kind, op, bytes, memory), round(kind, 4, 1, 0)];
        odd.push(("an invalid message size or memory kind", lines));
    }
    for (count, batch, setting) in [(u64::MAX, 1, 0), (0, 1, 0), (1, u64::MAX, 0), (1, 1, 9)] {
        for (kind, op) in [
            (&messages, "tagged-rate"),
            (&one_sided, "put"),
            (&one_sided, "fetch-add"),
            (&safe_messages, "tagged-rate"),
            (&safe_one_sided, "fetch-add"),
        ] {
            let lines =
                vec![open(kind.clone(), &here), prepare(kind, op, 8, "ordinary"), round(kind, count, batch, setting)];
            odd.push(("an invalid round", lines));
        }
    }
    let open_and_silent =
        vec![open(safe_messages.clone(), &here), prepare(&safe_messages, "tagged-latency", 8, "ordinary")];
    odd.push(("the safe API, two lines and silence", open_and_silent));
    let noise = std::iter::repeat_n(vec![b' '; 1000], 100);
    let mut lines =
        vec![open(one_sided.clone(), &here), prepare(&one_sided, "put", 8, "ordinary"), round(&one_sided, 4, 1, 0)];
    lines.extend(noise);
    odd.push(("requests before the previous one is answered", lines));
    odd
}

/// Requirements: SRV-013.
#[test]
fn invalid_requests_do_not_prevent_a_measurement() {
    let listening = Listening::start(&[]);
    assert!(listening.measures(&[]), "a valid measurement fails before any invalid request");
    let mut attempts = 0;
    for (what, lines) in odd() {
        let (stranger, received) = listening.stranger(&lines);
        println!("hostile perf: {what}: {}", received.trim().replace('\n', " | "));
        drop(stranger);
        attempts += 1;
    }
    assert!(listening.measures(&[]));
    // This connection stays open and sends nothing.
    let silent = TcpStream::connect(&listening.address).unwrap();
    assert!(listening.measures(&[]), "a silent connection blocks other clients");
    drop(silent);
    println!("hostile perf: {} attempts, 0 successes", attempts + 1);
}

/// Requirements: SRV-013.
#[test]
fn authorization_key_excludes_clients_without_it() {
    let directory = std::env::temp_dir().join(format!("percale-perf-key-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let key = |name: &str, key: &str| {
        use std::os::unix::fs::OpenOptionsExt;
        let path = directory.join(name);
        let mut file =
            std::fs::File::options().create(true).truncate(true).write(true).mode(0o600).open(&path).unwrap();
        file.write_all(key.as_bytes()).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (right, wrong) = (key("right", "secret"), key("wrong", "other"));
    let listening = Listening::start(&["--authorization-key", &right]);
    assert!(listening.measures(&["--authorization-key", &right]));
    assert!(!listening.measures(&["--authorization-key", &wrong]));
    assert!(!listening.measures(&[]));
    for request in [
        json!({"Open": {"kind": {"Percale": "tcp"}, "address": "127.0.0.1:1"}}),
        json!({"Prove": {"nonce": vec![0; 16], "proof": vec![0; 32]}}),
    ] {
        let (_stream, received) = listening.stranger(&[line(&request)]);
        assert!(received.contains("Failed") && !received.contains("Opened"), "{received}");
    }
    assert!(listening.measures(&["--authorization-key", &right]));
    let open = Listening::start(&[]);
    assert!(!open.measures(&["--authorization-key", &right]), "a side with a key measures with a side without a key");
    std::fs::remove_dir_all(&directory).unwrap();
}
