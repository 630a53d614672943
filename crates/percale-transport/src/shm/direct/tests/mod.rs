//! Tests with two links in one process, one of which accesses the other's regions.

mod hostile;
mod reach;
mod revoked;
mod unfenced;

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{DirectError, GrantIndex, Lookup};
use crate::local_memory::atomic::Word;
use crate::local_memory::sealed::allocate;
use crate::local_memory::volatile::Segments;
use crate::local_memory::volatile::SegmentsExt as _;
use crate::owner::Domain;
use crate::owner::Region;
use crate::region::{Access, AccessOrigin};
use crate::shm::link::tests::parts;
use crate::shm::{ShmLink, ShmLinkParts};
use crate::testing::{Lent, Notes};
use crate::{Broken, Link};

pub(super) const BOTH: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);

/// Opens a domain without a service. The tests create the links themselves.
fn domain() -> Domain {
    Domain::new(Duration::from_secs(20))
}

/// A link, its peer's link, and the domain of the regions that the peer owns.
pub(super) struct Two {
    pub(super) initiator: ShmLink,
    pub(super) target: ShmLink,
    pub(super) domain: Domain,
}

/// Polls one end of a link.
pub(super) fn poll(link: &mut ShmLink) -> Result<(), Broken> {
    let mut notes = Notes::keeping(0);
    link.poll(0, &mut notes).map(|_| ())
}

impl Two {
    pub(super) fn new(cma: bool) -> Self {
        let domain = domain();
        let keys = Some(Arc::clone(&domain.inner.keys));
        let [initiator, target] = parts(cma);
        let link = |parts| ShmLink::new(parts).unwrap();
        Self { initiator: link(initiator), target: link(ShmLinkParts { keys, ..target }), domain }
    }

    /// Registers a region of memory. Peers can map the memory if `mapped` is true.
    fn region(&self, len: usize, mapped: bool, access: Access) -> Region {
        let memory: crate::local_memory::buffer::Buffer =
            if mapped { allocate(len).unwrap().into() } else { vec![0; len].into() };
        self.domain.registration(access).own(memory).unwrap()
    }

    pub(super) fn turn(&mut self) {
        poll(&mut self.initiator).unwrap();
        poll(&mut self.target).unwrap();
    }

    /// Returns the target's answer about a key.
    fn look_up(&mut self, key: u64) -> Lookup {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            match self.initiator.look_up(key) {
                Lookup::Unknown => {}
                known => return known,
            }
            assert!(Instant::now() < deadline, "no answer");
            self.turn();
        }
    }

    pub(super) fn grant(&mut self, key: u64) -> GrantIndex {
        match self.look_up(key) {
            Lookup::Ready(grant) => grant,
            other => panic!("not granted: {other:?}"),
        }
    }

    fn write(&mut self, key: u64, address: u64, bytes: &[u8]) -> Result<(), DirectError> {
        let grant = self.grant(key);
        Segments::lend(bytes, |from| self.initiator.direct_write(grant, address, from))
    }

    fn read(&mut self, key: u64, address: u64, len: usize) -> Result<Vec<u8>, DirectError> {
        let grant = self.grant(key);
        let into = Lent::new(vec![0xEE; len]);
        self.initiator.direct_read(grant, address, &into.whole())?;
        Ok(into.bytes())
    }
}

impl Two {
    /// Adds to a word and returns its previous value.
    fn add(&mut self, key: u64, address: u64, addend: u64) -> Result<u64, DirectError> {
        let grant = self.grant(key);
        let (addend, before) = (Lent::new(addend.to_ne_bytes().to_vec()), Lent::new(vec![0; 8]));
        let [addend, result] = [&addend, &before].map(|memory| memory.whole().as_slice()[0]);
        let word = Word::new(addend, None, result).expect("words");
        self.initiator.direct_atomic(grant, address, &word)?;
        Ok(u64::from_ne_bytes(before.bytes().try_into().expect("a word")))
    }
}

fn content(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 + at / 251 + seed * 7) as u8).collect()
}

pub(super) fn bytes_of(region: &Region) -> Vec<u8> {
    let mut bytes = vec![0; region.len()];
    region.read(0, &mut bytes);
    bytes
}
