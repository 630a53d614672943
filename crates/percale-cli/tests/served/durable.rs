//! The state of a copy after a crash and after a disk error. The disk is a file behind a loop device, which requires
//! privileges. A copy of that file has the state of the disk at the time of copying.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::place::{Serving, TestDirectory, content, copied, copy, refused};

/// Runs a program. Returns whether it succeeded.
fn run(program: &str, arguments: &[&str]) -> bool {
    Command::new(program).args(arguments).output().is_ok_and(|output| output.status.success())
}

/// A file system in a file. It is unmounted when the test ends.
struct Disk {
    mount: PathBuf,
}

impl Disk {
    /// Makes a file system of 64 MiB and mounts it. Returns `None` if this is not permitted.
    fn new(image: &Path, mount: &Path, options: &[&str], how: &str) -> Option<Self> {
        File::create(image).unwrap().set_len(64 << 20).unwrap();
        let made = run("mkfs.ext4", &[&["-q", "-F"], options, &[image.to_str().unwrap()]].concat());
        made.then(|| Self::mounted(image, mount, how)).flatten()
    }

    /// Mounts an existing file system.
    fn mounted(image: &Path, mount: &Path, how: &str) -> Option<Self> {
        std::fs::create_dir_all(mount).unwrap();
        let disk = Self { mount: mount.to_owned() };
        run("mount", &["-o", how, image.to_str().unwrap(), mount.to_str().unwrap()]).then_some(disk)
    }

    fn unmount(&self) {
        run("umount", &[self.mount.to_str().unwrap()]);
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        run("umount", &["-l", self.mount.to_str().unwrap()]);
    }
}

const NOT_ALLOWED: &str =
    "skipped (loop device): a file system in a file cannot be mounted here (it takes root and a loop device)";

/// Requirements: SRV-011.
#[test]
fn completed_copy_survives_a_crash() {
    let place = TestDirectory::new("crash");
    let (image, crashed) = (place.path("disk"), place.path("crashed"));
    // Data that is not synced remains in memory for a minute.
    let Some(disk) = Disk::new(&image, &place.path("served"), &[], "loop,commit=60") else {
        return println!("{NOT_ALLOWED}");
    };
    let server = Serving::start(&place, &["--writable"]);
    for (number, name) in ["local", "served"].iter().enumerate() {
        // Copy to a server, and from a server to a local file on that disk.
        place.write("local/a", &content(number as u64 + 1, 1_000_000));
        place.write("served/b", b"the old content");
        rustix::fs::sync();
        let output = if *name == "local" {
            copy(&place.text("local/a"), &server.at("b"), &[])
        } else {
            place.write("served/source", &place.read("local/a"));
            rustix::fs::sync();
            copy(&server.at("source"), &place.text("served/b"), &[])
        };
        copied(&output);
        // The contents of the disk when cp has returned.
        assert!(run("cp", &["--sparse=always", image.to_str().unwrap(), crashed.to_str().unwrap()]));
        let after =
            Disk::mounted(&crashed, &place.path("after"), "loop").expect("the file system can be mounted again");
        let there = std::fs::read(place.path("after/b")).unwrap_or_default();
        assert!(there == place.read("local/a"), "after the crash the file has {} bytes", there.len());
        after.unmount();
    }
    drop(server);
    drop(disk);
}

/// Requirements: SRV-011.
#[test]
fn failed_fsync_discards_the_whole_part() {
    let place = TestDirectory::new("fsync");
    std::fs::create_dir(place.path("small")).unwrap();
    if !run("mount", &["-t", "tmpfs", "-o", "size=48M", "tmpfs", &place.text("small")]) {
        return println!("{NOT_ALLOWED}");
    }
    let small = Disk { mount: place.path("small") };
    let image = place.path("small/disk");
    let options = ["-O", "^has_journal", "-E", "lazy_itable_init=0"];
    let Some(disk) = Disk::new(&image, &place.path("served"), &options, "loop") else {
        return println!("{NOT_ALLOWED}");
    };
    let server = Serving::start(&place, &["--writable"]);
    place.write("local/a", &content(1, 20_000_000));
    place.write("served/first", b"so that directories and tables are there");
    rustix::fs::sync();
    // The disk below the file system is full. Therefore, writing pages fails after write(2) has returned.
    let (mut fill, chunk) = (File::create(place.path("small/fill")).unwrap(), vec![1; 4096]);
    while std::io::Write::write_all(&mut fill, &chunk).is_ok() {}
    let error = refused(&copy(&place.text("local/a"), &server.at("b"), &["--transport", "tcp"]));
    println!("the disk is faulty: {}", error.trim());
    drop(fill);
    std::fs::remove_file(place.path("small/fill")).unwrap();
    // The disk works again.
    let result = copied(&copy(&place.text("local/a"), &server.at("b"), &["--transport", "tcp"]));
    println!("repeated: {result}");
    drop(server);
    rustix::fs::sync();
    disk.unmount();
    let again = Disk::mounted(&image, &place.path("served"), "loop").expect("the file system can be mounted again");
    let there = std::fs::read(place.path("served/b")).unwrap_or_default();
    assert!(there == place.read("local/a"), "a file that was reported as copied is not on the disk");
    again.unmount();
    drop((again, disk));
    small.unmount();
}
