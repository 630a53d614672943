//! Tests of `percale serve` and `percale cp` on the command line.

use std::io::Read;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::Command;

use crate::common::{eventually, percale, text};
use crate::place::{
    LONG, Serving, TRANSPORTS, TestDirectory, content, copied, copy, half_way, identical, part_of, refused,
};

/// Requirements: SRV-001.
#[test]
fn files_of_every_size_are_copied_both_ways_on_both_transports() {
    let place = TestDirectory::new("sizes");
    let mut serving = Serving::start(&place, &["--writable"]);
    let block = 4 << 20;
    for transport in TRANSPORTS {
        let mut sums = Vec::new();
        for size in [0, 1, block, block + 1, 5 * (1 << 20) + 3, 6 * block] {
            place.write("local/a", &content(size as u64, size));
            place.mode("local/a", 0o751);
            // An existing older copy is replaced.
            place.write("local/b", b"old");
            let (up, down) = (serving.at("sub"), serving.at("./sub"));
            let there = copied(&copy(&place.text("local/a"), &up, &["--transport", transport]));
            let back = copied(&copy(&down, &place.text("local/b"), &["--transport", transport]));
            assert_eq!(
                (serving.line()["is"].as_str(), serving.line()["is"].as_str()),
                (Some("received"), Some("sent"))
            );
            identical(&place.path("local/a"), &place.path("served/sub"));
            identical(&place.path("local/a"), &place.path("local/b"));
            for copy in ["served/sub", "local/b"] {
                assert_eq!(place.path(copy).metadata().unwrap().permissions().mode() & 0o777, 0o751);
            }
            for result in [&there, &back] {
                assert_eq!((result["bytes"].as_u64(), result["resumed_from"].as_u64()), (Some(size as u64), Some(0)));
                assert!(result["seconds"].as_f64().unwrap() > 0.0 && result["bytes_per_s"].is_f64(), "{result}");
            }
            assert_eq!(there["blake3"], back["blake3"]);
            sums.push(there["blake3"].as_str().unwrap().to_owned());
        }
        // The first is the published checksum of empty input, and no two checksums are equal.
        assert!(sums[0].starts_with("af1349b9f5f9a1a6") && sums.iter().all(|sum| sum.len() == 64), "{sums:?}");
        sums.sort();
        sums.dedup();
        assert_eq!(sums.len(), 6);
    }
    assert_eq!((place.names("served"), place.names("local")), (vec!["sub".into()], vec!["a".into(), "b".into()]));
    let message = percale(&["cp", &serving.at("sub"), &place.text("local/b")]);
    assert!(text(&message.stdout).contains("25,165,824 bytes in "), "{message:?}");
}

/// Requirements: SRV-003.
#[test]
fn server_is_read_only_by_default() {
    let place = TestDirectory::new("read-only");
    let serving = Serving::start(&place, &[]);
    place.write("local/a", b"text");
    let error = refused(&copy(&place.text("local/a"), &serving.at("a"), &[]));
    assert!(error.contains("read-only") && error.contains("--writable"), "{error}");
    assert!(place.names("served").is_empty());
}

/// Requirements: SRV-002.
#[test]
fn nothing_outside_of_the_directory_is_read_or_written() {
    let place = TestDirectory::new("escape");
    let serving = Serving::start(&place, &["--writable"]);
    place.write("secret", b"secret");
    place.write("local/a", b"new");
    place.write("served/inside", b"inside");
    std::fs::create_dir(place.path("served/directory")).unwrap();
    symlink(place.path("secret"), place.path("served/absolute")).unwrap();
    symlink("../secret", place.path("served/relative")).unwrap();
    symlink("..", place.path("served/up")).unwrap();
    symlink("inside", place.path("served/within")).unwrap();
    // A prepared part, which is a link to a file that must not be written.
    std::fs::create_dir(place.path("served/.percale-parts")).unwrap();
    place.mode("served/.percale-parts", 0o700);
    symlink(place.path("secret"), place.path("served/.percale-parts/trap")).unwrap();
    symlink(".percale-parts", place.path("served/parts")).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, place.path("served/pipe"), rustix::fs::Mode::from_raw_mode(0o600)).unwrap();
    let secret = place.text("secret");
    let (got, source) = (place.text("local/got"), place.text("local/a"));
    for (path, read, written) in [
        ("../secret", "'..' is not allowed", "'..' is not allowed"),
        ("directory/../../secret", "'..' is not allowed", "'..' is not allowed"),
        (secret.as_str(), "absolute paths are not allowed", "absolute paths are not allowed"),
        ("up/secret", "leaves the served directory", "leaves the served directory"),
        ("directory", "is a directory", "is a directory"),
        ("", "no path", "no path"),
        ("pipe", "not a regular file", "not a regular file"),
        ("missing/file", "No such file", "No such file"),
        (".percale-parts/trap", "incomplete copies", "incomplete copies"),
        ("parts/new", "No such file", "incomplete copies"),
    ] {
        let error = refused(&copy(&serving.at(path), &got, &[]));
        assert!(error.contains(read), "{path}: {error}");
        let error = refused(&copy(&source, &serving.at(path), &[]));
        assert!(error.contains(written), "{path}: {error}");
    }
    for link in ["absolute", "relative"] {
        assert!(refused(&copy(&serving.at(link), &got, &[])).contains("leaves the served directory"));
        // The link itself is replaced, and not its target.
        copied(&copy(&source, &serving.at(link), &[]));
        assert!(!place.path(&format!("served/{link}")).is_symlink());
    }
    copied(&copy(&source, &serving.at("trap"), &[]));
    assert_eq!((place.read("served/trap"), place.read("secret")), (b"new".to_vec(), b"secret".to_vec()));
    assert_eq!(place.names("local"), ["a"]);
    copied(&copy(&serving.at("within"), &got, &[]));
    assert_eq!(place.read("local/got"), b"inside");
}

#[test]
fn local_files_that_cannot_be_copied_are_named() {
    let place = TestDirectory::new("local");
    let serving = Serving::start(&place, &["--writable"]);
    place.write("served/a", b"text");
    for (from, to) in [
        (place.text("local"), serving.at("b")),
        (place.text("local/missing"), serving.at("b")),
        (serving.at("a"), place.text("local")),
        (serving.at("a"), place.text("local/missing/b")),
    ] {
        let error = refused(&copy(&from, &to, &[]));
        assert!(error.contains("is a directory") || error.contains("No such file"), "{error}");
    }
    assert_eq!(place.names("served"), ["a"]);
}

/// Requirements: SRV-005.
#[test]
fn only_clients_with_the_key_are_served() {
    let place = TestDirectory::new("key");
    for (name, key, mode) in [("right", "secret\n", 0o600), ("also", "secret", 0o400), ("wrong", "other", 0o600)] {
        place.write(name, key.as_bytes());
        place.mode(name, mode);
    }
    place.write("open", b"secret");
    place.mode("open", 0o640);
    let serving = Serving::start(&place, &["--authorization-key", &place.text("right")]);
    place.write("served/a", b"text");
    let (from, to) = (serving.at("a"), place.text("local/a"));
    for transport in TRANSPORTS {
        for key in [&["--authorization-key", &place.text("wrong")], [].as_slice()] {
            let error = refused(&copy(&from, &to, &[key, &["--transport", transport]].concat()));
            assert!(error.contains("key"), "{error}");
        }
        copied(&copy(&from, &to, &["--authorization-key", &place.text("also"), "--transport", transport]));
    }
    let error = refused(&copy(&from, &to, &["--authorization-key", &place.text("open")]));
    assert!(error.contains("mode 640"), "{error}");
    let served = percale(&["serve", &place.text("served"), "--authorization-key", &place.text("open")]);
    assert!(refused(&served).contains("chmod 600"));
}

/// Requirements: SRV-004.
#[test]
fn interrupted_copy_resumes_where_it_stopped() {
    let place = TestDirectory::new("interrupted");
    let serving = Serving::start(&place, &["--writable"]);
    place.write("source", &content(5, LONG));
    std::fs::hard_link(place.path("source"), place.path("served/a")).unwrap();
    let source = place.text("source");
    for transport in TRANSPORTS {
        for (from, to, target) in [
            (serving.at("a"), place.text("local/b"), place.path("local/b")),
            (source.clone(), serving.at("b"), place.path("served/b")),
        ] {
            let part = part_of(&target);
            let mut client = half_way(&from, &to, transport, &part);
            client.kill().unwrap();
            client.wait().unwrap();
            assert!(!target.exists() && part.exists(), "an incomplete copy has the final name");
            let result = copied(&copy(&from, &to, &["--transport", transport]));
            assert!(result["resumed_from"].as_u64().unwrap() >= 4 << 20, "{result}");
            identical(&place.path("source"), &target);
            assert!(!part.exists());
            std::fs::remove_file(target).unwrap();
        }
    }
}

/// Requirements: SRV-004.
#[test]
fn file_changed_since_interruption_is_copied_from_the_start() {
    let place = TestDirectory::new("changed");
    let serving = Serving::start(&place, &[]);
    place.write("served/a", &content(6, LONG));
    let target = place.path("local/b");
    let part = part_of(&target);
    let mut client = half_way(&serving.at("a"), &place.text("local/b"), "tcp", &part);
    client.kill().unwrap();
    client.wait().unwrap();
    // Now the source is shorter than the existing part.
    place.write("served/a", &content(7, 40 << 20));
    let result = copied(&copy(&serving.at("a"), &place.text("local/b"), &[]));
    assert_eq!(result["resumed_from"], 0);
    identical(&place.path("served/a"), &target);
}

#[test]
fn copy_of_a_file_changed_during_the_copy_fails() {
    let place = TestDirectory::new("changing");
    let serving = Serving::start(&place, &[]);
    place.write("served/a", &content(8, LONG));
    let target = place.path("local/b");
    let part = part_of(&target);
    let mut client = half_way(&serving.at("a"), &place.text("local/b"), "shm", &part);
    let file = std::fs::File::options().append(true).open(place.path("served/a")).unwrap();
    std::io::Write::write_all(&mut &file, b"more").unwrap();
    let mut error = String::new();
    client.stderr.take().unwrap().read_to_string(&mut error).unwrap();
    assert_eq!(client.wait().unwrap().code(), Some(1), "{error}");
    assert!(error.contains("was changed during the copy"), "{error}");
    assert!(!target.exists());
}

/// Requirements: SRV-006.
#[test]
fn server_death_is_an_error_not_a_hang() {
    for transport in TRANSPORTS {
        let place = TestDirectory::new(&format!("dies-{transport}"));
        let mut serving = Serving::start(&place, &[]);
        place.write("served/a", &content(9, LONG));
        let part = part_of(&place.path("local/b"));
        let mut client = half_way(&serving.at("a"), &place.text("local/b"), transport, &part);
        serving.kill();
        let mut status = None;
        eventually("the client hangs", || {
            status = client.try_wait().unwrap();
            status.is_some()
        });
        let mut error = String::new();
        client.stderr.take().unwrap().read_to_string(&mut error).unwrap();
        assert_eq!(status.unwrap().code(), Some(1), "{error}");
        // The end of the server is detected when it occurs, or by the next request.
        assert!(
            error.contains("the peer process exited or its connection was lost")
                || error.contains("no endpoint listens"),
            "{error}"
        );
        assert_eq!((place.names("local"), part.exists()), (vec![".percale-parts".into()], true));
    }
}

/// Requirements: SRV-006.
#[test]
fn client_death_does_not_disturb_concurrent_clients() {
    let place = TestDirectory::new("several");
    let mut serving = Serving::start(&place, &[]);
    place.write("served/a", &content(10, LONG));
    let part = part_of(&place.path("local/0"));
    let mut doomed = half_way(&serving.at("a"), &place.text("local/0"), "tcp", &part);
    let others: Vec<_> = ["1", "2", "3"]
        .map(|name| {
            Command::new(env!("CARGO_BIN_EXE_percale"))
                .args(["cp", &serving.at("a"), &place.text(&format!("local/{name}"))])
                .spawn()
                .unwrap()
        })
        .into();
    doomed.kill().unwrap();
    doomed.wait().unwrap();
    for mut other in others {
        assert!(other.wait().unwrap().success());
    }
    let mut message: Vec<_> = (0..4).map(|_| serving.line()["is"].as_str().unwrap().to_owned()).collect();
    message.sort();
    assert_eq!(message, ["interrupted", "sent", "sent", "sent"]);
    for name in ["local/1", "local/2", "local/3"] {
        identical(&place.path("served/a"), &place.path(name));
    }
}
