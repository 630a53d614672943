//! This host, this network namespace, this user, and the address that a wildcard bind advertises.
//!
//! Nothing here is cached: a process may move between namespaces, and interfaces come and go.

#![expect(unsafe_code, reason = "getifaddrs has no safe wrapper here; the block states its own reason")]

use std::ffi::CStr;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::wire::hello::Place;

/// The kernel's boot id; `None` where it cannot be read.
#[must_use]
pub fn boot_id() -> Option<[u8; 16]> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let digits: String = text.trim().chars().filter(|c| *c != '-').collect();
    (digits.len() == 32).then_some(())?;
    u128::from_str_radix(&digits, 16).ok().map(u128::to_be_bytes)
}

/// Device and inode of the calling thread's network namespace; `None` where /proc does not say.
#[must_use]
pub fn network_namespace() -> Option<(u64, u64)> {
    let stat = rustix::fs::stat("/proc/thread-self/ns/net").ok()?;
    Some((stat.st_dev, stat.st_ino))
}

/// Where this thread lives. What is unknown is zero, and equals nobody's.
#[must_use]
pub fn place() -> Place {
    Place {
        boot: boot_id().unwrap_or_default(),
        namespace: network_namespace().unwrap_or_default(),
        user: rustix::process::geteuid().as_raw(),
    }
}

/// One address of one network interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// The address.
    pub ip: IpAddr,
    /// Whether it is up and has a carrier.
    pub running: bool,
}

/// All addresses of all interfaces.
///
/// # Errors
/// What `getifaddrs` says.
pub fn interfaces() -> io::Result<Vec<Interface>> {
    let mut first = std::ptr::null_mut();
    // SAFETY: `first` is a valid place for the list's address.
    if unsafe { libc::getifaddrs(&raw mut first) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut found = Vec::new();
    let mut at = first;
    while !at.is_null() {
        // SAFETY: the list is ours until it is freed below, and each element is valid until then.
        let entry = unsafe { &*at };
        at = entry.ifa_next;
        if entry.ifa_addr.is_null() {
            continue;
        }
        // SAFETY: the address is not null and every socket address starts with its family.
        let ip = match i32::from(unsafe { (*entry.ifa_addr).sa_family }) {
            libc::AF_INET => {
                // SAFETY: the family says that it is a sockaddr_in.
                let address = unsafe { *entry.ifa_addr.cast::<libc::sockaddr_in>() };
                IpAddr::V4(Ipv4Addr::from(u32::from_be(address.sin_addr.s_addr)))
            }
            libc::AF_INET6 => {
                // SAFETY: the family says that it is a sockaddr_in6.
                let address = unsafe { *entry.ifa_addr.cast::<libc::sockaddr_in6>() };
                IpAddr::V6(Ipv6Addr::from(address.sin6_addr.s6_addr))
            }
            _ => continue,
        };
        // SAFETY: every element has a name that ends with a zero byte.
        let name = unsafe { CStr::from_ptr(entry.ifa_name) }.to_string_lossy().into_owned();
        let both = (libc::IFF_UP | libc::IFF_RUNNING).cast_unsigned();
        found.push(Interface { name, ip, running: entry.ifa_flags & both == both });
    }
    // SAFETY: the list came from getifaddrs and nothing of it is used any more.
    unsafe { libc::freeifaddrs(first) };
    Ok(found)
}

/// The address that an endpoint bound to `bind` tells its peers, and why that one. A concrete address advertises
/// itself. For a wildcard: the address of `wanted` if given, else the best of `all`, in the order the kernel lists
/// them: real links first, then bridges of containers and virtual machines, then links without a carrier, then
/// loopback.
///
/// # Errors
/// `NotFound` if `wanted` has no fitting address; the message lists what there is.
pub fn advertised(bind: IpAddr, wanted: Option<&str>, all: &[Interface]) -> io::Result<(IpAddr, String)> {
    let fits = |one: &&Interface| match (bind, one.ip) {
        (IpAddr::V4(_), IpAddr::V4(_)) => true,
        (IpAddr::V6(_), IpAddr::V6(ip)) => !ip.is_unicast_link_local(),
        // A wildcard of IPv6 also takes IPv4 connections.
        (IpAddr::V6(_), IpAddr::V4(_)) => true,
        (IpAddr::V4(_), IpAddr::V6(_)) => false,
    };
    if !bind.is_unspecified() {
        return Ok((bind, "bound to this address".to_owned()));
    }
    if let Some(name) = wanted {
        let same_name = all.iter().filter(fits).filter(|one| one.name == name);
        if let Some(one) = same_name.min_by_key(|one| one.ip.is_ipv4() != bind.is_ipv4()) {
            return Ok((one.ip, format!("interface {name}, as configured")));
        }
        let mut names: Vec<&str> = all.iter().map(|one| one.name.as_str()).collect();
        names.dedup();
        let text = format!("interface {name} has no usable address; there are: {}", names.join(", "));
        return Err(io::Error::new(io::ErrorKind::NotFound, text));
    }
    let best = all.iter().filter(fits).min_by_key(|one| (rank(one), one.ip.is_ipv4() != bind.is_ipv4()));
    Ok(match best {
        Some(one) => {
            let why = match rank(one) {
                0 => "the first one with a carrier",
                1 => "only virtual bridges have a carrier",
                2 => "no interface has a carrier",
                _ => "there is nothing but loopback: reachable from this host only",
            };
            (one.ip, format!("interface {}: {why}", one.name))
        }
        None => {
            let loopback = if bind.is_ipv4() { Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() };
            (loopback, "no interface has an address: loopback, reachable from this host only".to_owned())
        }
    })
}

/// All but link-local addresses, best first.
pub(crate) fn best_first(all: &[Interface]) -> Vec<&Interface> {
    let linklocal = |ip: &IpAddr| matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
    let mut usable: Vec<&Interface> = all.iter().filter(|one| !linklocal(&one.ip)).collect();
    usable.sort_by_key(|one| (rank(one), one.ip.is_ipv6()));
    usable
}

/// Smaller is better.
fn rank(one: &Interface) -> u8 {
    const VIRTUAL: [&str; 4] = ["docker", "veth", "br-", "virbr"];
    if one.ip.is_loopback() {
        3
    } else if !one.running {
        2
    } else {
        VIRTUAL.iter().any(|prefix| one.name.starts_with(prefix)).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(name: &str, ip: &str, running: bool) -> Interface {
        Interface { name: name.into(), ip: ip.parse().unwrap(), running }
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

    #[test]
    fn ipv6_wildcards_prefer_ipv6_and_never_link_local() {
        let any: IpAddr = "::".parse().unwrap();
        let all = [one("eth0", "10.0.0.1", true), one("eth0", "fe80::1", true), one("eth0", "2001:db8::1", true)];
        assert_eq!(advertised(any, None, &all).unwrap().0, all[2].ip);
        assert_eq!(advertised(any, None, &all[..2]).unwrap().0, all[0].ip);
        assert_eq!(advertised(any, None, &[]).unwrap().0, IpAddr::V6(Ipv6Addr::LOCALHOST));
    }

    #[test]
    fn this_host_knows_itself() {
        let here = place();
        assert!(here.same_network(&place()));
        assert!(interfaces().unwrap().iter().any(|one| one.ip.is_loopback()));
        assert!(!Place { boot: [0; 16], ..here }.same_host(&Place { boot: [0; 16], ..here }), "unknown equals nobody");
    }
}
