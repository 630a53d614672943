//! The text form of network addresses, and name resolution.
//!
//! An address has the form `10.1.1.1:7471`, `[fe80::1%2]:7471` or `node7:7471`. libfabric's form, with the prefix
//! `fi_sockaddr_in://` or `fi_sockaddr_in6://`, is accepted as well. If a name has several addresses, the first one of
//! the requested family is used. If no family is requested, the first IPv4 address is preferred over all IPv6
//! addresses, because a peer has one address in a vector and most endpoints are bound to IPv4. Resolving a name blocks
//! until the system's resolver returns.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6, ToSocketAddrs};

use super::error::AddressError;

pub use super::family::Family;

/// The prefixes of addresses in libfabric's text form.
const SCHEMES: [(&str, Family); 2] = [("fi_sockaddr_in6://", Family::V6), ("fi_sockaddr_in://", Family::V4)];

/// The name of a peer's network address: an address, or a text that is one or resolves to one.
pub trait Name {
    /// Whether [`resolve`](Self::resolve) needs no resolver and never blocks.
    const IMMEDIATE: bool;

    /// Returns the address. If `family` is given, the address is of this family.
    ///
    /// # Errors
    /// If there is no such address, or the text is not an address.
    fn resolve(&self, family: Option<Family>) -> Result<SocketAddr, AddressError>;
}

impl Name for SocketAddr {
    const IMMEDIATE: bool = true;

    fn resolve(&self, family: Option<Family>) -> Result<SocketAddr, AddressError> {
        match family {
            Some(wanted) if wanted != Family::of(self) => Err(AddressError::Family { address: *self, wanted }),
            _ => Ok(*self),
        }
    }
}

impl Name for SocketAddrV4 {
    const IMMEDIATE: bool = true;

    fn resolve(&self, family: Option<Family>) -> Result<SocketAddr, AddressError> {
        SocketAddr::V4(*self).resolve(family)
    }
}

impl Name for SocketAddrV6 {
    const IMMEDIATE: bool = true;

    fn resolve(&self, family: Option<Family>) -> Result<SocketAddr, AddressError> {
        SocketAddr::V6(*self).resolve(family)
    }
}

impl Name for (IpAddr, u16) {
    const IMMEDIATE: bool = true;

    fn resolve(&self, family: Option<Family>) -> Result<SocketAddr, AddressError> {
        SocketAddr::from(*self).resolve(family)
    }
}

impl Name for str {
    const IMMEDIATE: bool = false;

    fn resolve(&self, family: Option<Family>) -> Result<SocketAddr, AddressError> {
        let found = SCHEMES.iter().find_map(|(scheme, named)| Some((self.strip_prefix(scheme)?, *named)));
        let (text, family) = match found {
            Some((text, named)) => {
                // The scheme in the text selects the family. It must agree with the requested family, which is checked
                // below.
                let address = pick(text, Some(named))?;
                return address.resolve(family);
            }
            None => (self, family),
        };
        pick(text, family)
    }
}

impl Name for String {
    const IMMEDIATE: bool = false;

    fn resolve(&self, family: Option<Family>) -> Result<SocketAddr, AddressError> {
        self.as_str().resolve(family)
    }
}

impl<T: Name + ?Sized> Name for &T {
    const IMMEDIATE: bool = T::IMMEDIATE;

    fn resolve(&self, family: Option<Family>) -> Result<SocketAddr, AddressError> {
        (**self).resolve(family)
    }
}

fn pick(text: &str, family: Option<Family>) -> Result<SocketAddr, AddressError> {
    if let Ok(address) = text.parse::<SocketAddr>() {
        return address.resolve(family);
    }
    if let Some(port) = local_port(text) {
        let ip: IpAddr =
            if family == Some(Family::V6) { Ipv6Addr::LOCALHOST.into() } else { Ipv4Addr::LOCALHOST.into() };
        return Ok(SocketAddr::new(ip, port));
    }
    let unknown = |reason: String| AddressError::Name { name: text.to_owned(), reason };
    let all: Vec<SocketAddr> = text.to_socket_addrs().map_err(|error| unknown(error.to_string()))?.collect();
    choose(&all, family).map_err(unknown)
}

/// Selects the address of the requested family from all addresses of a name. Returns the reason if there is none.
fn choose(all: &[SocketAddr], family: Option<Family>) -> Result<SocketAddr, String> {
    let of = |wanted| all.iter().find(|address| Family::of(address) == wanted);
    let chosen = match family {
        Some(wanted) => of(wanted),
        None => of(Family::V4).or_else(|| all.first()),
    };
    chosen.copied().ok_or_else(|| {
        family.map_or_else(|| "it has no IP address".to_owned(), |family| format!("it has no {family} address"))
    })
}

/// Returns the address of a node (a name or an address) and a service (a name or a port).
///
/// # Errors
/// If the node has no address of the requested family, or the service has no port.
pub fn resolve_service(node: &str, service: &str, family: Option<Family>) -> Result<SocketAddr, AddressError> {
    resolve_port(node, port_of(service)?, family)
}

/// Returns the address of a node, which is a name or an address, with a port.
///
/// # Errors
/// If the node has no address of the requested family.
pub(super) fn resolve_port(node: &str, port: u16, family: Option<Family>) -> Result<SocketAddr, AddressError> {
    if node.eq_ignore_ascii_case("localhost") {
        return format!("localhost:{port}").resolve(family);
    }
    let unknown = |reason: String| AddressError::Name { name: node.to_owned(), reason };
    if let Some(address) = literal(node, port) {
        return address.resolve(family);
    }
    let all: Vec<SocketAddr> = (node, port).to_socket_addrs().map_err(|error| unknown(error.to_string()))?.collect();
    choose(&all, family).map_err(unknown)
}

/// Parses a node that is an address. An IPv6 address may have a scope.
pub(super) fn literal(node: &str, port: u16) -> Option<SocketAddr> {
    if let Ok(ip) = node.parse::<IpAddr>() {
        return Some(SocketAddr::new(ip, port));
    }
    format!("[{node}]:{port}").parse::<SocketAddrV6>().ok().map(SocketAddr::V6)
}

/// Returns whether a node is an address, so that no resolver is needed.
pub(crate) fn is_literal(node: &str) -> bool {
    literal(node, 1).is_some()
}

/// The file in which the system stores the names of services.
const SERVICES: &str = "/etc/services";

/// Returns the port of a service: its number, or the port of the TCP service with this name.
///
/// # Errors
/// If there is no such service.
pub fn port_of(service: &str) -> Result<u16, AddressError> {
    let unknown =
        |reason: &str| AddressError::Name { name: service.to_owned(), reason: format!("as a service: {reason}") };
    if !service.is_empty() && service.bytes().all(|digit| digit.is_ascii_digit()) {
        return service.parse().ok().filter(|port| *port != 0).ok_or_else(|| unknown("ports are 1 to 65535"));
    }
    let known =
        std::fs::read_to_string(SERVICES).map_err(|_| unknown("there is no list of services (/etc/services)"))?;
    listed(&known, service).ok_or_else(|| unknown("no TCP service has this name"))
}

/// Returns the TCP port of a name in a list of services (services(5)).
fn listed(list: &str, service: &str) -> Option<u16> {
    list.lines().find_map(|line| {
        let mut words = line.split('#').next()?.split_ascii_whitespace();
        let name = words.next()?;
        let port = words.next()?.strip_suffix("/tcp")?;
        if name == service || words.any(|alias| alias == service) { port.parse().ok() } else { None }
    })
}

/// Returns the port in `localhost:port`. By definition this name denotes this machine (RFC 6761), even if the resolver
/// does not have it.
fn local_port(text: &str) -> Option<u16> {
    let (host, port) = text.rsplit_once(':')?;
    if host.eq_ignore_ascii_case("localhost") { port.parse().ok() } else { None }
}

/// Formats an address in libfabric's text form.
#[must_use]
pub fn fabric_text(address: &SocketAddr) -> String {
    match address {
        SocketAddr::V4(address) => format!("fi_sockaddr_in://{address}"),
        SocketAddr::V6(address) => format!("fi_sockaddr_in6://{address}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requirements: AV-054.
    #[test]
    fn address_text_round_trips() {
        for text in ["10.1.1.1:7471", "[::1]:5", "[fe80::1%3]:65535"] {
            let address = text.resolve(None).unwrap();
            assert_eq!(address.to_string(), text);
            assert_eq!(fabric_text(&address).resolve(None).unwrap(), address);
        }
    }

    /// Requirements: AV-026.
    #[test]
    fn an_address_of_the_wrong_family_is_refused() {
        assert!(matches!("10.1.1.1:5".resolve(Some(Family::V6)), Err(AddressError::Family { .. })));
        assert!(matches!("fi_sockaddr_in6://10.1.1.1:5".resolve(None), Err(AddressError::Family { .. })));
        assert!(matches!("fi_sockaddr_in://10.1.1.1:5".resolve(Some(Family::V6)), Err(AddressError::Family { .. })));
    }

    #[test]
    fn invalid_address_fails_and_error_contains_it() {
        for text in ["", "10.1.1.1", "10.1.1.1:70000", "no name:1", ":::"] {
            let error = text.resolve(None).unwrap_err();
            assert!(matches!(&error, AddressError::Name { name, .. } if name == text), "{error}");
        }
    }

    /// Requirements: AV-040.
    #[test]
    fn service_is_a_port_number_or_name() {
        let list = "# none\ntcpmux 1/tcp # one\necho 7/udp\necho\t7/tcp ping again\n";
        assert_eq!([listed(list, "tcpmux"), listed(list, "echo"), listed(list, "again")], [Some(1), Some(7), Some(7)]);
        assert_eq!([listed(list, "none"), listed(list, "7")], [None, None]);
        assert_eq!(port_of("5000"), Ok(5000));
        for none in ["", "0", "65536", "-1", "+5", "no such service"] {
            assert!(matches!(port_of(none), Err(AddressError::Name { .. })), "{none}");
        }
    }

    /// Requirements: AV-040.
    #[test]
    fn first_address_of_the_family_is_chosen() {
        let all: Vec<SocketAddr> = ["[::1]:5", "10.0.0.1:5", "10.0.0.2:5"].map(|text| text.parse().unwrap()).into();
        assert_eq!(choose(&all, None), Ok(all[1]));
        assert_eq!(choose(&all, Some(Family::V6)), Ok(all[0]));
        assert_eq!(choose(&all[..1], None), Ok(all[0]));
        assert!(choose(&all[1..], Some(Family::V6)).unwrap_err().contains("IPv6"));
        assert_eq!(resolve_service("fe80::1%3", "5", None), Ok("[fe80::1%3]:5".parse().unwrap()));
        assert_eq!(resolve_service("10.1.1.1", "5", Some(Family::V4)), Ok("10.1.1.1:5".parse().unwrap()));
    }

    #[test]
    fn localhost_is_ipv4_unless_ipv6_is_requested() {
        assert!("localhost:5".resolve(None).unwrap().is_ipv4());
        assert!("localhost:5".resolve(Some(Family::V4)).unwrap().ip().is_loopback());
        assert_eq!("localhost:5".resolve(Some(Family::V6)), Ok("[::1]:5".parse().unwrap()));
    }
}
