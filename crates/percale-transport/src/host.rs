//! Identification of the host, the network namespace and the user, and the address that an endpoint with a wildcard
//! bind advertises.
//!
//! Nothing is cached, because a process may move between namespaces and interfaces may appear and disappear.

#![expect(unsafe_code, reason = "getifaddrs has no safe wrapper here; the block states its own reason")]

use std::ffi::CStr;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use rustix::io::Errno;

use super::links::{Kinds, source_of_default_route};
use crate::system::call::named;
use crate::wire::hello::HostIdentity;

pub use super::links::LinkKind;

/// Returns the kernel's boot id, or `None` if it cannot be read.
#[must_use]
pub fn boot_id() -> Option<[u8; 16]> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let digits: String = text.trim().chars().filter(|c| *c != '-').collect();
    (digits.len() == 32).then_some(())?;
    u128::from_str_radix(&digits, 16).ok().map(u128::to_be_bytes)
}

/// Returns the device and inode numbers of the network namespace of the calling thread, or `None` if /proc does not
/// show them.
#[must_use]
pub fn network_namespace() -> Option<(u64, u64)> {
    let stat = rustix::fs::stat("/proc/thread-self/ns/net").ok()?;
    Some((stat.st_dev, stat.st_ino))
}

/// Returns the host, network namespace and user of the calling thread. A value that is not known is zero, and zero
/// never matches another value.
#[must_use]
pub fn place() -> HostIdentity {
    HostIdentity {
        boot: boot_id().unwrap_or_default(),
        namespace: network_namespace().unwrap_or_default(),
        user: rustix::process::geteuid().as_raw(),
    }
}

/// An address of a network interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterfaceAddress {
    /// The name of the interface.
    pub name: String,
    /// The address.
    pub ip: IpAddr,
    /// Whether the interface is up and has a carrier.
    pub running: bool,
    /// The kind of the network link.
    pub kind: LinkKind,
    /// Whether packets to other networks, of the family of the address, leave through this interface.
    pub default_route: bool,
}

/// Returns all addresses of all interfaces.
///
/// # Errors
/// The error of `getifaddrs`.
pub fn interfaces() -> io::Result<Vec<InterfaceAddress>> {
    let mut first = std::ptr::null_mut();
    // SAFETY: `first` is a valid place for the list's address.
    if unsafe { libc::getifaddrs(&raw mut first) } != 0 {
        let errno = Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO);
        return Err(named("reading the list of interfaces (socket, bind, getsockname, sendto or recvmsg of netlink)")(
            errno,
        ));
    }
    let kinds = Kinds::read();
    let mut found = Vec::new();
    let mut at = first;
    while !at.is_null() {
        // SAFETY: this function owns the list until it frees it below, and each element is valid until then.
        let entry = unsafe { &*at };
        at = entry.ifa_next;
        if entry.ifa_addr.is_null() {
            continue;
        }
        // SAFETY: the address is not null and every socket address starts with its family.
        let ip = match i32::from(unsafe { (*entry.ifa_addr).sa_family }) {
            libc::AF_INET => {
                // SAFETY: the family shows that it is a sockaddr_in.
                let address = unsafe { *entry.ifa_addr.cast::<libc::sockaddr_in>() };
                IpAddr::V4(Ipv4Addr::from(u32::from_be(address.sin_addr.s_addr)))
            }
            libc::AF_INET6 => {
                // SAFETY: the family shows that it is a sockaddr_in6.
                let address = unsafe { *entry.ifa_addr.cast::<libc::sockaddr_in6>() };
                IpAddr::V6(Ipv6Addr::from(address.sin6_addr.s6_addr))
            }
            _ => continue,
        };
        // SAFETY: every element has a name that ends with a zero byte.
        let name = unsafe { CStr::from_ptr(entry.ifa_name) }.to_string_lossy().into_owned();
        let both = (libc::IFF_UP | libc::IFF_RUNNING).cast_unsigned();
        let (kind, running) = (kinds.of(&name), entry.ifa_flags & both == both);
        found.push(InterfaceAddress { name, ip, running, kind, default_route: false });
    }
    // SAFETY: getifaddrs returned the list, and no part of it is used any more.
    unsafe { libc::freeifaddrs(first) };
    for source in [source_of_default_route(true), source_of_default_route(false)].into_iter().flatten() {
        // Mark all addresses of the interface, because the kernel may have chosen a temporary address as the source.
        if let Some(name) = found.iter().find(|one| one.ip == source).map(|one| one.name.clone()) {
            let same = found.iter_mut().filter(|one| one.name == name && one.ip.is_ipv4() == source.is_ipv4());
            same.for_each(|one| one.default_route = true);
        }
    }
    Ok(found)
}

/// Chooses the address that an endpoint bound to `bind` advertises to its peers, and returns it with the reason. A
/// concrete address is advertised as it is. For a wildcard, the result is an address of the interface `wanted` if
/// given, otherwise the best address of `all` (see `Suitability`). Among equally suitable addresses, the first one in
/// the order of the kernel's list is chosen.
///
/// # Errors
/// `NotFound` if `wanted` has no suitable address. The message lists the available addresses.
pub fn advertised(bind: IpAddr, wanted: Option<&str>, all: &[InterfaceAddress]) -> io::Result<(IpAddr, String)> {
    let fits = |one: &&InterfaceAddress| match (bind, one.ip) {
        (IpAddr::V4(_), IpAddr::V4(_)) => true,
        (IpAddr::V6(_), IpAddr::V6(ip)) => !ip.is_unicast_link_local(),
        // An IPv6 wildcard also accepts IPv4 connections.
        (IpAddr::V6(_), IpAddr::V4(_)) => true,
        (IpAddr::V4(_), IpAddr::V6(_)) => false,
    };
    if !bind.is_unspecified() {
        return Ok((bind, "bound to this address".to_owned()));
    }
    if let Some(name) = wanted {
        let same_name = all.iter().filter(fits).filter(|one| one.name == name);
        if let Some(one) = same_name.min_by_key(|one| (is_link_local(one.ip), one.ip.is_ipv4() != bind.is_ipv4())) {
            return Ok((one.ip, format!("interface {name}, as configured")));
        }
        let mut names: Vec<&str> = all.iter().map(|one| one.name.as_str()).collect();
        names.dedup();
        let text = format!("interface {name} has no usable address; interfaces with an address: {}", names.join(", "));
        return Err(io::Error::new(io::ErrorKind::NotFound, text));
    }
    let best = all.iter().filter(fits).min_by_key(|one| (one.suitability(), one.ip.is_ipv4() != bind.is_ipv4()));
    Ok(match best {
        Some(one) => (one.ip, format!("interface {}: {}", one.name, one.suitability().reason())),
        None => {
            let loopback = if bind.is_ipv4() { Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() };
            (loopback, "no interface has an address: loopback, reachable from this host only".to_owned())
        }
    })
}

/// Returns all addresses except IPv6 link-local ones, best first.
pub fn best_first(all: &[InterfaceAddress]) -> Vec<&InterfaceAddress> {
    let needs_interface = |ip: &IpAddr| matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
    let mut usable: Vec<&InterfaceAddress> = all.iter().filter(|one| !needs_interface(&one.ip)).collect();
    usable.sort_by_key(|one| (one.suitability(), one.ip.is_ipv6()));
    usable
}

/// How suitable an interface's address is for connections from other hosts, as far as this host can determine. The best
/// kind is first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Suitability {
    DefaultRoute,
    Network,
    TunnelWithDefaultRoute,
    Tunnel,
    Internal,
    LinkLocal,
    NoCarrier,
    Loopback,
}

impl Suitability {
    /// Returns the reason why an address of this kind was chosen.
    const fn reason(self) -> &'static str {
        match self {
            Self::DefaultRoute => "it has the default route",
            Self::Network => "the first one with a carrier",
            Self::TunnelWithDefaultRoute => "a tunnel with the default route; no other link has a carrier",
            Self::Tunnel => "only tunnels have a carrier",
            Self::Internal => "only bridges and links of containers have a carrier",
            Self::LinkLocal => "only link-local addresses",
            Self::NoCarrier => "no interface has a carrier",
            Self::Loopback => "only the loopback interface: reachable from this host only",
        }
    }
}

impl InterfaceAddress {
    fn suitability(&self) -> Suitability {
        match self.kind {
            _ if self.ip.is_loopback() => Suitability::Loopback,
            _ if !self.running => Suitability::NoCarrier,
            _ if is_link_local(self.ip) => Suitability::LinkLocal,
            LinkKind::Tunnel if self.default_route => Suitability::TunnelWithDefaultRoute,
            LinkKind::Tunnel => Suitability::Tunnel,
            // A bridge with the default route contains a device. A container often has only one end of a pair of
            // virtual Ethernet devices (veth).
            _ if self.default_route => Suitability::DefaultRoute,
            LinkKind::Network => Suitability::Network,
            LinkKind::Internal => Suitability::Internal,
        }
    }
}

/// Returns whether an address is valid only on its link (RFC 3927, RFC 4291).
fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(name: &str, ip: &str, running: bool) -> InterfaceAddress {
        let kind = if name.starts_with("docker") { LinkKind::Internal } else { LinkKind::Network };
        InterfaceAddress { name: name.into(), ip: ip.parse().unwrap(), running, kind, default_route: false }
    }

    #[test]
    fn a_wildcard_advertises_the_best_link() {
        let any: IpAddr = "0.0.0.0".parse().unwrap();
        let mut all = vec![one("lo", "127.0.0.1", true)];
        assert_eq!(advertised(any, None, &all).unwrap().0, all[0].ip);
        for better in
            [one("eth0", "10.0.0.1", false), one("docker0", "172.17.0.1", true), one("eth1", "10.0.1.1", true)]
        {
            all.push(better.clone());
            let (ip, why) = advertised(any, None, &all).unwrap();
            assert_eq!(ip, better.ip);
            assert!(why.contains(&better.name), "{why}");
        }
        assert_eq!(advertised(any, Some("docker0"), &all).unwrap().0, all[2].ip);
        let error = advertised(any, Some("ib0"), &all).unwrap_err();
        assert!(error.to_string().contains("eth1"), "{error}");
        let concrete: IpAddr = "10.9.9.9".parse().unwrap();
        assert_eq!(advertised(concrete, None, &all).unwrap().0, concrete);
    }

    #[test]
    fn interfaces_are_listed_best_first() {
        let all = [
            one("lo", "127.0.0.1", true),
            one("docker0", "172.17.0.1", true),
            one("eth0", "2001:db8::1", true),
            one("eth0", "fe80::1", true),
            one("eth0", "10.0.0.1", true),
            one("eth1", "10.1.0.1", false),
            one("eth2", "10.2.0.1", true),
        ];
        let order: Vec<String> = best_first(&all).iter().map(|one| one.ip.to_string()).collect();
        assert_eq!(order, ["10.0.0.1", "10.2.0.1", "2001:db8::1", "172.17.0.1", "10.1.0.1", "127.0.0.1"]);
    }

    /// Requirements: CON-013.
    #[test]
    fn externally_reachable_addresses_are_preferred() {
        use LinkKind::{Internal, Network, Tunnel};
        let any: IpAddr = "0.0.0.0".parse().unwrap();
        // The worst is first; each interface is better than all before it.
        let ranked = [
            ("lo", "127.0.0.1", true, Network, false),
            ("eth9", "10.9.0.1", false, Network, false),
            ("pod", "169.254.1.1", true, Internal, false),
            ("eth8", "169.254.7.7", true, Network, true),
            ("docker0", "172.17.0.1", true, Internal, false),
            ("wg0", "10.8.0.1", true, Tunnel, false),
            ("tun0", "10.7.0.1", true, Tunnel, true),
            ("eth1", "10.1.0.1", true, Network, false),
            ("br0", "10.2.0.1", true, Internal, true),
        ];
        let mut all: Vec<InterfaceAddress> = Vec::new();
        for (name, ip, running, kind, default_route) in ranked {
            all.push(InterfaceAddress { kind, default_route, ..one(name, ip, running) });
            let (chosen, why) = advertised(any, None, &all).unwrap();
            let equal = name == "eth8"; // The first of two equally suitable interfaces.
            assert_eq!(chosen.to_string(), if equal { "169.254.1.1" } else { ip }, "{why}");
            assert!(why.contains(if equal { "pod" } else { name }), "{why}");
            all.reverse();
            assert_eq!(advertised(any, None, &all).unwrap().0.to_string(), ip, "in another order");
            all.reverse();
        }
    }

    #[test]
    fn ipv6_wildcards_prefer_ipv6_and_never_link_local() {
        let any: IpAddr = "::".parse().unwrap();
        let all = [one("eth0", "10.0.0.1", true), one("eth0", "fe80::1", true), one("eth0", "2001:db8::1", true)];
        assert_eq!(advertised(any, None, &all).unwrap().0, all[2].ip);
        assert_eq!(advertised(any, None, &all[..2]).unwrap().0, all[0].ip);
        assert_eq!(advertised(any, None, &[]).unwrap().0, IpAddr::V6(Ipv6Addr::LOCALHOST));
    }

    #[test]
    fn place_of_this_host_matches_itself() {
        let here = place();
        assert!(here.same_network(&place()));
        assert!(interfaces().unwrap().iter().any(|one| one.ip.is_loopback()));
        assert!(
            !HostIdentity { boot: [0; 16], ..here }.same_host(&HostIdentity { boot: [0; 16], ..here }),
            "an unknown boot id equals no other"
        );
    }
}
