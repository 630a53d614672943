//! The socket of a link: its options, and the conversion of its errors to [`Broken`].

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, sockopt};

use super::TcpOptions;
use super::unanswered::AnswerTimer;
use crate::Broken;
use crate::local_memory::volatile::{Segments, SegmentsSocketExt as _};
use crate::system::call::named;
use crate::system::interrupted::uninterrupted;
use crate::system::process_socket::ProcessSocket;

/// A non-blocking byte stream. The memory of operations is passed as segments, because peers may write to it during a
/// call. Slices refer to the link's own bytes.
pub trait Stream {
    /// Receives available bytes, first into the segments and then into `tail`. Returns 0 at the end of the stream.
    ///
    /// # Errors
    /// `AGAIN` if nothing is available. With any other error the stream is broken.
    fn read(&mut self, into: &Segments, tail: &mut [u8]) -> Result<usize, Errno>;

    /// Sends as many bytes as there is room for, first of `prefix` and then of the segments.
    ///
    /// # Errors
    /// `AGAIN` if there is no room. With any other error the stream is broken.
    fn write(&mut self, prefix: &[u8], from: &Segments) -> Result<usize, Errno>;

    /// Returns whether the stream needs no calls: sent bytes arrive without further calls, and a descriptor signals
    /// everything that can be read.
    #[inline]
    fn is_calm(&self) -> bool {
        true
    }

    /// Returns whether the peer has closed the stream or the stream has failed, so that no more data will arrive.
    /// Called only while nothing is read.
    fn has_ended(&self) -> bool {
        false
    }

    /// Returns the reason for a failure that an error number does not describe well.
    fn failure(&self) -> Option<&Broken> {
        None
    }

    /// Like [`read`](Self::read), but only into bytes of the link.
    ///
    /// # Errors
    /// Like [`read`](Self::read).
    fn read_one(&mut self, into: &mut [u8]) -> Result<usize, Errno> {
        self.read(&Segments::EMPTY, into)
    }

    /// Like [`write_one`](Self::write_one), but the stream may hold the bytes back until more bytes follow or
    /// [`release`](Self::release) is called. They are sent without further calls, but possibly later.
    ///
    /// # Errors
    /// Like [`write`](Self::write).
    fn write_held(&mut self, from: &[u8]) -> Result<usize, Errno> {
        self.write_one(from)
    }

    /// Sends bytes that were held back.
    fn release(&mut self) {}

    /// Like [`write`](Self::write), but only for bytes of the link.
    ///
    /// # Errors
    /// Like [`write`](Self::write).
    fn write_one(&mut self, from: &[u8]) -> Result<usize, Errno> {
        self.write(from, &Segments::EMPTY)
    }
}

/// A connected TCP socket.
#[derive(Debug)]
pub struct Socket {
    fd: ProcessSocket,
    pub(super) answer_timer: AnswerTimer,
}

impl Socket {
    /// Creates the stream from a connected socket and sets its options.
    ///
    /// # Errors
    /// The error of the system call.
    pub fn new(fd: ProcessSocket, options: &TcpOptions) -> rustix::io::Result<Self> {
        // Use one of two system calls, because a sandbox may allow only one of them.
        let not_blocking = rustix::fs::fcntl_getfl(&fd).is_ok_and(|flags| flags.contains(OFlags::NONBLOCK));
        if !not_blocking {
            rustix::io::ioctl_fionbio(&fd, true)?;
        }
        if let Err(error) = Self::set_options(&fd, options) {
            // The connection works without the options, but it may be slower, and the loss of a host may be detected
            // later.
            crate::later::later!(warn: %error, "setsockopt failed: a connection uses the system's default settings");
        }
        Ok(Self { fd, answer_timer: AnswerTimer::new(options.timeout) })
    }

    fn set_options(fd: &ProcessSocket, options: &TcpOptions) -> rustix::io::Result<()> {
        sockopt::set_tcp_nodelay(fd, true)?;
        if let Some(bytes) = options.send_buffer {
            sockopt::set_socket_send_buffer_size(fd, bytes)?;
        }
        if let Some(bytes) = options.receive_buffer {
            sockopt::set_socket_recv_buffer_size(fd, bytes)?;
        }
        if !options.timeout.is_zero() {
            // Probes of an idle connection are configured in whole seconds. The timeout consists of three equal parts:
            // the idle time before the first probe, and the intervals after two unanswered probes.
            let third = Duration::from_secs((options.timeout.as_secs() / 3).clamp(1, 32_767));
            sockopt::set_socket_keepalive(fd, true)?;
            sockopt::set_tcp_keepidle(fd, third)?;
            sockopt::set_tcp_keepintvl(fd, third)?;
            sockopt::set_tcp_keepcnt(fd, 2)?;
        }
        Ok(())
    }

    /// Returns the remote address.
    pub(super) fn remote(&self) -> Option<SocketAddr> {
        SocketAddr::try_from(rustix::net::getpeername(&self.fd).ok()??).ok()
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Stream for Socket {
    #[cold]
    fn has_ended(&self) -> bool {
        use rustix::event::{PollFd, PollFlags, poll};
        let mut socket = [PollFd::new(&self.fd, PollFlags::RDHUP)];
        poll(&mut socket, Some(&rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0)
    }

    #[inline]
    fn read(&mut self, into: &Segments, tail: &mut [u8]) -> Result<usize, Errno> {
        uninterrupted(|| into.receive(self.fd.as_fd(), tail))
    }

    #[inline]
    fn write(&mut self, prefix: &[u8], from: &Segments) -> Result<usize, Errno> {
        uninterrupted(|| from.send(self.fd.as_fd(), prefix))
    }

    #[inline]
    fn read_one(&mut self, into: &mut [u8]) -> Result<usize, Errno> {
        uninterrupted(|| rustix::net::recv(&self.fd, &mut *into, RecvFlags::DONTWAIT)).map(|(n, _)| n)
    }

    #[inline]
    fn write_one(&mut self, from: &[u8]) -> Result<usize, Errno> {
        uninterrupted(|| rustix::net::send(&self.fd, from, SendFlags::NOSIGNAL | SendFlags::DONTWAIT))
    }

    #[inline]
    fn write_held(&mut self, from: &[u8]) -> Result<usize, Errno> {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT | SendFlags::MORE;
        uninterrupted(|| rustix::net::send(&self.fd, from, flags))
    }

    fn release(&mut self) {
        // According to tcp(7), setting this option sends pending data, even if it was set before.
        if let Err(error) = sockopt::set_tcp_nodelay(&self.fd, true) {
            crate::later::later!(debug: %error, "setsockopt failed: data that the kernel holds back is sent after the kernel's own delay");
        }
    }
}

/// Converts the error of a call on the socket to the reason why the link is broken.
pub(super) fn broken(call: &'static str, error: Errno) -> Broken {
    match error {
        Errno::TIMEDOUT => Broken::Timeout("the connection's timeout passed without an answer".into()),
        // A socket that was disconnected has no peer address.
        Errno::CONNRESET | Errno::PIPE | Errno::NOTCONN => Broken::Died("the socket was reset".into()),
        Errno::FAULT => Broken::Died("a local operation's memory cannot be accessed; is it still mapped?".into()),
        other => Broken::System(named(call)(other).to_string(), other.raw_os_error()),
    }
}

#[cfg(all(test, not(loom)))]
#[expect(unsafe_code, reason = "changes the action of a signal in a child; the block states its own reason")]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::OwnedFd;

    use super::*;
    use crate::system::forked::in_a_child;

    /// SIGPIPE ends a process that has not changed the signal's action. A Rust program ignores the signal, but a C
    /// program that loads this library may not.
    #[test]
    fn write_to_a_closed_connection_raises_no_signal() {
        assert!(in_a_child(|| {
            // SAFETY: this child has one thread, and no code of it depends on the action.
            unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let mut socket = Socket::new(OwnedFd::from(ours).into(), &TcpOptions::default()).unwrap();
            drop(listener.accept().unwrap());
            // The first bytes cause a reset, after which each write fails.
            while socket.write_one(b"reset").is_ok() {}
            let failed =
                [socket.write_one(b"one"), socket.write_held(b"held"), socket.write(b"prefix", &Segments::EMPTY)];
            failed == [Err(Errno::PIPE); 3]
        }));
    }
}
