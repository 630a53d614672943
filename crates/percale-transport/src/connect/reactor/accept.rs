//! The listeners of endpoints: incoming calls, their limits, and the handling of missing descriptors.

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, SocketAddrAny};

use super::{PendingCaller, Reactor, TCP, UNIX, at_most, plain, reserve};
use crate::connect::ConnectError;
use crate::connect::handshake::Handshake;
use crate::connect::listen::{self, FLAGS};
use crate::connect::liveness;
use crate::connect::mailbox::ServiceNotice;
use crate::connect::meeting::{DescriptorBudget, Meeting};
use crate::connect::passing;
use crate::connect::setup::Setup;
use crate::later::later;
use crate::system::process_socket::ProcessSocket;
use crate::wire::hello::{HELLO_BYTES, Hello};
use crate::wire::meeting::MeetingOffer;

/// The maximum number of callers of one endpoint that may be connected before they have sent a hello (and, with a key,
/// proved that they have it). The same limit applies to callers at its Unix socket that have not sent their offer yet.
const HALF_OPEN: usize = 1024;

/// The maximum number of callers of one endpoint that may be connected without an established connection.
const UNFINISHED: usize = 8192;

/// The maximum number of calls that are accepted at one wake-up, so that timers are handled in time.
const BATCH: usize = 64;

/// The time for which a listener is paused when no descriptor is available.
const REST: Duration = Duration::from_millis(50);

impl Reactor {
    pub(super) fn listen(&mut self, id: u64) {
        let Some(endpoint) = self.endpoints.get_mut(&id) else { return };
        endpoint.resting = None;
        let listeners = &endpoint.opened.listeners;
        for (socket, channel) in [(listeners.tcp.as_ref(), TCP), (listeners.unix.as_ref(), UNIX)] {
            let data = epoll::EventData::new_u64(id << 2 | channel);
            if let Some(socket) = socket
                && let Err(error) = epoll::add(&self.epoll, socket, data, epoll::EventFlags::IN)
            {
                later!(error: %error, "cannot watch a listener: no peer can connect to this endpoint");
            }
        }
    }

    /// Stops listening for a short time.
    fn rest(&mut self, id: u64) {
        let due = Instant::now() + REST;
        let Some(endpoint) = self.endpoints.get_mut(&id) else { return };
        if endpoint.resting.replace(due).is_some() {
            return;
        }
        let listeners = &endpoint.opened.listeners;
        for socket in listeners.tcp.iter().chain(&listeners.unix) {
            if let Err(error) = epoll::delete(&self.epoll, socket) {
                later!(debug: %error, "a listener was not registered");
            }
        }
        self.wake_at(due, id);
    }

    /// Called when no descriptor is left. Accepts one call with the reserved descriptor, reports to a caller over TCP
    /// that there are no descriptors, and closes the call. Returns `false` if no descriptor could be reserved again.
    fn refuse_call(&mut self, id: u64, unix: bool) -> bool {
        drop(self.reserve.take());
        if let Some(endpoint) = self.endpoints.get(&id) {
            let listeners = &endpoint.opened.listeners;
            let listener = if unix { listeners.unix.as_ref() } else { listeners.tcp.as_ref() };
            if let Some(listener) = listener
                && let Ok(socket) = ProcessSocket::open(|| rustix::net::accept_with(listener, FLAGS))
                && let (false, Ok(hello)) = (unix, endpoint.hello())
            {
                refuse_call(&socket, &Handshake::new(false, &hello, None));
            }
        }
        self.reserve = reserve().ok();
        self.reserve.is_some()
    }

    /// Returns the next caller, or `None` if there is none or none can be accepted.
    fn accept(&mut self, id: u64, unix: bool) -> Option<(ProcessSocket, Option<SocketAddrAny>)> {
        loop {
            let listeners = &self.endpoints.get(&id)?.opened.listeners;
            let listener = if unix { listeners.unix.as_ref()? } else { listeners.tcp.as_ref()? };
            match listen::accept(listener) {
                Ok(call) => return Some(call),
                Err(Errno::AGAIN) => return None,
                Err(Errno::MFILE | Errno::NFILE) if !listen::is_called(listener) => return None,
                // Drop a caller that has not sent its hello yet, so that the next caller can use its descriptor.
                Err(Errno::MFILE | Errno::NFILE) if self.drop_stranger(id) => {}
                Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                    if !self.refuse_call(id, unix) {
                        self.rest(id);
                    }
                    return None;
                }
                // The caller has already disconnected.
                Err(Errno::CONNABORTED | Errno::PROTO) => {}
                // Accepting is not permitted any more. Callers get an error at once, instead of waiting in the queue.
                Err(error @ (Errno::PERM | Errno::NOSYS | Errno::ACCESS | Errno::INTR)) => {
                    self.stop_listening(id, unix, error);
                    return None;
                }
                Err(error) => {
                    later!(warn: %error, "cannot accept connections now; retrying later");
                    self.rest(id);
                    return None;
                }
            }
        }
    }

    /// Closes a listener that cannot accept calls. The kernel then refuses callers that wait there or arrive later.
    fn stop_listening(&mut self, id: u64, unix: bool, errno: Errno) {
        let Some(endpoint) = self.endpoints.get_mut(&id) else { return };
        let listeners = &mut endpoint.opened.listeners;
        if unix {
            later!(warn: %errno, "accept4 failed: local peers use TCP from now on");
            listeners.unix = None;
            return;
        }
        later!(error: %errno, "accept4 failed: no peer can connect to this endpoint any more");
        listeners.tcp = None;
        let (from, error) = (listeners.address, ConnectError::of_call("accept4", errno));
        endpoint.post(ServiceNotice::CallRejected { from, error });
    }

    pub(super) fn accept_tcp(&mut self, id: u64) {
        for _ in 0..BATCH {
            let Some((socket, from)) = self.accept(id, false) else { return };
            let Some(Ok(remote)) = from.map(SocketAddr::try_from) else { continue };
            self.make_room(id);
            let Some(endpoint) = self.endpoints.get(&id) else { return };
            let Ok(hello) = endpoint.hello() else { continue };
            let called = match local_address(&socket) {
                Ok(called) => called,
                Err(errno) => {
                    later!(warn: %errno, "getsockname failed: a connection was not accepted");
                    let error = ConnectError::of_call("getsockname", errno);
                    endpoint.post(ServiceNotice::CallRejected { from: remote, error });
                    continue;
                }
            };
            let hello = Hello { called, ..hello };
            let handshake = Handshake::new(false, &hello, endpoint.opened.key.clone());
            let due = Instant::now() + endpoint.opened.timeouts.host;
            let remote = SocketAddr::new(remote.ip().to_canonical(), remote.port());
            self.start_setup(Setup::called(id, handshake, hello, (socket, remote), due));
        }
    }

    /// Registers and starts the set-up of an accepted call.
    fn start_setup(&mut self, setup: Setup) {
        let id = self.number();
        let Some(socket) = &setup.tcp else { return };
        listen::send_at_once(socket);
        if let Err(errno) = self.register(socket, id, false) {
            later!(warn: %errno, "epoll_ctl failed: a connection was not accepted");
            if let Some(endpoint) = self.endpoints.get(&setup.endpoint) {
                let error = ConnectError::of_call("epoll_ctl", errno);
                endpoint.post(ServiceNotice::CallRejected { from: setup.remote, error });
            }
            return;
        }
        self.wake_at(setup.due, id);
        self.setups.insert(id, setup);
        self.drive(id);
    }

    /// Drops the oldest callers if there are too many. Callers are counted once for each batch of new ones, and then
    /// enough are dropped to make room for a whole batch.
    fn make_room(&mut self, id: u64) {
        let Some(endpoint) = self.endpoints.get_mut(&id) else { return };
        endpoint.uncounted += 1;
        let batch = at_most(BATCH, 16);
        if endpoint.uncounted < batch {
            return;
        }
        endpoint.uncounted = 0;
        let callers = self.setups.iter().filter(|(_, setup)| setup.listener == id && setup.is_called());
        let (mut silent, mut all) = (Vec::new(), Vec::new());
        for (number, setup) in callers {
            all.push(*number);
            if setup.is_stranger() {
                silent.push(*number);
            }
        }
        for (callers, most) in [(&mut silent, at_most(HALF_OPEN, 4)), (&mut all, at_most(UNFINISHED, 2))] {
            let most = most.saturating_sub(batch);
            if let Some(surplus) = callers.len().checked_sub(most).filter(|surplus| *surplus > 0) {
                callers.select_nth_unstable(surplus - 1);
                callers[..surplus].iter().for_each(|number| self.forget_setup(*number));
            }
        }
    }

    /// Rejects the oldest caller without a hello (see [`Setup::is_stranger`]). Returns false if there is none.
    fn drop_stranger(&mut self, endpoint: u64) -> bool {
        let strangers = self.setups.iter().filter(|(_, setup)| setup.listener == endpoint && setup.is_stranger());
        let Some(oldest) = strangers.map(|(id, _)| *id).min() else { return false };
        if let Some(Setup { tcp: Some(socket), handshake, .. }) = self.setups.get(&oldest) {
            refuse_call(socket, handshake);
        }
        self.forget_setup(oldest);
        true
    }

    pub(super) fn accept_unix(&mut self, id: u64) {
        for _ in 0..BATCH {
            let Some((socket, _)) = self.accept(id, true) else { return };
            // The kernel reports the caller's user. A caller of another user is rejected at once, and is not counted.
            let ours = rustix::process::geteuid().as_raw();
            if liveness::credentials(socket.as_fd()).map_or(true, |caller| caller.uid != ours) {
                continue;
            }
            let callers = self.callers.iter().filter(|(_, caller)| caller.endpoint == id);
            let callers: Vec<u64> = callers.map(|(id, _)| *id).collect();
            if callers.len() >= at_most(HALF_OPEN, 4)
                && let Some(oldest) = callers.into_iter().min()
            {
                self.callers.remove(&oldest);
            }
            let Some(endpoint) = self.endpoints.get(&id) else { return };
            let due = Instant::now() + endpoint.opened.timeouts.host;
            let caller = self.number();
            if let Err(error) = self.register(&socket, caller, true) {
                later!(warn: %error, "a local connection was not accepted");
                continue;
            }
            self.wake_at(due, caller);
            self.callers.insert(caller, PendingCaller { endpoint: id, socket, due });
            self.read_token(caller);
        }
    }

    /// Handles a message of a caller at the Unix socket. If it contains a token that was issued, the meeting continues.
    pub(super) fn read_token(&mut self, id: u64) {
        let Some(PendingCaller { endpoint, socket, due }) = self.callers.remove(&id) else { return };
        let (offer, descriptors) = match passing::receive::<MeetingOffer>(socket.as_fd()) {
            Ok(Some(received)) => received,
            Ok(None) => {
                self.callers.insert(id, PendingCaller { endpoint, socket, due });
                return;
            }
            Err(degraded) => {
                later!(debug: ?degraded, "a local connection failed");
                return;
            }
        };
        let invited = |setup: &Setup| setup.endpoint == endpoint && setup.expects(&offer.token);
        let Some(setup) = self.setups.iter().find(|(_, setup)| invited(setup)).map(|(id, _)| *id) else { return };
        let Some(doorbell) = self.endpoints.get(&endpoint).and_then(|endpoint| endpoint.opened.doorbell.clone()) else {
            return;
        };
        if !offer.is_sound() {
            return;
        }
        self.unregister(&socket);
        let room = self.setups.get(&setup).map_or(DescriptorBudget::Spare, Setup::room);
        match Meeting::answer(&doorbell, socket, &offer, descriptors, room) {
            Ok(meeting) => {
                if let Err(error) = self.register(meeting.control(), setup, true) {
                    later!(warn: %error, "set-up of shared memory failed");
                    return;
                }
                if let Some(setup) = self.setups.get_mut(&setup) {
                    setup.meeting = Some(meeting);
                }
                self.drive(setup);
            }
            Err(degraded) => later!(debug: ?degraded, "set-up of shared memory failed; the peer uses TCP"),
        }
    }
}

/// Returns the local address of an accepted socket, which is the address that was called.
fn local_address(socket: &ProcessSocket) -> rustix::io::Result<SocketAddr> {
    SocketAddr::try_from(rustix::net::getsockname(socket)?).map(plain)
}

/// Reports to a caller that there are no descriptors, if possible. At worst the caller sees a closed connection and
/// tries again.
fn refuse_call(socket: &ProcessSocket, handshake: &Handshake) {
    let bytes = handshake.no_descriptors();
    // If unread input were left when the socket is closed, the answer could be lost.
    let received = rustix::net::recv(socket, &mut [0u8; HELLO_BYTES], RecvFlags::DONTWAIT);
    let reported = rustix::net::send(socket, &bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    later!(debug: ?received, ?reported, "rejected a connection: no file descriptors left");
}
