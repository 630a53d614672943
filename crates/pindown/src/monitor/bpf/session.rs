//! A connection to the helper, from its first message to its end.
//!
//! ```text
//! Silent -- Hello --> Settling -- published, quiet --> Challenged -- Done --> Served <-- answer --> Locked
//! ```
//!
//! Each state except `Served` has a deadline. In `Settling` the helper first waits until the page is published
//! ([`super::publish`]). In `Settling` and `Locked` it checks again after an increasing pause, and does not read from
//! the connection until then.
//!
//! The sender of every request is identified ([`super::request`]). A request is served if its sender is, at that time,
//! in the address space of the connection ([`Kernel::space_of`]).

use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::net::SendFlags;

use super::Slot;
use super::client::NOBODYS;
use super::kernel::{Inode, Kernel, SpaceId};
use super::load;
use super::page::Change;
use super::quota::{Charge, Limits, Quota, ReachedLimit};
use super::refusal::{BpfUnavailable, Denial, Unwatchable};
use super::rejections::Rejections;
use super::request::{self, CloseThreads, Closing, Request};
use super::waiting::Published;
use super::wire::{self, HelperMessage};

/// The time limit until Hello arrives, until changes that began before have ended, and until the challenge is done.
const DEADLINE: Duration = Duration::from_secs(2);
/// The time limit until the lock of an address space is free.
const LOCKED: Duration = Duration::from_millis(50);
/// The longest pause between two checks.
const PAUSE: Duration = Duration::from_millis(50);
/// The maximum number of one user's address spaces that may watch one file, of the 64 that the programs have room for.
const WATCHERS: usize = 32;

/// One connection.
#[derive(Debug)]
pub(super) struct Session {
    socket: OwnedFd,
    user: u32,
    state: SessionState,
    charge: Charge,
    /// Whether closing the connection does not block: see [`request::rejects_descriptors`].
    is_prompt: bool,
}

/// The time of the next check, and the deadline.
#[derive(Clone, Copy, Debug)]
struct Retry {
    next: Instant,
    pause: Duration,
    until: Instant,
}

impl Retry {
    fn new(now: Instant, within: Duration) -> Self {
        Self { next: now, pause: Duration::from_millis(1), until: now + within }
    }

    /// Returns the same deadline without checks before it, because another event wakes the session.
    fn idle(self) -> Self {
        Self { next: self.until, ..self }
    }

    fn again(self, now: Instant) -> Self {
        Self { next: (now + self.pause).min(self.until), pause: (2 * self.pause).min(PAUSE), ..self }
    }
}

#[derive(Debug)]
enum SessionState {
    Silent { until: Instant },
    Settling { space: SpaceId, process: OwnedFd, retry: Retry },
    Challenged { space: SpaceId, start: u64, len: u64, head: u64, until: Instant },
    Served { space: SpaceId },
    Locked { space: SpaceId, process: OwnedFd, range: Range<u64>, retry: Retry },
}

/// The end of a connection, with a reason that is sent to the client, if there is one.
type Ended = Option<Denial>;

impl Session {
    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    pub(super) fn user(&self) -> u32 {
        self.user
    }

    /// Returns whether the session reads messages in this state.
    pub(super) fn reads_messages(&self) -> bool {
        !matches!(self.state, SessionState::Settling { .. } | SessionState::Locked { .. })
    }

    /// Returns the time when the session must advance even if no message arrives.
    pub(super) fn next(&self) -> Option<Instant> {
        match &self.state {
            SessionState::Silent { until } | SessionState::Challenged { until, .. } => Some(*until),
            SessionState::Settling { retry, .. } | SessionState::Locked { retry, .. } => Some(retry.next),
            SessionState::Served { .. } => None,
        }
    }

    /// Makes the session check again at once, if it waits for its page.
    pub(super) fn hurry(&mut self, now: Instant) {
        if let SessionState::Settling { retry, .. } = &mut self.state {
            retry.next = now.min(retry.next);
        }
    }

    /// Returns the session's space while the session waits for the proof that its process is in that space; `None`
    /// otherwise.
    fn unproven(&self) -> Option<SpaceId> {
        match self.state {
            SessionState::Settling { space, .. } | SessionState::Challenged { space, .. } => Some(space),
            _ => None,
        }
    }

    fn send(&self, message: HelperMessage, fds: &[BorrowedFd<'_>]) -> Result<(), Ended> {
        // A client that does not read its answers is disconnected.
        wire::send(self.socket.as_fd(), message, fds, SendFlags::DONTWAIT).map_err(|_| None)
    }
}

/// The helper's data of an address space, in addition to its page.
#[derive(Debug)]
struct Admitted {
    /// Whether all calls and io_uring requests that began before the page existed have ended, or are distrusted.
    quiet: bool,
    /// Whether a process has proved that it is in the space.
    proven: bool,
    /// The number of sessions of the space that are in the states `Settling` and `Challenged`.
    waiting: usize,
}

/// The state that all sessions share.
#[derive(Debug)]
pub(super) struct Service {
    kernel: Kernel,
    spaces: HashMap<SpaceId, Admitted>,
    connections: Quota<u32>,
    pages: Quota<u32>,
    files: Quota<u32>,
    watchers: Quota<(u32, Inode)>,
    aside: CloseThreads,
    rejections: Rejections,
}

impl Service {
    pub(super) fn new(kernel: Kernel, limits: Limits) -> Self {
        Self {
            kernel,
            spaces: HashMap::new(),
            connections: Quota::new(limits.per_user, limits.total),
            pages: Quota::new(limits.per_user, limits.total),
            files: Quota::new(limits.files_per_user, load::INODES),
            watchers: Quota::new(WATCHERS, usize::MAX),
            aside: CloseThreads::new(),
            rejections: Rejections::default(),
        }
    }

    /// Returns an error if a program was skipped.
    pub(super) fn check(&self) -> Result<(), BpfUnavailable> {
        self.kernel.check()
    }

    /// Returns a descriptor that is readable when sessions that wait for their pages should check again, until
    /// [`Self::clear_published`].
    pub(super) fn published(&self) -> Option<BorrowedFd<'_>> {
        self.kernel.published()
    }

    pub(super) fn clear_published(&self) {
        self.kernel.clear_published();
    }

    pub(super) fn end_all(&mut self) {
        self.kernel.end_all();
    }

    /// Removes spaces that have ended.
    pub(super) fn tidy(&mut self) {
        for space in self.kernel.sweep() {
            self.spaces.remove(&space);
        }
        self.aside.retry();
        self.rejections.tidy(Instant::now());
    }

    /// Returns the number of address spaces that the programs report on.
    pub(super) fn spaces(&self) -> usize {
        self.spaces.len()
    }

    /// Begins a session, if its user may have another connection.
    pub(super) fn welcome(&mut self, socket: OwnedFd, user: u32) -> Option<Session> {
        match self.connections.take(user) {
            Ok(charge) => {
                let is_prompt = request::rejects_descriptors(socket.as_fd());
                if !is_prompt {
                    // A client that connected before the helper started did not get the listener's options.
                    request::name_senders(socket.as_fd());
                }
                let state = SessionState::Silent { until: Instant::now() + DEADLINE };
                Some(Session { socket, user, state, charge, is_prompt })
            }
            Err(reached) => {
                self.refuse(socket, user, denial(reached, Denial::TooManyClients));
                None
            }
        }
    }

    /// Returns whether a connection can be accepted now. This is false while too many rejected connections wait to be
    /// closed.
    pub(super) fn accepts(&self) -> bool {
        !self.aside.is_full()
    }

    /// Closes a connection that is not a session.
    pub(super) fn refuse(&mut self, socket: OwnedFd, user: u32, why: Denial) {
        self.rejections.add(why, user, Instant::now());
        deny(socket.as_fd(), why);
        let is_prompt = request::rejects_descriptors(socket.as_fd());
        self.aside.close(Closing { user, descriptors: vec![socket], charge: None, is_prompt });
    }

    /// Advances a session that has a message or is due. Returns `None` if the session has ended.
    pub(super) fn advance(&mut self, mut session: Session, ready: bool, now: Instant) -> Option<Session> {
        let mut strangers = Vec::new();
        let ended = match (&session.state, ready) {
            (SessionState::Settling { .. } | SessionState::Locked { .. }, true) => Err(None),
            (SessionState::Settling { .. }, false) => self.settle(&mut session, now),
            (SessionState::Locked { .. }, false) => self.look(&mut session, now),
            (_, true) => self.read_request(&mut session, now, &mut strangers),
            (SessionState::Silent { until } | SessionState::Challenged { until, .. }, false) if *until <= now => {
                Err(Some(Denial::Challenge))
            }
            (_, false) => Ok(()),
        };
        match ended {
            Ok(()) => Some(session),
            Err(why) => {
                self.part(session, why, strangers);
                None
            }
        }
    }

    /// Ends a session. Reports on its address space continue, unless no process has proved that it is in this address
    /// space.
    fn part(&mut self, session: Session, why: Ended, mut strangers: Vec<OwnedFd>) {
        if let Some(why) = why {
            self.rejections.add(why, session.user, Instant::now());
            deny(session.socket.as_fd(), why);
        }
        if let Some(space) = session.unproven() {
            self.stop_waiting(space);
        }
        strangers.push(session.socket);
        let (user, charge, is_prompt) = (session.user, Some(session.charge), session.is_prompt);
        self.aside.close(Closing { user, descriptors: strangers, charge, is_prompt });
    }

    fn stop_waiting(&mut self, space: SpaceId) {
        let Some(admitted) = self.spaces.get_mut(&space) else { return };
        admitted.waiting -= 1;
        if !admitted.proven && admitted.waiting == 0 {
            self.kernel.end(&[space]);
            self.spaces.remove(&space);
        }
    }

    /// Reads one message and answers it.
    fn read_request(&mut self, session: &mut Session, now: Instant, strangers: &mut Vec<OwnedFd>) -> Result<(), Ended> {
        let Request { message, sender, strangers: brought } = match request::receive(session.socket.as_fd()) {
            Ok(request) => request,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(_) => return Err(None),
        };
        *strangers = brought;
        let message = message.ok_or(Some(Denial::Protocol))?;
        let sender = sender.ok_or(Some(Denial::NoPidfd))?;
        match (&session.state, message) {
            (SessionState::Silent { .. }, HelperMessage::Hello { version }) if version != wire::VERSION => {
                Err(Some(Denial::Version))
            }
            (SessionState::Silent { .. }, HelperMessage::Hello { .. }) => self.begin(session, sender, now),
            (&SessionState::Challenged { space, start, len, head, .. }, HelperMessage::Done) => {
                self.grant(session, space, &(start..start + len), head, sender.as_fd())
            }
            (&SessionState::Served { space }, HelperMessage::Watch { start, end }) => {
                let retry = Retry::new(now, LOCKED);
                session.state = SessionState::Locked { space, process: sender, range: start..end, retry };
                self.look(session, now)
            }
            (&SessionState::Served { space }, HelperMessage::Unwatch { slot }) => {
                let slot = Slot::new(slot as usize).ok_or(Some(Denial::Protocol))?;
                let caller = self.kernel.identify(sender.as_fd()).map_err(Some)?;
                if self.kernel.space_of(&caller) != Some(space) {
                    return Err(Some(Denial::OtherAddressSpace));
                }
                self.kernel.unwatch(space, slot);
                session.send(HelperMessage::Unwatched, &[])
            }
            _ => Err(Some(Denial::Protocol)),
        }
    }

    /// Answers Hello: makes the programs report on the sender's address space.
    fn begin(&mut self, session: &mut Session, process: OwnedFd, now: Instant) -> Result<(), Ended> {
        let caller = self.kernel.identify(process.as_fd()).map_err(Some)?;
        if !caller.is_of(session.user) {
            return Err(Some(Denial::NotTheUsers));
        }
        let space = match self.kernel.space_of(&caller) {
            Some(space) => space,
            None => {
                let charge = self.charge_page(session.user)?;
                let space = self.kernel.admit(&caller, Some(charge)).map_err(Some)?;
                self.spaces.insert(space, Admitted { quiet: false, proven: false, waiting: 0 });
                space
            }
        };
        let admitted = self.spaces.get_mut(&space).ok_or(Some(Denial::Kernel))?;
        admitted.waiting += 1;
        session.state = SessionState::Settling { space, process, retry: Retry::new(now, DEADLINE) };
        self.settle(session, now)
    }

    fn charge_page(&mut self, user: u32) -> Result<Charge, Ended> {
        let taken = self.pages.take(user).or_else(|_| {
            // Some spaces may have ended since the last check.
            self.tidy();
            self.pages.take(user)
        });
        taken.map_err(|reached| Some(denial(reached, Denial::TooManySpaces)))
    }

    /// Sends the challenge, if the programs have the page and all calls and io_uring requests that began before have
    /// ended.
    fn settle(&mut self, session: &mut Session, now: Instant) -> Result<(), Ended> {
        let SessionState::Settling { space, ref process, ref mut retry } = session.state else { return Ok(()) };
        match self.kernel.progress(space) {
            Published::Pending if now < retry.until => {
                *retry = retry.idle();
                return Ok(());
            }
            Published::Pending | Published::Refused => return Err(Some(Denial::Kernel)),
            Published::Done => {}
        }
        let caller = self.kernel.identify(process.as_fd()).map_err(Some)?;
        if self.kernel.space_of(&caller) != Some(space) {
            return Err(Some(Denial::OtherAddressSpace));
        }
        let admitted = self.spaces.get_mut(&space).ok_or(Some(Denial::Kernel))?;
        admitted.quiet |= self.kernel.is_quiet(&caller);
        if !admitted.quiet {
            if now < retry.until {
                *retry = retry.again(now);
                return Ok(());
            }
            self.kernel.accept_unquiet(space, &caller).map_err(Some)?;
            admitted.quiet = true;
        }
        let (start, len) = unused_range().map_err(|_| Some(Denial::Kernel))?;
        let head = self.kernel.page(space).ok_or(Some(Denial::Kernel))?.0.head();
        session.state = SessionState::Challenged { space, start, len, head, until: now + DEADLINE };
        session.send(HelperMessage::Challenge { start, len }, &[])
    }

    /// Passes the page to the client, if the sender is in the space and has done the challenge.
    fn grant(
        &mut self,
        session: &mut Session,
        space: SpaceId,
        wanted: &Range<u64>,
        head: u64,
        process: BorrowedFd<'_>,
    ) -> Result<(), Ended> {
        let (page, map) = self.kernel.page(space).ok_or(Some(Denial::NoAddressSpace))?;
        // A process that makes more changes at once than the page holds must try again.
        if !page.drain(head).any(|change| matches!(change, Change::Range(range) if range == *wanted)) {
            return Err(Some(Denial::Challenge));
        }
        let caller = self.kernel.identify(process).map_err(Some)?;
        if !caller.is_of(session.user) {
            return Err(Some(Denial::NotTheUsers));
        }
        if self.kernel.space_of(&caller) != Some(space) {
            return Err(Some(Denial::OtherAddressSpace));
        }
        let doorbell = self.kernel.doorbell(space).ok_or(Some(Denial::NoAddressSpace))?;
        let fds: Vec<BorrowedFd<'_>> = [map, doorbell].into_iter().chain(self.kernel.links()).collect();
        session.send(HelperMessage::Grant, &fds)?;
        session.state = SessionState::Served { space };
        if let Some(admitted) = self.spaces.get_mut(&space) {
            admitted.proven = true;
            admitted.waiting -= 1;
        }
        self.kernel.was_given(space);
        tracing::debug!("a client of user {} gets reports", session.user);
        Ok(())
    }

    /// Answers Watch. If the lock of the address space is taken, the session checks again later.
    fn look(&mut self, session: &mut Session, now: Instant) -> Result<(), Ended> {
        let SessionState::Locked { space, ref process, ref range, retry } = session.state else { return Ok(()) };
        let watched = match self.kernel.mapping(process.as_fd(), range) {
            Err(why) => Err(why),
            Ok(mapping) if self.kernel.space_of(&mapping.identity) != Some(space) => {
                return Err(Some(Denial::OtherAddressSpace));
            }
            Ok(mapping) if !mapping.identity.is_of(session.user) => Err(Unwatchable::Gone),
            Ok(mapping) if mapping.refused == Some(Unwatchable::Locked) && now < retry.until => {
                if let SessionState::Locked { retry, .. } = &mut session.state {
                    *retry = retry.again(now);
                }
                return Ok(());
            }
            Ok(mapping) => {
                let (files, watchers, user) = (&mut self.files, &mut self.watchers, session.user);
                self.kernel.watch(space, range, &mapping, |inode| {
                    let reached = |reached| match reached {
                        ReachedLimit::Each => Unwatchable::TooManyFiles,
                        ReachedLimit::Total => Unwatchable::Full,
                    };
                    let file = files.take(user).map_err(reached)?;
                    Ok(Some([file, watchers.take((user, inode)).map_err(reached)?]))
                })
            }
        };
        session.state = SessionState::Served { space };
        session.send(
            match watched {
                Ok(slot) => HelperMessage::Watched { slot: slot.map(|slot| slot.index() as u64) },
                Err(why) => HelperMessage::Unwatchable { why: why as u64 },
            },
            &[],
        )
    }
}

fn denial(reached: ReachedLimit, each: Denial) -> Denial {
    match reached {
        ReachedLimit::Each => each,
        ReachedLimit::Total => Denial::HelperFull,
    }
}

fn deny(socket: BorrowedFd<'_>, why: Denial) {
    // A client that does not read its socket does not receive the reason.
    wire::send(socket, HelperMessage::Denied { why: why as u64 }, &[], SendFlags::DONTWAIT).ok();
}

/// Returns a random range at which no process has memory.
fn unused_range() -> io::Result<(u64, u64)> {
    let mut random = [0_u8; 16];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
    let (place, size) = random.split_at(8);
    let number = |bytes: &[u8]| bytes.iter().fold(0_u64, |all, &byte| all << 8 | u64::from(byte));
    let pages = NOBODYS.start / 4096 / 2;
    Ok((NOBODYS.start + number(place) % pages * 4096, (1 + number(size) % 4096) * 4096))
}
