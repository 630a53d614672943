//! Clients that mostly follow the protocol of `percale serve`, but try to block the service for others.

use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use percale::TransportKind;
use serde_json::json;

use crate::attempts::{Attempts, KINDS, resident, serves};
use crate::client::{TAG, TestClient, get, put};
use crate::common::text;
use crate::place::{Serving, TestDirectory, content, copy, refused, repeats};

/// Requirements: SRV-008.
#[test]
fn stalling_and_flooding_clients_do_not_block_others() {
    let place = TestDirectory::new("stalling");
    place.write("served/a", &content(3, 100_000));
    let server = Serving::start(&place, &["--writable"]);
    let mut attempts = Attempts::default();
    for transport in KINDS.repeat(repeats(1) as usize) {
        // Each of these clients offers one long message and never sends it.
        let stalled: Vec<_> = (0..repeats(3))
            .map(|_| {
                let client = TestClient::new(&server.address, transport);
                std::mem::forget(client.endpoint.tagged_send(client.server, TAG, vec![b'['; 2_080_000]).start());
                client
            })
            .collect();
        attempts.count("an offered message that is never sent", !serves(&server, &place, "a"));
        drop(stalled);
        // These clients send requests with long error replies, which they never receive.
        let deaf: Vec<_> = (0..4).map(|_| TestClient::new(&server.address, transport)).collect();
        let long = json!({"number": 1, "request": get(&"\u{7f}".repeat(4000))}).to_string().into_bytes();
        for client in &deaf {
            for _ in 0..200 {
                if let Ok(sending) = client.endpoint.tagged_send(client.server, TAG, long.clone()).start() {
                    std::mem::forget(sending);
                }
            }
        }
        attempts.count("answers that are not read", !serves(&server, &place, "a"));
        drop(deaf);
        // One client holds the lock of a name, and others request the name repeatedly.
        let locking = TestClient::new(&server.address, transport);
        locking.open(&put("locked", 10_000_000));
        let asking: Vec<_> = (0..4).map(|_| TestClient::new(&server.address, transport)).collect();
        for client in &asking {
            for _ in 0..8 {
                client.request(&put("locked", 10_000_000));
            }
        }
        attempts.count("a locked name", !serves(&server, &place, "a"));
        drop((locking, asking));
        // There are more of these clients than places. Some of them have an open file.
        let idle: Vec<_> = (0..70)
            .map(|number| {
                let client = TestClient::connect(&server.address, transport, "127.0.0.1:0");
                if number % 2 == 0
                    && let Ok(client) = &client
                    && client.try_hear(Duration::from_secs(5)).is_ok()
                {
                    client.request(&get("a"));
                }
                client
            })
            .collect();
        std::thread::sleep(Duration::from_millis(1200));
        attempts.count("more idle clients than the server accepts", !serves(&server, &place, "a"));
        drop(idle);
    }
    attempts.report();
}

/// Requirements: SRV-008.
#[test]
fn long_requests_use_bounded_memory_and_log_space() {
    let place = TestDirectory::new("long-requests");
    place.write("served/a", b"text");
    let mut server = Serving::start(&place, &[]);
    let mut attempts = Attempts::default();
    let before = resident(&server.child);
    for transport in KINDS {
        for _ in 0..repeats(10) {
            let client = TestClient::new(&server.address, transport);
            let long = json!({"number": 1, "request": get(&"\u{7f}".repeat(2_000_000))}).to_string();
            // The server may disconnect the client before all data is sent.
            let _said: Result<(), _> = client.try_say(long.as_bytes());
            let answered =
                client.try_hear(Duration::from_secs(20)).is_ok_and(|reply| reply["reply"]["Opened"].is_object());
            attempts.count("a request of 12 MB", answered);
        }
    }
    let grown = resident(&server.child).saturating_sub(before);
    println!("hostile client: the server has grown by {} KiB", grown >> 10);
    attempts.count("memory after long requests", grown > 48 << 20);
    attempts.count("serving after long requests", !serves(&server, &place, "a"));
    server.child.kill().unwrap();
    let mut log = String::new();
    server.lines.read_to_string(&mut log).unwrap();
    println!("hostile client: {} bytes of log", log.len());
    attempts.count("log of long requests", log.len() > repeats(10) as usize * 4000);
    attempts.report();
}

/// Requirements: SRV-008.
#[test]
fn unread_output_does_not_block_the_server() {
    let place = TestDirectory::new("reader");
    place.write("served/a", b"text");
    // The server's output is not read.
    let server = Serving::start(&place, &[]);
    let mut attempts = Attempts::default();
    let client = TestClient::new(&server.address, TransportKind::Tcp);
    for _ in 0..2000 {
        assert!(client.refusal(&get(&"\u{7f}".repeat(4000))).is_some());
    }
    attempts.count("output that is not read", !serves(&server, &place, "a"));
    attempts.report();
}

/// Requirements: SRV-008.
#[test]
fn clients_without_the_key_exhaust_no_resources() {
    let place = TestDirectory::new("strangers");
    place.write("served/a", b"text");
    place.write("key", b"secret");
    place.mode("key", 0o600);
    let key = place.text("key");
    let mut shell = Command::new("sh");
    let program = env!("CARGO_BIN_EXE_percale");
    let script = "ulimit -n 256 && exec \"$0\" serve \"$1\" --listen 127.0.0.1:0 --json --authorization-key \"$2\"";
    shell.args(["-c", script, program, &place.text("served"), &key]);
    let server = Serving::of(&mut shell);
    let mut attempts = Attempts::default();
    // These connections are silent, send half of a hello, or send invalid data.
    let strangers: Vec<_> = (0..repeats(600).min(900))
        .filter_map(|number| {
            let mut stream = std::net::TcpStream::connect(&server.address).ok()?;
            match number % 3 {
                0 => {}
                1 => drop(stream.write_all(b"percale")),
                _ => drop(stream.write_all(&[0xff; 4096])),
            }
            Some(stream)
        })
        .collect();
    println!("hostile client: {} strangers", strangers.len());
    let target = place.text("local/a");
    let output = copy(&server.at("a"), &target, &["--authorization-key", &key]);
    attempts.count("strangers that hold descriptors", !output.status.success());
    println!("hostile client: {}", text(&output.stderr));
    attempts.report();
}

/// Requirements: SRV-009.
#[test]
fn file_size_limit_is_an_error_and_the_server_continues() {
    let place = TestDirectory::new("file-size");
    place.write("served/a", b"text");
    place.write("local/long", &content(1, 6 << 20));
    let program = env!("CARGO_BIN_EXE_percale");
    let mut shell = Command::new("sh");
    // The limit is in units of 512 bytes: 5 MB.
    let script = "ulimit -f 10000 && exec \"$0\" serve \"$1\" --listen 127.0.0.1:0 --json --writable";
    shell.args(["-c", script, program, &place.text("served")]);
    let server = Serving::of(&mut shell);
    let output = copy(&place.text("local/long"), &server.at("b"), &["--transport", "tcp"]);
    let error = refused(&output);
    assert!(error.contains("File too large"), "{error}");
    assert!(!place.path("served/b").exists());
    assert!(serves(&server, &place, "a"));
    // The client has the same limit.
    place.write("served/long", &content(1, 6 << 20));
    let script = "ulimit -f 10000 && exec \"$0\" cp \"$1\" \"$2\" --transport tcp";
    let output =
        Command::new("sh").args(["-c", script, program, &server.at("long"), &place.text("local/b")]).output().unwrap();
    assert!(refused(&output).contains("File too large"), "{output:?}");
    assert!(!place.path("local/b").exists());
}

/// Requirements: SRV-012.
#[test]
fn pipes_are_not_opened() {
    let place = TestDirectory::new("pipes");
    place.write("served/a", b"text");
    let fifo = place.path("served/pipe");
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::from_raw_mode(0o600)).unwrap();
    let server = Serving::start(&place, &["--writable"]);
    let client = TestClient::new(&server.address, TransportKind::Tcp);
    let writer = || std::fs::File::options().write(true).custom_flags(libc::O_NONBLOCK).open(&fifo);
    let stop = AtomicBool::new(false);
    let opened = std::thread::scope(|scope| {
        // A writer can open the pipe as soon as there is a reader, even if the reader exists only for a short time.
        let watching = scope.spawn(|| {
            let mut opened = 0;
            while !stop.load(Ordering::Relaxed) {
                opened += u32::from(writer().is_ok());
            }
            opened
        });
        for _ in 0..repeats(200) {
            assert!(client.refusal(&get("pipe")).unwrap().contains("not a regular file"));
            assert!(client.refusal(&put("pipe", 3)).unwrap().contains("not a regular file"));
        }
        stop.store(true, Ordering::Relaxed);
        watching.join().unwrap()
    });
    assert_eq!(opened, 0, "the pipe was opened");
    assert!(serves(&server, &place, "a"));
}
