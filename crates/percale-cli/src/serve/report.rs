//! What the server says of itself: lines for people on standard error, or JSON objects on standard output.

use std::fmt::Display;
use std::net::SocketAddr;

use serde::Serialize;

use super::transfer::Transfer;
use crate::perf::{print_line, say};

/// One JSON object.
#[derive(Debug, Serialize)]
#[serde(tag = "is", rename_all = "kebab-case")]
enum Line<'a> {
    Serving { address: SocketAddr, directory: &'a str, writable: bool },
    Sent { client: SocketAddr, path: &'a str, bytes: u64 },
    Received { client: SocketAddr, path: &'a str, bytes: u64 },
    Interrupted { client: SocketAddr, path: &'a str },
    Failed { client: SocketAddr, reason: &'a str },
}

/// How it says it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Report {
    pub(super) json: bool,
}

impl Report {
    fn tell(self, line: &Line<'_>, text: impl Display) {
        if !self.json {
            return say(&text.to_string());
        }
        if let Ok(line) = serde_json::to_string(line) {
            // Whether anybody reads it is no concern of the clients.
            let _printed: crate::failure::Result<()> = print_line(&line);
        }
    }

    pub(super) fn serving(self, address: SocketAddr, directory: &str, writable: bool, open: bool) {
        if open {
            let may = if writable { "read and replace" } else { "read" };
            say(&format!("There is no authorization key: whoever reaches {address} may {may} these files."));
        }
        let how = if writable { "" } else { ", read-only" };
        let text = format!("Serving {directory}{how}; to copy: percale cp {address}/PATH FILE");
        self.tell(&Line::Serving { address, directory, writable }, text);
    }

    pub(super) fn done(self, client: SocketAddr, transfer: &Transfer) {
        let (path, bytes) = (transfer.path.as_str(), transfer.size);
        if transfer.is_upload() {
            self.tell(&Line::Received { client, path, bytes }, format_args!("{client} sent {path:?}, {bytes} bytes"));
        } else {
            self.tell(&Line::Sent { client, path, bytes }, format_args!("{client} got {path:?}, {bytes} bytes"));
        }
    }

    pub(super) fn left(self, client: SocketAddr, transfer: &Transfer) {
        let path = transfer.path.as_str();
        self.tell(&Line::Interrupted { client, path }, format_args!("{client} left in the middle of {path:?}"));
    }

    pub(super) fn failed(self, client: SocketAddr, error: &impl Display) {
        let reason = error.to_string();
        self.tell(&Line::Failed { client, reason: &reason }, format_args!("{client} failed: {reason}"));
    }
}
