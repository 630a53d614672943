//! The commands that endpoints and the threads that create queue pairs send to the service thread, and the command
//! queue.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};

use super::ConnectTimeouts;
use super::handshake::AuthorizationKey;
use super::listen::Listeners;
use super::mailbox::{LocalDoorbell, Mailbox};
use super::naming::Naming;
use crate::later::later;
use crate::system::event::EventDescriptor;
use crate::system::forked::Process;
use crate::verbs::{Adapter, Wire};
use crate::wire::hello::{HelloFlags, HostIdentity, Incarnation};

/// The initial state of an endpoint in the service thread.
pub(super) struct InitialState {
    pub(super) listeners: Listeners,
    pub(super) flags: HelloFlags,
    pub(super) place: HostIdentity,
    pub(super) incarnation: Incarnation,
    pub(super) key: Option<AuthorizationKey>,
    pub(super) timeouts: ConnectTimeouts,
    pub(super) cma: bool,
    pub(super) verbs: Option<Arc<Adapter>>,
    pub(super) doorbell: Option<Arc<dyn LocalDoorbell>>,
    pub(super) shm_missing: Option<Arc<str>>,
    /// For a context: the site to which it belongs, and its index there.
    pub(super) site: Option<(u64, u16)>,
    /// For a site: the number of contexts that can be addressed.
    pub(super) contexts: Option<u16>,
    pub(super) naming: Naming,
    pub(super) mailbox: Arc<Mailbox>,
}

/// A command for the service thread.
pub(super) enum Command {
    Open(u64, Box<InitialState>),
    Connect {
        endpoint: u64,
        attempt: u64,
        peer: SocketAddr,
        context: u16,
    },
    Closed {
        endpoint: u64,
        serial: u64,
    },
    /// The result of a thread that creates queue pairs.
    Paired {
        setup: u64,
        number: u64,
        result: Result<Box<Wire>, u32>,
    },
    Close(u64, mpsc::SyncSender<()>),
    Stop,
}

/// The state that the handles share with the thread.
pub(super) struct ServiceState {
    /// `None` once the thread has ended. Later commands are dropped, so that no caller waits for an answer.
    commands: Mutex<Option<VecDeque<Command>>>,
    pub(super) wake: EventDescriptor,
    /// The process in which the thread runs.
    process: Process,
    /// The next unused number, for endpoints and all other objects of the thread.
    next: AtomicU64,
}

impl ServiceState {
    pub(super) fn new() -> io::Result<Self> {
        let wake = EventDescriptor::new()?;
        Ok(Self {
            commands: Mutex::new(Some(VecDeque::new())),
            wake,
            process: Process::current()?,
            next: AtomicU64::new(1),
        })
    }

    pub(super) fn send(&self, command: Command) {
        match &mut *self.commands.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(queue) => queue.push_back(command),
            None => return,
        }
        if let Err(error) = self.wake.signal() {
            later!(error: %error, "the connection service could not be woken");
        }
    }

    pub(super) fn take(&self) -> VecDeque<Command> {
        let mut commands = self.commands.lock().unwrap_or_else(PoisonError::into_inner);
        commands.as_mut().map(std::mem::take).unwrap_or_default()
    }

    pub(super) fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns whether this is the process in which the thread runs.
    pub(super) fn is_home(&self) -> bool {
        self.process.is_here()
    }
}

/// A guard that exists as long as the thread. It is dropped no matter how the thread ends.
pub(super) struct RunningGuard(pub(super) Arc<ServiceState>);

impl Drop for RunningGuard {
    fn drop(&mut self) {
        drop(self.0.commands.lock().unwrap_or_else(PoisonError::into_inner).take());
    }
}
