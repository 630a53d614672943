//! `percale cp`: copies a file from or to a machine where `percale serve` runs.
//!
//! One thread sends requests and transfers blocks by reading and writing the server's memory. Other threads read, write
//! and hash the local file.
//!
//! * [`place`]: the two sides
//! * [`server`]: the connection
//! * [`mod@file`]: the local file
//! * [`copy`]: the steps of a copy
//! * [`progress`]: the progress bar

use std::fs::File;
use std::path::Path;
use std::time::Instant;

use rustix::fs::{CWD, Mode, OFlags};
use serde::Serialize;

use crate::failure::{Failure, Result};
use crate::output::print_line;
use crate::transfer::blocks::{self, BLOCK, Digest};
use crate::transfer::key;
use crate::transfer::part::PartialFile;
use crate::transfer::path::ServedPath;
use crate::transfer::protocol::{ClientRequest, RegionDescription, SLOTS, ServerReply};
use crate::transfer::source::Source;
use crate::units;
pub(crate) use args::CpArgs;
use copy::FileCopy;
use file::LocalFile;
use place::FileLocation;
use progress::Progress;
use server::{Server, unexpected};

mod args;
mod copy;
mod file;
mod place;
mod progress;
mod server;

/// The result. It is also the object of `--json`.
#[derive(Debug, Serialize)]
struct Outcome {
    /// The size of the whole file.
    bytes: u64,
    /// The time from the start of the command until the copy has its final name.
    seconds: f64,
    /// The rate at which this run transferred bytes.
    bytes_per_s: f64,
    /// The BLAKE3 checksum of the file in hexadecimal digits.
    blake3: String,
    /// The number of bytes kept from an earlier attempt.
    resumed_from: u64,
}

/// Runs the subcommand.
pub(crate) fn run(args: &CpArgs) -> Result<()> {
    let start = Instant::now();
    // The umask is read before another thread exists.
    let umask = crate::transfer::umask();
    let connect = |address: &str| {
        let key = args.authorization_key.as_deref().map(key::read).transpose()?;
        Server::connect(address, key, args.transport)
    };
    let (bytes, resumed, digest) = match (FileLocation::of(&args.source), FileLocation::of(&args.target)) {
        (FileLocation::There(address, path), FileLocation::Here(target)) => {
            download(&connect(&address)?, path, &target, umask)?
        }
        (FileLocation::Here(source), FileLocation::There(address, path)) => {
            // Local errors are reported before the server is contacted.
            let source = open_source(&source)?;
            upload(&connect(&address)?, &source, args.source.display().to_string(), path)?
        }
        (FileLocation::Here(_), FileLocation::Here(_)) => {
            return Err(Failure::Usage("neither SRC nor DST names a server (HOST:PORT/PATH)".into()));
        }
        (FileLocation::There(..), FileLocation::There(..)) => {
            return Err(Failure::Usage("one of SRC and DST must be a local file".into()));
        }
    };
    let seconds = start.elapsed().as_secs_f64();
    let bytes_per_s = (bytes - resumed) as f64 / seconds;
    let outcome = Outcome { bytes, seconds, bytes_per_s, blake3: blocks::hex(&digest), resumed_from: resumed };
    if args.json {
        return print_line(&serde_json::to_string(&outcome).map_err(Failure::system("writing JSON"))?);
    }
    let (time, rate) = (units::time(seconds * 1e9), units::bandwidth(bytes_per_s));
    let resumed = match resumed {
        0 => String::new(),
        resumed => format!(" ({} were already present)", units::count(resumed)),
    };
    print_line(&format!("{} bytes{resumed} in {time}, {rate}, checksums agree", units::count(bytes)))
}

/// The server's reply to the opening of a file.
struct Opened {
    size: u64,
    mode: u32,
    held: u64,
    slots: Vec<RegionDescription>,
}

fn open(server: &Server, request: &ClientRequest) -> Result<Opened> {
    match server.open(request)? {
        ServerReply::Opened { size, .. } if size > i64::MAX as u64 => {
            Err(Failure::Protocol(format!("a file of {size} bytes")))
        }
        ServerReply::Opened { size, mode, held, slots } if (1..=SLOTS).contains(&slots.len()) || size == 0 => {
            Ok(Opened { size, mode, held, slots })
        }
        other => Err(unexpected(&other)),
    }
}

/// Copies from the server. Returns the size, the number of bytes kept from an earlier attempt, and the checksum.
fn download(server: &Server, path: ServedPath, target: &Path, umask: u32) -> Result<(u64, u64, Digest)> {
    let name = target.display().to_string();
    let system = || Failure::system(name.clone());
    let opened = open(server, &ClientRequest::Get { path })?;
    let file_name = target.file_name().filter(|_| !target.as_os_str().as_encoded_bytes().ends_with(b"/"));
    let file_name = file_name.ok_or_else(|| Failure::Usage(format!("{name} is a directory; name the file")))?;
    let parent = target.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let directory = File::open(parent).map_err(Failure::system(parent.display().to_string()))?;
    let part = PartialFile::open(directory.into(), file_name, opened.size).map_err(system())?;
    let held = part.held().map_err(system())?;
    let mut copy = begin(server, part.file(), &opened, name.clone())?;
    let agreed = copy.agree(held)?;
    let digest = copy.download(agreed)?;
    server.finish(&ClientRequest::Finish { digest }, opened.size)?;
    // The user's umask limits the permissions that the server reports for the file.
    part.commit(opened.size, opened.mode & !umask).map_err(system())?;
    Ok((opened.size, agreed * BLOCK, digest))
}

fn open_source(source: &Path) -> Result<Source> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let opened = rustix::fs::openat(CWD, source, flags, Mode::empty()).map_err(std::io::Error::from);
    opened.and_then(|path| Source::open(&path)).map_err(Failure::system(source.display().to_string()))
}

/// Copies to the server. Returns the same values as `download`.
fn upload(server: &Server, source: &Source, name: String, path: ServedPath) -> Result<(u64, u64, Digest)> {
    let size = source.size();
    let opened = open(server, &ClientRequest::Put { path, size, mode: source.mode() })?;
    let mut copy = begin(server, source.file(), &opened, name.clone())?;
    let agreed = copy.agree(opened.held)?;
    let digest = copy.upload(agreed)?;
    if source.needs_second_look() {
        copy.file.read_again(&name)?;
    }
    source.unchanged().map_err(Failure::system(name))?;
    server.finish(&ClientRequest::Finish { digest }, size)?;
    Ok((size, agreed * BLOCK, digest))
}

fn begin<'a>(server: &'a Server, file: &File, opened: &Opened, name: String) -> Result<FileCopy<'a>> {
    let slots = opened.slots.iter().map(|&slot| slot.into()).collect();
    let progress = Progress::new(opened.size)?;
    let file = LocalFile::new(file, opened.size)?;
    Ok(FileCopy { server, file, size: opened.size, slots, progress, name })
}
