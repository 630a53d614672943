//! Clients that violate the protocol of `percale serve`.

use std::os::unix::fs::symlink;
use std::time::{Duration, Instant};

use percale::ErrorCode;
use percale::endpoint::safe::Cause;
use serde_json::json;

use crate::attempts::{Attempts, KINDS, serves};
use crate::client::{BLOCK, TAG, TestClient, digest, get, put};
use crate::common::eventually;
use crate::place::{Serving, TestDirectory, content, copied, copy, identical, repeats};

#[test]
fn invalid_requests_are_rejected_and_the_server_continues() {
    let place = TestDirectory::new("nonsense");
    place.write("served/a", &vec![7; 5 << 20]);
    let server = Serving::start(&place, &["--writable"]);
    let (a, zero) = (get("a"), vec![0; 32]);
    let store = |block: u64, slot: u64| json!({"Store": {"block": block, "slot": slot, "digest": zero}});
    for transport in KINDS {
        let client = TestClient::new(&server.address, transport);
        for nonsense in [b"".as_slice(), b"{", b"\xff\xfe", b"\"Destroy\"", b"{\"Get\":{}}", &[b'['; 30_000]] {
            client.say(nonsense);
            let why = client.hear()["reply"]["Failed"]["why"].to_string();
            assert!(why.contains("unknown request"), "{why}");
        }
        for (open, request, message) in [
            (None, json!({"Fill": {"block": 0, "slot": 0}}), "no file is open"),
            (None, json!({"Finish": {"digest": zero}}), "no file is open"),
            (Some(&a), json!({"Fill": {"block": 2, "slot": 0}}), "no block 2"),
            (Some(&a), json!({"Fill": {"block": u64::MAX, "slot": 0}}), "no block"),
            (Some(&a), json!({"Fill": {"block": 0, "slot": 2}}), "no slot 2"),
            (Some(&a), store(0, 0), "opened for reading"),
            (Some(&a), json!({"Finish": {"digest": zero}}), "only 0 of 2"),
            (Some(&put("b", 9)), json!({"Fill": {"block": 0, "slot": 0}}), "opened for writing"),
            (Some(&put("b", 9)), store(1, 0), "no block 1"),
            (Some(&put("b", 9)), store(0, 0), "checksum mismatch"),
            (Some(&put("b", 9)), json!({"Hash": {"block": 1}}), "no block 1"),
            (Some(&put("b", u64::MAX >> 1)), json!({"Finish": {"digest": zero}}), "only 0 of"),
            (None, put("b", u64::MAX), "File too large"),
        ] {
            if let Some(open) = open {
                client.open(open);
            }
            let why = client.refusal(&request).unwrap_or_else(|| panic!("{request} was accepted"));
            assert!(why.to_lowercase().contains(&message.to_lowercase()), "{request}: {why}");
        }
        // A file opened for reading cannot be written, and vice versa.
        let slot = client.open(&a)[0];
        let written = client.endpoint.write(client.server, vec![1; 64], slot.slice(0..64)).wait().unwrap_err();
        assert!(matches!(written.cause, Cause::Completion(error) if error.error == ErrorCode::Denied));
        let slot = client.open(&put("b", 9))[0];
        let read = client.endpoint.read(client.server, slot.slice(0..64), vec![0; 64]).wait().unwrap_err();
        assert!(matches!(read.cause, Cause::Completion(error) if error.error == ErrorCode::Denied));
        // Send more requests than the server must answer.
        client.open(&a);
        for _ in 0..500 {
            client.request(&json!({"Hash": {"block": 0}}));
        }
        assert!(client.hear()["reply"]["Hashed"]["digest"].is_array());
    }
    assert!(!place.path("served/b").exists());
    copied(&copy(&server.at("a"), &place.text("local/a"), &[]));
    identical(&place.path("served/a"), &place.path("local/a"));
}

#[test]
fn requests_after_a_failed_one_are_refused_with_its_cause() {
    let place = TestDirectory::new("cause");
    place.write("served/a", &vec![7; 5 << 20]);
    let server = Serving::start(&place, &["--writable"]);
    for transport in KINDS {
        let client = TestClient::new(&server.address, transport);
        client.open(&get("a"));
        let first = client.refusal(&json!({"Fill": {"block": 2, "slot": 0}})).unwrap();
        assert!(first.contains("no block 2"), "{first}");
        for request in [json!({"Fill": {"block": 0, "slot": 0}}), json!({"Hash": {"block": 0}})] {
            let later = client.refusal(&request).unwrap();
            assert_eq!(later, format!("no file is open: {first}"), "{request}");
        }
        client.open(&get("a"));
        assert_eq!(client.refusal(&json!({"Hash": {"block": 0}})), None);
    }
}

#[test]
fn client_may_reconnect_from_its_former_address() {
    let place = TestDirectory::new("again");
    place.write("served/a", &[7; 100]);
    let server = Serving::start(&place, &[]);
    for transport in KINDS {
        let other = TestClient::new(&server.address, transport);
        let address = TestClient::new(&server.address, transport).endpoint.address().to_string();
        for _ in 0..20 {
            let client = TestClient::at(&server.address, transport, &address);
            let slots = client.open(&get("a"));
            // The client disconnects in the middle of the file.
            assert!(client.ask(&json!({"Fill": {"block": 0, "slot": 0}}))["Filled"].is_object());
            assert_eq!(slots[0].len, BLOCK as u64);
        }
        other.open(&get("a"));
    }
}

/// Returns paths that lead outside of the directory, to incomplete copies, or to objects that are not files.
fn forbidden(place: &TestDirectory) -> Vec<(String, Vec<u8>)> {
    place.write("secret", b"secret");
    place.write("served/inside", b"inside");
    std::fs::create_dir_all(place.path("served/directory/deep")).unwrap();
    std::fs::create_dir(place.path("served/.percale-parts")).unwrap();
    place.mode("served/.percale-parts", 0o700);
    place.write("served/.percale-parts/half", b"half of it");
    place.mode("served/.percale-parts/half", 0o1600);
    symlink(place.path("secret"), place.path("served/absolute")).unwrap();
    symlink("../secret", place.path("served/relative")).unwrap();
    symlink("..", place.path("served/up")).unwrap();
    symlink("../../..", place.path("served/directory/deep/up")).unwrap();
    symlink("/proc/self/root", place.path("served/root")).unwrap();
    symlink(".percale-parts", place.path("served/parts")).unwrap();
    symlink(".percale-parts/half", place.path("served/directory/half")).unwrap();
    symlink("../.percale-parts/half", place.path("served/directory/half-too")).unwrap();
    let secret = place.text("secret");
    let mut paths: Vec<Vec<u8>> = Vec::new();
    for path in [
        "../secret",
        "./../secret",
        "directory/../../secret",
        "directory/deep/up/secret",
        "up/secret",
        "..",
        "up/../secret",
        &secret,
        &format!("/{secret}"),
        "//etc/passwd",
        &format!("root{secret}"),
        "root/etc/passwd",
        ".percale-parts/half",
        "./.percale-parts/half",
        "directory/../.percale-parts/half",
        "parts/half",
        ".percale-parts//half",
        "parts/./half",
        "a\0/../../secret",
        "inside/../../secret",
        "",
    ] {
        paths.push(path.into());
    }
    paths.push([b'a'; 4096].to_vec());
    paths.push(b"directory/".repeat(500));
    paths.push(b"\xff/../../secret".to_vec());
    let spelled = |path: Vec<u8>| (format!("{:?}", String::from_utf8_lossy(&path[..path.len().min(40)])), path);
    paths.into_iter().map(spelled).collect()
}

/// Requirements: SRV-002, SRV-007.
#[test]
fn hostile_paths_access_nothing_outside_the_root() {
    let place = TestDirectory::new("hostile-paths");
    let paths = forbidden(&place);
    let server = Serving::start(&place, &["--writable"]);
    let mut attempts = Attempts::default();
    let outside = || (place.names(""), place.read("secret"), place.read("served/.percale-parts/half"));
    let before = outside();
    for transport in KINDS {
        let client = TestClient::new(&server.address, transport);
        for _ in 0..repeats(4) {
            for (name, path) in &paths {
                let got = client.ask(&json!({"Get": {"path": path}}));
                attempts.count("reading outside, or incomplete copies", !got["Failed"].is_object());
                let request = json!({"Put": {"path": path, "size": 3, "mode": 0o4777}});
                let opened = client.ask(&request);
                // A link is replaced and not followed, so the attempt succeeds only if the target changed.
                if opened["Opened"].is_object() {
                    panic!("{name} was opened to be written");
                }
                attempts.count("writing outside, or among incomplete copies", outside() != before);
            }
            for link in ["directory/half", "directory/half-too", "absolute", "relative"] {
                attempts.count("reading through links", client.ask(&get(link))["Opened"].is_object());
            }
        }
    }
    assert!(serves(&server, &place, "inside"));
    attempts.report();
}

/// Requirements: SRV-007.
#[test]
fn upload_is_not_replaced_by_another_file() {
    let mut attempts = Attempts::default();
    for transport in KINDS {
        for round in 0..repeats(3) {
            let place = TestDirectory::new("swapped");
            let server = Serving::start(&place, &["--writable"]);
            let (one, other) =
                (TestClient::new(&server.address, transport), TestClient::new(&server.address, transport));
            let good = content(u64::from(round) + 1, BLOCK + 100);
            let slot = one.open(&put("b", good.len() as u64))[0];
            assert!(one.store(slot, 0, &good[..BLOCK], false)["Stored"].is_object());
            // Meanwhile another client uses the same name, and all names that the part might have.
            let refused = other.ask(&put("b", 3));
            attempts.count("a second upload to one name", !refused["Failed"]["again"].as_bool().unwrap_or(false));
            for name in ["b.percale-part", ".percale-parts/b", ".percale-parts/commit.1.0", ".b.percale-part"] {
                if other.ask(&put(name, 5))["Opened"].is_object() {
                    let slot = other.open(&put(name, 5))[0];
                    other.store(slot, 0, b"OTHER", true);
                    other.ask(&json!({"Finish": {"digest": digest(0, b"OTHER", true)}}));
                }
            }
            // A local user also interferes: another file has the part's name when the upload ends.
            let swapped = round % 3 == 2;
            if swapped {
                std::fs::remove_file(place.path("served/.percale-parts/b")).unwrap();
                std::fs::write(place.path("served/.percale-parts/b"), b"OTHER").unwrap();
            }
            assert!(one.store(slot, 1, &good[BLOCK..], false)["Stored"].is_object());
            let whole = blake3::hash(&good).as_bytes().to_vec();
            let finished = one.ask(&json!({"Finish": {"digest": whole}}));
            let there = std::fs::read(place.path("served/b")).ok();
            attempts.count(
                "a different file under the name of the part",
                if finished == "Finished" { there.as_ref() != Some(&good) } else { !swapped || there.is_some() },
            );
        }
    }
    attempts.report();
}

/// Requirements: SRV-007.
#[test]
fn padding_of_a_short_file_is_zero() {
    let place = TestDirectory::new("padding");
    place.write("served/long", &vec![0xaa; 4 * BLOCK]);
    place.write("served/short", b"short");
    let server = Serving::start(&place, &[]);
    let mut attempts = Attempts::default();
    for transport in KINDS {
        for _ in 0..repeats(4) {
            let client = TestClient::new(&server.address, transport);
            for slot in 0..client.open(&get("long")).len() {
                client.ask(&json!({"Fill": {"block": slot, "slot": slot}}));
            }
            let slot = client.open(&get("short"))[0];
            client.ask(&json!({"Fill": {"block": 0, "slot": 0}}));
            let bytes = client.endpoint.read(client.server, slot, vec![1; BLOCK]).wait().unwrap().into_vec();
            attempts.count("reading earlier contents of a slot", bytes[5..].iter().any(|&byte| byte != 0));
        }
    }
    attempts.report();
}

/// Requirements: SRV-007.
#[test]
fn server_does_not_connect_to_addresses_named_by_clients() {
    let place = TestDirectory::new("named");
    place.write("served/a", b"text");
    let server = Serving::start(&place, &[]);
    let mut attempts = Attempts::default();
    for transport in KINDS {
        for _ in 0..repeats(10) {
            let client = TestClient::connect(&server.address, transport, "127.0.0.1:0").unwrap();
            let address = client.endpoint.address();
            for number in 1..16 {
                let request = json!({"number": number, "request": get("missing")}).to_string().into_bytes();
                if let Ok(sending) = client.endpoint.tagged_send(client.server, TAG, request).start() {
                    std::mem::forget(sending);
                }
            }
            drop(client);
            // Another process now has the address. The server must not connect to it.
            let mut bound = None;
            eventually("the address is not free", || {
                bound = std::net::TcpListener::bind(address).ok();
                bound.is_some()
            });
            let listener = bound.unwrap();
            listener.set_nonblocking(true).unwrap();
            let until = Instant::now() + Duration::from_millis(300);
            let mut called = false;
            while Instant::now() < until && !called {
                called = listener.accept().is_ok();
                std::thread::sleep(Duration::from_millis(2));
            }
            attempts.count("a connection to the address of another process", called);
        }
    }
    attempts.report();
}
