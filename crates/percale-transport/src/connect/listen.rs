//! The sockets on which an endpoint listens, and the address that it advertises to its peers.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use std::io;
use std::net::{IpAddr, SocketAddr};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrAny, SocketAddrUnix, SocketFlags, SocketType, sockopt};

use crate::host;
use crate::later::later;
use crate::system::call::{call, named};
use crate::system::interrupted::uninterrupted;
use crate::system::process_socket::ProcessSocket;
use crate::wire::hello::Incarnation;

/// The flags of all sockets of this module.
pub(super) const FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);

/// The listen backlog. The kernel limits it to net.core.somaxconn.
const BACKLOG: i32 = 65_535;

/// The listeners of one endpoint.
#[derive(Debug)]
pub(super) struct Listeners {
    /// The TCP listener. A context of a shared address has none.
    pub(super) tcp: Option<ProcessSocket>,
    /// The Unix socket for meetings with local peers, if the endpoint allows shared memory and the kernel has such
    /// sockets.
    pub(super) unix: Option<ProcessSocket>,
    /// The address that is advertised to peers.
    pub(super) address: SocketAddr,
    /// The reason for that address.
    pub(super) explanation: String,
}

impl Listeners {
    /// Opens the listeners. `unix` determines the name of the abstract socket, if there is one.
    pub(super) fn open(bind: SocketAddr, interface: Option<&str>, unix: Option<&Incarnation>) -> io::Result<Self> {
        let interfaces = if bind.ip().is_unspecified() { host::interfaces()? } else { Vec::new() };
        let (ip, explanation) = host::advertised(bind.ip(), interface, &interfaces)?;
        let tcp = tcp_socket(bind).map_err(named("socket"))?;
        // The port can be reused as soon as its listener is closed, even if connections linger.
        let mut options = sockopt::set_socket_reuseaddr(&tcp, true);
        if bind.is_ipv6() && bind.ip().is_unspecified() {
            options = options.and(sockopt::set_ipv6_v6only(&tcp, false));
        }
        if let Err(error) = options {
            later!(warn: %error, "setsockopt failed: the port may stay taken for a minute after the endpoint is closed");
        }
        rustix::net::bind(&tcp, &bind).map_err(|errno| match errno {
            Errno::PERM | Errno::NOSYS => named("bind")(errno),
            other => other.into(), // The error is about the address.
        })?;
        call("listen", || rustix::net::listen(&tcp, BACKLOG))?;
        can_accept(&tcp)?;
        let mut address = SocketAddr::try_from(call("getsockname", || rustix::net::getsockname(&tcp))?)?;
        address.set_ip(ip);
        Ok(Self { tcp: Some(tcp), unix: unix.and_then(meeting_place), address, explanation })
    }

    /// Creates the listeners of a context. TCP calls for the context arrive at the listener of its site.
    pub(super) fn of_context(address: SocketAddr, explanation: String, unix: Option<&Incarnation>) -> Self {
        Self { tcp: None, unix: unix.and_then(meeting_place), address, explanation }
    }
}

/// Tests whether an endpoint could listen on this address, on any port.
///
/// # Errors
/// The error of the system call.
pub fn tcp_listens(ip: IpAddr) -> io::Result<()> {
    let address = SocketAddr::new(ip, 0);
    let socket = tcp_socket(address).map_err(named("socket"))?;
    call("bind", || rustix::net::bind(&socket, &address))?;
    call("listen", || rustix::net::listen(&socket, 1))?;
    can_accept(&socket)
}

/// Creates a non-blocking TCP socket of the family of `address`.
pub(super) fn tcp_socket(address: SocketAddr) -> rustix::io::Result<ProcessSocket> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    ProcessSocket::open(|| rustix::net::socket_with(family, SocketType::STREAM, FLAGS, None))
}

/// Creates a socket for meetings, and returns it with the address on which `incarnation` listens.
pub(super) fn unix_socket(incarnation: &Incarnation) -> rustix::io::Result<(ProcessSocket, SocketAddrUnix)> {
    let address = SocketAddrUnix::new_abstract_name(incarnation.socket_name().as_bytes())?;
    let open = || rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, FLAGS, None);
    Ok((ProcessSocket::open(open)?, address))
}

fn meeting_place(incarnation: &Incarnation) -> Option<ProcessSocket> {
    unix_listener(incarnation)
        .inspect_err(|error| later!(warn: %error, "cannot open a Unix socket: local peers use TCP"))
        .ok()
}

pub(super) fn unix_listener(incarnation: &Incarnation) -> io::Result<ProcessSocket> {
    let (socket, address) = unix_socket(incarnation)?;
    call("bind", || rustix::net::bind(&socket, &address))?;
    call("listen", || rustix::net::listen(&socket, BACKLOG))?;
    can_accept(&socket)?;
    Ok(socket)
}

/// Sets TCP_NODELAY, if the system allows it, so that short messages are sent at once.
pub(super) fn send_at_once(socket: &ProcessSocket) {
    if let Err(error) = sockopt::set_tcp_nodelay(socket, true) {
        later!(warn: %error, "setsockopt failed: short messages may wait for others");
    }
}

/// Accepts a call, with an older system call if the newer one is not allowed.
pub(super) fn accept(listener: &ProcessSocket) -> rustix::io::Result<(ProcessSocket, Option<SocketAddrAny>)> {
    ProcessSocket::accept(|| match uninterrupted(|| rustix::net::acceptfrom_with(listener, FLAGS)) {
        Err(Errno::PERM | Errno::NOSYS | Errno::ACCESS | Errno::INTR) => {
            let (socket, from) = uninterrupted(|| rustix::net::acceptfrom(listener))?;
            rustix::io::fcntl_setfd(&socket, rustix::io::FdFlags::CLOEXEC)?;
            rustix::fs::fcntl_setfl(&socket, rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::RDWR)?;
            Ok((socket, from))
        }
        result => result,
    })
}

/// Returns whether a call waits at a listener. `accept4` cannot be used for this: it fails in either case if there are
/// no free descriptors.
pub(super) fn is_called(listener: &ProcessSocket) -> bool {
    let mut fds = [PollFd::new(listener, PollFlags::IN)];
    // If this cannot be determined, assume that a call waits.
    uninterrupted(|| rustix::event::poll(&mut fds, Some(&Timespec::default()))).map_or(true, |ready| ready > 0)
}

/// Tests whether calls can be accepted at a listener. If a call has already arrived, it is closed, and its caller tries
/// again.
fn can_accept(listener: &ProcessSocket) -> io::Result<()> {
    match accept(listener) {
        Ok(_) | Err(Errno::AGAIN | Errno::CONNABORTED | Errno::PROTO) => Ok(()),
        Err(errno) => Err(named("accept4")(errno)),
    }
}
