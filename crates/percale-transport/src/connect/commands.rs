//! What endpoints, and the threads that make queue pairs, ask of the service thread, and the queue by which they do.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};

use super::ConnectTimeouts;
use super::handshake::Key;
use super::listen::Listeners;
use super::mailbox::{LocalBell, Mailbox};
use super::naming::Naming;
use crate::later::later;
use crate::system::event::EventDescriptor;
use crate::system::forked::Process;
use crate::verbs::{Adapter, Wire};
use crate::wire::hello::{HelloFlags, Incarnation, Place};

/// The initial state of an endpoint at the service thread.
pub(super) struct Opened {
    pub(super) listeners: Listeners,
    pub(super) flags: HelloFlags,
    pub(super) place: Place,
    pub(super) incarnation: Incarnation,
    pub(super) key: Option<Key>,
    pub(super) timeouts: ConnectTimeouts,
    pub(super) cma: bool,
    pub(super) verbs: Option<Arc<Adapter>>,
    pub(super) bell: Option<Arc<dyn LocalBell>>,
    pub(super) shm_missing: Option<Arc<str>>,
    /// For a context: the site to which it belongs, and its number there.
    pub(super) site: Option<(u64, u16)>,
    /// Of a site: how many of its contexts can be named.
    pub(super) contexts: Option<u16>,
    pub(super) naming: Naming,
    pub(super) mailbox: Arc<Mailbox>,
}

/// What endpoints ask of the thread.
pub(super) enum Command {
    Open(u64, Box<Opened>),
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
    /// Sent by the threads that make queue pairs, not by an endpoint: the result of one.
    Paired {
        setup: u64,
        number: u64,
        result: Result<Box<Wire>, u32>,
    },
    Close(u64, mpsc::SyncSender<()>),
    Stop,
}

/// What both the handles and the thread hold.
pub(super) struct Shared {
    /// `None` once the thread has ended: later commands are dropped, so that no caller waits for an answer.
    commands: Mutex<Option<VecDeque<Command>>>,
    pub(super) wake: EventDescriptor,
    /// The process that the thread lives in.
    process: Process,
    /// Endpoints and everything else that the thread keeps are numbered from here.
    next: AtomicU64,
}

impl Shared {
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

    /// Returns whether this is the process that the thread lives in.
    pub(super) fn is_home(&self) -> bool {
        self.process.is_here()
    }
}

/// Lives as long as the thread does, however that ends.
pub(super) struct Running(pub(super) Arc<Shared>);

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.0.commands.lock().unwrap_or_else(PoisonError::into_inner).take());
    }
}
