//! The connections to processes that have queue pairs. One connection to each process carries messages and answers.
//!
//! A process takes the first free number, by binding an abstract Unix socket of that name. The numbers of its queue
//! pairs begin with that number. A message is a header of fixed size and its bytes. Answers are sent over the
//! connection of the request. A thread that holds the lock writes as much as the kernel accepts. The network thread
//! writes the rest, reads, and handles all timers.

use std::collections::{HashMap, VecDeque};
use std::ffi::c_int;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::thread::JoinHandle;

use crate::descriptors::{close, counter, private, unlist};

/// The maximum number of queue pairs of a process. The upper bits of their numbers are the number of the process.
pub(crate) const PAIRS: u32 = 1 << 13;
const PROCESSES: u32 = 1 << 11;
/// The size of a header in bytes.
const HEADER: usize = 72;

/// A connection.
pub(crate) struct NetworkConnection {
    pub(crate) socket: UnixStream,
    /// The process that was connected to, or `None` if that process connected to this one.
    pub(crate) process: Option<u32>,
    pub(crate) out: VecDeque<u8>,
    pub(crate) read: Vec<u8>,
}

/// The queue pairs of other processes and the connections to them.
pub(crate) struct Network {
    process: u32,
    pub(crate) wake: c_int,
    pub(crate) listener: UnixListener,
    pub(crate) lines: HashMap<u32, NetworkConnection>,
    pub(crate) next: u32,
    /// The network thread, until a caller takes the handle to join it.
    pub(crate) thread: Option<JoinHandle<()>>,
    pub(crate) ends: bool,
}

fn address(process: u32) -> std::io::Result<SocketAddr> {
    let net = std::env::var("PERCALE_VERBS_DOUBLE_NET").unwrap_or_default();
    // SAFETY: getuid has no preconditions.
    let user = unsafe { libc::getuid() };
    SocketAddr::from_abstract_name(format!("percale-verbs-double/{user}/{net}/{process}"))
}

impl NetworkConnection {
    pub(crate) fn new(socket: UnixStream, process: Option<u32>) -> std::io::Result<Self> {
        socket.set_nonblocking(true)?;
        private(socket.as_raw_fd());
        Ok(Self { socket, process, out: VecDeque::new(), read: Vec::new() })
    }

    /// Writes as much as the kernel accepts. Returns whether the connection is intact.
    pub(crate) fn flush(&mut self) -> bool {
        while !self.out.is_empty() {
            match self.socket.write(self.out.as_slices().0) {
                Ok(0) => return false,
                Ok(count) => drop(self.out.drain(..count)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
        true
    }

    /// Reads what has arrived. Returns whether the connection is intact.
    pub(crate) fn fill(&mut self) -> bool {
        let mut bytes = vec![0; 256 << 10];
        loop {
            match self.socket.read(&mut bytes) {
                Ok(0) => return false,
                Ok(count) => self.read.extend_from_slice(&bytes[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
            if self.read.len() > 8 << 20 {
                return true;
            }
        }
    }

    /// Returns the next message, if all of it has arrived.
    pub(crate) fn next(&mut self, from: &mut usize) -> Option<(Header, Vec<u8>)> {
        let rest = &self.read[*from..];
        let header = Header::read(rest.get(..HEADER)?.try_into().ok()?);
        let data = rest.get(HEADER..HEADER + header.bytes as usize)?.to_vec();
        *from += HEADER + data.len();
        Some((header, data))
    }
}

impl Drop for NetworkConnection {
    fn drop(&mut self) {
        unlist(self.socket.as_raw_fd());
    }
}

/// The header of a message or an answer.
pub(crate) struct Header {
    pub(crate) is_answer: bool,
    /// The opcode of a message. In an answer this is 0, the status for the sender, or -1 or -2 for `Answer::Unready`
    /// and `Answer::Nobody`.
    pub(crate) code: i32,
    pub(crate) from: u32,
    pub(crate) to: u32,
    pub(crate) start: u32,
    pub(crate) immediate: u32,
    pub(crate) sequence: u64,
    pub(crate) remote: (u64, u32),
    pub(crate) len: u32,
    pub(crate) bytes: u32,
    pub(crate) gid: [u8; 16],
}

impl Header {
    pub(crate) fn bytes(&self) -> [u8; HEADER] {
        let mut all = [0; HEADER];
        let words = [
            u32::from(self.is_answer),
            self.code.cast_unsigned(),
            self.from,
            self.to,
            self.start,
            self.immediate,
            self.remote.1,
            self.len,
            self.bytes,
            0,
        ];
        for (at, word) in words.into_iter().enumerate() {
            all[4 * at..4 * at + 4].copy_from_slice(&word.to_le_bytes());
        }
        all[40..48].copy_from_slice(&self.sequence.to_le_bytes());
        all[48..56].copy_from_slice(&self.remote.0.to_le_bytes());
        all[56..].copy_from_slice(&self.gid);
        all
    }

    fn read(all: &[u8; HEADER]) -> Self {
        let long = |at: usize| u64::from_le_bytes(all[at..at + 8].try_into().unwrap_or_default());
        let word = |at: usize| u32::from_le_bytes(all[4 * at..4 * at + 4].try_into().unwrap_or_default());
        Self {
            is_answer: word(0) != 0,
            code: word(1).cast_signed(),
            from: word(2),
            to: word(3),
            start: word(4),
            immediate: word(5),
            sequence: long(40),
            remote: (long(48), word(6)),
            len: word(7),
            bytes: word(8),
            gid: all[56..].try_into().unwrap_or_default(),
        }
    }
}

impl Network {
    /// Takes a number, and starts the thread, which calls `run`.
    pub(crate) fn start(run: fn()) -> std::io::Result<Self> {
        let mut found = None;
        for process in 1..PROCESSES {
            match UnixListener::bind_addr(&address(process)?) {
                Ok(listener) => {
                    found = Some((process, listener));
                    break;
                }
                Err(error) if error.kind() == ErrorKind::AddrInUse => {}
                Err(error) => return Err(error),
            }
        }
        let (process, listener) = found.ok_or(ErrorKind::AddrInUse)?;
        listener.set_nonblocking(true)?;
        let wake = counter(libc::EFD_NONBLOCK).map_err(std::io::Error::from_raw_os_error)?;
        private(wake);
        private(listener.as_raw_fd());
        let thread = std::thread::Builder::new().name("verbs-double".to_owned()).spawn(run)?;
        Ok(Self { process, wake, listener, lines: HashMap::new(), next: 0, thread: Some(thread), ends: false })
    }

    /// Returns the number of this process's first queue pair.
    pub(crate) const fn first_pair(&self) -> u32 {
        self.process * PAIRS
    }

    /// Returns whether the network is needed again, so that its thread does not end.
    pub(crate) const fn revived(&self) -> bool {
        !self.ends && self.thread.is_none()
    }

    /// Returns whether a queue pair belongs to this process.
    pub(crate) const fn is_ours(&self, pair: u32) -> bool {
        pair / PAIRS == self.process
    }

    /// Returns the connection to a process.
    pub(crate) fn line(&mut self, process: u32) -> Option<&mut NetworkConnection> {
        let found = self.lines.iter().find(|(_, line)| line.process == Some(process)).map(|(number, _)| *number);
        let number = match found {
            Some(number) => number,
            None => {
                let socket = UnixStream::connect_addr(&address(process).ok()?).ok()?;
                let line = NetworkConnection::new(socket, Some(process)).ok()?;
                self.next += 1;
                self.lines.insert(self.next, line);
                self.next
            }
        };
        self.lines.get_mut(&number)
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        unlist(self.listener.as_raw_fd());
        close(self.wake);
    }
}
