//! Unusual files and names: files that are written while they are copied, files of /proc, and names of arbitrary bytes.

#![expect(unsafe_code, reason = "writes a file through a mapping and takes a lease, as programs do")]

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::place::{
    LONG, Serving, TRANSPORTS, TestDirectory, content, copied, copy, half_way, identical, part_of, refused,
};

/// Copies files with arbitrary names.
fn copy_named(from: &OsStr, to: &OsStr) -> Output {
    Command::new(env!("CARGO_BIN_EXE_percale")).arg("cp").args([from, to]).arg("--json").output().unwrap()
}

/// The first eight bytes of a file, through a shared mapping.
struct Mapped(*mut AtomicU64);

// SAFETY: the pointer refers to memory that is mapped until the process ends, and is accessed only as an atomic.
unsafe impl Send for Mapped {}
// SAFETY: as above.
unsafe impl Sync for Mapped {}

impl Mapped {
    fn new(file: &File) -> Self {
        use rustix::mm::{MapFlags, ProtFlags};
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses the address of the new mapping, which is never unmapped.
        let address = unsafe { rustix::mm::mmap(std::ptr::null_mut(), 4096, protection, MapFlags::SHARED, file, 0) };
        Self(address.unwrap().cast())
    }

    fn store(&self, value: u64) {
        // SAFETY: the file is mapped, has more than eight bytes, and is not truncated.
        unsafe { &*self.0 }.store(value, Ordering::SeqCst);
    }
}

/// Requirements: SRV-012.
#[test]
fn stores_through_a_mapping_are_noticed() {
    // On tmpfs, such a store updates no timestamp of the file. On a disk file system, it updates one if the page was
    // clean.
    for (number, base) in [PathBuf::from("/dev/shm"), std::env::temp_dir()].iter().enumerate() {
        for is_upload in [false, true] {
            let place = TestDirectory::new(&format!("mapped-{number}-{is_upload}"));
            let serving = Serving::start(&place, &["--writable"]);
            let source = base.join(format!("percale-mapped-{}-{number}", std::process::id()));
            std::fs::write(&source, content(11, LONG)).unwrap();
            let file = File::options().read(true).write(true).open(&source).unwrap();
            let mapped = Mapped::new(&file);
            // The page is dirty before the copy begins, so a store to it updates no timestamp until the page is
            // written.
            mapped.store(0);
            let served = place.path("served/a");
            if !is_upload && std::fs::hard_link(&source, &served).is_err() {
                // Serve a directory on another file system.
                drop(serving);
                let directory = base.join(format!("percale-mapped-dir-{}", std::process::id()));
                std::fs::create_dir_all(&directory).unwrap();
                std::fs::rename(&source, directory.join("a")).unwrap();
                let mut command = Command::new(env!("CARGO_BIN_EXE_percale"));
                let arguments = ["serve", directory.to_str().unwrap(), "--listen", "127.0.0.1:0", "--json"];
                let serving = Serving::of(command.args(arguments));
                torn(&mapped, &serving.at("a"), &place.text("local/b"), &place.path("local/b"));
                std::fs::remove_dir_all(directory).unwrap();
                continue;
            }
            if is_upload {
                torn(&mapped, source.to_str().unwrap(), &serving.at("b"), &place.path("served/b"));
            } else {
                torn(&mapped, &serving.at("a"), &place.text("local/b"), &place.path("local/b"));
            }
            std::fs::remove_file(source).unwrap();
        }
    }
}

/// Copies while the first bytes of the source change continuously. No value occurs twice, so a second reading never
/// finds the value of the first.
fn torn(mapped: &Mapped, from: &str, to: &str, target: &Path) {
    let stop = AtomicBool::new(false);
    let output = std::thread::scope(|scope| {
        scope.spawn(|| {
            for value in 1.. {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                mapped.store(value);
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let output = copy(from, to, &["--transport", "tcp"]);
        stop.store(true, Ordering::Relaxed);
        output
    });
    let error = refused(&output);
    assert!(error.contains("changed during the copy") || error.contains("checksum"), "{error}");
    assert!(!target.exists());
}

/// Requirements: SRV-012.
#[test]
fn reset_modification_time_does_not_hide_a_change() {
    let place = TestDirectory::new("put-back");
    let serving = Serving::start(&place, &[]);
    place.write("served/a", &content(12, LONG));
    let target = place.path("local/b");
    let client = half_way(&serving.at("a"), &place.text("local/b"), "tcp", &part_of(&target));
    let file = File::options().write(true).open(place.path("served/a")).unwrap();
    let before = file.metadata().unwrap().modified().unwrap();
    file.write_all_at(b"new", 0).unwrap();
    file.set_modified(before).unwrap();
    let output = client.wait_with_output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && error.contains("was changed during the copy"), "{error}");
    assert!(!target.exists());
}

/// Requirements: SRV-012.
#[test]
fn arbitrary_and_255_byte_file_names_are_copied() {
    let place = TestDirectory::new("names");
    let serving = Serving::start(&place, &["--writable"]);
    place.write("local/source", b"text");
    let long = [b'n'; 255];
    let middle = [b'm'; 243];
    for name in [b"\xff\xfe \x1b[2J".as_slice(), &long, &middle, "\u{65e5}\u{672c}".as_bytes()] {
        let there = [serving.address.as_bytes(), b"/", name].concat();
        let here = place.path("local").join(OsStr::from_bytes(name));
        copied(&copy_named(place.path("local/source").as_os_str(), OsStr::from_bytes(&there)));
        copied(&copy_named(OsStr::from_bytes(&there), here.as_os_str()));
        identical(&place.path("local/source"), &here);
        identical(&here, &place.path("served").join(OsStr::from_bytes(name)));
    }
}

/// Requirements: SRV-012.
#[test]
fn pipes_and_files_of_proc_are_refused() {
    let place = TestDirectory::new("proc");
    let serving = Serving::start(&place, &["--writable"]);
    let fifo = place.path("local/pipe");
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::from_raw_mode(0o600)).unwrap();
    for (source, why) in
        [(place.text("local/pipe"), "not a regular file"), ("/proc/version".into(), "longer than its size")]
    {
        let error = refused(&copy(&source, &serving.at("b"), &[]));
        assert!(error.contains(why), "{source}: {error}");
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_percale"));
    let proc = Serving::of(command.args(["serve", "/proc", "--listen", "127.0.0.1:0", "--json"]));
    let error = refused(&copy(&proc.at("version"), &place.text("local/b"), &[]));
    assert!(error.contains("longer than its size"), "{error}");
    assert!(place.names("served").is_empty() && !place.path("local/b").exists());
}

/// Requirements: SRV-007.
#[test]
fn parts_that_others_prepared_are_not_written_to() {
    for transport in TRANSPORTS {
        let place = TestDirectory::new(&format!("prepared-{transport}"));
        let serving = Serving::start(&place, &[]);
        place.write("served/a", &content(13, 5_000_000));
        place.write("secret", b"secret");
        place.mode("secret", 0o600);
        let copied_to = |what: &str| {
            copied(&copy(&serving.at("a"), &place.text("local/b"), &["--transport", transport]));
            identical(&place.path("served/a"), &place.path("local/b"));
            assert_eq!(place.read("secret"), b"secret", "{what}");
            assert_ne!(place.path("local/b").metadata().unwrap().ino(), place.path("secret").metadata().unwrap().ino());
            assert_eq!(place.names("local"), ["b"], "{what}");
            std::fs::remove_file(place.path("local/b")).unwrap();
        };
        let part = part_of(&place.path("local/b"));
        let prepare = || {
            std::fs::create_dir(part.parent().unwrap()).unwrap();
            place.mode("local/.percale-parts", 0o700);
        };
        prepare();
        std::fs::hard_link(place.path("secret"), &part).unwrap();
        copied_to("a hard link");
        prepare();
        std::os::unix::fs::symlink(place.path("secret"), &part).unwrap();
        copied_to("a symbolic link");
        prepare();
        rustix::fs::mkfifoat(rustix::fs::CWD, &part, rustix::fs::Mode::from_raw_mode(0o600)).unwrap();
        copied_to("a pipe");
        // A part left by a process that ended after it had set the final permissions and given the part another name.
        prepare();
        place.write("local/.percale-parts/b", &content(13, 5_000_000));
        place.mode("local/.percale-parts/b", 0o444);
        std::fs::hard_link(&part, place.path("local/.percale-parts/commit.1.0")).unwrap();
        copied_to("files left by a process");
        // The directory is accessible to others, or belongs to another user.
        prepare();
        place.mode("local/.percale-parts", 0o777);
        let error = refused(&copy(&serving.at("a"), &place.text("local/b"), &[]));
        assert!(error.contains("open to other users"), "{error}");
        place.mode("local/.percale-parts", 0o700);
        if std::os::unix::fs::chown(part.parent().unwrap(), Some(12345), None).is_err() {
            println!("skipped (root): giving a directory to another user requires root");
            continue;
        }
        let error = refused(&copy(&serving.at("a"), &place.text("local/b"), &[]));
        assert!(error.contains("belongs to user 12345"), "{error}");
    }
}

/// Requirements: SRV-008.
#[test]
fn leased_files_are_rejected_without_blocking_others() {
    let place = TestDirectory::new("leases");
    for name in ["a", "one", "two"] {
        place.write(&format!("served/{name}"), &content(14, 1000));
    }
    let serving = Serving::start(&place, &[]);
    // SAFETY: an ignored signal runs no code of this process. The kernel sends this signal when the lease must be
    // released.
    unsafe { libc::signal(libc::SIGIO, libc::SIG_IGN) };
    let leased = ["one", "two"].map(|name| {
        let file = File::options().read(true).write(true).open(place.path(&format!("served/{name}"))).unwrap();
        // SAFETY: the call takes only numbers.
        let taken = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK) };
        (file, taken == 0)
    });
    if leased.iter().any(|(_, taken)| !taken) {
        return println!("skipped (leases): this file system has no leases");
    }
    // The kernel gives the holder of the lease up to 45 s to release it.
    let start = Instant::now();
    for name in ["one", "two", "one", "two"] {
        let error = refused(&copy(&serving.at(name), &place.text("local/b"), &[]));
        assert!(error.contains("lease"), "{error}");
    }
    copied(&copy(&serving.at("a"), &place.text("local/b"), &[]));
    assert!(start.elapsed() < Duration::from_secs(20), "the copy waited for the lease: {:?}", start.elapsed());
}
