//! One connection being made: its socket, its handshake, its meeting, and the operations that involve only these.
//! Decisions that need the state of other connections are made in `drive` and `settle`.

use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown};
use zerocopy::IntoBytes;

use super::arbiter::AddressStatus;
use super::degraded::Degraded;
use super::handshake::{Handshake, HandshakeEvent};
use super::meeting::{DescriptorBudget, Meeting};
use super::queue_pairs::Pairing;
use super::{ConnectError, ConnectTimeouts};
use crate::system::interrupted::uninterrupted;
use crate::system::process_socket::ProcessSocket;
use crate::verbs::Wire;
use crate::wire::hello::{Commit, ConnectionChoice, Hello, HelloFlags, Incarnation, Ruling, Token};
use crate::wire::refusal_reason::RefusalReason;

/// A connection attempt of an endpoint.
#[derive(Debug)]
pub(super) struct Attempt {
    pub(super) number: u64,
    pub(super) timeouts: ConnectTimeouts,
    /// The time at which the attempt ends, in any stage.
    pub(super) deadline: Instant,
    /// The time after which the attempt is not restarted: the host's timeout, counted from the first time that the
    /// attempt has to wait.
    pub(super) retry_until: Option<Instant>,
    /// The error to report at the deadline if it is more precise than a timeout.
    pub(super) last: Option<ConnectError>,
    pub(super) closed: u32,
    pub(super) pause: Duration,
    pub(super) reset: Option<Token>,
    /// Whether the attempt has already requested a reset.
    pub(super) has_reset: bool,
    /// Whether its connection was claimed.
    pub(super) claimed: bool,
    /// Whether the next call only queries whether its target is the peer of the established connection.
    pub(super) asks: bool,
}

impl Attempt {
    /// Returns whether at least half of the time in which the attempt may be restarted is left.
    pub(super) fn is_early(&self) -> bool {
        self.retry_until.is_none_or(|until| Instant::now() + self.timeouts.host / 2 < until)
    }

    /// Returns whether the attempt may be restarted now.
    pub(super) fn may_try_again(&self) -> bool {
        let now = Instant::now();
        now < self.deadline && self.retry_until.is_none_or(|until| now < until)
    }
}

/// The role of this process in the set-up.
#[derive(Debug)]
pub(super) enum SetupRole {
    Initiator(Attempt),
    Acceptor {
        accepted: bool,
    },
    /// The prober of an incoming call (the set-up `caller`), which checks whether the caller is at the address that it
    /// advertises.
    Prober {
        caller: u64,
    },
}

/// The stage of a set-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SetupStage {
    Connecting,
    Talking,
    /// The acceptor waits for the result of its prober.
    Proving,
    Meeting,
    Waiting,
    Draining,
}

/// The state of one connection being made.
pub(super) struct Setup {
    pub(super) endpoint: u64,
    /// The owner of the address that was called: the endpoint, or the site to which the endpoint belongs as a context.
    pub(super) listener: u64,
    pub(super) side: SetupRole,
    pub(super) stage: SetupStage,
    pub(super) handshake: Handshake,
    pub(super) ours: Hello,
    pub(super) remote: SocketAddr,
    pub(super) tcp: Option<ProcessSocket>,
    pub(super) peer: Option<Hello>,
    /// For an acceptor: the address at which its caller is probed, and whether the caller is there.
    pub(super) at: Option<SocketAddr>,
    pub(super) address_status: AddressStatus,
    /// The set-up of the prober, if this acceptor has one.
    pub(super) prober: Option<u64>,
    /// For an initiator: the name of its call, which the peer's prober uses, and whether the call arrived at the
    /// endpoint that made it.
    pub(super) name: Token,
    pub(super) at_home: bool,
    /// The reason why the call is refused, regardless of the caller.
    pub(super) refusal: Option<RefusalReason>,
    pub(super) token: Token,
    pub(super) ruling: Ruling,
    pub(super) why: RefusalReason,
    pub(super) meeting: Option<Meeting>,
    /// The queue pair of this side, after a verdict for verbs.
    pub(super) wire: Option<Box<Wire>>,
    /// The job that creates or connects the queue pair.
    pub(super) pairing: Option<Pairing>,
    /// Whether everything was sent and the sending direction was shut down.
    pub(super) said_all: bool,
    pub(super) due: Instant,
}

/// The outcome of one pass over a set-up.
pub(super) enum SetupOutcome {
    /// The set-up continues.
    Stay,
    /// The set-up ends without a notice.
    Drop,
    /// The set-up failed.
    Fail(ConnectError),
    /// The acceptor makes no connection, but its last message has to arrive.
    Drain(Option<ConnectError>),
    /// The initiator tries again, after a pause or at once.
    Again { pause: bool },
    /// The initiator reached a peer to which it is already connected, or itself.
    Aliased(Incarnation),
    /// The connection is established over this TCP connection.
    Tcp(RefusalReason, u32),
    /// The connection is established over shared memory.
    Shm,
    /// The connection is established over queue pairs.
    Verbs(RefusalReason),
    /// The acceptor has to check the address of its caller before it decides.
    Prove,
    /// The prober has determined whether the caller is at the address that it advertises.
    Proved(bool),
}

impl Setup {
    /// Creates the set-up of an incoming call over `socket`.
    pub(super) fn called(
        endpoint: u64,
        handshake: Handshake,
        ours: Hello,
        (socket, remote): (ProcessSocket, SocketAddr),
        due: Instant,
    ) -> Self {
        let side = SetupRole::Acceptor { accepted: false };
        Self { tcp: Some(socket), ..Self::new(endpoint, side, SetupStage::Talking, handshake, ours, remote, due) }
    }

    pub(super) const fn new(
        endpoint: u64,
        side: SetupRole,
        stage: SetupStage,
        handshake: Handshake,
        ours: Hello,
        remote: SocketAddr,
        due: Instant,
    ) -> Self {
        let (tcp, peer, refusal, meeting, listener) = (None, None, None, None, endpoint);
        let (token, ruling, why) = ([0; 16], Ruling::Refuse, RefusalReason::NoTransport);
        Self {
            endpoint,
            listener,
            side,
            stage,
            handshake,
            ours,
            remote,
            tcp,
            peer,
            at: None,
            address_status: AddressStatus::Claimed,
            prober: None,
            name: [0; 16],
            at_home: false,
            refusal,
            token,
            ruling,
            why,
            meeting,
            wire: None,
            pairing: None,
            said_all: false,
            due,
        }
    }

    /// Returns whether this is an incoming call, and the caller has not sent a hello yet or, if a key is used, has not
    /// proved that it has the key.
    pub(super) const fn is_stranger(&self) -> bool {
        self.is_called() && self.peer.is_none()
    }

    /// Returns the address and the context that were called.
    pub(super) const fn called_address(&self) -> (SocketAddr, u16) {
        (self.remote, self.ours.wanted)
    }

    /// Returns the address and the context of the peer, if a call has reached the peer there.
    pub(super) fn confirmed_address(&self) -> Option<(SocketAddr, u16)> {
        match (&self.side, self.address_status, self.at, &self.peer) {
            (SetupRole::Initiator(_), ..) => Some(self.called_address()),
            (SetupRole::Acceptor { .. }, AddressStatus::Met, Some(at), Some(peer)) => Some((at, peer.context)),
            _ => None,
        }
    }

    /// Returns whether the caller has closed its connection. A caller does not send anything more until it is answered.
    pub(super) fn is_abandoned(&self) -> bool {
        let Some(socket) = &self.tcp else { return true };
        let next = rustix::net::recv(socket, &mut [0; 1], RecvFlags::DONTWAIT | RecvFlags::PEEK);
        !matches!(next, Ok((1.., _)) | Err(Errno::AGAIN | Errno::INTR))
    }

    /// Returns whether the set-up waits for a caller with this token at the Unix socket.
    pub(super) fn expects(&self, token: &Token) -> bool {
        let invited = matches!(self.side, SetupRole::Acceptor { accepted: true }) && self.ruling == Ruling::Shm;
        invited && self.meeting.is_none() && self.token == *token
    }

    /// Returns the flags that both sides support and want.
    pub(super) fn both(&self) -> HelloFlags {
        self.ours.flags & self.peer.as_ref().map_or(HelloFlags::empty(), |peer| peer.flags)
    }

    /// Returns which descriptors a pair may use.
    pub(super) fn room(&self) -> DescriptorBudget {
        if self.both().contains(HelloFlags::TCP) { DescriptorBudget::Spare } else { DescriptorBudget::All }
    }

    pub(super) fn incarnation(&self) -> Option<Incarnation> {
        self.peer.as_ref().map(|hello| hello.incarnation)
    }

    /// Returns whether this is an outgoing call that requests a connection.
    pub(super) const fn is_initiator(&self) -> bool {
        matches!(self.side, SetupRole::Initiator(_))
    }

    pub(super) const fn is_claimed(&self) -> bool {
        matches!(&self.side, SetupRole::Initiator(attempt) if attempt.claimed)
    }

    /// Returns whether the set-up began with a call from another endpoint.
    pub(super) const fn is_called(&self) -> bool {
        matches!(self.side, SetupRole::Acceptor { .. })
    }

    pub(super) const fn is_accepted(&self) -> bool {
        matches!(self.side, SetupRole::Acceptor { accepted: true })
    }

    /// Sends pending output. Returns `Ok(true)` once there is none left.
    pub(super) fn flush(&mut self) -> Result<bool, Errno> {
        let Some(socket) = &self.tcp else { return Ok(true) };
        let output = self.handshake.output();
        while !output.is_empty() {
            match uninterrupted(|| rustix::net::send(socket, output, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)) {
                Ok(sent) => drop(output.drain(..sent)),
                Err(Errno::AGAIN) => return Ok(false),
                Err(errno) => return Err(errno),
            }
        }
        Ok(true)
    }

    /// Reads the bytes that the handshake needs, and no more. Returns `Ok(None)` if more bytes have to arrive first.
    pub(super) fn read(&mut self) -> Result<Option<HandshakeEvent>, SetupOutcome> {
        let mut buffer = [0u8; 256];
        loop {
            let wants = self.handshake.wants().min(buffer.len());
            let Some(socket) = &self.tcp else { return Ok(None) };
            if wants == 0 {
                return Ok(None);
            }
            match uninterrupted(|| rustix::net::recv(socket, &mut buffer[..wants], RecvFlags::DONTWAIT)) {
                Ok((0, _)) => return Err(SetupOutcome::Fail(ConnectError::Closed(self.remote))),
                Ok((got, _)) => match self.handshake.feed(&buffer[..got]) {
                    Ok(None) => {}
                    Ok(event) => return Ok(event),
                    Err(error) => {
                        let says =
                            matches!(self.side, SetupRole::Acceptor { .. }) && !self.handshake.output().is_empty();
                        return Err(if says { SetupOutcome::Drain(Some(error)) } else { SetupOutcome::Fail(error) });
                    }
                },
                Err(Errno::AGAIN) => return Ok(None),
                Err(errno) => return Err(SetupOutcome::Fail(self.socket_error("recvfrom", errno))),
            }
        }
    }

    pub(super) fn socket_error(&self, call: &'static str, errno: Errno) -> ConnectError {
        let timeout =
            if let SetupRole::Initiator(attempt) = &self.side { attempt.timeouts.host } else { Duration::ZERO };
        ConnectError::of_socket(call, errno, self.remote, timeout)
    }

    /// Returns whether the TCP connection is established.
    pub(super) fn connected(&self) -> Result<bool, ConnectError> {
        let Some(socket) = &self.tcp else { return Ok(false) };
        let peer = match rustix::net::getpeername(socket) {
            Ok(Some(peer)) => peer,
            // The connection is not established. If it has failed, the socket has the error.
            Ok(None) | Err(Errno::NOTCONN | Errno::INVAL) => match rustix::net::sockopt::socket_error(socket) {
                Ok(Ok(())) => return Ok(false),
                Ok(Err(errno)) => return Err(self.socket_error("connect", errno)),
                Err(errno) => return Err(self.socket_error("getsockopt", errno)),
            },
            Err(errno) => return Err(self.socket_error("getpeername", errno)),
        };
        // There is no listener, but the kernel assigned the peer's port to the local socket, so the socket is connected
        // to itself.
        if rustix::net::getsockname(socket).ok() == Some(peer) {
            return Err(ConnectError::Refused(self.remote));
        }
        Ok(true)
    }

    /// Returns the peer's address in a form that this process can use.
    pub(super) fn peer_address(&self, hello: &Hello) -> SocketAddr {
        let (mut address, from) = (hello.address, self.remote);
        if address.ip().is_loopback() && !hello.place.same_network(&self.ours.place) {
            address.set_ip(from.ip());
        }
        match (address.ip(), from) {
            (IpAddr::V6(ip), SocketAddr::V6(from)) if ip.is_unicast_link_local() => {
                SocketAddrV6::new(ip, address.port(), 0, from.scope_id()).into()
            }
            _ => address,
        }
    }
}

/// Returns the reason for a transport as text. The text does not contain the name of the transport.
pub(super) fn reason(why: RefusalReason, errno: u32) -> String {
    match i32::try_from(errno) {
        Ok(errno @ 1..) => format!("{why} ({})", std::io::Error::from_raw_os_error(errno)),
        _ => why.to_string(),
    }
}

/// Sends the initiator's final message over TCP, which states the transport of the connection.
pub(super) fn commit(setup: &mut Setup, choice: ConnectionChoice, why: RefusalReason, errno: u32) -> SetupOutcome {
    setup.handshake.output().extend_from_slice(Commit { choice, why, errno }.to_bytes().as_bytes());
    match setup.flush() {
        Ok(true) if choice == ConnectionChoice::Verbs => SetupOutcome::Verbs(why),
        Ok(true) => SetupOutcome::Tcp(why, errno),
        // An empty socket buffer always has room for a few bytes. Otherwise treat the connection as closed.
        Ok(false) => SetupOutcome::Fail(ConnectError::Closed(setup.remote)),
        Err(errno) => SetupOutcome::Fail(setup.socket_error("sendto", errno)),
    }
}

/// Continues after a failed meeting: uses TCP if that is allowed.
pub(super) fn degrade(setup: &mut Setup, degraded: Degraded) -> SetupOutcome {
    setup.meeting = None;
    if setup.both().contains(HelloFlags::TCP) {
        return commit(setup, ConnectionChoice::Tcp, degraded.why, degraded.number());
    }
    SetupOutcome::Fail(ConnectError::NoTransport(format!("shared memory: {}", reason(degraded.why, degraded.number()))))
}

/// The maximum number of reads, of 1 KiB each, that discard data that a caller sends after its refusal. A conforming
/// peer sends far less.
const DISCARDED: u32 = 64;

/// Drains an acceptor that has sent its last bytes: waits until the caller has received them, because closing the
/// socket earlier could destroy them in transit.
pub(super) fn drain(setup: &mut Setup) -> SetupOutcome {
    match setup.flush() {
        Ok(true) => {}
        Ok(false) => return SetupOutcome::Stay,
        Err(_) => return SetupOutcome::Drop,
    }
    let Some(socket) = &setup.tcp else { return SetupOutcome::Drop };
    // Shut down only once: the shutdown makes the socket ready, so repeating it at each readiness event would never
    // end.
    if !std::mem::replace(&mut setup.said_all, true) && rustix::net::shutdown(socket, Shutdown::Write).is_err() {
        return SetupOutcome::Drop;
    }
    let mut discard = [0u8; 1024];
    for _ in 0..DISCARDED {
        match rustix::net::recv(socket, &mut discard, RecvFlags::DONTWAIT) {
            Ok((1.., _)) | Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return SetupOutcome::Stay,
            Ok((0, _)) | Err(_) => return SetupOutcome::Drop,
        }
    }
    SetupOutcome::Drop // A caller that sends so much does not read, and would occupy the thread.
}
