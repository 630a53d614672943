//! Messages to queue pairs of other processes, the answers to them, and the thread that exchanges them.

use std::ffi::c_int;
use std::os::fd::AsRawFd;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::descriptors::{add, take};
use crate::machine::{Machine, machine};
use crate::network::{Header, Network, NetworkConnection, PAIRS};
use crate::responder::{Message, Response};

/// The longest time between two checks.
const LOOK: Duration = Duration::from_millis(200);

/// The result of sending a message.
pub(crate) enum Sent {
    Yes,
    Nobody,
}

impl Machine {
    /// Starts the thread, unless it is running.
    pub(crate) fn need_network(&mut self) -> Result<(), c_int> {
        if let Some(network) = &mut self.network {
            network.ends = false;
        } else {
            self.network = Some(Network::start(run).map_err(|error| error.raw_os_error().unwrap_or(libc::ENOMEM))?);
        }
        Ok(())
    }

    /// Ends the thread if no device is open. The caller joins the returned handle without holding the lock.
    pub(crate) fn end_network(&mut self) -> Option<JoinHandle<()>> {
        if !self.contexts.is_empty() {
            return None;
        }
        let network = self.network.as_mut()?;
        network.ends = true;
        add(network.wake);
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
                0 => Response::Done(data),
                -1 => Response::Unready,
                -2 => Response::Nobody,
                status => Response::Refused(status),
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
            Response::Done(data) => (0, data),
            Response::Unready => (-1, Vec::new()),
            Response::Nobody => (-2, Vec::new()),
            Response::Refused(status) => (status, Vec::new()),
            Response::Ignored => return,
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
            if let Ok(line) = NetworkConnection::new(socket, None) {
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
    // SAFETY: an all-zero signal set is valid; it is filled below.
    let mut all: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set is valid for the call.
    unsafe { libc::sigfillset(&raw mut all) };
    // SAFETY: as above. Signals are left to the application's threads.
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
        // SAFETY: the list is valid for the call. A descriptor that was closed in the meantime is reported as invalid.
        unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, sleep) };
        if fds[0].revents != 0 {
            _ = take(wake);
        }
    }
}
