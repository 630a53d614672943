//! The messages of the server: text lines on standard error, or JSON objects on standard output.
//!
//! A separate thread writes them, so that a slow or missing reader blocks only that thread. The number of waiting lines
//! is bounded. Lines beyond the limit are counted, and their number is printed when there is room again.

use std::fmt::Display;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};

use serde::Serialize;

use super::transfer::Transfer;
use crate::failure::{Failure, Result};
use crate::output::{print_line, say};
use crate::transfer::visible;

/// The maximum number of lines that wait to be written.
const WAITING: usize = 1024;

/// One JSON object.
#[derive(Debug, Serialize)]
#[serde(tag = "is", rename_all = "kebab-case")]
enum ServeLine<'a> {
    Serving { address: SocketAddr, directory: &'a str, writable: bool },
    Sent { client: SocketAddr, path: &'a str, bytes: u64 },
    Received { client: SocketAddr, path: &'a str, bytes: u64 },
    Interrupted { client: SocketAddr, path: &'a str },
    Failed { client: SocketAddr, reason: &'a str },
    Lost { lines: u64 },
}

/// Sends messages to the writing thread.
#[derive(Debug)]
pub(super) struct ServeReport {
    json: bool,
    lines: SyncSender<String>,
    lost: Arc<AtomicU64>,
}

impl ServeReport {
    /// Starts the writing thread.
    ///
    /// # Errors
    /// Fails if the system does not create a thread.
    pub(super) fn start(json: bool) -> Result<Self> {
        let (lines, waiting) = sync_channel(WAITING);
        let lost = Arc::new(AtomicU64::new(0));
        let writer = Writer { json, waiting, lost: Arc::clone(&lost) };
        let thread = std::thread::Builder::new().name("percale-report".into());
        thread.spawn(move || writer.run()).map_err(Failure::system("starting a thread"))?;
        Ok(Self { json, lines, lost })
    }

    fn tell(&self, line: &ServeLine<'_>, text: impl Display) {
        if let Err(TrySendError::Full(_)) = self.lines.try_send(spelled(self.json, line, text)) {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn serving(&self, address: SocketAddr, directory: &str, writable: bool, open: bool) {
        if open {
            let may = if writable { "read and replace" } else { "read" };
            say(&format!(
                "There is no authorization key: every process that can reach {address} can {may} these files."
            ));
        }
        let how = if writable { "" } else { ", read-only" };
        let text = format!("Serving {directory}{how}; to copy: percale cp {address}/PATH FILE");
        self.tell(&ServeLine::Serving { address, directory, writable }, text);
    }

    pub(super) fn done(&self, client: SocketAddr, transfer: &Transfer) {
        let (path, shown, bytes) = (transfer.text(), transfer.path.shown(), transfer.size());
        if transfer.is_upload() {
            let text = format_args!("{client} sent {shown}, {bytes} bytes");
            self.tell(&ServeLine::Received { client, path: &path, bytes }, text);
        } else {
            self.tell(
                &ServeLine::Sent { client, path: &path, bytes },
                format_args!("{client} got {shown}, {bytes} bytes"),
            );
        }
    }

    pub(super) fn left(&self, client: SocketAddr, transfer: &Transfer) {
        let (path, shown) = (transfer.text(), transfer.path.shown());
        self.tell(
            &ServeLine::Interrupted { client, path: &path },
            format_args!("{client} disconnected during {shown}"),
        );
    }

    pub(super) fn failed(&self, client: SocketAddr, error: &impl Display) {
        let reason = visible::line(&error.to_string());
        self.tell(&ServeLine::Failed { client, reason: &reason }, format_args!("{client} failed: {reason}"));
    }
}

fn spelled(json: bool, line: &ServeLine<'_>, text: impl Display) -> String {
    if json { serde_json::to_string(line).unwrap_or_default() } else { text.to_string() }
}

/// The state of the writing thread.
struct Writer {
    json: bool,
    waiting: Receiver<String>,
    lost: Arc<AtomicU64>,
}

impl Writer {
    fn run(self) {
        for line in &self.waiting {
            self.write(&line);
            let lines = self.lost.swap(0, Ordering::Relaxed);
            if lines > 0 {
                let text = format_args!("{lines} log lines were dropped");
                self.write(&spelled(self.json, &ServeLine::Lost { lines }, text));
            }
        }
    }

    fn write(&self, line: &str) {
        if self.json {
            // An error when printing must not affect the clients.
            let _printed: Result<()> = print_line(line);
        } else {
            say(line);
        }
    }
}
