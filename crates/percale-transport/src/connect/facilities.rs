//! The list of system facilities that shared memory needs. Each is tested with the operation that a connection
//! performs.
//!
//! TCP does not need any of them.

use std::io;
use std::os::fd::AsFd;

use super::listen::{self, unix_listener, unix_socket};
use super::{liveness, passing};
use crate::local_memory::doorbell::DoorbellExt as _;
use crate::shm::{Doorbell, Mappings, PAIR_BYTES, pair_memory};
use crate::system::call::{call, named};
use crate::system::event::EventDescriptor;
use crate::system::process_socket::ProcessSocket;
use crate::wire::hello::{Incarnation, Token};
use crate::wire::meeting::{MeetingHalf, MeetingOffer};
use rustix::io::Errno;

/// A facility of the system that shared memory needs.
#[derive(Debug)]
pub struct Facility {
    /// The description of the facility.
    pub name: &'static str,
    /// The system calls that it uses.
    pub calls: &'static str,
    /// The result of the test on this system.
    pub result: io::Result<()>,
}

/// Tests everything that shared memory needs.
pub fn facilities() -> Vec<Facility> {
    let connection = Connection::new();
    let missing = |error: &io::Error| io::Error::new(error.kind(), error.to_string());
    let over = |next: &dyn Fn(&Connection) -> io::Result<()>| connection.as_ref().map_err(missing).and_then(next);
    let facility = |name, calls, result| Facility { name, calls, result };
    vec![
        facility("sealed memory", "memfd_create, ftruncate, fallocate, fcntl, fstatfs, mmap, madvise", sealed_memory()),
        facility("events", "eventfd2", EventDescriptor::eventfd().map(drop)),
        facility("waiting on shared words", "futex", Doorbell::private().and_then(|doorbell| doorbell.try_futex())),
        facility("local sockets", "socket, bind, listen, accept4, connect", over(&|_| Ok(()))),
        facility("identity of peers", "getsockopt, pidfd_open", over(&Connection::identify)),
        facility("passing descriptors", "sendmsg, recvmsg, readlinkat", over(&Connection::pass)),
    ]
}

fn sealed_memory() -> io::Result<()> {
    let doorbell = Doorbell::new()?;
    let [page, _] = doorbell.descriptors().ok_or(io::ErrorKind::Unsupported)?;
    Mappings::new(pair_memory()?.as_fd(), page).map(drop)
}

/// The two ends of a local connection.
struct Connection {
    caller: ProcessSocket,
    called: ProcessSocket,
}

impl Connection {
    fn new() -> io::Result<Self> {
        let incarnation = Incarnation::random()?;
        let listener = unix_listener(&incarnation)?;
        let (caller, address) = unix_socket(&incarnation).map_err(named("socket"))?;
        call("connect", || rustix::net::connect(&caller, &address))?;
        let (called, _) = listen::accept(&listener).map_err(named("accept4"))?;
        Ok(Self { caller, called })
    }

    fn identify(&self) -> io::Result<()> {
        let who = liveness::credentials(self.called.as_fd())?;
        liveness::peer_pidfd(self.called.as_fd(), who.pid).map(drop)
    }

    fn pass(&self) -> io::Result<()> {
        let (memory, event) = (pair_memory()?, EventDescriptor::eventfd()?);
        let offer = MeetingOffer::new(Token::default(), MeetingHalf::default());
        let refused = |call: &'static str| {
            move |degraded: super::degraded::Degraded| named(call)(Errno::from_raw_os_error(degraded.errno.max(1)))
        };
        passing::send(self.caller.as_fd(), &offer, &[memory.as_fd(), event.as_fd()]).map_err(refused("sendmsg"))?;
        let received = passing::receive::<MeetingOffer>(self.called.as_fd()).map_err(refused("recvmsg"))?;
        let (_, descriptors) = received.ok_or_else(|| named("recvmsg")(Errno::AGAIN))?;
        let [memory, event] = descriptors.as_slice() else { return Err(named("recvmsg")(Errno::BADMSG)) };
        passing::check_memory(memory.as_fd(), PAIR_BYTES as u64).map_err(refused("fcntl"))?;
        passing::check_event(event).map_err(refused("readlinkat"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_memory_facilities_are_available() {
        for Facility { name, calls, result } in facilities() {
            assert!(result.is_ok() && !calls.is_empty(), "{name}: {result:?}");
        }
    }
}
