//! The replacement of `sim` in a build without that feature: there is no simulated network.
//!
//! The types have no values. They have the methods that modules outside `sim` call, so that those modules need few
//! conditions.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use crate::wire::contexts::Contexts;

/// A simulated network.
#[derive(Clone, Debug)]
pub(crate) struct Network(Infallible);

impl Network {
    pub(crate) fn shares_descriptors(&self) -> bool {
        match self.0 {}
    }

    pub(crate) fn port(&self, _: SocketAddr) -> io::Result<Port> {
        match self.0 {}
    }

    pub(crate) fn site(&self, _: SocketAddr, _: Contexts) -> io::Result<Arc<SimSite>> {
        match self.0 {}
    }

    pub(crate) fn port_of(&self, _: &Arc<SimSite>, _: u16) -> io::Result<Port> {
        match self.0 {}
    }
}

/// An address that several ports share.
#[derive(Debug)]
pub(crate) struct SimSite(Infallible);

impl SimSite {
    pub(crate) fn address(&self) -> SocketAddr {
        match self.0 {}
    }
}

/// The registration of an endpoint in a network.
#[derive(Debug)]
pub(crate) struct Port(Infallible);

impl Port {
    pub(crate) fn address(&self) -> SocketAddr {
        match self.0 {}
    }

    pub(crate) fn incarnation(&self) -> u128 {
        match self.0 {}
    }

    pub(crate) fn connect(&self, _: u64, _: SocketAddr, _: u16) {
        match self.0 {}
    }

    pub(crate) fn has_notices(&self) -> bool {
        match self.0 {}
    }

    pub(crate) fn take_notices(&self) -> Vec<SimNotice> {
        match self.0 {}
    }
}

/// A notice of a port for its endpoint.
#[derive(Debug)]
#[expect(dead_code, reason = "no port has notices")]
pub(crate) enum SimNotice {
    Established { attempt: Option<u64>, peer: SocketAddr, context: u16, incarnation: u128, link: Box<SimLink> },
    Failed { attempt: u64, peer: SocketAddr, context: u16 },
}

/// One end of a connection of a [`Network`].
#[derive(Debug)]
pub(crate) struct SimLink(Infallible);

crate::transport::absent::absent_link!(SimLink);
