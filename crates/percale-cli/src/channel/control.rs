//! The channel over which the two processes of a measurement coordinate: one JSON object per line, over a socket pair
//! on one machine or a TCP connection between two machines. Nothing is sent during the timed part of a round.
//!
//! The measuring process sends requests (`perf::request`). The other process answers each request with one
//! [`ControlReply`], and a round with two. Received data is not trusted: the length of lines is bounded, and the
//! receiver checks the contents of requests.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::proof::{Nonce, Proof};
use crate::failure::{Failure, Result};

/// The maximum length of a line.
const LINE: usize = 1 << 16;

/// The timeout for the reply to a request outside rounds. (The module `watch` limits the duration of rounds.)
const REPLY_TIMEOUT: Duration = Duration::from_secs(60);

/// The replies of the other process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum ControlReply {
    /// The first message, sent without a request: the version of the sender, and the nonce for a proof if one is
    /// required.
    Hello { version: String, nonce: Option<Nonce> },
    /// The proof is valid. `proof` is the proof of the replying side.
    Proved { proof: Proof },
    /// The subject is open. `address` is the address of the replying side.
    Opened { address: Option<String> },
    /// The round can begin.
    Ready,
    /// The round is over. `verified` is the number of messages that were checked byte by byte.
    Done { verified: u64 },
    /// The request failed. No further replies follow.
    Failed { why: String },
}

impl fmt::Display for ControlReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Hello { .. } => "a greeting",
            Self::Proved { .. } => "a proof",
            Self::Opened { .. } => "a report of an opened subject",
            Self::Ready => "the signal to start",
            Self::Done { .. } => "the end of a round",
            Self::Failed { .. } => "a failure",
        })
    }
}

#[derive(Debug)]
enum Stream {
    Local(UnixStream),
    Remote(TcpStream),
}

/// One end of the channel.
#[derive(Debug)]
pub(crate) struct Control {
    stream: Stream,
    received: Vec<u8>,
}

impl Control {
    /// Makes an end of the channel over a socket pair.
    pub(crate) fn local(stream: UnixStream) -> Result<Self> {
        stream.set_nonblocking(true).map_err(Failure::system("preparing the control channel"))?;
        Ok(Self { stream: Stream::Local(stream), received: Vec::new() })
    }

    /// Makes an end of the channel over TCP.
    pub(crate) fn remote(stream: TcpStream) -> Result<Self> {
        let prepared = stream.set_nonblocking(true).and_then(|()| stream.set_nodelay(true));
        prepared.map_err(Failure::system("preparing the control channel"))?;
        Ok(Self { stream: Stream::Remote(stream), received: Vec::new() })
    }

    fn fd(&self) -> BorrowedFd<'_> {
        match &self.stream {
            Stream::Local(stream) => stream.as_fd(),
            Stream::Remote(stream) => stream.as_fd(),
        }
    }

    /// Sends one message as a line.
    pub(crate) fn send<T: Serialize>(&mut self, message: &T) -> Result<()> {
        let mut line = serde_json::to_vec(message).map_err(Failure::system("writing JSON"))?;
        line.push(b'\n');
        let mut rest = line.as_slice();
        let start = Instant::now();
        while !rest.is_empty() {
            if start.elapsed() > REPLY_TIMEOUT {
                return Err(Failure::Stalled(REPLY_TIMEOUT.as_secs()));
            }
            let written = match &mut self.stream {
                Stream::Local(stream) => stream.write(rest),
                Stream::Remote(stream) => stream.write(rest),
            };
            match written {
                Ok(count) => rest = &rest[count..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.wait(PollFlags::OUT, Duration::from_secs(1))?;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // If the other process has reported an error, return that error, because it is more useful than the
                // broken pipe.
                Err(_) => return Err(self.check().err().unwrap_or(Failure::PeerEnded)),
            }
        }
        Ok(())
    }

    /// Waits for the next line, and calls `progress` at intervals. `idle_timeout` is the timeout.
    pub(crate) fn next<T: DeserializeOwned>(
        &mut self,
        idle_timeout: Option<Duration>,
        mut progress: impl FnMut() -> Result<()>,
    ) -> Result<T> {
        let start = Instant::now();
        loop {
            let open = self.fill()?;
            if let Some(end) = self.received.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = self.received.drain(..=end).collect();
                return serde_json::from_slice(&line).map_err(|error| Failure::Protocol(error.to_string()));
            }
            if !open {
                return Err(Failure::PeerEnded);
            }
            if self.received.len() >= LINE {
                return Err(Failure::Protocol("line too long".into()));
            }
            if idle_timeout.is_some_and(|idle_timeout| start.elapsed() > idle_timeout) {
                return Err(Failure::Stalled(start.elapsed().as_secs()));
            }
            progress()?;
            self.wait(PollFlags::IN, Duration::from_millis(1))?;
        }
    }

    /// Waits for the next reply. Returns a reported failure of the other process as an error.
    pub(crate) fn reply(&mut self, progress: impl FnMut() -> Result<()>) -> Result<ControlReply> {
        match self.next(Some(REPLY_TIMEOUT), progress)? {
            ControlReply::Failed { why } => Err(Failure::Peer(why)),
            reply => Ok(reply),
        }
    }

    /// Waits for the reply `wanted`.
    pub(crate) fn expect(&mut self, wanted: &ControlReply, progress: impl FnMut() -> Result<()>) -> Result<()> {
        let reply = self.reply(progress)?;
        if reply == *wanted { Ok(()) } else { Err(Failure::Protocol(format!("{reply} instead of {wanted}"))) }
    }

    /// Checks, without waiting, whether the other process has ended or failed.
    pub(crate) fn check(&mut self) -> Result<()> {
        let open = self.fill()?;
        if self.received.len() >= LINE {
            // The buffer is full. No more input would be read, so the end of the other process would not be detected.
            return Err(Failure::Protocol("request received before the previous one was answered".into()));
        }
        for line in self.received.split(|&byte| byte == b'\n') {
            if let Ok(ControlReply::Failed { why }) = serde_json::from_slice(line) {
                return Err(Failure::Peer(why));
            }
        }
        if open { Ok(()) } else { Err(Failure::PeerEnded) }
    }

    /// Reads the data that has arrived, until at least the maximum length of a line is buffered. Returns `false` at the
    /// end of the stream.
    fn fill(&mut self) -> Result<bool> {
        let mut buffer = [0; 4096];
        while self.received.len() < LINE {
            let read = match &mut self.stream {
                Stream::Local(stream) => stream.read(&mut buffer),
                Stream::Remote(stream) => stream.read(&mut buffer),
            };
            match read {
                Ok(0) => return Ok(false),
                Ok(count) => self.received.extend_from_slice(&buffer[..count]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(true),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(false),
                Err(error) => return Err(Failure::system("reading the control channel")(error)),
            }
        }
        Ok(true)
    }

    fn wait(&self, events: PollFlags, at_most: Duration) -> Result<()> {
        let timeout = Timespec { tv_sec: at_most.as_secs().cast_signed(), tv_nsec: at_most.subsec_nanos().into() };
        match poll(&mut [PollFd::from_borrowed_fd(self.fd(), events)], Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(Failure::system("waiting for the other process")(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (Control, Control) {
        let (a, b) = UnixStream::pair().unwrap();
        (Control::local(a).unwrap(), Control::local(b).unwrap())
    }

    #[test]
    fn lines_arrive_in_order_and_failures_at_once() {
        let (mut a, mut b) = pair();
        a.send(&ControlReply::Ready).unwrap();
        b.check().unwrap();
        a.send(&ControlReply::Done { verified: 3 }).unwrap();
        b.expect(&ControlReply::Ready, || Ok(())).unwrap();
        a.send(&ControlReply::Failed { why: "no reason".into() }).unwrap();
        drop(a);
        // The failure is detected although an earlier reply has not been read.
        assert!(matches!(b.check(), Err(Failure::Peer(why)) if why == "no reason"));
        assert_eq!(b.reply(|| Ok(())).unwrap(), ControlReply::Done { verified: 3 });
        assert!(matches!(b.reply(|| Ok(())), Err(Failure::Peer(_))));
        assert!(matches!(b.reply(|| Ok(())), Err(Failure::PeerEnded)));
    }

    #[test]
    fn malformed_lines_are_rejected() {
        let (a, mut b) = pair();
        let Stream::Local(mut raw) = a.stream else { unreachable!("made by `pair`") };
        raw.write_all(b"{\"Ready\": 1\n").unwrap();
        assert!(matches!(b.reply(|| Ok(())), Err(Failure::Protocol(_))));
        raw.write_all(&vec![b'x'; LINE + 1]).unwrap();
        assert!(matches!(b.reply(|| Ok(())), Err(Failure::Protocol(_))));
    }
}
