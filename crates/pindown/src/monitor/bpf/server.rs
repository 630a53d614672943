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
//!
//! The helper makes its socket, or gets it from a service manager, which can then start it when the first client
//! connects. Clients that connected before that are in the socket's queue.

use std::collections::HashSet;
use std::io;
use std::mem;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{SocketFlags, accept_with};
use rustix::process::{Resource, Rlimit, setrlimit};
use tracing::{debug, info, warn};

use super::group;
use super::kernel::Kernel;
use super::listen::{self, AllowedUsers, Listener};
use super::load;
use super::quota::Limits;
use super::refusal::BpfUnavailable;
use super::request;
use super::service_manager::StateMessages;
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
///
/// It logs by [`tracing`]: its start and end (information), rejected clients (warnings, for reasons that an
/// administrator can remove), and each client that gets reports (for debugging).
#[derive(Debug)]
pub struct Helper {
    service: Service,
    listener: Listener,
    /// A descriptor that is readable once a signal has arrived that ends the helper.
    signals: OwnedFd,
    manager: StateMessages,
    sessions: Vec<Session>,
    /// The time of the last removal of ended spaces and check of the programs.
    checked: Instant,
    /// The last time at which there was a client.
    busy: Instant,
    idle_exit: Option<Duration>,
    /// Set if the listener cannot accept for lack of memory or descriptors. It is not polled until this time.
    full_until: Option<Instant>,
}

impl Helper {
    /// Loads the programs and listens at `path`, where every user may connect. The directory of
    /// [`SOCKET`](super::SOCKET) is created if it does not exist. Blocks SIGTERM, SIGINT and SIGHUP in the calling
    /// thread; [`Self::serve`] then receives them.
    ///
    /// # Errors
    /// The reason why the programs cannot be loaded; [`BpfUnavailable::Limits`] if no helper can have these `limits`;
    /// [`BpfUnavailable::Refused`] if the process may not have as many descriptors as they need; [`BpfUnavailable::Listen`] if it cannot listen, for example because another helper
    /// listens there.
    pub fn open(path: &Path, limits: Limits) -> Result<Self, BpfUnavailable> {
        Self::start(limits, || listen_at(path, AllowedUsers::Everybody))
    }

    /// Like [`Self::open`], but only root, this process's user and the members of a group may connect. The group is
    /// given by its name or number.
    ///
    /// # Errors
    /// As for [`Self::open`]; also [`BpfUnavailable::Listen`] if there is no such group, or if this process may not
    /// give a file to it.
    pub fn open_for_group(path: &Path, group: &str, limits: Limits) -> Result<Self, BpfUnavailable> {
        let number = group::number(group).map_err(|why| unable(path, why))?;
        Self::start(limits, || listen_at(path, AllowedUsers::Group(number)))
    }

    /// Like [`Self::open`], but listens at the socket that a service manager passed to this process (sd_listen_fds(3)).
    /// The manager determines the path and the users that may connect, and removes the socket. Returns `None` if there
    /// is no such socket.
    ///
    /// # Errors
    /// As for [`Self::open`]; also [`BpfUnavailable::Listen`] if the socket is not a listening Unix socket of the type
    /// SOCK_SEQPACKET with a path.
    pub fn open_passed(limits: Limits) -> Result<Option<Self>, BpfUnavailable> {
        let passed = listen::passed().map_err(|why| unable(Path::new("the socket of the service manager"), why))?;
        passed.map(|listener| Self::start(limits, || Ok(listener))).transpose()
    }

    fn start(
        limits: Limits,
        listen: impl FnOnce() -> Result<Listener, BpfUnavailable>,
    ) -> Result<Self, BpfUnavailable> {
        limits.check()?;
        raise_descriptors(limits)?;
        // This is done before any thread is started, which would receive the signals.
        let signals = signals::ending().map_err(BpfUnavailable::Helper)?;
        let kernel = Kernel::load_for_others()?;
        let listener = listen()?;
        request::name_senders(listener.socket.as_fd());
        request::accept_descriptors(listener.socket.as_fd(), false);
        if listener.name.is_none() && !request::keeps_early_senders(listener.socket.as_fd()) {
            warn!(
                "the socket of the service manager lacks the option PassCredentials=yes: clients that connected before \
                 the helper started are rejected"
            );
        }
        listen::warn_of_closed_directories(&listener.path);
        let Limits { per_user, total, .. } = limits;
        info!(
            "listening at {}; serves at most {per_user} clients of one user, and {total} of all users",
            listener.path.display()
        );
        let now = Instant::now();
        Ok(Self {
            service: Service::new(kernel, limits),
            listener,
            signals,
            manager: StateMessages::from_environment(),
            sessions: Vec::new(),
            checked: now,
            busy: now,
            idle_exit: None,
            full_until: None,
        })
    }

    /// Returns the path of the socket.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.listener.path
    }

    /// Makes [`Self::serve`] return once there has been no client for this time: no connection, and no process that
    /// gets reports. The programs then no longer slow down the machine. A service manager that has the socket starts
    /// the helper again for the next client.
    pub fn exit_when_idle(&mut self, time: Duration) {
        self.idle_exit = Some(time);
    }

    /// Serves clients until SIGTERM, SIGINT or SIGHUP arrives, or until the helper is idle ([`Self::exit_when_idle`]).
    /// After that, clients keep their pages. If a service manager waits for messages (sd_notify(3)), it gets the state
    /// of the helper and the number of clients.
    ///
    /// # Errors
    /// poll(2) failed, or a program was skipped. In the second case every page is marked, so that caches no longer keep
    /// registrations.
    pub fn serve(&mut self) -> Result<(), BpfUnavailable> {
        self.manager.send("READY=1".into());
        self.busy = Instant::now();
        let ended = self.rounds();
        self.manager.send("STOPPING=1".into());
        ended
    }

    fn rounds(&mut self) -> Result<(), BpfUnavailable> {
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
            let (connections, spaces) = (self.sessions.len(), self.service.spaces());
            self.manager.send(format!("STATUS=connections: {connections}, address spaces with reports: {spaces}"));
            if connections + spaces > 0 {
                self.busy = self.checked;
            } else if let Some(time) = self.idle_exit.filter(|time| self.busy.elapsed() >= *time) {
                info!("no client for {} s: exiting", time.as_secs());
                return Ok(());
            }
        }
        let (signal, spaces) = (signals::arrived(self.signals.as_fd()), self.service.spaces());
        info!("{signal} received: exiting; {spaces} address spaces keep their reports");
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
        let mut fds = vec![PollFd::new(&self.signals, PollFlags::IN), PollFd::new(&self.listener.socket, accepts)];
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
            let socket = match accept_with(&self.listener.socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(socket) => socket,
                Err(rustix::io::Errno::CONNABORTED | rustix::io::Errno::INTR) => continue,
                Err(rustix::io::Errno::AGAIN) => return,
                Err(error) => {
                    debug!("cannot accept a client: {error}");
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
        request::accept_descriptors(self.listener.socket.as_fd(), true);
    }
}

impl Limits {
    /// Checks whether a helper can have these limits: it must serve at least one client, and the programs have room for
    /// 4,096 address spaces.
    ///
    /// # Errors
    /// [`BpfUnavailable::Limits`] with the limit and the reason.
    pub fn check(&self) -> Result<(), BpfUnavailable> {
        let wrong = |why: String| Err(BpfUnavailable::Limits(why));
        match *self {
            Self { per_user: 0, .. } => wrong("--per-user 0: no client would be served; the minimum is 1".into()),
            Self { total: 0, .. } => wrong("--total 0: no client would be served; the minimum is 1".into()),
            Self { total, .. } if total > load::SPACES => {
                wrong(format!("--total {total}: the programs have room for {} address spaces", load::SPACES))
            }
            _ => Ok(()),
        }
    }
}

fn listen_at(path: &Path, users: AllowedUsers) -> Result<Listener, BpfUnavailable> {
    if path == Path::new(super::SOCKET) {
        listen::make_default_directory().map_err(|why| unable(path, why))?;
    }
    listen::at(path, users).map_err(|why| unable(path, why))
}

fn unable(path: &Path, why: io::Error) -> BpfUnavailable {
    BpfUnavailable::Listen { path: path.display().to_string(), why }
}

/// Raises RLIMIT_NOFILE to the number that the limits require: the socket and the pidfd of the sender for each
/// connection, two maps for each address space, the descriptors of one message, and the connections that wait to be
/// closed.
fn raise_descriptors(limits: Limits) -> Result<(), BpfUnavailable> {
    let needed = (4 * limits.total + request::STRANGERS + request::LEFT + OWN) as u64;
    let Some(now) = crate::calls::limit(libc::RLIMIT_NOFILE).filter(|now| now.rlim_cur < needed) else { return Ok(()) };
    let maximum = (now.rlim_max != libc::RLIM64_INFINITY).then_some(now.rlim_max.max(needed));
    match setrlimit(Resource::Nofile, Rlimit { current: Some(needed), maximum }) {
        Ok(()) => Ok(()),
        Err(error) => Err(BpfUnavailable::Refused {
            what: "RLIMIT_NOFILE",
            why: format!(
                "--total {} takes {needed} descriptors ({error}); raise the limit or lower --total",
                limits.total
            ),
            requirement: None,
        }),
    }
}
