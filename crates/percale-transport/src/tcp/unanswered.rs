//! Detects how long the peer's kernel has left bytes unacknowledged, and whether the peer's host answers at all.
//!
//! TCP_USER_TIMEOUT would break the connection to a live peer that does not receive for a while, so this module uses
//! TCP_INFO instead. It checks whether bytes are in flight and there was no acknowledgement recently. That alone does
//! not distinguish a dead host from a host with a process that does not read. A kernel with a full receive buffer drops
//! everything that arrives, including retransmissions and window probes, and need not acknowledge any of it. The
//! sender's TCP_INFO is the same in both cases. So the host is probed: a second connection to the peer's address is
//! started. A running kernel accepts or refuses this connection, independently of the process. A running kernel that no
//! longer has the peer's socket resets the connection.

#![expect(unsafe_code, reason = "TCP_INFO has no safe wrapper; the block states its own reason")]

use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use crate::system::process_socket::ProcessSocket;

/// Decides when a peer that leaves bytes unacknowledged is considered dead.
#[derive(Debug)]
pub(super) struct AnswerTimer {
    timeout: Duration,
    /// Whether the peer had been silent for too long at the last check.
    suspect: bool,
    /// The probe of its host that is in progress.
    question: Option<HostProbe>,
    /// The time of the last answer of its host.
    answered: Option<Instant>,
}

/// Connections that are started to determine whether a host answers.
#[derive(Debug)]
struct HostProbe {
    calls: Vec<ProcessSocket>,
    since: Instant,
}

impl HostProbe {
    fn ask(addresses: &[SocketAddr]) -> Self {
        let call = |address: &SocketAddr| -> rustix::io::Result<ProcessSocket> {
            let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let socket = ProcessSocket::open(|| rustix::net::socket_with(family, SocketType::STREAM, flags, None))?;
            match rustix::net::connect(&socket, address) {
                // If the connection was refused at once, the peer is on this host, so its host answers.
                Ok(()) | Err(Errno::INPROGRESS | Errno::CONNREFUSED) => Ok(socket),
                Err(error) => Err(error),
            }
        };
        Self { calls: addresses.iter().filter_map(|address| call(address).ok()).collect(), since: Instant::now() }
    }

    /// Returns whether the host has accepted or refused one of the calls.
    fn is_answered(&self) -> bool {
        let answered = |call: &ProcessSocket| {
            let refused = matches!(sockopt::socket_error(call), Ok(Err(Errno::CONNREFUSED | Errno::CONNRESET)));
            refused || matches!(rustix::net::getpeername(call), Ok(Some(_)))
        };
        self.calls.iter().any(answered)
    }
}

impl AnswerTimer {
    /// Creates the state for a timeout. Zero means that the peer is never considered dead.
    pub(super) const fn new(timeout: Duration) -> Self {
        Self { timeout, suspect: false, question: None, answered: None }
    }

    /// Returns the timeout.
    pub(super) const fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Returns whether the peer is considered dead, after a check has measured this silence ([`unanswered`]).
    /// `addresses` are addresses of the peer's host. One check is not enough: the first bytes after a pause are also
    /// unanswered for a moment, and the last acknowledgement is old. The host is probed after half of the timeout, and
    /// has the other half to answer.
    pub(super) fn ends(&mut self, silence: Option<Duration>, addresses: impl FnOnce() -> Vec<SocketAddr>) -> bool {
        let Some(silence) = silence.filter(|silence| !self.timeout.is_zero() && *silence > self.timeout / 2) else {
            (self.suspect, self.question) = (false, None);
            return false;
        };
        if self.answered.is_some_and(|when| when.elapsed() <= self.timeout / 2) {
            return false;
        }
        let question = self.question.get_or_insert_with(|| HostProbe::ask(&addresses()));
        if question.is_answered() {
            (self.suspect, self.question, self.answered) = (false, None, Some(Instant::now()));
            return false;
        }
        let silent = silence > self.timeout && question.since.elapsed() > self.timeout / 2;
        std::mem::replace(&mut self.suspect, silent) && silent
    }
}

/// Returns the time since the peer's kernel last acknowledged anything, if an acknowledgement is pending. Returns
/// `None` if none is pending, or if the local kernel does not report it.
pub(super) fn unanswered(socket: &impl AsFd) -> Option<Duration> {
    let mut info = std::mem::MaybeUninit::<libc::tcp_info>::zeroed();
    let mut len = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: the descriptor is open, and the kernel writes at most `len` bytes into `info`, which has that length.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    if result != 0 {
        return None;
    }
    // SAFETY: the structure was zeroed, and all its fields are plain integers.
    let info = unsafe { info.assume_init() };
    // Either segments are unacknowledged, or probes of a closed window were not answered.
    (info.tcpi_unacked > 0 || info.tcpi_probes > 0).then(|| Duration::from_millis(info.tcpi_last_ack_recv.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns an address at which connection attempts are not answered, because the queue of its listener is full.
    /// Also returns the listener and the sockets in the queue.
    fn silent() -> (Vec<ProcessSocket>, Vec<SocketAddr>) {
        let kind = SocketFlags::NONBLOCK;
        let open = || rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, kind, None);
        let socket = || ProcessSocket::open(open).unwrap();
        let listener = socket();
        rustix::net::bind(&listener, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        let address = SocketAddr::try_from(rustix::net::getsockname(&listener).unwrap()).unwrap();
        let mut all = vec![listener];
        for _ in 0..4 {
            let caller = socket();
            assert!(matches!(rustix::net::connect(&caller, &address), Ok(()) | Err(Errno::INPROGRESS)));
            all.push(caller);
        }
        (all, vec![address])
    }

    #[test]
    fn peer_is_lost_after_two_silent_checks_and_no_host_answer() {
        let (short, long) = (Some(Duration::from_millis(30)), Some(Duration::from_millis(41)));
        let (_silent, there) = silent();
        let nowhere = || there.clone();
        let mut answer_timer = AnswerTimer::new(Duration::from_millis(40));
        let looks = [short, long, None, long, short, long, long, long, None, long];
        let ends = looks.map(|silence| {
            let ends = answer_timer.ends(silence, nowhere);
            std::thread::sleep(Duration::from_millis(25));
            ends
        });
        assert_eq!(ends, [false, false, false, false, false, false, true, true, false, false]);
        let mut endless = AnswerTimer::new(Duration::ZERO);
        assert!(!endless.ends(long, nowhere) && !endless.ends(long, nowhere));
    }

    #[test]
    fn silent_peer_is_not_lost_while_its_host_answers() {
        let (_silent, there) = silent();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let accepts = listener.local_addr().unwrap();
        // No other test uses this host, so the port stays free.
        let refuses = std::net::TcpListener::bind("127.0.3.2:0").unwrap().local_addr().unwrap();
        for address in [accepts, refuses] {
            let mut answer_timer = AnswerTimer::new(Duration::from_millis(10));
            for _ in 0..20 {
                assert!(!answer_timer.ends(Some(Duration::from_secs(1)), || vec![there[0], address]), "{address}");
                std::thread::sleep(Duration::from_millis(6));
            }
        }
    }

    /// Drops everything that arrives at a socket from now on. Nothing is acknowledged.
    fn drop_everything(reader: &std::net::TcpStream) {
        let mut nothing = libc::sock_filter { code: 6, jt: 0, jf: 0, k: 0 }; // BPF_RET: drops the whole packet.
        let program = libc::sock_fprog { len: 1, filter: &raw mut nothing };
        // SAFETY: the program has one instruction, which is only read during the call.
        let result = unsafe {
            libc::setsockopt(
                reader.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_ATTACH_FILTER,
                (&raw const program).cast(),
                size_of::<libc::sock_fprog>() as libc::socklen_t,
            )
        };
        assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    }

    /// The peer's window is closed, so no data is in flight, and then the peer disappears.
    #[test]
    fn unanswered_probes_of_a_closed_window_are_detected() {
        use std::io::Write;
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut socket = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (reader, _) = listener.accept().unwrap();
        socket.set_nonblocking(true).unwrap();
        let until = Instant::now() + Duration::from_secs(30);
        // Everything that the kernels accept is written, and everything that was sent is acknowledged.
        loop {
            assert!(Instant::now() < until, "the window stays open");
            match socket.write(&[0; 64 << 10]) {
                Ok(_) => {}
                Err(_) if unanswered(&socket).is_some() => std::thread::yield_now(),
                Err(_) => break,
            }
        }
        drop_everything(&reader);
        while unanswered(&socket).is_none() {
            assert!(Instant::now() < until, "the unanswered probes are not detected");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Simulates a kernel with a full receive buffer: everything that arrives is dropped, and nothing is acknowledged.
    #[test]
    fn peer_with_a_full_receive_buffer_is_not_lost() {
        use std::io::Write;
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut socket = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (reader, _) = listener.accept().unwrap();
        drop_everything(&reader);
        socket.write_all(b"dropped").unwrap();
        let timeout = Duration::from_millis(100);
        let mut answer_timer = AnswerTimer::new(timeout);
        let until = Instant::now() + 10 * timeout;
        let mut longest = Duration::ZERO;
        while Instant::now() < until {
            let silence = unanswered(&socket);
            longest = longest.max(silence.unwrap_or_default());
            assert!(
                !answer_timer.ends(silence, || vec![socket.peer_addr().unwrap()]),
                "the connection was given up after {silence:?}"
            );
            std::thread::sleep(timeout / 4);
        }
        assert!(longest > 2 * timeout, "nothing was dropped: {longest:?}");
    }

    #[test]
    fn acknowledged_data_is_not_unanswered() {
        use std::io::Write;
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut socket = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert_eq!(unanswered(&socket), None);
        socket.write_all(b"acknowledged by the kernel, but never read").unwrap();
        let until = std::time::Instant::now() + Duration::from_secs(20);
        while unanswered(&socket).is_some() {
            assert!(std::time::Instant::now() < until, "the kernel did not acknowledge");
        }
    }
}
