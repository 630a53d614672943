//! Servers that violate the protocol, with `percale cp` as their client.
//!
//! An attempt succeeds if `cp` reports a copy that is not on the disk as reported, fails but leaves a file with the
//! final name, sets permissions that the umask forbids, prints characters that a terminal interprets, or does not exit.

use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use percale::endpoint::SharedEndpoint;
use percale::{Access, AddressVector, Domain, Event, EventQueue, Info, PeerAddress, Progress, Region, TransportKind};
use serde_json::{Value, json};

use crate::client::{BLOCK, PROTOCOL, TAG, digest};
use crate::place::{TestDirectory, content, repeats};

/// The time limit for a copy from a hostile server. The client may wait a minute for an answer.
const BOUND: Duration = Duration::from_secs(150);

/// The kinds of misbehavior of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Misbehaviour {
    /// No misbehavior. This checks that `cp` can use the server of this test.
    Nothing,
    /// Two answers for one block and none for another block, which an earlier attempt left in the part.
    FilledTwice,
    FilledOther,
    FilledNowhere,
    /// The checksum of different bytes.
    FalseChecksum,
    StrangeNumbers,
    NoSlots,
    ManySlots,
    ShortSlots,
    Huge,
    Larger,
    Mode,
    Escapes,
    EscapesInReply,
    FinishedEarly,
    OtherReply,
    LongMessage,
    NoJson,
    Leaves,
    OtherSize,
    StoredOther,
    StoredTwice,
    FinishedUnstored,
    Version,
}

impl Misbehaviour {
    /// Returns whether the attempt is an upload and not a download.
    const fn is_upload(self) -> bool {
        matches!(self, Self::OtherSize | Self::StoredOther | Self::StoredTwice | Self::FinishedUnstored)
    }

    /// Returns whether `cp` may report success, because the copy is correct.
    const fn may_end_well(self) -> bool {
        matches!(self, Self::Nothing | Self::StrangeNumbers | Self::Mode)
    }
}

/// All kinds of misbehavior, with their names in the table.
const MISBEHAVIOURS: &[Misbehaviour] = &[
    Misbehaviour::Nothing,
    Misbehaviour::FilledTwice,
    Misbehaviour::FilledOther,
    Misbehaviour::FilledNowhere,
    Misbehaviour::FalseChecksum,
    Misbehaviour::StrangeNumbers,
    Misbehaviour::NoSlots,
    Misbehaviour::ManySlots,
    Misbehaviour::ShortSlots,
    Misbehaviour::Huge,
    Misbehaviour::Larger,
    Misbehaviour::Mode,
    Misbehaviour::Escapes,
    Misbehaviour::EscapesInReply,
    Misbehaviour::FinishedEarly,
    Misbehaviour::OtherReply,
    Misbehaviour::LongMessage,
    Misbehaviour::NoJson,
    Misbehaviour::Leaves,
    Misbehaviour::OtherSize,
    Misbehaviour::StoredOther,
    Misbehaviour::StoredTwice,
    Misbehaviour::FinishedUnstored,
    Misbehaviour::Version,
];

/// Characters that a terminal interprets.
const ESCAPES: &str =
    "no\u{1b}]0;title\u{7}\u{1b}[2J\u{1b}[Hpercale: 9 bytes, checksums agree\u{1b}[8m\u{9b}2J\r\u{202e}";

/// A server of one file.
struct Server {
    endpoint: SharedEndpoint,
    vector: AddressVector,
    events: EventQueue,
    domain: Domain,
    file: Vec<u8>,
    misbehaviour: Misbehaviour,
    slots: Vec<Region>,
}

impl Server {
    fn new(transport: TransportKind, file: Vec<u8>, misbehaviour: Misbehaviour) -> Self {
        let domain = Info::discover().unwrap().domain().transport(transport).progress(Progress::Manual).open().unwrap();
        let vector = domain.address_vector().build().unwrap();
        let events = EventQueue::default();
        let endpoint = domain.endpoint().vector(&vector).event_queue(&events).bind_shared("127.0.0.1:0").unwrap();
        Self { endpoint, vector, events, domain, file, misbehaviour, slots: Vec::new() }
    }

    fn say(&self, peer: PeerAddress, bytes: Vec<u8>) {
        if let Ok(mut sending) = self.endpoint.tagged_send(peer, TAG, bytes).start() {
            let _sent: Result<_, _> = sending.wait_for(Duration::from_secs(5));
        }
    }

    fn answer(&self, peer: PeerAddress, number: &Value, reply: &Value) {
        self.say(peer, json!({"number": number, "reply": reply}).to_string().into_bytes());
    }

    fn open_slots(&mut self, access: Access) -> Vec<Value> {
        let len = if self.misbehaviour == Misbehaviour::ShortSlots { BLOCK / 2 } else { BLOCK };
        let count = match self.misbehaviour {
            Misbehaviour::NoSlots => 0,
            Misbehaviour::ManySlots => 40,
            _ => 3,
        };
        let region = |_| self.domain.register(self.domain.allocate(len).unwrap(), access).unwrap();
        self.slots = (0..count).map(region).collect();
        self.slots.iter().map(|slot| json!(slot.remote().to_bytes().to_vec())).collect()
    }

    /// Serves until `stop` is set.
    fn run(&mut self, stop: &AtomicBool) {
        let mut peer = None;
        let mut filled = Vec::new();
        while !stop.load(Ordering::Relaxed) {
            while let Some(event) = self.events.read() {
                if let Event::Connected { address, .. } = event {
                    let new = self.vector.insert(address).unwrap();
                    let protocol = if self.misbehaviour == Misbehaviour::Version { PROTOCOL + 1 } else { PROTOCOL };
                    self.answer(new, &json!(0), &json!({"Welcome": {"protocol": protocol}}));
                    peer = Some(new);
                }
            }
            let mut receiving = self.endpoint.tagged_recv(TAG, 0, vec![0; 1 << 16]).start().unwrap();
            let Ok(message) = receiving.wait_for(Duration::from_millis(20)) else { continue };
            let Some(peer) = peer else { continue };
            let requested: Value = serde_json::from_slice(&message.to_vec()).unwrap();
            if self.serve(peer, &requested["number"], &requested["request"], &mut filled) {
                return;
            }
        }
    }

    /// Answers a request. Returns whether the server stops.
    fn serve(&mut self, peer: PeerAddress, number: &Value, request: &Value, filled: &mut Vec<(Value, Value)>) -> bool {
        let misbehaviour = self.misbehaviour;
        let size = self.file.len();
        let opened = |size: Value, mode: u32, slots: Vec<Value>| json!({"Opened": {"size": size, "mode": mode, "held": 0, "slots": slots}});
        if request.get("Get").is_some() {
            let size = match misbehaviour {
                Misbehaviour::Huge => json!(u64::MAX),
                Misbehaviour::Larger => json!(size + 3 * BLOCK),
                _ => json!(size),
            };
            let slots = self.open_slots(Access::REMOTE_READ);
            match misbehaviour {
                Misbehaviour::Escapes => {
                    self.answer(peer, number, &json!({"Failed": {"why": ESCAPES, "again": false}}))
                }
                Misbehaviour::EscapesInReply => self.answer(peer, number, &json!({ESCAPES: {}})),
                Misbehaviour::FinishedEarly => self.answer(peer, number, &json!("Finished")),
                Misbehaviour::OtherReply => self.answer(peer, number, &json!({"Stored": {"block": 0, "slot": 0}})),
                Misbehaviour::LongMessage => self.say(peer, vec![b'['; 3 << 20]),
                Misbehaviour::NoJson => self.say(peer, b"\xff\xfe{".to_vec()),
                _ => {
                    let mode = if misbehaviour == Misbehaviour::Mode { 0o7777 } else { 0o644 };
                    self.answer(peer, number, &opened(size, mode, slots));
                }
            }
        } else if let Some(put) = request.get("Put") {
            let slots = self.open_slots(Access::REMOTE_WRITE);
            let size = if misbehaviour == Misbehaviour::OtherSize { json!(3) } else { put["size"].clone() };
            self.answer(peer, number, &opened(size, 0o644, slots));
        } else if let Some(hash) = request.get("Hash") {
            self.answer(peer, number, &json!({"Hashed": {"block": hash["block"], "digest": vec![0; 32]}}));
        } else if let Some(fill) = request.get("Fill") {
            let (block, slot) = (fill["block"].as_u64().unwrap(), fill["slot"].as_u64().unwrap());
            let start = block as usize * BLOCK;
            let bytes = self.file.get(start..size.min(start + BLOCK)).unwrap_or_default().to_vec();
            if let Some(region) = self.slots.get_mut(slot as usize)
                && bytes.len() <= region.len()
            {
                region.write(0, &bytes);
            }
            let mut sum = if bytes.is_empty() { vec![7; 32] } else { digest(block, &bytes, size <= BLOCK) };
            if misbehaviour == Misbehaviour::FalseChecksum {
                sum[0] ^= 1;
            }
            let reply = |block: u64, slot: u64| json!({"Filled": {"block": block, "slot": slot, "digest": sum}});
            match misbehaviour {
                Misbehaviour::FilledTwice => {
                    filled.push((number.clone(), reply(block, slot)));
                    if filled.len() == 3 {
                        // These replies are sent together, so that none is read before the last one has arrived.
                        for (number, reply) in [&filled[0], &filled[1], &filled[1]] {
                            self.answer(peer, number, reply);
                        }
                    }
                }
                Misbehaviour::FilledOther => self.answer(peer, number, &reply(block + 1, slot)),
                Misbehaviour::FilledNowhere => self.answer(peer, number, &reply(block, slot + 100)),
                Misbehaviour::StrangeNumbers => {
                    self.answer(peer, &json!(7), &reply(block + 1, slot));
                    self.answer(peer, &json!(u64::MAX), &json!("Finished"));
                    self.answer(peer, number, &reply(block, slot));
                }
                Misbehaviour::Leaves => return true,
                _ => self.answer(peer, number, &reply(block, slot)),
            }
        } else if let Some(store) = request.get("Store") {
            let stored = |block: &Value| json!({"Stored": {"block": block, "slot": store["slot"]}});
            match misbehaviour {
                Misbehaviour::StoredOther => self.answer(peer, number, &stored(&json!(77))),
                Misbehaviour::FinishedUnstored => self.answer(peer, number, &json!("Finished")),
                Misbehaviour::StoredTwice => {
                    self.answer(peer, number, &stored(&store["block"]));
                    self.answer(peer, number, &stored(&store["block"]));
                }
                _ => self.answer(peer, number, &stored(&store["block"])),
            }
        } else if request.get("Finish").is_some() {
            self.answer(peer, number, &json!("Finished"));
        }
        false
    }
}

/// Makes one copy. If the attempt succeeded, returns the reason.
fn attempt(place: &TestDirectory, transport: TransportKind, misbehaviour: Misbehaviour, seed: u64) -> Option<String> {
    let file = content(seed, 2 * BLOCK + 5);
    let (target, source) = (place.path("local/got"), place.path("local/source"));
    std::fs::remove_file(&target).ok();
    // An earlier attempt left the end of another file.
    std::fs::create_dir_all(place.path("local/.percale-parts")).unwrap();
    place.mode("local/.percale-parts", 0o700);
    place.write("local/.percale-parts/got", &content(seed + 1, 2 * BLOCK + 5));
    place.write("local/source", &file);
    let mut server = Server::new(transport, file, misbehaviour);
    let address = server.endpoint.address();
    let stop = AtomicBool::new(false);
    let (there, target_text) = (format!("{address}/x"), target.to_str().unwrap().to_owned());
    let source_text = source.to_str().unwrap().to_owned();
    let (from, to) = if misbehaviour.is_upload() { (&source_text, &there) } else { (&there, &target_text) };
    let (status, out, error) = std::thread::scope(|scope| {
        let stop = &stop;
        // The server ends with its thread, so the client's connection ends when the server stops.
        scope.spawn(move || server.run(stop));
        let mut child = Command::new(env!("CARGO_BIN_EXE_percale"))
            .args(["cp", from, to, "--json"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (mut stdout, mut stderr) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
        let (sender, ended) = mpsc::channel();
        let reading = scope.spawn(move || {
            let (mut out, mut error) = (Vec::new(), Vec::new());
            stdout.read_to_end(&mut out).unwrap();
            stderr.read_to_end(&mut error).unwrap();
            sender.send(()).unwrap();
            (out, error)
        });
        let start = Instant::now();
        let late = ended.recv_timeout(BOUND).is_err();
        if late {
            child.kill().unwrap();
        }
        let status = child.wait().unwrap();
        stop.store(true, Ordering::Relaxed);
        let (out, error) = reading.join().unwrap();
        (if late { Err(start.elapsed()) } else { Ok(status) }, out, error)
    });
    let error = String::from_utf8_lossy(&error).into_owned();
    let printed: Value = serde_json::from_slice(&out).unwrap_or_default();
    println!("hostile server: {misbehaviour:?} {transport:?}: {status:?} {}", error.trim());
    let Ok(status) = status else { return Some("the client does not end".into()) };
    if error.chars().any(|character| character.is_control() && character != '\n') || error.contains('\u{202e}') {
        return Some(format!("escapes reach the terminal: {error:?}"));
    }
    // An error must not contain the program's internal representation of a reply.
    if ["Filled", "Stored", "Opened", "Hashed", "Welcome"].iter().any(|name| error.contains(&format!("{name} {{"))) {
        return Some(format!("the error contains internal values: {error:?}"));
    }
    if !status.success() {
        if status.code() != Some(1) {
            return Some(format!("the client ended with {status}"));
        }
        return (target.exists() || misbehaviour.may_end_well()).then(|| format!("the copy failed: {error}"));
    }
    if !misbehaviour.may_end_well() {
        return Some("the client reports a completed copy".into());
    }
    let bytes = std::fs::read(&target).unwrap();
    let mode = target.metadata().unwrap().permissions().mode() & 0o7777;
    if mode & 0o7022 != 0 {
        return Some(format!("the copy has mode {mode:o}"));
    }
    let sum = blake3::hash(&bytes).to_hex();
    let same = printed["blake3"] == sum.as_str() && printed["bytes"].as_u64() == Some(bytes.len() as u64);
    (!same).then(|| format!("{printed}, but the file has {} bytes with the hash {sum}", bytes.len()))
}

/// Requirements: SRV-010.
#[test]
fn hostile_server_causes_no_wrong_copy() {
    let place = TestDirectory::new("hostile-server");
    let mut successes = Vec::new();
    for transport in [TransportKind::Shm, TransportKind::Tcp] {
        for &misbehaviour in MISBEHAVIOURS {
            let attempts = repeats(1);
            let before = successes.len();
            for seed in 0..u64::from(attempts) {
                successes.extend(
                    attempt(&place, transport, misbehaviour, 100 + seed).map(|why| (misbehaviour, transport, why)),
                );
            }
            let won = successes.len() - before;
            println!("hostile server: {attempts:5} x {misbehaviour:?} over {transport:?}: {won} successes");
        }
    }
    assert!(successes.is_empty(), "{successes:#?}");
}
