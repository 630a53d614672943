//! The replacement of `sim` in a build without that feature, which has no simulated network.
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
pub struct Network(Infallible);

impl Network {
    #[doc(hidden)]
    pub fn shares_descriptors(&self) -> bool {
        match self.0 {}
    }

    #[doc(hidden)]
    pub fn port(&self, _: SocketAddr) -> io::Result<SimPort> {
        match self.0 {}
    }

    #[doc(hidden)]
    pub fn site(&self, _: SocketAddr, _: Contexts) -> io::Result<Arc<SimSite>> {
        match self.0 {}
    }

    #[doc(hidden)]
    pub fn port_of(&self, _: &Arc<SimSite>, _: u16) -> io::Result<SimPort> {
        match self.0 {}
    }
}

/// An address that several ports share.
#[derive(Debug)]
pub struct SimSite(Infallible);

impl SimSite {
    #[doc(hidden)]
    pub fn address(&self) -> SocketAddr {
        match self.0 {}
    }
}

/// The registration of an endpoint in a network.
#[derive(Debug)]
pub struct SimPort(Infallible);

impl SimPort {
    #[doc(hidden)]
    pub fn address(&self) -> SocketAddr {
        match self.0 {}
    }

    #[doc(hidden)]
    pub fn incarnation(&self) -> u128 {
        match self.0 {}
    }

    #[doc(hidden)]
    pub fn connect(&self, _: u64, _: SocketAddr, _: u16) {
        match self.0 {}
    }

    #[doc(hidden)]
    pub fn has_notices(&self) -> bool {
        match self.0 {}
    }

    #[doc(hidden)]
    pub fn take_notices(&self) -> Vec<SimNotice> {
        match self.0 {}
    }
}

/// A notice of a port for its endpoint.
#[derive(Debug)]
#[doc(hidden)]
pub enum SimNotice {
    Established { attempt: Option<u64>, peer: SocketAddr, context: u16, incarnation: u128, link: Box<SimLink> },
    Failed { attempt: u64, peer: SocketAddr, context: u16 },
}

/// One end of a connection of a [`Network`].
#[derive(Debug)]
pub struct SimLink(Infallible);

crate::absent::absent_link!(SimLink);
