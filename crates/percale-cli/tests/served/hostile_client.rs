//! Clients that do not keep to the protocol of `percale serve`, or keep to it and do what harms others.
//!
//! Each kind of attempt is counted, and so are its successes: a file that is read or written although it must not be, or an honest
//! client that is not served meanwhile. What is printed is the table; PERCALE_LONG=1 makes ten times as many attempts.

use std::io::{Read, Write};
use std::os::unix::fs::{OpenOptionsExt, symlink};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use percale::endpoint::safe::Cause;
use percale::{ErrorCode, TransportKind};
use serde_json::json;

use crate::client::{BLOCK, Client, TAG, digest, get, put};
use crate::common::{eventually, text};
use crate::place::{Place, Serving, content, copied, copy, identical, repeats};

const KINDS: [TransportKind; 2] = [TransportKind::Shm, TransportKind::Tcp];

/// How long an honest copy of a small file may take while others do harm.
const HONEST: Duration = Duration::from_secs(20);

/// Counts attempts and those that succeeded.
#[derive(Default)]
struct Attempts(Vec<(&'static str, u64, u64)>);

impl Attempts {
    fn count(&mut self, kind: &'static str, succeeded: bool) {
        let at = match self.0.iter().position(|(of, ..)| *of == kind) {
            Some(at) => at,
            None => {
                self.0.push((kind, 0, 0));
                self.0.len() - 1
            }
        };
        self.0[at].1 += 1;
        self.0[at].2 += u64::from(succeeded);
    }

    fn report(&self) {
        for (kind, attempts, successes) in &self.0 {
            println!("hostile client: {attempts:5} x {kind}: {successes} successes");
        }
        assert!(self.0.iter().all(|(.., successes)| *successes == 0), "see the table");
    }
}

/// Whether an honest client gets a file in time.
fn serves(serving: &Serving, place: &Place, name: &str) -> bool {
    let target = place.path("local/honest");
    let mut child = Command::new(env!("CARGO_BIN_EXE_percale"))
        .args(["cp", &serving.at(name), target.to_str().unwrap()])
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let start = Instant::now();
    let status = loop {
        match child.try_wait().unwrap() {
            None if start.elapsed() > HONEST => {
                child.kill().unwrap();
                child.wait().unwrap();
                break None;
            }
            None => std::thread::sleep(Duration::from_millis(2)),
            status => break status,
        }
    };
    let same = std::fs::read(&target).ok() == std::fs::read(place.path(&format!("served/{name}"))).ok();
    std::fs::remove_file(&target).ok();
    status.is_some_and(|status| status.success()) && same
}

fn resident(child: &Child) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
}

#[test]
fn requests_that_make_no_sense_are_refused_and_the_server_serves_on() {
    let place = Place::new("nonsense");
    place.write("served/a", &vec![7; 5 << 20]);
    let server = Serving::start(&place, &["--writable"]);
    let (a, zero) = (get("a"), vec![0; 32]);
    let store = |block: u64, slot: u64| json!({"Store": {"block": block, "slot": slot, "digest": zero}});
    for transport in KINDS {
        let client = Client::new(&server.address, transport);
        for nonsense in [b"".as_slice(), b"{", b"\xff\xfe", b"\"Destroy\"", b"{\"Get\":{}}", &[b'['; 30_000]] {
            client.say(nonsense);
            let why = client.hear()["reply"]["Failed"]["why"].to_string();
            assert!(why.contains("no request"), "{why}");
        }
        for (open, request, said) in [
            (None, json!({"Fill": {"block": 0, "slot": 0}}), "no file is open"),
            (None, json!({"Finish": {"digest": zero}}), "no file is open"),
            (Some(&a), json!({"Fill": {"block": 2, "slot": 0}}), "no block 2"),
            (Some(&a), json!({"Fill": {"block": u64::MAX, "slot": 0}}), "no block"),
            (Some(&a), json!({"Fill": {"block": 0, "slot": 2}}), "no slot 2"),
            (Some(&a), store(0, 0), "opened to be read"),
            (Some(&a), json!({"Finish": {"digest": zero}}), "only 0 of 2"),
            (Some(&put("b", 9)), json!({"Fill": {"block": 0, "slot": 0}}), "opened to be written"),
            (Some(&put("b", 9)), store(1, 0), "no block 1"),
            (Some(&put("b", 9)), store(0, 0), "another checksum"),
            (Some(&put("b", 9)), json!({"Hash": {"block": 1}}), "no block 1"),
            (Some(&put("b", u64::MAX >> 1)), json!({"Finish": {"digest": zero}}), "only 0 of"),
            (None, put("b", u64::MAX), "File too large"),
        ] {
            if let Some(open) = open {
                client.open(open);
            }
            let why = client.refusal(&request).unwrap_or_else(|| panic!("{request} was done"));
            assert!(why.to_lowercase().contains(&said.to_lowercase()), "{request}: {why}");
        }
        // What may be read may not be written, and the other way round.
        let slot = client.open(&a)[0];
        let written = client.endpoint.write(client.server, vec![1; 64], slot.slice(0..64)).wait().unwrap_err();
        assert!(matches!(written.cause, Cause::Completion(error) if error.error == ErrorCode::Denied));
        let slot = client.open(&put("b", 9))[0];
        let read = client.endpoint.read(client.server, slot.slice(0..64), vec![0; 64]).wait().unwrap_err();
        assert!(matches!(read.cause, Cause::Completion(error) if error.error == ErrorCode::Denied));
        // More requests than anybody is owed answers to.
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
fn a_client_that_comes_back_under_its_former_address_is_welcome() {
    let place = Place::new("again");
    place.write("served/a", &[7; 100]);
    let server = Serving::start(&place, &[]);
    for transport in KINDS {
        let other = Client::new(&server.address, transport);
        let address = Client::new(&server.address, transport).endpoint.address().to_string();
        for _ in 0..20 {
            let client = Client::at(&server.address, transport, &address);
            let slots = client.open(&get("a"));
            // It leaves in the middle of the file.
            assert!(client.ask(&json!({"Fill": {"block": 0, "slot": 0}}))["Filled"].is_object());
            assert_eq!(slots[0].len, BLOCK as u64);
        }
        other.open(&get("a"));
    }
}

/// Paths that lead out, to incomplete copies, or to what is no file.
fn forbidden(place: &Place) -> Vec<(String, Vec<u8>)> {
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

#[test]
fn srv_002_srv_007_hostile_paths_reach_nothing() {
    let place = Place::new("hostile-paths");
    let paths = forbidden(&place);
    let server = Serving::start(&place, &["--writable"]);
    let mut attempts = Attempts::default();
    let outside = || (place.names(""), place.read("secret"), place.read("served/.percale-parts/half"));
    let before = outside();
    for transport in KINDS {
        let client = Client::new(&server.address, transport);
        for _ in 0..repeats(4) {
            for (name, path) in &paths {
                let got = client.ask(&json!({"Get": {"path": path}}));
                attempts.count("reading outside, or incomplete copies", !got["Failed"].is_object());
                let request = json!({"Put": {"path": path, "size": 3, "mode": 0o4777}});
                let opened = client.ask(&request);
                // A link is replaced, not followed, so what counts is what has changed.
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

#[test]
fn srv_007_no_other_file_takes_the_place_of_an_upload() {
    let mut attempts = Attempts::default();
    for transport in KINDS {
        for round in 0..repeats(3) {
            let place = Place::new("swapped");
            let server = Serving::start(&place, &["--writable"]);
            let (one, other) = (Client::new(&server.address, transport), Client::new(&server.address, transport));
            let good = content(u64::from(round) + 1, BLOCK + 100);
            let slot = one.open(&put("b", good.len() as u64))[0];
            assert!(one.store(slot, 0, &good[..BLOCK], false)["Stored"].is_object());
            // Another client, meanwhile: the same name, and all names that the part might have.
            let refused = other.ask(&put("b", 3));
            attempts.count("a second upload to one name", !refused["Failed"]["again"].as_bool().unwrap_or(false));
            for name in ["b.percale-part", ".percale-parts/b", ".percale-parts/commit.1.0", ".b.percale-part"] {
                if other.ask(&put(name, 5))["Opened"].is_object() {
                    let slot = other.open(&put(name, 5))[0];
                    other.store(slot, 0, b"OTHER", true);
                    other.ask(&json!({"Finish": {"digest": digest(0, b"OTHER", true)}}));
                }
            }
            // A local user, too, while it goes on: another file has the part's name when it ends.
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
                "another file under the part's name",
                if finished == "Finished" { there.as_ref() != Some(&good) } else { !swapped || there.is_some() },
            );
        }
    }
    attempts.report();
}

#[test]
fn srv_007_what_lies_behind_a_short_file_is_nobodys() {
    let place = Place::new("padding");
    place.write("served/long", &vec![0xaa; 4 * BLOCK]);
    place.write("served/short", b"short");
    let server = Serving::start(&place, &[]);
    let mut attempts = Attempts::default();
    for transport in KINDS {
        for _ in 0..repeats(4) {
            let client = Client::new(&server.address, transport);
            for slot in 0..client.open(&get("long")).len() {
                client.ask(&json!({"Fill": {"block": slot, "slot": slot}}));
            }
            let slot = client.open(&get("short"))[0];
            client.ask(&json!({"Fill": {"block": 0, "slot": 0}}));
            let bytes = client.endpoint.read(client.server, slot, vec![1; BLOCK]).wait().unwrap().into_vec();
            attempts.count("reading what a slot held before", bytes[5..].iter().any(|&byte| byte != 0));
        }
    }
    attempts.report();
}

#[test]
fn srv_008_clients_that_stall_stay_or_flood_keep_nobody_from_being_served() {
    let place = Place::new("stalling");
    place.write("served/a", &content(3, 100_000));
    let server = Serving::start(&place, &["--writable"]);
    let mut attempts = Attempts::default();
    for transport in KINDS {
        // One long message each, offered and never given.
        let stalled: Vec<_> = (0..repeats(3))
            .map(|_| {
                let client = Client::new(&server.address, transport);
                std::mem::forget(client.endpoint.tagged_send(client.server, TAG, vec![b'['; 2_080_000]).start());
                client
            })
            .collect();
        attempts.count("an offer whose pull is not answered", !serves(&server, &place, "a"));
        drop(stalled);
        // Requests whose answers nobody takes: long refusals.
        let deaf: Vec<_> = (0..4).map(|_| Client::new(&server.address, transport)).collect();
        let long = json!({"number": 1, "request": get(&"\u{7f}".repeat(4000))}).to_string().into_bytes();
        for client in &deaf {
            for _ in 0..200 {
                if let Ok(sending) = client.endpoint.tagged_send(client.server, TAG, long.clone()).start() {
                    std::mem::forget(sending);
                }
            }
        }
        attempts.count("answers that are not taken", !serves(&server, &place, "a"));
        drop(deaf);
        // One has a name locked, and others ask for it again and again.
        let locking = Client::new(&server.address, transport);
        locking.open(&put("locked", 10_000_000));
        let asking: Vec<_> = (0..4).map(|_| Client::new(&server.address, transport)).collect();
        for client in &asking {
            for _ in 0..8 {
                client.request(&put("locked", 10_000_000));
            }
        }
        attempts.count("a name that is locked", !serves(&server, &place, "a"));
        drop((locking, asking));
        // More clients than there are places, with files open or without.
        let idle: Vec<_> = (0..70)
            .map(|number| {
                let client = Client::connect(&server.address, transport, "127.0.0.1:0");
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
        attempts.count("more idle clients than places", !serves(&server, &place, "a"));
        drop(idle);
    }
    attempts.report();
}

#[test]
fn srv_008_long_requests_cost_neither_memory_nor_log() {
    let place = Place::new("long-requests");
    place.write("served/a", b"text");
    let mut server = Serving::start(&place, &[]);
    let mut attempts = Attempts::default();
    let before = resident(&server.child);
    for transport in KINDS {
        for _ in 0..repeats(10) {
            let client = Client::new(&server.address, transport);
            let long = json!({"number": 1, "request": get(&"\u{7f}".repeat(2_000_000))}).to_string();
            // It may be cut off before all is sent.
            let _said: Result<(), _> = client.try_say(long.as_bytes());
            let answered =
                client.try_hear(Duration::from_secs(20)).is_ok_and(|reply| reply["reply"]["Opened"].is_object());
            attempts.count("a request of 12 MB", answered);
        }
    }
    let grown = resident(&server.child).saturating_sub(before);
    println!("hostile client: the server has grown by {} KiB", grown >> 10);
    attempts.count("memory after long requests", grown > 48 << 20);
    attempts.count("serving on", !serves(&server, &place, "a"));
    server.child.kill().unwrap();
    let mut log = String::new();
    server.lines.read_to_string(&mut log).unwrap();
    println!("hostile client: {} bytes of log", log.len());
    attempts.count("log of long requests", log.len() > repeats(10) as usize * 4000);
    attempts.report();
}

#[test]
fn srv_007_the_server_calls_nobody_whom_a_client_names() {
    let place = Place::new("named");
    place.write("served/a", b"text");
    let server = Serving::start(&place, &[]);
    let mut attempts = Attempts::default();
    for transport in KINDS {
        for _ in 0..repeats(10) {
            let client = Client::connect(&server.address, transport, "127.0.0.1:0").unwrap();
            let address = client.endpoint.address();
            for number in 1..16 {
                let request = json!({"number": number, "request": get("missing")}).to_string().into_bytes();
                if let Ok(sending) = client.endpoint.tagged_send(client.server, TAG, request).start() {
                    std::mem::forget(sending);
                }
            }
            drop(client);
            // Somebody else has the address now: is it called?
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
            attempts.count("an answer to another's address", called);
        }
    }
    attempts.report();
}

#[test]
fn srv_008_a_reader_of_the_output_that_stops_stops_nobody() {
    let place = Place::new("reader");
    place.write("served/a", b"text");
    // Its lines are not read from here on.
    let server = Serving::start(&place, &[]);
    let mut attempts = Attempts::default();
    let client = Client::new(&server.address, TransportKind::Tcp);
    for _ in 0..2000 {
        assert!(client.refusal(&get(&"\u{7f}".repeat(4000))).is_some());
    }
    attempts.count("output that is not read", !serves(&server, &place, "a"));
    attempts.report();
}

#[test]
fn srv_008_strangers_without_the_key_use_up_nothing() {
    let place = Place::new("strangers");
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
    // Silent, half a hello, and nonsense.
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

#[test]
fn srv_009_a_limit_on_file_sizes_is_an_error_and_no_end() {
    let place = Place::new("file-size");
    place.write("served/a", b"text");
    place.write("local/long", &content(1, 6 << 20));
    let program = env!("CARGO_BIN_EXE_percale");
    let mut shell = Command::new("sh");
    // In units of 512 bytes: 5 MB.
    let script = "ulimit -f 10000 && exec \"$0\" serve \"$1\" --listen 127.0.0.1:0 --json --writable";
    shell.args(["-c", script, program, &place.text("served")]);
    let server = Serving::of(&mut shell);
    let output = copy(&place.text("local/long"), &server.at("b"), &["--transport", "tcp"]);
    let error = crate::place::refused(&output);
    assert!(error.contains("File too large"), "{error}");
    assert!(!place.path("served/b").exists());
    assert!(serves(&server, &place, "a"));
    // The client's limit likewise.
    place.write("served/long", &content(1, 6 << 20));
    let script = "ulimit -f 10000 && exec \"$0\" cp \"$1\" \"$2\" --transport tcp";
    let output =
        Command::new("sh").args(["-c", script, program, &server.at("long"), &place.text("local/b")]).output().unwrap();
    assert!(crate::place::refused(&output).contains("File too large"), "{output:?}");
    assert!(!place.path("local/b").exists());
}

#[test]
fn srv_008_pipes_are_not_opened_and_leases_not_waited_for() {
    let place = Place::new("pipes");
    place.write("served/a", b"text");
    let fifo = place.path("served/pipe");
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::from_raw_mode(0o600)).unwrap();
    let server = Serving::start(&place, &["--writable"]);
    let client = Client::new(&server.address, TransportKind::Tcp);
    let writer = || std::fs::File::options().write(true).custom_flags(libc::O_NONBLOCK).open(&fifo);
    let stop = std::sync::atomic::AtomicBool::new(false);
    let opened = std::thread::scope(|scope| {
        // A writer gets in as soon as there is a reader, if only for a moment.
        let watching = scope.spawn(|| {
            let mut opened = 0;
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                opened += u32::from(writer().is_ok());
            }
            opened
        });
        for _ in 0..repeats(200) {
            assert!(client.refusal(&get("pipe")).unwrap().contains("no regular file"));
            assert!(client.refusal(&put("pipe", 3)).unwrap().contains("no regular file"));
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        watching.join().unwrap()
    });
    assert_eq!(opened, 0, "the pipe was opened");
    assert!(serves(&server, &place, "a"));
}
