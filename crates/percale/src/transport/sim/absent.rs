//! In place of `sim` in a build without that feature: there is no simulated network.
//!
//! The types have no values. They have the methods that modules outside of `sim` call, so that those need few conditions.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use crate::local_memory::volatile::{Segments, View};
use crate::region::lease::Lease;
use crate::transport::{Broken, Connection, Link, Refused, Sink};
use crate::wire::contexts::Contexts;
use crate::wire::head::{Head, Offer};

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

/// An endpoint's place in a network.
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

impl Link for SimLink {
    fn frame_limit(&self) -> usize {
        match self.0 {}
    }

    fn is_stream(&self) -> bool {
        match self.0 {}
    }

    fn send(&mut self, _: &Head, _: &Segments, _: bool) -> Result<(), Refused> {
        match self.0 {}
    }

    fn poll(&mut self, _: Connection, _: &mut impl Sink) -> Result<bool, Broken> {
        match self.0 {}
    }

    fn pull(&mut self, _: u32, _: &Offer, _: &Lease, _: u32) -> Result<(), Refused> {
        match self.0 {}
    }

    fn expect(&mut self, _: &Lease, _: u32) {
        match self.0 {}
    }

    fn push(&mut self, _: u32, _: u64, _: View<'_>, _: &Lease) -> Result<(), Refused> {
        match self.0 {}
    }

    fn is_idle(&self) -> bool {
        match self.0 {}
    }
}
