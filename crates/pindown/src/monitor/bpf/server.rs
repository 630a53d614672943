//! The helper: loads the programs, and passes their reports to processes that have no permission to load them.
//!
//! It has one thread with one loop, with these rules:
//!
//! 1. A client cannot make the loop wait. Sockets do not block, waiting for a client is a state with a deadline
//!    ([`super::session`]), and descriptors that may take a long time to close are closed on other threads
//!    ([`super::request`]).
//! 2. A round serves at most one request of each user. So a user's request waits for at most one request of each other
//!    user, independent of the number of their clients.
//! 3. The resources of each user are limited, and charged to the user until they are released ([`super::quota`]).

use std::collections::HashSet;
use std::io;
use std::mem;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{SocketFlags, accept_with};
use rustix::process::{Resource, Rlimit, setrlimit};

use super::kernel::Kernel;
use super::listen::{self, Name};
use super::load;
use super::quota::Limits;
use super::refusal::BpfUnavailable;
use super::request;
use super::session::{Service, Session};
use super::signals;
use super::wire;

/// The interval between checks for skipped programs, and between removals of ended address spaces.
const ROUND: Duration = Duration::from_millis(200);
/// The maximum number of connections that a round accepts.
const ACCEPTED: usize = 64;
/// The number of descriptors that the helper uses for itself: programs, maps, standard streams, those of libraries.
const OWN: usize = 128;

/// A helper: the programs, and a socket that clients connect to.
#[derive(Debug)]
pub struct Helper {
    service: Service,
    listener: OwnedFd,
    name: Name,
    /// A descriptor that is readable once a signal has arrived that ends the helper.
    signals: OwnedFd,
    sessions: Vec<Session>,
    /// The time of the last removal of ended spaces and check of the programs.
    checked: Instant,
    /// Set if the listener cannot accept for lack of memory or descriptors. It is not polled until this time.
    full_until: Option<Instant>,
}

impl Helper {
    /// Loads the programs and listens at `path`, where every user may connect. Blocks SIGTERM, SIGINT and SIGHUP in the
    /// calling thread; [`Self::serve`] then receives them.
    ///
    /// # Errors
    /// The reason why the programs cannot be loaded; [`BpfUnavailable::Refused`] if the process may not have as many
    /// descriptors as `limits` need; `AddrInUse` in [`BpfUnavailable::Helper`] if another helper listens there.
    pub fn open(path: &Path, limits: Limits) -> Result<Self, BpfUnavailable> {
        raise_descriptors(limits)?;
        // This is done before any thread is started, which would receive the signals.
        let signals = signals::ending().map_err(BpfUnavailable::Helper)?;
        let kernel = Kernel::load_for_others()?;
        let (listener, name) = listen::at(path).map_err(BpfUnavailable::Helper)?;
        request::name_senders(listener.as_fd());
        let prompt = request::accept_descriptors(listener.as_fd(), false);
        let service = Service::new(kernel, limits, prompt);
        let sessions = Vec::new();
        Ok(Self { service, listener, name, signals, sessions, checked: Instant::now(), full_until: None })
    }

    /// Returns the path of the socket.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.name.path()
    }

    /// Serves clients until SIGTERM, SIGINT or SIGHUP arrives. After that, clients keep their pages.
    ///
    /// # Errors
    /// poll(2) failed, or a program was skipped. In the second case every page is marked, so that caches no longer keep
    /// registrations.
    pub fn serve(&mut self) -> Result<(), BpfUnavailable> {
        while !self.turn().map_err(BpfUnavailable::Helper)? {
            if self.checked.elapsed() < ROUND {
                continue;
            }
            self.checked = Instant::now();
            self.service.tidy();
            if let Err(error) = self.service.check() {
                self.service.end_all();
                return Err(error);
            }
        }
        Ok(())
    }

    /// Runs one round: waits for events and handles them. Returns whether a signal has arrived.
    fn turn(&mut self) -> io::Result<bool> {
        let now = Instant::now();
        let soonest = self.sessions.iter().filter_map(Session::next).chain(self.full_until).min();
        let wait = soonest.map_or(ROUND, |at| at.saturating_duration_since(now).min(ROUND));
        let timeout = Timespec { tv_sec: wait.as_secs().cast_signed(), tv_nsec: i64::from(wait.subsec_nanos()) };
        let may_accept = self.full_until.is_none_or(|until| until <= now) && self.service.accepts();
        let accepts = if may_accept { PollFlags::IN } else { PollFlags::empty() };
        let mut fds = vec![PollFd::new(&self.signals, PollFlags::IN), PollFd::new(&self.listener, accepts)];
        let published = self.service.published().unwrap_or(self.signals.as_fd());
        fds.push(PollFd::from_borrowed_fd(published, PollFlags::IN));
        for session in &self.sessions {
            let hears = if session.reads_messages() { PollFlags::IN } else { PollFlags::empty() };
            fds.push(PollFd::from_borrowed_fd(session.socket(), hears));
        }
        match poll(&mut fds, Some(&timeout)) {
            Err(rustix::io::Errno::INTR) => return Ok(false),
            answer => answer?,
        };
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        drop(fds);
        if ready[2] {
            self.service.clear_published();
            let now = Instant::now();
            self.sessions.iter_mut().for_each(|session| session.hurry(now));
        }
        self.advance(&ready[3..]);
        if ready[1] {
            self.accept();
        }
        Ok(ready[0])
    }

    /// Advances the sessions that are ready or due, at most one of each user.
    fn advance(&mut self, ready: &[bool]) {
        let now = Instant::now();
        let mut users = HashSet::new();
        let (mut rest, mut served) = (Vec::with_capacity(self.sessions.len()), Vec::new());
        for (session, &ready) in mem::take(&mut self.sessions).into_iter().zip(ready) {
            let due = session.next().is_some_and(|at| at <= now);
            if (ready || due) && users.insert(session.user()) {
                // The session moves to the end of the list, so that another session of the user is next.
                served.extend(self.service.advance(session, ready, now));
            } else {
                rest.push(session);
            }
        }
        rest.append(&mut served);
        self.sessions = rest;
    }

    fn accept(&mut self) {
        self.full_until = None;
        for _ in 0..ACCEPTED {
            let socket = match accept_with(&self.listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(socket) => socket,
                Err(rustix::io::Errno::CONNABORTED | rustix::io::Errno::INTR) => continue,
                Err(rustix::io::Errno::AGAIN) => return,
                Err(_) => {
                    self.full_until = Some(Instant::now() + ROUND);
                    return;
                }
            };
            // A socket of this kind always has a peer with a user.
            let user = wire::peer_user(socket.as_fd()).unwrap_or(u32::MAX);
            self.sessions.extend(self.service.welcome(socket, user));
            if !self.service.accepts() {
                return;
            }
        }
    }

    /// Accepts descriptors from clients again, as on kernels before Linux 6.16, which cannot reject them.
    #[cfg(all(test, feature = "bpf"))]
    pub(super) fn accept_descriptors(&mut self) {
        request::accept_descriptors(self.listener.as_fd(), true);
        self.service.close_in_thread();
    }
}

/// Raises RLIMIT_NOFILE to the number that the limits require: the socket and the pidfd of the sender for each
/// connection, two maps for each address space, the descriptors of one message, and the connections that wait to be
/// closed.
fn raise_descriptors(limits: Limits) -> Result<(), BpfUnavailable> {
    let refused = |what, why: String| Err(BpfUnavailable::Refused { what, why, requirement: None });
    if limits.total > load::SPACES {
        return refused("--total", format!("the programs have room for {} address spaces", load::SPACES));
    }
    let needed = (4 * limits.total + request::STRANGERS + request::LEFT + OWN) as u64;
    let Some(now) = crate::calls::limit(libc::RLIMIT_NOFILE).filter(|now| now.rlim_cur < needed) else { return Ok(()) };
    let maximum = (now.rlim_max != libc::RLIM64_INFINITY).then_some(now.rlim_max.max(needed));
    match setrlimit(Resource::Nofile, Rlimit { current: Some(needed), maximum }) {
        Ok(()) => Ok(()),
        Err(error) => refused(
            "RLIMIT_NOFILE",
            format!("--total {} takes {needed} descriptors ({error}); raise the limit or lower --total", limits.total),
        ),
    }
}
