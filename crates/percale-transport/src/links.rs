//! Determines which network links lead out of this host, by the kind of the link and by the default route.
//!
//! Kinds come from rtnetlink(7), which describes the network namespace of the caller, independently of where /sys is
//! mounted. The source address of the default route is found by connecting a UDP socket to an address that no host has.
//! This sends nothing, and the kernel chooses the source address by all its routing rules, as for any packet. Both
//! sources are optional: without them the names of the interfaces are used.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

/// The kind of a network link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkKind {
    /// A device, a bond or a VLAN. It is assumed to lead out of this host.
    Network,
    /// A VPN or an overlay network of containers. It leads to some other hosts through a network of another kind.
    Tunnel,
    /// A bridge, or one end of a pair of virtual Ethernet devices (veth). It leads to other parts of this host.
    Internal,
}

impl LinkKind {
    /// Maps the kernel's name of the kind (`IFLA_INFO_KIND`). Devices have none.
    fn of_driver(kind: &str) -> Self {
        match kind {
            "bridge" | "veth" | "dummy" | "ifb" | "nlmon" | "netkit" | "openvswitch" | "vrf" | "vcan" => Self::Internal,
            "tun" | "wireguard" | "vxlan" | "geneve" | "gre" | "gretap" | "ip6gre" | "ip6gretap" | "erspan"
            | "ipip" | "ip6tnl" | "sit" | "vti" | "vti6" | "xfrm" | "gtp" | "bareudp" | "amt" | "ovpn" => Self::Tunnel,
            _ => Self::Network,
        }
    }

    /// Derives the kind from the name of the interface, for use when the kernel reports nothing.
    fn of_name(name: &str) -> Self {
        const INTERNAL: [&str; 12] =
            ["docker", "veth", "br-", "virbr", "cni", "cali", "cilium", "lxc", "lxd", "podman", "vnet", "dummy"];
        const TUNNELS: [&str; 7] = ["tun", "tap", "wg", "flannel", "vxlan", "tailscale", "ppp"];
        let begins = |all: &[&str]| all.iter().any(|prefix| name.starts_with(prefix));
        match (begins(&INTERNAL), begins(&TUNNELS)) {
            (true, _) => Self::Internal,
            (_, true) => Self::Tunnel,
            _ => Self::Network,
        }
    }
}

/// The kinds of the links of this network namespace, as reported by the kernel.
#[derive(Debug)]
pub(super) struct Kinds(Option<HashMap<String, LinkKind>>);

impl Kinds {
    /// Reads the kinds from the kernel.
    pub(super) fn read() -> Self {
        Self(
            read_links()
                .inspect_err(|error| crate::later::later!(debug: %error, "cannot read the kinds of the network links"))
                .ok(),
        )
    }

    /// Returns the kind of the interface with this name.
    pub(super) fn of(&self, name: &str) -> LinkKind {
        match &self.0 {
            Some(known) => known.get(name).copied().unwrap_or(LinkKind::Network),
            None => LinkKind::of_name(name),
        }
    }
}

/// Returns the source address of packets to other networks, or `None` if the kernel has no route to them.
pub(super) fn source_of_default_route(v4: bool) -> Option<IpAddr> {
    // Addresses that are reserved for documentation (RFC 5737, RFC 3849), which no host has.
    let nobody: IpAddr = match v4 {
        true => Ipv4Addr::new(192, 0, 2, 1).into(),
        false => Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into(),
    };
    let family = if v4 { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = rustix::net::socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None).ok()?;
    rustix::net::connect(&socket, &SocketAddr::new(nobody, 9)).ok()?;
    let own = SocketAddr::try_from(rustix::net::getsockname(&socket).ok()?).ok()?;
    Some(own.ip()).filter(|ip| !ip.is_unspecified())
}

const RTM_NEWLINK: u16 = 16;
const RTM_GETLINK: u16 = 18;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLM_F_REQUEST: u16 = 0x1;
const NLM_F_DUMP: u16 = 0x300;
const IFLA_IFNAME: u16 = 3;
const IFLA_LINKINFO: u16 = 18;
const IFLA_INFO_KIND: u16 = 1;
/// The size of `struct nlmsghdr` in bytes; `LINK` is that of `struct ifinfomsg`.
const HEADER: usize = 16;
const LINK: usize = 16;

fn read_links() -> io::Result<HashMap<String, LinkKind>> {
    let (kind, flags) = (SocketType::RAW, SocketFlags::CLOEXEC); // Protocol 0 is NETLINK_ROUTE.
    let socket = rustix::net::socket_with(AddressFamily::NETLINK, kind, flags, None)?;
    let mut request = [0_u8; HEADER + LINK];
    request[..4].copy_from_slice(&((HEADER + LINK) as u32).to_ne_bytes());
    request[4..6].copy_from_slice(&RTM_GETLINK.to_ne_bytes());
    request[6..8].copy_from_slice(&(NLM_F_REQUEST | NLM_F_DUMP).to_ne_bytes());
    rustix::net::send(&socket, &request, SendFlags::empty())?;
    let mut found = HashMap::new();
    let mut buffer = vec![0_u8; 64 << 10];
    loop {
        let (len, _) = rustix::net::recv(&socket, &mut buffer[..], RecvFlags::empty())?;
        if len == 0 || !take_links(&buffer[..len], &mut found)? {
            return Ok(found);
        }
    }
}

/// Reads the links in one datagram. Returns whether more datagrams follow.
fn take_links(mut bytes: &[u8], found: &mut HashMap<String, LinkKind>) -> io::Result<bool> {
    while let Some((head, _)) = bytes.split_at_checked(HEADER) {
        let len = head.first_chunk().map_or(0, |len| u32::from_ne_bytes(*len) as usize);
        let Some(message) = bytes.get(..len).filter(|message| message.len() >= HEADER) else { break };
        match u16::from_ne_bytes([head[4], head[5]]) {
            NLMSG_DONE => return Ok(false),
            NLMSG_ERROR => return Err(io::ErrorKind::InvalidData.into()),
            RTM_NEWLINK => {
                let attributes = message.get(HEADER + LINK..).unwrap_or_default();
                if let Some(name) = attribute(attributes, IFLA_IFNAME).and_then(text) {
                    let kind = attribute(attributes, IFLA_LINKINFO).and_then(|info| attribute(info, IFLA_INFO_KIND));
                    found.insert(name.to_owned(), kind.and_then(text).map_or(LinkKind::Network, LinkKind::of_driver));
                }
            }
            _ => {}
        }
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(true)
}

/// Returns the attribute of type `wanted` in `bytes`.
fn attribute(mut bytes: &[u8], wanted: u16) -> Option<&[u8]> {
    while let Some(head) = bytes.first_chunk::<4>() {
        let (len, kind) = (u16::from_ne_bytes([head[0], head[1]]) as usize, u16::from_ne_bytes([head[2], head[3]]));
        let value = bytes.get(4..len)?;
        if kind & 0x3fff == wanted {
            return Some(value);
        }
        bytes = bytes.get(len.next_multiple_of(4)..)?;
    }
    None
}

/// Returns the text before the first zero byte.
fn text(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes.split(|byte| *byte == 0).next()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_kinds_are_read_from_the_kernel() {
        let found = read_links().unwrap();
        assert_eq!(found.get("lo"), Some(&LinkKind::Network), "{found:?}");
        assert_eq!(Kinds(None).of("docker0"), LinkKind::Internal);
        assert_eq!(Kinds(None).of("flannel.1"), LinkKind::Tunnel);
        assert_eq!(Kinds(None).of("enp1s0"), LinkKind::Network);
    }

    #[test]
    fn truncated_link_messages_yield_no_links() {
        let mut name = vec![9, 0, 3, 0];
        name.extend(b"eth0\0\0\0\0");
        let mut info = vec![16, 0, 18, 0, 11, 0, 1, 0];
        info.extend(b"bridge\0\0");
        let mut message = vec![0; HEADER + LINK];
        message.extend(&name);
        message.extend(&info);
        let len = message.len() as u32;
        message[..4].copy_from_slice(&len.to_ne_bytes());
        message[4..6].copy_from_slice(&RTM_NEWLINK.to_ne_bytes());
        let mut found = HashMap::new();
        assert!(take_links(&message, &mut found).unwrap());
        assert_eq!(found["eth0"], LinkKind::Internal);
        for end in 0..message.len() {
            let mut found = HashMap::new();
            take_links(&message[..end], &mut found).unwrap();
            assert!(found.is_empty(), "{end} bytes");
            // The same bytes with the shortened length in the header.
            let mut shorter = message[..end].to_vec();
            if let Some(len) = shorter.first_chunk_mut::<4>() {
                *len = (end as u32).to_ne_bytes();
                take_links(&shorter, &mut found).unwrap();
            }
        }
    }
}
