//! Queue pairs of other processes: a thread, and a connection to each process that has some.
//!
//! A process takes the first free number, by binding an abstract Unix socket of that name; numbers of its queue pairs begin with it. A message is a
//! header of fixed size and its bytes; answers come back over the connection of the request. The thread that holds the lock writes as much as the
//! kernel takes; the network thread writes the rest, reads, and handles all timers.

use std::collections::{HashMap, VecDeque};
use std::ffi::c_int;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::machine::{self, Machine, machine};
use crate::responder::{Answer, Message};

/// Queue pairs that a process may have; the upper bits of their numbers are the process'.
pub(crate) const PAIRS: u32 = 1 << 13;
const PROCESSES: u32 = 1 << 11;
/// Bytes of a header.
const HEADER: usize = 72;
/// The longest time between two checks.
const LOOK: Duration = Duration::from_millis(200);

/// Whether a message was sent.
pub(crate) enum Sent {
    Yes,
    Nobody,
}

/// A connection.
struct Line {
    socket: UnixStream,
    /// The process that was connected to; `None` if it connected to this one.
    process: Option<u32>,
    out: VecDeque<u8>,
    read: Vec<u8>,
}

/// The queue pairs of other processes and the connections to them.
pub(crate) struct Network {
    process: u32,
    pub(crate) wake: c_int,
    listener: UnixListener,
    lines: HashMap<u32, Line>,
    next: u32,
    /// Present until a caller takes it to join it.
    pub(crate) thread: Option<JoinHandle<()>>,
    ends: bool,
}

fn address(process: u32) -> std::io::Result<SocketAddr> {
    let net = std::env::var("PERCALE_VERBS_DOUBLE_NET").unwrap_or_default();
    // SAFETY: getuid has no conditions.
    let user = unsafe { libc::getuid() };
    SocketAddr::from_abstract_name(format!("percale-verbs-double/{user}/{net}/{process}"))
}

impl Line {
    fn new(socket: UnixStream, process: Option<u32>) -> std::io::Result<Self> {
        socket.set_nonblocking(true)?;
        machine::private(socket.as_raw_fd());
        Ok(Self { socket, process, out: VecDeque::new(), read: Vec::new() })
    }

    /// Writes as much as the kernel takes. Returns whether the connection is intact.
    fn flush(&mut self) -> bool {
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
    fn fill(&mut self) -> bool {
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
    fn next(&mut self, from: &mut usize) -> Option<(Header, Vec<u8>)> {
        let rest = &self.read[*from..];
        let header = Header::read(rest.get(..HEADER)?.try_into().ok()?);
        let data = rest.get(HEADER..HEADER + header.bytes as usize)?.to_vec();
        *from += HEADER + data.len();
        Some((header, data))
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        machine::unlist(self.socket.as_raw_fd());
    }
}

/// The head of a message or an answer.
struct Header {
    is_answer: bool,
    /// The opcode of a message; in an answer 0, the sender's status, or -1 and -2 for [`Answer::Unready`] and [`Answer::Nobody`].
    code: i32,
    from: u32,
    to: u32,
    start: u32,
    immediate: u32,
    sequence: u64,
    remote: (u64, u32),
    len: u32,
    bytes: u32,
    gid: [u8; 16],
}

impl Header {
    fn bytes(&self) -> [u8; HEADER] {
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
    /// Takes a number, and starts the thread.
    fn start() -> std::io::Result<Self> {
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
        let wake = machine::counter(libc::EFD_NONBLOCK).map_err(std::io::Error::from_raw_os_error)?;
        machine::private(wake);
        machine::private(listener.as_raw_fd());
        let thread = std::thread::Builder::new().name("verbs-double".to_owned()).spawn(run)?;
        Ok(Self { process, wake, listener, lines: HashMap::new(), next: 0, thread: Some(thread), ends: false })
    }

    /// The number of this process' first queue pair.
    pub(crate) const fn first_pair(&self) -> u32 {
        self.process * PAIRS
    }

    /// Whether it is needed again, so that it does not end.
    pub(crate) const fn revived(&self) -> bool {
        !self.ends && self.thread.is_none()
    }

    /// Whether a queue pair belongs to this process.
    pub(crate) const fn is_ours(&self, pair: u32) -> bool {
        pair / PAIRS == self.process
    }

    /// The connection to a process.
    fn line(&mut self, process: u32) -> Option<&mut Line> {
        let found = self.lines.iter().find(|(_, line)| line.process == Some(process)).map(|(number, _)| *number);
        let number = match found {
            Some(number) => number,
            None => {
                let socket = UnixStream::connect_addr(&address(process).ok()?).ok()?;
                let line = Line::new(socket, Some(process)).ok()?;
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
        machine::unlist(self.listener.as_raw_fd());
        machine::close(self.wake);
    }
}

impl Machine {
    /// Starts the thread, unless it runs.
    pub(crate) fn need_network(&mut self) -> Result<(), c_int> {
        if let Some(network) = &mut self.network {
            network.ends = false;
        } else {
            self.network = Some(Network::start().map_err(|error| error.raw_os_error().unwrap_or(libc::ENOMEM))?);
        }
        Ok(())
    }

    /// Ends the thread, if no device is open; the caller joins the returned handle, without holding the lock.
    pub(crate) fn end_network(&mut self) -> Option<JoinHandle<()>> {
        if !self.contexts.is_empty() {
            return None;
        }
        let network = self.network.as_mut()?;
        network.ends = true;
        machine::add(network.wake);
        network.thread.take()
    }

    /// Sends a message to another process.
    pub(crate) fn send(&mut self, message: &Message) -> Sent {
        let header = Header {
            is_answer: false,
            code: message.opcode,
            from: message.from,
            to: message.to,
            start: message.start,
            immediate: message.immediate,
            sequence: message.sequence,
            remote: message.remote,
            len: message.len,
            bytes: message.data.len() as u32,
            gid: message.gid,
        };
        let Some(line) = self.network.as_mut().and_then(|network| network.line(message.to / PAIRS)) else {
            return Sent::Nobody;
        };
        line.out.extend(header.bytes());
        line.out.extend(&message.data);
        // If the connection is lost, the thread detects that.
        if !line.flush() || !line.out.is_empty() || message.sequence == 0 {
            self.wake();
        }
        Sent::Yes
    }

    /// Handles a message or an answer that has arrived.
    fn came(&mut self, line: u32, header: &Header, data: Vec<u8>) {
        if header.is_answer {
            let answer = match header.code {
                0 => Answer::Done(data),
                -1 => Answer::Unready,
                -2 => Answer::Nobody,
                status => Answer::Refused(status),
            };
            self.answered(header.to, header.sequence, answer, true);
            return self.pump(header.to);
        }
        let (from, to, sequence) = (header.from, header.to, header.sequence);
        let answer = self.respond(&Message {
            from,
            to,
            gid: header.gid,
            start: header.start,
            sequence,
            opcode: header.code,
            immediate: header.immediate,
            remote: header.remote,
            len: header.len,
            data,
        });
        let (code, data) = match answer {
            Answer::Done(data) => (0, data),
            Answer::Unready => (-1, Vec::new()),
            Answer::Nobody => (-2, Vec::new()),
            Answer::Refused(status) => (status, Vec::new()),
            Answer::Ignored => return,
        };
        let header = Header { is_answer: true, code, from: to, to: from, bytes: data.len() as u32, ..*header };
        if let Some(line) = self.network.as_mut().and_then(|network| network.lines.get_mut(&line)) {
            line.out.extend(header.bytes());
            line.out.extend(&data);
        }
    }

    /// Reads, writes, and handles timers. Returns how long the thread may sleep.
    fn work(&mut self) -> Option<Duration> {
        let now = Instant::now();
        let mut due: Vec<u32> = self.timers.extract_if(.., |(when, _)| *when <= now).map(|(_, pair)| pair).collect();
        due.sort_unstable();
        due.dedup();
        if due.first() == Some(&0) {
            self.report_late();
        }
        due.into_iter().for_each(|pair| self.pump(pair));
        let network = self.network.as_mut().filter(|network| !network.ends)?;
        while let Ok((socket, _)) = network.listener.accept() {
            if let Ok(line) = Line::new(socket, None) {
                network.next += 1;
                network.lines.insert(network.next, line);
            }
        }
        let numbers: Vec<u32> = network.lines.keys().copied().collect();
        for number in numbers {
            self.serve(number);
        }
        let next = self.timers.iter().map(|(when, _)| when.saturating_duration_since(now)).min();
        Some(next.unwrap_or(LOOK).min(LOOK))
    }

    /// Reads and writes one connection.
    fn serve(&mut self, number: u32) {
        let line = |machine: &mut Self| machine.network.as_mut().and_then(|network| network.lines.remove(&number));
        let Some(mut taken) = line(self) else { return };
        let mut stands = taken.fill();
        let (mut from, mut messages) = (0, Vec::new());
        while let Some(message) = taken.next(&mut from) {
            messages.push(message);
        }
        taken.read.drain(..from);
        if let Some(network) = &mut self.network {
            network.lines.insert(number, taken);
        }
        messages.into_iter().for_each(|(header, data)| self.came(number, &header, data));
        let Some(mut taken) = line(self) else { return };
        stands &= taken.flush();
        if stands {
            if let Some(network) = &mut self.network {
                network.lines.insert(number, taken);
            }
            return;
        }
        let process = taken.process;
        drop(taken);
        if let Some(process) = process {
            self.lost(|pair| pair / PAIRS == process);
        }
    }
}

/// The body of the thread.
fn run() {
    // SAFETY: an empty set, filled below.
    let mut all: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set is here.
    unsafe { libc::sigfillset(&raw mut all) };
    // SAFETY: as above. Signals are for the application's threads.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, std::ptr::null_mut()) };
    loop {
        let mut machine = machine();
        let Some(sleep) = machine.work() else {
            machine.network = None;
            return;
        };
        let Some(network) = &machine.network else { return };
        let watched = |fd: c_int, events| libc::pollfd { fd, events, revents: 0 };
        let mut fds = vec![watched(network.wake, libc::POLLIN), watched(network.listener.as_raw_fd(), libc::POLLIN)];
        fds.extend(network.lines.values().map(|line| {
            let writes = if line.out.is_empty() { 0 } else { libc::POLLOUT };
            watched(line.socket.as_raw_fd(), libc::POLLIN | writes)
        }));
        let wake = network.wake;
        drop(machine);
        let sleep = c_int::try_from(sleep.as_micros().div_ceil(1000)).unwrap_or(1);
        // SAFETY: the list is here. A descriptor that was closed meanwhile is answered as such.
        unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, sleep) };
        if fds[0].revents != 0 {
            _ = machine::take(wake);
        }
    }
}
