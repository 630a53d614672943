//! Copies that are interrupted at random times: the client or the server is killed, or the source changes. The copy is
//! repeated until it is reported as complete. A copy reported as complete must equal the source, and incomplete data
//! must never have the final name.
//!
//! By default only a sample is run. PERCALE_LONG=1 makes 200 interruptions. PERCALE_SEED repeats the random choices of
//! a run (the exact times depend on the machine).

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, SystemTime};

use serde_json::Value;

use crate::common::text;
use crate::place::{Serving, TRANSPORTS, TestDirectory, content};

/// The number of interruptions in a sample, and in a long run.
const SAMPLE: u32 = 12;
const ALL: u32 = 200;

/// The number of tries after which a copy must be complete. After a few tries the source no longer changes.
const TRIES: u32 = 8;

/// A random number generator (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

/// The interruption of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Interruption {
    Nothing,
    ClientDies,
    ServerDies,
    /// A byte of the source changes, and its modification time is set back.
    SourceChanges,
    /// Another file replaces the source.
    SourceReplaced,
    SourceGrows,
    SourceShrinks,
}

const INTERRUPTIONS: [Interruption; 7] = [
    Interruption::ClientDies,
    Interruption::ServerDies,
    Interruption::ClientDies,
    Interruption::SourceChanges,
    Interruption::SourceReplaced,
    Interruption::SourceGrows,
    Interruption::SourceShrinks,
];

/// The observed results.
#[derive(Debug, Default)]
struct Tally {
    interrupted: u32,
    resumed: u32,
    begun_anew: u32,
    refused: u32,
    complete: u32,
    wrong: Vec<String>,
}

fn start(from: &str, to: &str, transport: &str) -> Child {
    Command::new(env!("CARGO_BIN_EXE_percale"))
        .args(["cp", from, to, "--json", "--transport", transport])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Changes the source.
fn change(source: &Path, interruption: Interruption, random: &mut Random) {
    let file = || File::options().read(true).write(true).open(source).unwrap();
    let len = source.metadata().unwrap().len();
    match interruption {
        Interruption::Nothing | Interruption::ClientDies | Interruption::ServerDies => {}
        Interruption::SourceChanges => {
            let file = file();
            let before = file.metadata().unwrap().modified().unwrap_or(SystemTime::UNIX_EPOCH);
            let at = random.below(len);
            let mut byte = [0];
            file.read_exact_at(&mut byte, at).unwrap();
            file.write_all_at(&[byte[0] ^ 0xff], at).unwrap();
            file.set_modified(before).unwrap();
        }
        Interruption::SourceReplaced => {
            let other = source.with_extension("other");
            std::fs::write(&other, content(random.below(u64::MAX), len as usize)).unwrap();
            std::fs::rename(other, source).unwrap();
        }
        Interruption::SourceGrows => file().write_all_at(&[7; 100_000], len).unwrap(),
        Interruption::SourceShrinks => file().set_len(len / 2 + 1).unwrap(),
    }
}

/// A version of the source: its inode number and its contents.
#[derive(PartialEq, Eq)]
struct Version(u64, Vec<u8>);

fn version(source: &Path) -> Version {
    Version(source.metadata().unwrap().ino(), std::fs::read(source).unwrap())
}

/// Copies one file until the copy is complete.
fn one(number: u32, random: &mut Random, tally: &mut Tally) {
    let place = TestDirectory::new(&format!("interrupted-{number}"));
    let mut serving = Serving::start(&place, &["--writable"]);
    let (is_upload, transport) = (random.below(2) == 0, TRANSPORTS[random.below(2) as usize]);
    let (source, target) = if is_upload { ("local/a", "served/b") } else { ("served/a", "local/b") };
    let len = (8 << 20) + random.below(32 << 20) as usize;
    place.write(source, &content(u64::from(number) + 1, len));
    let (source, target) = (place.path(source), place.path(target));
    // The versions that the source has had.
    let mut versions = vec![version(&source).1];
    for attempt in 0..TRIES {
        let there = |name: &str| format!("{}/{name}", serving.address);
        let (from, to) = if is_upload {
            (source.to_str().unwrap().to_owned(), there("b"))
        } else {
            (there("a"), target.to_str().unwrap().to_owned())
        };
        let interruption = if attempt < 2 {
            INTERRUPTIONS[random.below(INTERRUPTIONS.len() as u64) as usize]
        } else {
            Interruption::Nothing
        };
        let mut child = start(&from, &to, transport);
        if interruption != Interruption::Nothing {
            // A copy of this length takes about 50 to 300 ms.
            std::thread::sleep(Duration::from_micros(random.below(250_000)));
        }
        match interruption {
            Interruption::ClientDies => child.kill().unwrap(),
            Interruption::ServerDies => serving.kill(),
            other => {
                change(&source, other, random);
                versions.push(version(&source).1);
            }
        }
        let output: Output = child.wait_with_output().unwrap();
        if interruption == Interruption::ServerDies {
            serving = Serving::start(&place, &["--writable"]);
        }
        let got = std::fs::read(&target).ok();
        let message: Option<Value> = output.status.success().then(|| serde_json::from_slice(&output.stdout).unwrap());
        // The file under the final name must be a complete version, or must not exist.
        if let Some(got) = &got
            && !versions.contains(got)
        {
            tally.wrong.push(format!("{number}: after {interruption:?} the target is not a version of the source"));
        }
        match message {
            Some(message) => {
                let got = got.unwrap_or_default();
                let sum = blake3::hash(&got).to_hex();
                if message["blake3"] != sum.as_str() || message["bytes"] != got.len() {
                    tally
                        .wrong
                        .push(format!("{number}: {message}, but the file has {} bytes with the hash {sum}", got.len()));
                }
                tally.complete += 1;
                if attempt > 0 {
                    if message["resumed_from"] == 0 { tally.begun_anew += 1 } else { tally.resumed += 1 }
                }
                if interruption == Interruption::Nothing {
                    if Some(&got) != versions.last() {
                        tally.wrong.push(format!("{number}: the copy differs from the source"));
                    }
                    return;
                }
            }
            None if interruption == Interruption::ClientDies => tally.interrupted += 1,
            None => {
                tally.interrupted += 1;
                tally.refused += 1;
                let error = text(&output.stderr);
                if interruption == Interruption::Nothing {
                    println!("interrupted: {number}: {error}");
                }
                if output.status.code() != Some(1) || error.is_empty() {
                    tally.wrong.push(format!("{number}: after {interruption:?}: {:?}, {error}", output.status));
                }
            }
        }
    }
    tally.wrong.push(format!("{number}: no copy completed in {TRIES} tries"));
}

/// Requirements: SRV-004, SRV-010.
#[test]
fn interrupted_copies_are_resumed_or_refused_and_never_wrong() {
    let copies = if std::env::var_os("PERCALE_LONG").is_some() { ALL } else { SAMPLE };
    let seed = std::env::var("PERCALE_SEED").ok().and_then(|seed| seed.parse().ok());
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_nanos() as u64 | 1;
    let seed = seed.unwrap_or(now);
    let (mut random, mut tally) = (Random(seed), Tally::default());
    for number in 0..copies {
        one(number, &mut random, &mut tally);
    }
    let Tally { interrupted, resumed, begun_anew, refused, complete, wrong } = &tally;
    println!(
        "interrupted: {copies} files (PERCALE_SEED={seed}): {interrupted} interruptions, {refused} of them ended in an error; \
         {complete} copies reported, {resumed} of them resumed and {begun_anew} restarted; {} wrong",
        wrong.len()
    );
    assert!(wrong.is_empty(), "PERCALE_SEED={seed}: {wrong:#?}");
}
