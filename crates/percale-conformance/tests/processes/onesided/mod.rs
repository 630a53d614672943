//! One-sided operations between processes: revocation during writes, rejected accesses, atomic operations on several
//! paths at the same time, memory that is not mapped, and killed processes.
//!
//! * `ground`: memory of both kinds that is registered repeatedly, and the checks of its contents
//! * `attacked`: many regions, closed while one peer writes them
//! * `revocation`: one region, closed repeatedly while four peers write it
//! * `stopped`: regions closed while their writers are stopped or killed
//! * `windows`: windows invalidated while peers write through them
//! * `forked`: windows inherited by a child
//! * `long`: accesses that are too long
//! * `refused`: accesses without permission
//! * `words`: atomic operations
//! * `unbacked`: unmapped memory
//! * `disclosed`: information that is disclosed to peers
//! * `deaths`: killed initiators and targets

pub(crate) mod attacked;
pub(crate) mod deaths;
pub(crate) mod disclosed;
pub(crate) mod forked;
mod ground;
mod long;
pub(crate) mod refused;
pub(crate) mod revocation;
mod stopped;
pub(crate) mod unbacked;

pub(crate) mod windows;
pub(crate) mod words;

use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::{Duration, Instant};

use percale::domain::DomainBuilder;
use percale::endpoint::safe::{Cause, OperationError};
use percale::{Access, ErrorCode, RemoteMemory, Trust};
use percale_conformance::peers::{Open, open};
use percale_conformance::process::{ask, print_line, variable};

pub(crate) const ALL: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);

/// The time limit for every wait of a test.
pub(crate) const WAIT_TIMEOUT: Duration = Duration::from_secs(60);

/// Opens an endpoint of this kind: `shm`, `untrusting` (shm with targets that execute all accesses), `bounced` (shm
/// without copies by the kernel), `tcp`, `verbs`, or `any`.
pub(crate) fn open_kind(kind: &str, adjust: impl FnOnce(DomainBuilder) -> DomainBuilder) -> Open {
    let transport = if matches!(kind, "tcp" | "verbs" | "any") { kind } else { "shm" };
    open(transport, "127.0.0.1:0", |domain| {
        adjust(match kind {
            "untrusting" => domain.trust(Trust::None),
            "bounced" => domain.cma(false),
            _ => domain,
        })
    })
}

/// Opens the endpoint of a helper.
pub(crate) fn open_as_told() -> Open {
    open_kind(&variable("PERCALE_FABRIC"), |domain| domain)
}

/// Returns the code of an operation's error.
#[track_caller]
pub(crate) fn code(error: &OperationError) -> ErrorCode {
    match &error.cause {
        Cause::Completion(entry) => entry.error,
        other => panic!("the operation should have been posted and ended: {other}"),
    }
}

/// Returns the code of the error of an operation that must fail.
#[track_caller]
pub(crate) fn refusal<R>(result: Result<R, OperationError>) -> ErrorCode {
    match result {
        Ok(_) => panic!("the operation should not have succeeded"),
        Err(error) => code(&error),
    }
}

/// Returns the first `len` bytes of the region with this key.
pub(crate) const fn all_of(key: u64, len: u64) -> RemoteMemory {
    RemoteMemory { key, address: 0, len }
}

/// Makes progress. Spins more often than it yields, because a yield takes many milliseconds on a busy machine.
pub(crate) fn work(open: &Open) {
    for _ in 0..200 {
        if open.endpoint.progress() {
            return;
        }
        std::hint::spin_loop();
    }
    std::thread::yield_now();
}

/// A deadline. [`Deadline::check`] panics after the deadline has passed.
pub(crate) struct Deadline(Instant, &'static str);

impl Deadline {
    pub(crate) fn new(what: &'static str) -> Self {
        Self(Instant::now() + WAIT_TIMEOUT, what)
    }

    #[track_caller]
    pub(crate) fn check(&self) {
        assert!(Instant::now() < self.0, "{} within {WAIT_TIMEOUT:?}", self.1);
    }
}

/// Reads lines of the test while the helper does other work.
pub(crate) struct Lines(Receiver<String>);

impl Lines {
    pub(crate) fn new() -> Self {
        let (sender, lines) = channel();
        // After the last line the test may have exited, which `ask` would treat as a failure.
        let listen = move || {
            while {
                let line = ask();
                line != "end" && sender.send(line).is_ok()
            } {}
        };
        std::thread::spawn(listen);
        Self(lines)
    }

    pub(crate) fn try_next(&self) -> Option<String> {
        match self.0.try_recv() {
            Ok(line) => Some(line),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some("end".into()),
        }
    }

    pub(crate) fn wait(&self) -> String {
        self.0.recv().unwrap_or_else(|_| "end".into())
    }
}

/// Makes progress, and answers each line of the test with the result of `obey`, until the line `end`. After the line
/// `quiet`, makes no progress until the next line.
pub(crate) fn serve(open: &Open, mut obey: impl FnMut(&str) -> String) {
    let lines = Lines::new();
    loop {
        let line = match lines.try_next() {
            Some(line) => line,
            None => {
                work(open);
                continue;
            }
        };
        let line = if line == "quiet" {
            print_line("quiet");
            lines.wait()
        } else {
            line
        };
        if line == "end" {
            return;
        }
        print_line(&obey(&line));
    }
}
