//! The helper: it has loaded the programs and lends their reports to processes that may not load them.
//!
//! One thread, one loop.
//!
//! 1. Nothing that a client sends, leaves undone or holds makes the loop wait: sockets do not block, a wait for a client is a state with a
//!    deadline ([`super::session`]), and what may take long to close is closed elsewhere ([`super::request`]).
//! 2. A round serves one request of each user at most. So a user's request waits for one request of each other user, however many
//!    clients they have.
//! 3. What a user may have is limited for each user, and charged until it is given back ([`super::quota`]).

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
use super::refusal::Unavailable;
use super::request;
use super::session::{Service, Session};
use super::signals;
use super::wire;

/// Between checks for skipped programs, and between removals of ended spaces.
const ROUND: Duration = Duration::from_millis(200);
/// Connections that a round accepts.
const ACCEPTED: usize = 64;
/// Descriptors of the helper that are no client's: programs, maps, standard streams, those of libraries.
const OWN: usize = 128;

/// A helper: the programs, and a socket that clients connect to.
#[derive(Debug)]
pub struct Helper {
    service: Service,
    listener: OwnedFd,
    name: Name,
    /// Readable once a signal has come that ends the helper.
    signals: OwnedFd,
    sessions: Vec<Session>,
    /// When ended spaces were removed, and programs checked.
    checked: Instant,
    /// The listener cannot accept for want of memory or descriptors: it is left alone until then.
    full_until: Option<Instant>,
}

impl Helper {
    /// Loads the programs and listens at `path`, where every user may connect. Blocks SIGTERM, SIGINT and SIGHUP in the calling thread,
    /// which [`Self::serve`] then takes.
    ///
    /// # Errors
    /// Why the programs cannot be loaded; [`Unavailable::Refused`] if the process may not have as many descriptors as `limits`
    /// take; `AddrInUse` in [`Unavailable::Helper`] if another helper listens there.
    pub fn open(path: &Path, limits: Limits) -> Result<Self, Unavailable> {
        raise_descriptors(limits)?;
        // Before any thread is started, which would take the signals.
        let signals = signals::ending().map_err(Unavailable::Helper)?;
        let kernel = Kernel::load_for_others()?;
        let (listener, name) = listen::at(path).map_err(Unavailable::Helper)?;
        request::name_senders(listener.as_fd());
        let prompt = request::accept_descriptors(listener.as_fd(), false);
        let service = Service::new(kernel, limits, prompt);
        let sessions = Vec::new();
        Ok(Self { service, listener, name, signals, sessions, checked: Instant::now(), full_until: None })
    }

    /// Where it listens.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.name.path()
    }

    /// Serves until SIGTERM, SIGINT or SIGHUP comes. Clients keep what they have.
    ///
    /// # Errors
    /// If poll(2) fails, or a program was skipped: every page is marked then, so that no cache keeps anything any more.
    pub fn serve(&mut self) -> Result<(), Unavailable> {
        while !self.turn().map_err(Unavailable::Helper)? {
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

    /// One round: waits until there is something to do, and does it. Returns whether a signal has come.
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
            let hears = if session.hears() { PollFlags::IN } else { PollFlags::empty() };
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

    /// Continues the sessions that are ready or due: one of each user.
    fn advance(&mut self, ready: &[bool]) {
        let now = Instant::now();
        let mut users = HashSet::new();
        let (mut rest, mut served) = (Vec::with_capacity(self.sessions.len()), Vec::new());
        for (session, &ready) in mem::take(&mut self.sessions).into_iter().zip(ready) {
            let due = session.next().is_some_and(|at| at <= now);
            if (ready || due) && users.insert(session.user()) {
                // At the end of the list, so that another one of the user's comes next.
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
            // A socket of this kind has a peer with a user, always.
            let user = wire::peer_user(socket.as_fd()).unwrap_or(u32::MAX);
            self.sessions.extend(self.service.welcome(socket, user));
            if !self.service.accepts() {
                return;
            }
        }
    }

    /// Accepts descriptors from clients again, as before Linux 6.16, where the kernel cannot refuse them.
    #[cfg(all(test, pindown_bpf))]
    pub(super) fn accept_descriptors(&mut self) {
        request::accept_descriptors(self.listener.as_fd(), true);
        self.service.close_aside();
    }
}

/// Raises RLIMIT_NOFILE to what the limits take: for each connection the socket and the process that asks, for each address
/// space two maps, what one message may bring, and connections that wait to be closed.
fn raise_descriptors(limits: Limits) -> Result<(), Unavailable> {
    let refused = |what, why: String| Err(Unavailable::Refused { what, why });
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
