//! The helper: it has loaded the programs and lends their reports to processes that may not.
//!
//! One thread, one loop. Nothing that a client sends or leaves undone makes it wait: sockets do not block, and whoever
//! does not take its answers is dropped.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{RecvFlags, SendFlags, SocketFlags, accept_with};

use super::Slot;
use super::client::NOBODYS;
use super::kernel::Kernel;
use super::page::Change;
use super::refusal::{Denial, Unavailable, Unwatchable};
use super::wire::{self, Message};

/// How many clients a helper serves.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections and address spaces of one user's, root's included.
    pub per_user: usize,
    /// Of all users together.
    pub total: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { per_user: 256, total: 2048 }
    }
}

/// Until the challenge must be met.
const PATIENCE: Duration = Duration::from_secs(2);
/// Between checks for skipped programs.
const ROUND: Duration = Duration::from_millis(200);

/// A helper: the programs, and a socket where clients ask.
#[derive(Debug)]
pub struct Helper {
    kernel: Kernel,
    listener: OwnedFd,
    path: PathBuf,
    limits: Limits,
    clients: Vec<Client>,
    /// Address spaces whose owner proved itself: user, and the process whose end ends the reports.
    spaces: HashMap<u64, (u32, OwnedFd)>,
}

#[derive(Debug)]
struct Client {
    socket: OwnedFd,
    process: OwnedFd,
    user: u32,
    state: State,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Silent { until: Instant },
    Challenged { mm: u64, start: u64, len: u64, head: u64, until: Instant },
    Served { mm: u64 },
}

impl Helper {
    /// Loads the programs and listens at `path`, where anybody may connect.
    ///
    /// # Errors
    /// Why the programs cannot be loaded; `AddrInUse` in [`Unavailable::Helper`] if another helper listens there.
    pub fn open(path: &Path, limits: Limits) -> Result<Self, Unavailable> {
        let kernel = Kernel::load()?;
        let listener = super::listen::at(path).map_err(Unavailable::Helper)?;
        let (clients, spaces) = (Vec::new(), HashMap::new());
        Ok(Self { kernel, listener, path: path.to_owned(), limits, clients, spaces })
    }

    /// Where it listens.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Serves, for ever.
    ///
    /// # Errors
    /// If poll(2) fails, or a program was skipped: every page is marked then, so that nobody keeps anything any more.
    pub fn serve(&mut self) -> Result<(), Unavailable> {
        loop {
            self.turn(ROUND).map_err(Unavailable::Helper)?;
            if let Err(error) = self.kernel.check() {
                self.kernel.end_all();
                return Err(error);
            }
        }
    }

    /// One round: waits for something to do, at most `wait`, and does it.
    fn turn(&mut self, wait: Duration) -> io::Result<()> {
        let timeout = Timespec { tv_sec: wait.as_secs().cast_signed(), tv_nsec: i64::from(wait.subsec_nanos()) };
        let mut fds = vec![PollFd::new(&self.listener, PollFlags::IN)];
        fds.extend(self.clients.iter().map(|client| PollFd::new(&client.socket, PollFlags::IN)));
        let order: Vec<u64> = self.spaces.keys().copied().collect();
        fds.extend(order.iter().map(|mm| PollFd::new(&self.spaces[mm].1, PollFlags::IN)));
        match poll(&mut fds, Some(&timeout)) {
            Err(rustix::io::Errno::INTR) => return Ok(()),
            answer => answer?,
        };
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        drop(fds);
        let (sockets, processes) = ready[1..].split_at(self.clients.len());
        for (mm, ended) in order.iter().zip(processes) {
            if *ended {
                self.kernel.end(*mm);
                self.spaces.remove(mm);
            }
        }
        let now = Instant::now();
        for index in (0..sockets.len()).rev().filter(|&index| sockets[index]) {
            let client = self.clients.swap_remove(index);
            let stays = self.hear(client);
            self.clients.extend(stays);
        }
        let late: Vec<usize> = (0..self.clients.len()).rev().filter(|&i| self.clients[i].is_late(now)).collect();
        for index in late {
            let client = self.clients.swap_remove(index);
            self.part(&client, Some(Denial::Challenge));
        }
        if ready[0] {
            self.accept();
        }
        Ok(())
    }

    fn accept(&mut self) {
        // A client that has gone again is no client.
        let Ok(socket) = accept_with(&self.listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) else { return };
        let Ok(user) = wire::peer_user(socket.as_fd()) else { return };
        let of_user = self.clients.iter().filter(|client| client.user == user).count();
        if of_user >= self.limits.per_user || self.clients.len() >= self.limits.total {
            return deny(socket.as_fd(), Denial::TooManyClients);
        }
        match wire::peer_process(socket.as_fd()) {
            Ok(process) => {
                let state = State::Silent { until: Instant::now() + PATIENCE };
                self.clients.push(Client { socket, process, user, state });
            }
            Err(_) => deny(socket.as_fd(), Denial::NoPidfd),
        }
    }

    /// Reads one message and answers it. `None`: the connection is over.
    fn hear(&mut self, mut client: Client) -> Option<Client> {
        let message = match wire::receive(client.socket.as_fd(), RecvFlags::DONTWAIT) {
            Ok((message, _)) => message,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Some(client),
            Err(error) => {
                let why = (error.kind() == io::ErrorKind::InvalidData).then_some(Denial::Protocol);
                self.part(&client, why);
                return None;
            }
        };
        match self.answer(&mut client, message) {
            Ok(()) => Some(client),
            Err(why) => {
                self.part(&client, why);
                None
            }
        }
    }

    fn answer(&mut self, client: &mut Client, message: Message) -> Result<(), Option<Denial>> {
        match (client.state, message) {
            (State::Silent { .. }, Message::Hello { version }) if version != wire::VERSION => {
                Err(Some(Denial::Version))
            }
            (State::Silent { .. }, Message::Hello { .. }) => self.challenge(client),
            (State::Challenged { mm, start, len, head, .. }, Message::Done) => {
                let (page, map) = self.kernel.page(mm).ok_or(Some(Denial::NoAddressSpace))?;
                let wanted = Change::Range(start..start + len);
                // Who else reports so much at once must try again.
                if !page.drain(head).any(|change| change == wanted) {
                    return Err(Some(Denial::Challenge));
                }
                let bell = self.kernel.bell(mm).ok_or(Some(Denial::NoAddressSpace))?;
                let fds: Vec<BorrowedFd<'_>> = [map, bell].into_iter().chain(self.kernel.links()).collect();
                client.send(Message::Grant, &fds)?;
                client.state = State::Served { mm };
                let owner = client.process.try_clone().map_err(|_| Some(Denial::Kernel))?;
                self.spaces.entry(mm).or_insert((client.user, owner));
                Ok(())
            }
            (State::Served { mm }, Message::Watch { start, end }) => {
                let same = self.kernel.identify_for(client.process.as_fd(), client.user).is_ok_and(|now| now.mm == mm);
                let watched = if same {
                    self.kernel.watch(client.process.as_fd(), mm, &(start..end))
                } else {
                    Err(Unwatchable::Gone)
                };
                client.send(
                    match watched {
                        Ok(slot) => Message::Watched { slot: slot.map(|slot| slot.index() as u64) },
                        Err(why) => Message::Unwatchable { why: why as u64 },
                    },
                    &[],
                )
            }
            (State::Served { mm }, Message::Unwatch { slot }) => {
                let slot = Slot::new(slot as usize).ok_or(Some(Denial::Protocol))?;
                self.kernel.unwatch(mm, slot);
                client.send(Message::Unwatched, &[])
            }
            _ => Err(Some(Denial::Protocol)),
        }
    }

    fn challenge(&mut self, client: &mut Client) -> Result<(), Option<Denial>> {
        let identity = self.kernel.identify_for(client.process.as_fd(), client.user).map_err(Some)?;
        self.kernel.sweep();
        self.spaces.retain(|&mm, _| self.kernel.knows(mm));
        if !self.spaces.contains_key(&identity.mm) {
            let of_user = self.spaces.values().filter(|(user, _)| *user == client.user).count();
            if of_user >= self.limits.per_user || self.spaces.len() >= self.limits.total {
                return Err(Some(Denial::TooManyClients));
            }
        }
        self.kernel.admit(client.process.as_fd(), identity.mm).map_err(Some)?;
        let (start, len) = somewhere().map_err(|_| Some(Denial::Kernel))?;
        let head = self.kernel.page(identity.mm).ok_or(Some(Denial::Kernel))?.0.head();
        let until = Instant::now() + PATIENCE;
        client.state = State::Challenged { mm: identity.mm, start, len, head, until };
        client.send(Message::Challenge { start, len }, &[])
    }

    /// Says goodbye. Reports on an address space go on, unless nobody ever proved to be in it.
    fn part(&mut self, client: &Client, why: Option<Denial>) {
        if let Some(why) = why {
            deny(client.socket.as_fd(), why);
        }
        if let State::Challenged { mm, .. } = client.state {
            let waits = |other: &Client| matches!(other.state, State::Challenged { mm: its, .. } if its == mm);
            if !self.spaces.contains_key(&mm) && !self.clients.iter().any(waits) {
                self.kernel.end(mm);
            }
        }
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        // Somebody may have removed it before.
        fs::remove_file(&self.path).ok();
    }
}

impl Client {
    fn send(&self, message: Message, fds: &[BorrowedFd<'_>]) -> Result<(), Option<Denial>> {
        wire::send(self.socket.as_fd(), message, fds, SendFlags::DONTWAIT).map_err(|_| None)
    }

    fn is_late(&self, now: Instant) -> bool {
        match self.state {
            State::Silent { until } | State::Challenged { until, .. } => now > until,
            State::Served { .. } => false,
        }
    }
}

fn deny(socket: BorrowedFd<'_>, why: Denial) {
    // Who does not listen need not know.
    wire::send(socket, Message::Denied { why: why as u64 }, &[], SendFlags::DONTWAIT).ok();
}

/// A random range where nobody has memory.
fn somewhere() -> io::Result<(u64, u64)> {
    let mut random = [0_u8; 16];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
    let (place, size) = random.split_at(8);
    let number = |bytes: &[u8]| bytes.iter().fold(0_u64, |all, &byte| all << 8 | u64::from(byte));
    let pages = NOBODYS.start / 4096 / 2;
    Ok((NOBODYS.start + number(place) % pages * 4096, (1 + number(size) % 4096) * 4096))
}
