//! Symmetric insertion, of consecutive nodes and services (fi_av_insertsym, fi_av(3)).
//!
//! A node is an address, which is incremented as a number, or a name that ends in a number. `node08` is followed by
//! `node09` and `node10`: a number that begins with zeros keeps its length as long as possible. A service is a port or
//! the name of one. The services of a node have consecutive ports.

use std::net::SocketAddr;

use super::block::Block;
use super::error::AddressError;
use super::name::{Family, Name, literal, port_of};
use super::paged::LIMIT;

/// The nodes and services to insert.
#[derive(Clone, Copy, Debug)]
pub(super) struct Symmetric<'a> {
    pub(super) node: &'a str,
    pub(super) nodes: usize,
    pub(super) service: &'a str,
    pub(super) services: usize,
}

/// The result of checking a range without a resolver.
#[derive(Debug)]
pub(super) enum RangeKind {
    Empty,
    Block(Block),
    /// Names to resolve, with services beginning at this port.
    Named(u16),
}

/// Checks a range of nodes and services as far as that is possible without a resolver.
///
/// # Errors
/// If the range is not possible.
pub(crate) fn check(
    (node, nodes): (&str, usize),
    (service, services): (&str, usize),
    family: Option<Family>,
) -> Result<(), AddressError> {
    Symmetric { node, nodes, service, services }.check(family).map(drop)
}

/// The addresses of a block, or the number of addresses that failed for one reason.
pub(super) type BlockResult = Result<Block, (u64, AddressError)>;

impl Symmetric<'_> {
    fn refuse(&self, reason: &'static str) -> AddressError {
        let (node, service) = (self.node.to_owned(), self.service.to_owned());
        AddressError::Range { node, nodes: self.nodes, service, services: self.services, reason }
    }

    /// Returns the blocks of these addresses, in order. `resolve` returns the address of a name with a port. If a node
    /// has no address, only its own services fail.
    ///
    /// # Errors
    /// If the range is not possible.
    pub(super) fn blocks(
        &self,
        family: Option<Family>,
        resolve: impl FnMut(&str, u16) -> Result<SocketAddr, AddressError>,
    ) -> Result<Vec<BlockResult>, AddressError> {
        match self.check(family)? {
            RangeKind::Empty => Ok(Vec::new()),
            RangeKind::Block(block) => Ok(vec![Ok(block)]),
            RangeKind::Named(port) => self.named(port, resolve),
        }
    }

    /// Checks the range as far as that is possible without a resolver. Names may still turn out to be unknown when they
    /// are resolved.
    pub(super) fn check(&self, family: Option<Family>) -> Result<RangeKind, AddressError> {
        let port = port_of(self.service)?;
        if self.nodes == 0 || self.services == 0 {
            return Ok(RangeKind::Empty);
        }
        if self.nodes.checked_mul(self.services).is_none_or(|all| all > LIMIT) {
            return Err(self.refuse("the vector is too small for the range"));
        }
        if usize::from(u16::MAX - port) < self.services - 1 {
            return Err(self.refuse("ports would exceed 65535"));
        }
        match literal(self.node, port) {
            Some(first) => {
                let first = first.resolve(family)?;
                let block = Block::new(first, self.nodes as u64, self.services as u64);
                block
                    .map(RangeKind::Block)
                    .ok_or_else(|| self.refuse("some addresses of the range are not endpoint addresses"))
            }
            None => self.names().map(|_| RangeKind::Named(port)),
        }
    }

    fn named(
        &self,
        port: u16,
        mut resolve: impl FnMut(&str, u16) -> Result<SocketAddr, AddressError>,
    ) -> Result<Vec<BlockResult>, AddressError> {
        let services = self.services as u64;
        let mut blocks = Vec::new();
        // Consecutive names usually have consecutive addresses, which form one block.
        let mut run: Option<(SocketAddr, u64)> = None;
        for name in self.names()? {
            let found = resolve(&name, port).and_then(|address| {
                Block::new(address, 1, services).ok_or(AddressError::NotAnEndpoint(address)).map(|_| address)
            });
            let longer = match (&run, &found) {
                (Some((first, nodes)), Ok(address)) => Block::new(*first, nodes + 1, services)
                    .filter(|block| block.get(nodes * services) == *address)
                    .map(|_| (*first, nodes + 1)),
                _ => None,
            };
            if longer.is_none() {
                blocks.extend(run.take().and_then(|(first, nodes)| Block::new(first, nodes, services)).map(Ok));
            }
            run = longer;
            match found {
                Ok(address) => run = run.or(Some((address, 1))),
                Err(error) => blocks.push(Err((services, error))),
            }
        }
        blocks.extend(run.and_then(|(first, nodes)| Block::new(first, nodes, services)).map(Ok));
        Ok(blocks)
    }

    /// Returns the names in order.
    fn names(&self) -> Result<impl Iterator<Item = String> + use<'_>, AddressError> {
        let stem = self.node.trim_end_matches(|c: char| c.is_ascii_digit());
        let digits = &self.node[stem.len()..];
        let first = if self.nodes == 1 {
            0
        } else if digits.is_empty() {
            return Err(self.refuse("the node name does not end in a number"));
        } else {
            let first: Option<u64> = digits.parse().ok();
            let last = first.and_then(|first| first.checked_add(self.nodes as u64 - 1));
            last.and(first).ok_or_else(|| self.refuse("the number at the end of the node's name is too large"))?
        };
        Ok((0..self.nodes as u64).map(move |at| {
            if self.nodes == 1 {
                return self.node.to_owned();
            }
            format!("{stem}{:0width$}", first + at, width = digits.len())
        }))
    }
}

#[cfg(test)]
#[path = "symmetric_tests.rs"]
mod tests;
