//! Endpoints in a simulated network: their addresses and their connections.
//!
//! A connection is established at once, and both ends are notified. Each pair of endpoints has at most one connection.
//! An endpoint that requests another connection while its end exists gets no second notice, because the notice of the
//! first connection has already been posted.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::{Network, SimLink};
use crate::wire::contexts::Contexts;

/// A notice of a port for its endpoint.
#[derive(Debug)]
pub enum SimNotice {
    /// A connection was established.
    Established {
        /// The attempt that it completes, at the end that requested it.
        attempt: Option<u64>,
        /// The address of the other end.
        peer: SocketAddr,
        /// The context of the other end at that address.
        context: u16,
        /// The incarnation of the other end.
        incarnation: u128,
        /// The link.
        link: Box<SimLink>,
    },
    /// No endpoint has the called address and context.
    Failed {
        /// The attempt.
        attempt: u64,
        /// The address that was called.
        peer: SocketAddr,
        /// The context that was called.
        context: u16,
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

/// An address and a context. Most addresses have only context 0.
pub(super) type ContextAddress = (SocketAddr, u16);

/// The endpoints in a network.
#[derive(Debug, Default)]
pub(super) struct Directory {
    ports: HashMap<ContextAddress, (u128, Arc<Inbox>)>,
    /// Addresses that ports share, and the contexts of each.
    sites: HashMap<SocketAddr, Contexts>,
    /// The connection of each existing end, indexed by the address of the end and the address of the other end. An end
    /// exists from the time when its notice is posted until its link is dropped. A later connection replaces an earlier
    /// one.
    standing: HashMap<(ContextAddress, ContextAddress), usize>,
    next: u128,
}

impl Directory {
    /// Returns the approximate memory of the tables in bytes. A hash table uses one additional byte for each slot.
    pub(super) fn bytes(&self) -> usize {
        let places = |capacity: usize| (capacity * 8 / 7).next_power_of_two();
        places(self.ports.capacity()) * (size_of::<(SocketAddr, (u128, Arc<Inbox>))>() + 1)
            + places(self.standing.capacity()) * (size_of::<(SocketAddr, SocketAddr, usize)>() + 1)
    }
}

/// The registration of an endpoint in a simulated network.
#[derive(Debug)]
pub struct SimPort {
    network: Network,
    at: ContextAddress,
    incarnation: u128,
    inbox: Arc<Inbox>,
    _site: Option<Arc<SimSite>>,
}

/// An address that several ports share as contexts.
#[derive(Debug)]
pub struct SimSite {
    network: Network,
    address: SocketAddr,
}

impl SimSite {
    /// Returns the address.
    #[doc(hidden)]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for SimSite {
    fn drop(&mut self) {
        self.network.lock().directory.sites.remove(&self.address);
    }
}

impl Directory {
    /// Records a connection between these two ends.
    pub(super) fn stands(&mut self, connection: usize, [a, b]: [ContextAddress; 2]) {
        self.standing.extend([((a, b), connection), ((b, a), connection)]);
    }

    /// Removes this end of a connection, unless another connection has replaced it.
    pub(super) fn ended(&mut self, connection: usize, whose: ContextAddress, towards: ContextAddress) {
        if self.standing.get(&(whose, towards)) == Some(&connection) {
            self.standing.remove(&(whose, towards));
        }
    }

    fn is_free(&self, address: SocketAddr) -> bool {
        !self.ports.contains_key(&(address, 0)) && !self.sites.contains_key(&address)
    }

    /// Returns the address to bind to. Port number 0 selects a free port.
    fn address(&self, mut bind: SocketAddr) -> io::Result<SocketAddr> {
        if bind.port() == 0 {
            let free = (1..=u16::MAX).find(|port| {
                bind.set_port(*port);
                self.is_free(bind)
            });
            free.ok_or(io::ErrorKind::AddrInUse)?;
        } else if !self.is_free(bind) {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        Ok(bind)
    }

    fn enter(&mut self, at: ContextAddress) -> (u128, Arc<Inbox>) {
        self.next += 1;
        let entry = (self.next, Arc::new(Inbox::default()));
        self.ports.insert(at, entry.clone());
        entry
    }
}

impl Network {
    /// Opens a port. Port number 0 selects a free port.
    ///
    /// # Errors
    /// If the address is taken.
    #[doc(hidden)]
    pub fn port(&self, bind: SocketAddr) -> io::Result<SimPort> {
        let mut state = self.lock();
        let at = (state.directory.address(bind)?, 0);
        let (incarnation, inbox) = state.directory.enter(at);
        Ok(SimPort { network: self.clone(), at, incarnation, inbox, _site: None })
    }

    /// Opens an address that ports share as contexts.
    ///
    /// # Errors
    /// If the address is taken.
    #[doc(hidden)]
    pub fn site(&self, bind: SocketAddr, contexts: Contexts) -> io::Result<Arc<SimSite>> {
        let mut state = self.lock();
        let address = state.directory.address(bind)?;
        state.directory.sites.insert(address, contexts);
        Ok(Arc::new(SimSite { network: self.clone(), address }))
    }

    /// Opens a context of a site.
    ///
    /// # Errors
    /// If the context does not exist or is already open.
    #[doc(hidden)]
    pub fn port_of(&self, site: &Arc<SimSite>, context: u16) -> io::Result<SimPort> {
        let mut state = self.lock();
        let (directory, at) = (&mut state.directory, (site.address, context));
        if !directory.sites.get(&site.address).is_some_and(|contexts| contexts.has(context)) {
            return Err(io::ErrorKind::NotFound.into());
        }
        if directory.ports.contains_key(&at) {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        let (incarnation, inbox) = directory.enter(at);
        Ok(SimPort { network: self.clone(), at, incarnation, inbox, _site: Some(Arc::clone(site)) })
    }
}

impl SimPort {
    /// Returns the endpoint's address.
    #[doc(hidden)]
    pub const fn address(&self) -> SocketAddr {
        self.at.0
    }

    /// Returns the incarnation of the endpoint.
    #[doc(hidden)]
    pub const fn incarnation(&self) -> u128 {
        self.incarnation
    }

    /// Requests a connection.
    #[doc(hidden)]
    pub fn connect(&self, attempt: u64, peer: SocketAddr, context: u16) {
        let to = (peer, context);
        let mut state = self.network.lock();
        let directory = &mut state.directory;
        let named = directory.sites.get(&peer).is_none_or(|contexts| context < contexts.named);
        let Some((incarnation, inbox)) =
            directory.ports.get(&to).filter(|_| named).map(|(who, inbox)| (*who, Arc::clone(inbox)))
        else {
            drop(state);
            return self.inbox.push(SimNotice::Failed { attempt, peer, context });
        };
        if directory.standing.contains_key(&(self.at, to)) {
            return;
        }
        let (ours, theirs) = state.connect(&self.network, Some([self.at, to]));
        drop(state);
        inbox.push(SimNotice::Established {
            attempt: None,
            peer: self.at.0,
            context: self.at.1,
            incarnation: self.incarnation,
            link: Box::new(theirs),
        });
        let (attempt, link) = (Some(attempt), Box::new(ours));
        self.inbox.push(SimNotice::Established { attempt, peer, context, incarnation, link });
    }

    /// Returns whether there may be notices.
    #[inline]
    #[doc(hidden)]
    pub fn has_notices(&self) -> bool {
        self.inbox.flag.load(Ordering::Acquire)
    }

    /// Removes and returns all notices, oldest first.
    #[doc(hidden)]
    pub fn take_notices(&self) -> Vec<SimNotice> {
        let mut notices = self.inbox.notices.lock().unwrap_or_else(PoisonError::into_inner);
        self.inbox.flag.store(false, Ordering::Release);
        std::mem::take(&mut *notices)
    }
}

impl Drop for SimPort {
    fn drop(&mut self) {
        let mut state = self.network.lock();
        let ours = self.at;
        state.directory.ports.remove(&ours);
        state.directory.standing.retain(|(whose, _), _| *whose != ours);
    }
}
