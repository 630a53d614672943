//! The text form of network addresses, and what names resolve to.
//!
//! An address reads `10.1.1.1:7471`, `[fe80::1%2]:7471` or `node7:7471`; libfabric's own form, with `fi_sockaddr_in://`
//! or `fi_sockaddr_in6://` before it, is taken as well. A name may have several addresses: the first of the wanted
//! family counts, and without a wanted one the first IPv4 address before any IPv6 address, since a peer is one address
//! here and most endpoints are bound to IPv4. Resolving a name blocks, for as long as the system's resolver does.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6, ToSocketAddrs};

use super::vector::AddressError;

/// What an address begins with in libfabric's text form.
const SCHEMES: [(&str, Family); 2] = [("fi_sockaddr_in6://", Family::V6), ("fi_sockaddr_in://", Family::V4)];

/// The kind of network address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Family {
    /// IPv4 (`FI_SOCKADDR_IN`).
    V4,
    /// IPv6 (`FI_SOCKADDR_IN6`).
    V6,
}

impl Family {
    /// The family of `address`.
    #[must_use]
    pub const fn of(address: &SocketAddr) -> Self {
        match address {
            SocketAddr::V4(_) => Self::V4,
            SocketAddr::V6(_) => Self::V6,
        }
    }
}

impl std::fmt::Display for Family {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        })
    }
}

/// What names a peer's network address: an address, or a text that is one or resolves to one.
pub trait Name {
    /// The address, of the wanted family if one is wanted.
    ///
    /// # Errors
    /// If there is none, or the text is no address.
    fn resolve(&self, family: Option<Family>) -> Result<SocketAddr, AddressError>;
}

impl Name for SocketAddr {
    fn resolve(&self, family: Option<Family>) -> Result<SocketAddr, AddressError> {
        match family {
            Some(wanted) if wanted != Family::of(self) => Err(AddressError::Family { address: *self, wanted }),
            _ => Ok(*self),
        }
    }
}

impl Name for SocketAddrV4 {
    fn resolve(&self, family: Option<Family>) -> Result<SocketAddr, AddressError> {
        SocketAddr::V4(*self).resolve(family)
    }
}

impl Name for SocketAddrV6 {
    fn resolve(&self, family: Option<Family>) -> Result<SocketAddr, AddressError> {
        SocketAddr::V6(*self).resolve(family)
    }
}

impl Name for (IpAddr, u16) {
    fn resolve(&self, family: Option<Family>) -> Result<SocketAddr, AddressError> {
        SocketAddr::from(*self).resolve(family)
    }
}

impl Name for str {
    fn resolve(&self, family: Option<Family>) -> Result<SocketAddr, AddressError> {
        let found = SCHEMES.iter().find_map(|(scheme, named)| Some((self.strip_prefix(scheme)?, *named)));
        let (text, family) = match found {
            Some((text, named)) => {
                // The scheme is the text's own word for its family; a wanted one must agree below.
                let address = pick(text, Some(named))?;
                return address.resolve(family);
            }
            None => (self, family),
        };
        pick(text, family)
    }
}

impl Name for String {
    fn resolve(&self, family: Option<Family>) -> Result<SocketAddr, AddressError> {
        self.as_str().resolve(family)
    }
}

impl<T: Name + ?Sized> Name for &T {
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
    let all: Vec<SocketAddr> = text
        .to_socket_addrs()
        .map_err(|error| AddressError::Name { name: text.to_owned(), reason: error.to_string() })?
        .collect();
    let of = |wanted| all.iter().find(|address| Family::of(address) == wanted);
    let chosen = match family {
        Some(wanted) => of(wanted),
        None => of(Family::V4).or_else(|| all.first()),
    };
    chosen.copied().ok_or_else(|| AddressError::Name {
        name: text.to_owned(),
        reason: family.map_or_else(|| "it has no address".to_owned(), |family| format!("it has no {family} address")),
    })
}

/// The port in `localhost:port`. That name is this machine by definition (RFC 6761), also where no resolver knows it.
fn local_port(text: &str) -> Option<u16> {
    let (host, port) = text.rsplit_once(':')?;
    if host.eq_ignore_ascii_case("localhost") { port.parse().ok() } else { None }
}

/// The address in libfabric's text form.
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

    #[test]
    fn av_054_every_address_has_a_text_form_that_reads_back() {
        for text in ["10.1.1.1:7471", "[::1]:5", "[fe80::1%3]:65535"] {
            let address = text.resolve(None).unwrap();
            assert_eq!(address.to_string(), text);
            assert_eq!(fabric_text(&address).resolve(None).unwrap(), address);
        }
    }

    #[test]
    fn av_026_an_address_of_the_wrong_family_is_refused() {
        assert!(matches!("10.1.1.1:5".resolve(Some(Family::V6)), Err(AddressError::Family { .. })));
        assert!(matches!("fi_sockaddr_in6://10.1.1.1:5".resolve(None), Err(AddressError::Family { .. })));
        assert!(matches!("fi_sockaddr_in://10.1.1.1:5".resolve(Some(Family::V6)), Err(AddressError::Family { .. })));
    }

    #[test]
    fn what_is_no_address_is_refused_and_named() {
        for text in ["", "10.1.1.1", "10.1.1.1:70000", "no name:1", ":::"] {
            let error = text.resolve(None).unwrap_err();
            assert!(matches!(&error, AddressError::Name { name, .. } if name == text), "{error}");
        }
    }

    #[test]
    fn localhost_is_an_ipv4_address_unless_ipv6_is_wanted() {
        assert!("localhost:5".resolve(None).unwrap().is_ipv4());
        assert!("localhost:5".resolve(Some(Family::V4)).unwrap().ip().is_loopback());
        assert_eq!("localhost:5".resolve(Some(Family::V6)), Ok("[::1]:5".parse().unwrap()));
    }
}
