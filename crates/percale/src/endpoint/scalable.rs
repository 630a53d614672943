//! Scalable endpoints: one address, several contexts (libfabric's `fi_scalable_ep`).
//!
//! Context `i` is both transmit context `i` and receive context `i`. It is an endpoint with its own queues and
//! counters. It shares only the address with the other contexts, and takes no lock for that. Peers address it with
//! [`PeerAddress::receive_context`](crate::PeerAddress::receive_context), in a vector that reserves
//! [bits](crate::address::VectorBuilder::receive_context_bits) for that. An address without a context number refers to
//! context 0. The source of a message is the sender's number without a context, whichever context sent it. A receive
//! [directed](crate::endpoint::work::ReceiveWork::from) at a peer takes messages from the context of that address.
//! Contexts of one endpoint can send to each other.
//!
//! Operations that refer to a context that does not exist are refused. If a context is not open yet, operations wait
//! for it for as long as establishing a connection may take.
//!
//! If the two halves of context `i` have different owners, the sending half is a separate endpoint, a *sender*
//! ([`ScalableBuilder::senders`], [`ScalableEndpoint::open_sender`]). Its messages have the same source as those of
//! context `i`, so receives that are directed at context `i` take them. Peers cannot send to it. Each half is opened
//! and closed separately.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use super::builder::{BindError, Purpose, resolve};
use super::{Endpoint, EndpointBuilder, SharedEndpoint};
use crate::domain::Domain;
use crate::transport::connect::{EndpointOptions, Site};
use crate::transport::sim::SimSite;
use crate::wire::contexts::{Contexts, half_of, sender};
use crate::wire::hello::Incarnation;

/// The maximum number of contexts of one endpoint.
pub const CONTEXT_LIMIT: u16 = 256;

/// An address that contexts share. It is closed when this handle and all contexts are dropped.
#[derive(Clone)]
pub struct ScalableEndpoint {
    domain: Domain,
    place: SharedAddress,
    contexts: Contexts,
    authorization_key: Option<Vec<u8>>,
}

crate::short_debug!(ScalableEndpoint, "ScalableEndpoint");

/// The address at which contexts are reached.
#[derive(Clone, Debug)]
pub(super) enum SharedAddress {
    Service(Arc<Site>),
    Sim(Arc<SimSite>),
}

/// The address and number with which a context is opened.
#[derive(Debug)]
pub(super) struct ContextSlot {
    pub(super) place: SharedAddress,
    /// The context's number (`wire::contexts`).
    pub(super) index: u16,
    pub(super) contexts: Contexts,
}

impl ContextSlot {
    /// Returns the error for a context that could not be opened.
    pub(super) fn error(&self, address: SocketAddr, error: io::Error) -> BindError {
        let (index, contexts) = match half_of(self.index) {
            Some(index) => (index, self.contexts.senders),
            None => (self.index, self.contexts.all),
        };
        match error.kind() {
            io::ErrorKind::NotFound => BindError::NoContext { index, contexts },
            io::ErrorKind::AddrInUse => BindError::ContextOpen(index),
            _ => BindError::Bind { address, error },
        }
    }
}

/// Builds a scalable endpoint.
#[must_use = "nothing is opened before `bind`"]
pub struct ScalableBuilder<'d> {
    domain: &'d Domain,
    contexts: u16,
    receiving: Option<u16>,
    senders: u16,
    authorization_key: Option<Vec<u8>>,
}

crate::short_debug!(ScalableBuilder<'_>, "ScalableBuilder");

impl Domain {
    /// Builds a scalable endpoint: several contexts behind one address.
    pub const fn scalable_endpoint(&self) -> ScalableBuilder<'_> {
        ScalableBuilder::new(self)
    }
}

impl<'d> ScalableBuilder<'d> {
    const fn new(domain: &'d Domain) -> Self {
        Self { domain, contexts: 1, receiving: None, senders: 0, authorization_key: None }
    }

    /// Sets the number of contexts, 1 to [`CONTEXT_LIMIT`]. Default 1.
    pub const fn contexts(mut self, contexts: u16) -> Self {
        self.contexts = contexts;
        self
    }

    /// Sets how many contexts peers may address, beginning with the first. The other contexts only send. Default: all.
    pub const fn receiving(mut self, contexts: u16) -> Self {
        self.receiving = Some(contexts);
        self
    }

    /// Sets the number of senders besides the contexts, at most [`CONTEXT_LIMIT`]. A sender is an endpoint that only
    /// sends. It is the sending half of the context with the same number. Default: none.
    pub const fn senders(mut self, senders: u16) -> Self {
        self.senders = senders;
        self
    }

    /// Sets the authorization key of all contexts, like [`EndpointBuilder::authorization_key`].
    pub fn authorization_key(mut self, key: impl Into<Vec<u8>>) -> Self {
        self.authorization_key = Some(key.into());
        self
    }

    /// Binds the address (`HOST:PORT`; port 0 for any free one). Its contexts are [opened](ScalableEndpoint::open)
    /// later.
    ///
    /// # Errors
    /// If the address cannot be bound, or the number of contexts is 0 or too high.
    pub fn bind(self, address: impl AsRef<str>) -> Result<ScalableEndpoint, BindError> {
        let Self { domain, contexts, receiving, senders, authorization_key } = self;
        let contexts = Contexts { all: contexts, named: receiving.unwrap_or(contexts), senders };
        let most = contexts.all.max(contexts.named).max(senders);
        if contexts.all == 0 || most > CONTEXT_LIMIT {
            return Err(BindError::Contexts(most));
        }
        if !domain.inner.is_here() {
            return Err(BindError::Forked);
        }
        let bind = resolve(address.as_ref())?;
        let settings = &domain.inner.settings;
        let failed = |error| BindError::Bind { address: bind, error };
        let place = if let Some(network) = &settings.sim {
            SharedAddress::Sim(network.site(bind, contexts).map_err(failed)?)
        } else {
            let service = domain.inner.service.as_ref().ok_or(io::ErrorKind::NotConnected).map_err(io::Error::from)?;
            let options = EndpointOptions {
                interface: settings.interface.clone(),
                authorization_key: authorization_key.clone().or_else(|| settings.authorization_key.clone()),
                timeouts: settings.connect_timeouts,
                ..EndpointOptions::new(bind, Incarnation::random()?)
            };
            SharedAddress::Service(service.open_site(options, contexts).map_err(failed)?)
        };
        Ok(ScalableEndpoint { domain: domain.clone(), place, contexts, authorization_key })
    }
}

impl ScalableEndpoint {
    /// Returns the address that peers insert in their vectors.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        match &self.place {
            SharedAddress::Service(site) => site.address(),
            SharedAddress::Sim(site) => site.address(),
        }
    }

    /// Returns the number of contexts, without the senders.
    #[must_use]
    pub const fn contexts(&self) -> u16 {
        self.contexts.all
    }

    /// Opens a context, for one owner. `builder` sets the queues and counters to which it reports. Its authorization
    /// key is that of the scalable endpoint.
    ///
    /// # Errors
    /// If there is no such context, it is already open, or the system refuses descriptors.
    pub fn open(&self, index: u16, builder: EndpointBuilder<'_>) -> Result<Endpoint, BindError> {
        self.seated(index, builder).owned(self.address(), Purpose::Many)
    }

    /// Like [`open`](Self::open), but for many threads.
    ///
    /// # Errors
    /// Those of [`open`](Self::open).
    pub fn open_shared(&self, index: u16, builder: EndpointBuilder<'_>) -> Result<SharedEndpoint, BindError> {
        self.seated(index, builder).shared(self.address(), Purpose::Many)
    }

    /// Opens a sender, for one owner, like [`open`](Self::open).
    ///
    /// # Errors
    /// Those of [`open`](Self::open).
    pub fn open_sender(&self, index: u16, builder: EndpointBuilder<'_>) -> Result<Endpoint, BindError> {
        self.seated(self.sender(index)?, builder).owned(self.address(), Purpose::Many)
    }

    /// Like [`open_sender`](Self::open_sender), but for many threads.
    ///
    /// # Errors
    /// Those of [`open`](Self::open).
    pub fn open_sender_shared(&self, index: u16, builder: EndpointBuilder<'_>) -> Result<SharedEndpoint, BindError> {
        self.seated(self.sender(index)?, builder).shared(self.address(), Purpose::Many)
    }

    /// Returns the index of a sender.
    fn sender(&self, index: u16) -> Result<u16, BindError> {
        let contexts = self.contexts.senders;
        sender(index).filter(|_| index < contexts).ok_or(BindError::NoContext { index, contexts })
    }

    fn seated<'d>(&self, index: u16, mut builder: EndpointBuilder<'d>) -> EndpointBuilder<'d> {
        debug_assert!(Arc::ptr_eq(&builder.domain.inner, &self.domain.inner), "a context of another domain");
        builder.authorization_key = self.authorization_key.clone();
        builder.context_slot = Some(ContextSlot { place: self.place.clone(), index, contexts: self.contexts });
        builder
    }
}
