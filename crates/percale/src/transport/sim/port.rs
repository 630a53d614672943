//! Endpoints in a simulated network: their addresses, and how they find each other.
//!
//! A connection stands at once, both ends are told by a notice. Each pair has at most one: whoever asks again while its end stands
//! is told nothing, since the notice of the first is on its way to it.

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::{Network, SimLink};

/// What a port tells its endpoint.
#[derive(Debug)]
pub enum SimNotice {
    /// A connection stands.
    Established {
        /// The attempt that it settles, at the end that asked.
        attempt: Option<u64>,
        /// The other end.
        peer: SocketAddr,
        /// This life of the other end.
        incarnation: u128,
        /// The link.
        link: Box<SimLink>,
    },
    /// Nobody is there.
    Failed {
        /// Which attempt.
        attempt: u64,
        /// Where nobody is.
        peer: SocketAddr,
    },
}

#[derive(Debug, Default)]
struct Inbox {
    flag: AtomicBool,
    notices: Mutex<Vec<SimNotice>>,
}

impl Inbox {
    fn push(&self, notice: SimNotice) {
        self.notices.lock().unwrap_or_else(PoisonError::into_inner).push(notice);
        self.flag.store(true, Ordering::Release);
    }
}

/// Who is in a network.
#[derive(Debug, Default)]
pub(super) struct Directory {
    ports: HashMap<SocketAddr, (u128, Arc<Inbox>)>,
    /// Ends that stand: (whose, towards whom).
    standing: HashSet<(SocketAddr, SocketAddr)>,
    next: u128,
}

impl Directory {
    /// Bytes that its tables take, about: hash tables note each place by a byte more.
    pub(super) fn bytes(&self) -> usize {
        let places = |capacity: usize| (capacity * 8 / 7).next_power_of_two();
        places(self.ports.capacity()) * (size_of::<(SocketAddr, (u128, Arc<Inbox>))>() + 1)
            + places(self.standing.capacity()) * (size_of::<(SocketAddr, SocketAddr)>() + 1)
    }
}

/// An endpoint's place in a simulated network.
#[derive(Debug)]
pub struct Port {
    network: Network,
    address: SocketAddr,
    incarnation: u128,
    inbox: Arc<Inbox>,
}

impl Network {
    /// Opens a port; port number 0 takes a free one.
    ///
    /// # Errors
    /// If the address is taken.
    pub(crate) fn port(&self, bind: SocketAddr) -> io::Result<Port> {
        let mut state = self.lock();
        let directory = &mut state.directory;
        directory.next += 1;
        let incarnation = directory.next;
        let mut address = bind;
        if address.port() == 0 {
            let free = (1..=u16::MAX).find(|port| {
                address.set_port(*port);
                !directory.ports.contains_key(&address)
            });
            free.ok_or(io::ErrorKind::AddrInUse)?;
        } else if directory.ports.contains_key(&address) {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        let inbox = Arc::new(Inbox::default());
        directory.ports.insert(address, (incarnation, Arc::clone(&inbox)));
        Ok(Port { network: self.clone(), address, incarnation, inbox })
    }
}

impl Port {
    /// The endpoint's address.
    pub(crate) const fn address(&self) -> SocketAddr {
        self.address
    }

    /// This life of the endpoint.
    pub(crate) const fn incarnation(&self) -> u128 {
        self.incarnation
    }

    /// Asks for a connection.
    pub(crate) fn connect(&self, attempt: u64, peer: SocketAddr) {
        let mut state = self.network.lock();
        let directory = &mut state.directory;
        let Some((incarnation, inbox)) = directory.ports.get(&peer).map(|(who, inbox)| (*who, Arc::clone(inbox)))
        else {
            drop(state);
            return self.inbox.push(SimNotice::Failed { attempt, peer });
        };
        if !directory.standing.insert((self.address, peer)) {
            return;
        }
        directory.standing.insert((peer, self.address));
        drop(state);
        let (ours, theirs) = self.network.connect();
        inbox.push(SimNotice::Established {
            attempt: None,
            peer: self.address,
            incarnation: self.incarnation,
            link: Box::new(theirs),
        });
        self.inbox.push(SimNotice::Established { attempt: Some(attempt), peer, incarnation, link: Box::new(ours) });
    }

    /// Our end of the connection to `peer` is gone.
    pub(crate) fn closed(&self, peer: SocketAddr) {
        self.network.lock().directory.standing.remove(&(self.address, peer));
    }

    /// Whether there may be notices.
    #[inline]
    pub(crate) fn has_notices(&self) -> bool {
        self.inbox.flag.load(Ordering::Acquire)
    }

    /// The notices, oldest first.
    pub(crate) fn take_notices(&self) -> Vec<SimNotice> {
        let mut notices = self.inbox.notices.lock().unwrap_or_else(PoisonError::into_inner);
        self.inbox.flag.store(false, Ordering::Release);
        std::mem::take(&mut *notices)
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        let mut state = self.network.lock();
        let ours = self.address;
        state.directory.ports.remove(&ours);
        state.directory.standing.retain(|(whose, _)| *whose != ours);
    }
}
