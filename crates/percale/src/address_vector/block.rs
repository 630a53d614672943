//! Symmetric blocks: consecutive nodes, each with the same consecutive ports.
//!
//! The addresses of a block are counted node by node: all ports of a node come before the next node. A block of any
//! length is encoded in [`WORDS`] words.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::entry::{canonical, check, fold_scope, unfold_scope};

/// The number of words of a block.
pub(super) const WORDS: usize = 4;

/// A symmetric block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Block {
    /// The first node: an IPv4 address, or an IPv6 address with its scope folded in.
    base: u128,
    v6: bool,
    nodes: u64,
    port: u16,
    /// The number of ports of each node, at least 1.
    ports: u32,
}

impl Block {
    /// Creates a block of `nodes` nodes, starting at `first`, with `ports` ports each. Returns `None` if an endpoint
    /// cannot have one of the addresses, or if the block would be empty.
    pub(super) fn new(first: SocketAddr, nodes: u64, ports: u64) -> Option<Self> {
        let last_port = u64::from(first.port()).checked_add(ports.checked_sub(1)?)?;
        let last_port = u16::try_from(last_port).ok()?;
        let steps = nodes.checked_sub(1)?;
        let (base, v6, last) = match first {
            SocketAddr::V4(v4) => {
                let last = v4.ip().to_bits().checked_add(u32::try_from(steps).ok()?)?;
                (u128::from(v4.ip().to_bits()), false, SocketAddr::from((Ipv4Addr::from_bits(last), last_port)))
            }
            SocketAddr::V6(v6) => {
                let base = fold_scope(&v6)?;
                let last = base.checked_add(u128::from(steps))?;
                // Link-local addresses must stay in their network, because the bits above it hold the scope.
                if Ipv6Addr::from_bits(base).is_unicast_link_local() && last >> 64 != base >> 64 {
                    return None;
                }
                (base, true, unfold_scope(last, last_port))
            }
        };
        check(&first).and_then(|()| check(&last)).ok()?;
        // The addresses between two valid ends may include multicast groups.
        let groups = match (first.ip(), last.ip()) {
            (IpAddr::V4(first), IpAddr::V4(last)) => first.octets()[0] < 224 && last.octets()[0] >= 224,
            _ => false, // ff00::/8 is at the end of the address space, so the check of `last` finds it.
        };
        let crosses = v6 && enters_link_local(base, steps);
        let ports = u32::try_from(ports).ok()?;
        (!groups && !crosses).then_some(Self { base, v6, nodes, port: first.port(), ports })
    }

    /// Returns the number of addresses. The result saturates.
    pub(super) fn len(&self) -> u64 {
        self.nodes.saturating_mul(u64::from(self.ports))
    }

    /// Returns the node and the port at index `at`.
    #[inline]
    fn split(&self, at: u64) -> (u64, u16) {
        let (node, port) = match (u32::try_from(at), self.ports) {
            (_, 1) => (at, 0),
            // A 32-bit division takes a third of the time.
            (Ok(at), ports) => (u64::from(at / ports), at % ports),
            (Err(_), ports) => (at / u64::from(ports), (at % u64::from(ports)) as u32),
        };
        (node, self.port.wrapping_add(port as u16))
    }

    /// Returns the address at index `at`, which is less than the length.
    #[inline]
    pub(super) fn get(&self, at: u64) -> SocketAddr {
        if let Some((ip, port)) = self.get_v4(at) {
            return SocketAddr::new(ip.into(), port);
        }
        let (node, port) = self.split(at);
        unfold_scope(self.base.wrapping_add(u128::from(node)), port)
    }

    /// Like [`get`](Self::get), but returns `None` unless it is a block of IPv4 addresses.
    #[inline]
    pub(super) fn get_v4(&self, at: u64) -> Option<(Ipv4Addr, u16)> {
        if self.v6 {
            return None;
        }
        let (node, port) = self.split(at);
        Some((Ipv4Addr::from_bits((self.base as u32).wrapping_add(node as u32)), port))
    }

    /// Returns the index of an address in the block. The address is [canonical].
    pub(super) fn position(&self, address: &SocketAddr) -> Option<u64> {
        let bits = match (address, self.v6) {
            (SocketAddr::V4(v4), false) => u128::from(v4.ip().to_bits()),
            (SocketAddr::V4(v4), true) => v4.ip().to_ipv6_mapped().to_bits(),
            (SocketAddr::V6(v6), true) => fold_scope(v6)?,
            (SocketAddr::V6(_), false) => return None,
        };
        debug_assert_eq!(*address, canonical(address), "the address is canonical");
        let node = u64::try_from(bits.checked_sub(self.base)?).ok().filter(|node| *node < self.nodes)?;
        let port = address.port().checked_sub(self.port).map(u32::from).filter(|port| *port < self.ports)?;
        Some(node.wrapping_mul(u64::from(self.ports)).wrapping_add(u64::from(port)))
    }

    /// Encodes the block as words.
    pub(super) const fn pack(&self) -> [u64; WORDS] {
        let shape = (self.v6 as u64) << 63 | (self.port as u64) << 32 | self.ports as u64;
        [shape, self.nodes, (self.base >> 64) as u64, self.base as u64]
    }

    /// Decodes a block from words. Returns `None` if they do not encode one.
    #[inline]
    pub(super) const fn unpack(words: [u64; WORDS]) -> Option<Self> {
        let [shape, nodes, high, low] = words;
        let ports = shape as u32;
        if ports == 0 || ports > 1 << 16 {
            return None;
        }
        let base = (high as u128) << 64 | low as u128;
        Some(Self { base, v6: shape >> 63 != 0, nodes, port: (shape >> 32) as u16, ports })
    }
}

/// Returns whether counting up from an address that is not link-local reaches a link-local address.
fn enters_link_local(base: u128, steps: u64) -> bool {
    let link_local = |bits| Ipv6Addr::from_bits(bits).is_unicast_link_local();
    !link_local(base) && link_local(base.saturating_add(u128::from(steps)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(first: &str, nodes: u64, ports: u64) -> Option<Block> {
        Block::new(first.parse().unwrap(), nodes, ports)
    }

    /// Requirements: AV-042.
    #[test]
    fn all_services_of_a_node_come_before_the_next_node() {
        for (first, at_5) in [("10.1.1.255:5000", "10.1.2.0:5002"), ("[fe80::ffff%7]:80", "[fe80::1:0%7]:82")] {
            let block = block(first, 3, 3).unwrap();
            assert_eq!(Block::unpack(block.pack()), Some(block));
            assert_eq!(block.len(), 9);
            assert_eq!(block.get(0), first.parse().unwrap());
            assert_eq!(block.get(5), at_5.parse().unwrap());
            for at in 0..9 {
                assert_eq!(block.position(&canonical(&block.get(at))), Some(at));
            }
        }
    }

    /// Requirements: AV-026.
    #[test]
    fn block_with_non_endpoint_addresses_is_rejected() {
        for (first, nodes, ports) in [
            ("10.0.0.1:65535", 1, 2),
            ("10.0.0.1:0", 1, 1),
            ("10.0.0.1:1", 0, 1),
            ("10.0.0.1:1", 1, 0),
            ("223.255.255.255:1", 2, 1),
            ("223.255.255.255:1", 0x1000_0002, 1),
            ("255.255.255.254:1", 2, 1),
            ("255.255.255.254:1", 3, 1),
            ("[fe80::ffff:ffff:ffff:ffff]:1", 2, 1),
            ("[fe7f:ffff:ffff:ffff:ffff:ffff:ffff:ffff]:1", 2, 1),
            ("[feff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]:1", 2, 1),
            ("[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]:1", 2, 1),
        ] {
            assert_eq!(block(first, nodes, ports), None, "{first} {nodes} {ports}");
        }
        assert!(block("240.0.0.0:1", 0x0fff_ffff, 65_535).is_some());
    }

    #[test]
    fn invalid_words_do_not_unpack_to_a_block() {
        assert_eq!(Block::unpack([0, 5, 0, 0]), None);
        assert_eq!(Block::unpack([u64::MAX; WORDS]), None);
    }
}
