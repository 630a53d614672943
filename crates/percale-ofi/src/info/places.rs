//! The addresses of a result: the interfaces, the local addresses and the addresses of peers (fi_getinfo(3)).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use percale::fabric::InterfaceAddress;

use super::hints::{Hints, OptionalAddress, Rejection};
use super::offer::{FABRIC, LOOPBACK_FABRIC};
use super::resolve::{Query, resolve};
use crate::abi::{
    FI_FORMAT_UNSPEC, FI_NUMERICHOST, FI_SOCKADDR, FI_SOCKADDR_IN, FI_SOCKADDR_IN6, FI_SOCKADDR_IP, FI_SOURCE,
};

/// The arguments of getinfo that select addresses.
#[derive(Clone, Copy, Debug)]
pub(super) struct AddressQuery<'a> {
    pub(super) node: Option<&'a str>,
    pub(super) service: Option<&'a str>,
    pub(super) flags: u64,
    /// The only interface that may be offered, if the user selected one (`FI_PERCALE_INTERFACE`).
    pub(super) interface: Option<&'a str>,
}

/// An interface with the addresses of an endpoint on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct InterfaceAddresses {
    /// The name of the interface, which is also the name of the domain.
    pub(super) interface: String,
    /// The fabric that the interface belongs to.
    pub(super) fabric: &'static str,
    /// The address to which endpoints bind. Port 0 selects any port.
    pub(super) source: SocketAddr,
    /// The address of the peer.
    pub(super) destination: Option<SocketAddr>,
}

/// Returns all places of the requested fabric, best first, or the reason why there are none.
pub(super) fn places(
    here: &[&InterfaceAddress],
    hints: &Hints,
    requested: AddressQuery<'_>,
) -> Result<Vec<InterfaceAddresses>, Rejection> {
    let mut places = places_of_all(here, hints, requested)?;
    // If loopback is the only interface, there is one fabric.
    if here.iter().any(|one| one.running && !one.ip.is_loopback()) {
        let loopback = |name: &str| here.iter().any(|one| one.name == name && one.ip.is_loopback());
        places.iter_mut().filter(|place| loopback(&place.interface)).for_each(|place| place.fabric = LOOPBACK_FABRIC);
    }
    if let Some(name) = hints.fabric_name.as_deref() {
        places.retain(|place| place.fabric == name);
        if places.is_empty() {
            return Err(format!("hints request fabric_attr->name {name:?}, which has no allowed interface that is up"));
        }
    }
    Ok(places)
}

/// Like [`places`], but for every fabric.
fn places_of_all(
    here: &[&InterfaceAddress],
    hints: &Hints,
    requested: AddressQuery<'_>,
) -> Result<Vec<InterfaceAddresses>, Rejection> {
    let family = Families::of(hints.addr_format)?;
    let usable = usable(here, hints, requested, family)?;
    let given = |address, which| match address {
        OptionalAddress::Nothing => Ok(None),
        OptionalAddress::Address(address) => family
            .takes(&address)
            .then_some(Some(address))
            .ok_or_else(|| format!("hints set {which} {address}, which is not of addr_format {}", hints.addr_format)),
        OptionalAddress::Unusable => {
            Err(format!("hints set {which}, which is not an IPv4 or IPv6 address with its length"))
        }
    };
    let query = Query {
        node: requested.node,
        service: requested.service,
        numeric: requested.flags & FI_NUMERICHOST != 0,
        local: requested.flags & FI_SOURCE != 0,
    };
    let named = if requested.node.is_some() || requested.service.is_some() {
        let mut found = resolve(query)?;
        found.retain(|address| family.takes(address));
        if found.is_empty() {
            let what = [requested.node, requested.service].map(Option::unwrap_or_default).join(" ");
            return Err(format!("{what:?} has no address of addr_format {}", hints.addr_format));
        }
        found
    } else {
        Vec::new()
    };
    if query.local {
        let destination = given(hints.destination, "dest_addr")?;
        if named.iter().any(|address| address.ip().is_unspecified()) {
            return wildcards(&usable, &named, destination);
        }
        let mut why = String::new();
        for source in named {
            match from(&usable, source, destination) {
                Ok(places) => return Ok(places),
                Err(reason) => why = reason,
            }
        }
        return Err(why);
    }
    let source = given(hints.source, "src_addr")?;
    let destinations = if named.is_empty() { Vec::from_iter(given(hints.destination, "dest_addr")?) } else { named };
    match source {
        Some(source) if source.ip().is_unspecified() => {
            wildcards(&usable, &[source], destinations.into_iter().find(|one| one.is_ipv4() == source.is_ipv4()))
        }
        Some(source) => {
            let same = destinations.iter().find(|one| one.is_ipv4() == source.is_ipv4());
            from(&usable, source, same.or_else(|| destinations.first()).copied())
        }
        None if destinations.is_empty() => {
            let all = usable.iter().map(|one| place(one, SocketAddr::new(one.ip, 0), None));
            Ok(all.collect())
        }
        None => towards(&usable, &destinations, requested.interface.is_some() || hints.domain_name.is_some()),
    }
}

/// Returns the interfaces that may be offered.
fn usable<'a>(
    here: &[&'a InterfaceAddress],
    hints: &Hints,
    requested: AddressQuery<'_>,
    family: Families,
) -> Result<Vec<&'a InterfaceAddress>, Rejection> {
    let all: Vec<&InterfaceAddress> = here.iter().copied().filter(|one| one.running).collect();
    let mut names: Vec<&str> = all.iter().map(|one| one.name.as_str()).collect();
    names.dedup();
    let names = names.join(", ");
    let wanted = [
        ("FI_PERCALE_INTERFACE is", requested.interface),
        ("hints request domain_attr->name", hints.domain_name.as_deref()),
    ];
    for (what, name) in wanted {
        if let Some(name) = name
            && !all.iter().any(|one| one.name == name)
        {
            return Err(format!("{what} {name:?}; interfaces that are up: {names}"));
        }
    }
    let named = |one: &&InterfaceAddress| wanted.iter().all(|(_, name)| name.is_none_or(|name| one.name == name));
    let found: Vec<&InterfaceAddress> =
        all.into_iter().filter(named).filter(|one| family.takes(&SocketAddr::new(one.ip, 0))).collect();
    if found.is_empty() {
        return Err(format!("no allowed interface that is up has an address of addr_format {}", hints.addr_format));
    }
    Ok(found)
}

/// Returns one place for each interface. The endpoint binds to the wildcard address and advertises the interface's
/// address.
fn wildcards(
    usable: &[&InterfaceAddress],
    any: &[SocketAddr],
    destination: Option<SocketAddr>,
) -> Result<Vec<InterfaceAddresses>, Rejection> {
    let of = |v4: bool| any.iter().find(|one| one.ip().is_unspecified() && one.is_ipv4() == v4);
    let fits = |v4: bool| destination.is_none_or(|one| one.is_ipv4() == v4);
    let places = usable.iter().filter(|one| fits(one.ip.is_ipv4())).filter_map(|one| {
        let any = of(one.ip.is_ipv4())?;
        Some(place(one, *any, destination))
    });
    let places: Vec<InterfaceAddresses> = places.collect();
    if places.is_empty() { Err("no interface that is up has an address of that family".into()) } else { Ok(places) }
}

/// Returns the place of a local address.
fn from(
    usable: &[&InterfaceAddress],
    source: SocketAddr,
    destination: Option<SocketAddr>,
) -> Result<Vec<InterfaceAddresses>, Rejection> {
    if let Some(other) = destination.filter(|other| other.is_ipv4() != source.is_ipv4()) {
        return Err(format!("{source} and {other} have different address families"));
    }
    let exact = usable.iter().find(|one| one.ip == source.ip());
    // All of 127.0.0.0/8 is local, although only one address of it is listed.
    let near = || usable.iter().find(|one| one.ip.is_loopback() && one.ip.is_ipv4() && source.ip().is_loopback());
    match exact.or_else(near) {
        Some(one) => Ok(vec![place(one, source, destination)]),
        None => {
            let all: Vec<String> = usable.iter().map(|one| one.ip.to_string()).collect();
            Err(format!("{} is not an address of an allowed interface that is up: {}", source.ip(), all.join(", ")))
        }
    }
}

/// Returns the place from which the system reaches a destination. If the user selected an interface, returns the place
/// on that interface.
fn towards(
    usable: &[&InterfaceAddress],
    destinations: &[SocketAddr],
    named: bool,
) -> Result<Vec<InterfaceAddresses>, Rejection> {
    let mut why = String::new();
    for &destination in destinations {
        let by = match route(destination) {
            Ok(ip) => ip,
            Err(error) => {
                why = format!("{destination} is not reachable: {error}");
                continue;
            }
        };
        let same = |one: &&&InterfaceAddress| one.ip.is_ipv4() == destination.is_ipv4();
        let best = usable.iter().find(|one| one.ip == by);
        // This handles other loopback addresses, and addresses that were added after the interfaces were listed.
        let best = best.or_else(|| usable.iter().filter(same).find(|one| one.ip.is_loopback() && by.is_loopback()));
        match best.or_else(|| usable.iter().filter(same).find(|_| named)) {
            Some(one) => return Ok(vec![place(one, SocketAddr::new(one.ip, 0), Some(destination))]),
            None => why = format!("the route to {destination} uses {by}, which is not an allowed interface that is up"),
        }
    }
    Err(why)
}

/// Returns the local address that the system's routing selects for a destination. Nothing is sent.
fn route(destination: SocketAddr) -> std::io::Result<IpAddr> {
    let any: IpAddr = if destination.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0))?;
    let port = if destination.port() == 0 { 9 } else { destination.port() };
    socket.connect(SocketAddr::new(destination.ip(), port))?;
    Ok(socket.local_addr()?.ip())
}

fn place(interface: &InterfaceAddress, source: SocketAddr, destination: Option<SocketAddr>) -> InterfaceAddresses {
    InterfaceAddresses { interface: interface.name.clone(), fabric: FABRIC, source, destination }
}

/// The address families that an address format allows.
#[derive(Clone, Copy, Debug)]
struct Families {
    v4: bool,
    v6: bool,
}

impl Families {
    fn of(format: u32) -> Result<Self, Rejection> {
        match format {
            FI_FORMAT_UNSPEC | FI_SOCKADDR | FI_SOCKADDR_IP => Ok(Self { v4: true, v6: true }),
            FI_SOCKADDR_IN => Ok(Self { v4: true, v6: false }),
            FI_SOCKADDR_IN6 => Ok(Self { v4: false, v6: true }),
            other => {
                Err(format!("hints request addr_format {other}; supported are FI_SOCKADDR_IN and FI_SOCKADDR_IN6"))
            }
        }
    }

    const fn takes(self, address: &SocketAddr) -> bool {
        if address.is_ipv4() { self.v4 } else { self.v6 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interface(name: &str, ip: &str, running: bool) -> InterfaceAddress {
        let (kind, default_route) = (percale::fabric::LinkKind::Network, false);
        InterfaceAddress { name: name.into(), ip: ip.parse().unwrap(), running, kind, default_route }
    }

    /// Formats places as text: interface, source, destination.
    fn found(hints: &Hints, requested: AddressQuery<'_>) -> Result<Vec<String>, Rejection> {
        let all = [
            interface("eth0", "10.0.0.1", true),
            interface("eth0", "2001:db8::1", true),
            interface("ib0", "10.9.0.1", false),
            interface("lo", "127.0.0.1", true),
        ];
        let here: Vec<&InterfaceAddress> = all.iter().collect();
        let shown = |one: InterfaceAddresses| {
            let to = one.destination.map_or_else(String::new, |to| format!(" to {to}"));
            format!("{} {}{to}", one.interface, one.source)
        };
        Ok(places(&here, hints, requested)?.into_iter().map(shown).collect())
    }

    const ANYWHERE: AddressQuery<'_> = AddressQuery { node: None, service: None, flags: 0, interface: None };

    fn hints(change: impl FnOnce(&mut Hints)) -> Hints {
        let mut hints = Hints::none(crate::version::API);
        change(&mut hints);
        hints
    }

    fn at(address: &str) -> OptionalAddress {
        OptionalAddress::Address(address.parse().unwrap())
    }

    #[test]
    fn without_hints_every_running_interface_is_returned() {
        let none = hints(|_| ());
        assert_eq!(found(&none, ANYWHERE).unwrap(), ["eth0 10.0.0.1:0", "eth0 [2001:db8::1]:0", "lo 127.0.0.1:0"]);
        let v4 = hints(|hints| hints.addr_format = FI_SOCKADDR_IN);
        assert_eq!(found(&v4, ANYWHERE).unwrap(), ["eth0 10.0.0.1:0", "lo 127.0.0.1:0"]);
        let v6 = hints(|hints| hints.addr_format = FI_SOCKADDR_IN6);
        assert_eq!(found(&v6, ANYWHERE).unwrap(), ["eth0 [2001:db8::1]:0"]);
        let named = hints(|hints| hints.domain_name = Some("lo".into()));
        assert_eq!(found(&named, ANYWHERE).unwrap(), ["lo 127.0.0.1:0"]);
        assert_eq!(found(&none, AddressQuery { interface: Some("lo"), ..ANYWHERE }).unwrap(), ["lo 127.0.0.1:0"]);
    }

    /// The ranks of one host that are distributed over the domains of a fabric all have addresses that other hosts can
    /// reach.
    #[test]
    fn loopback_has_a_separate_fabric() {
        let [eth, down, lo] = [
            interface("eth0", "10.0.0.1", true),
            interface("ib0", "10.9.0.1", false),
            interface("lo", "127.0.0.1", true),
        ];
        let fabrics = |here: &[&InterfaceAddress], hints: &Hints| {
            let places = places(here, hints, ANYWHERE)?;
            Ok::<_, Rejection>(places.into_iter().map(|one| (one.interface, one.fabric)).collect::<Vec<_>>())
        };
        let named = |name: &str| hints(|hints| hints.fabric_name = Some(name.into()));
        let (none, own, other) = (hints(|_| ()), named(FABRIC), named(LOOPBACK_FABRIC));
        let both = [&eth, &down, &lo];
        assert_eq!(fabrics(&both, &none).unwrap(), [("eth0".into(), FABRIC), ("lo".into(), LOOPBACK_FABRIC)]);
        assert_eq!(fabrics(&both, &own).unwrap(), [("eth0".into(), FABRIC)]);
        assert_eq!(fabrics(&both, &other).unwrap(), [("lo".into(), LOOPBACK_FABRIC)]);
        let alone = [&down, &lo];
        assert_eq!(fabrics(&alone, &none).unwrap(), [("lo".into(), FABRIC)]);
        assert!(fabrics(&alone, &other).unwrap_err().contains(LOOPBACK_FABRIC));
    }

    #[test]
    fn source_must_be_a_local_or_wildcard_address() {
        let none = hints(|_| ());
        let source = |node, service| AddressQuery { node, service, flags: FI_SOURCE | FI_NUMERICHOST, interface: None };
        assert_eq!(found(&none, source(Some("10.0.0.1"), Some("5"))).unwrap(), ["eth0 10.0.0.1:5"]);
        assert_eq!(found(&none, source(Some("127.0.0.2"), None)).unwrap(), ["lo 127.0.0.2:0"]);
        let any = found(&none, source(None, Some("5"))).unwrap();
        assert_eq!(any, ["eth0 0.0.0.0:5", "eth0 [::]:5", "lo 0.0.0.0:5"]);
        let hinted = hints(|hints| hints.source = at("10.0.0.1:7"));
        assert_eq!(found(&hinted, ANYWHERE).unwrap(), ["eth0 10.0.0.1:7"]);
        let to = hints(|hints| (hints.source, hints.destination) = (at("9.9.9.9:7"), at("10.0.0.9:8")));
        assert_eq!(found(&to, source(Some("10.0.0.1"), Some("5"))).unwrap(), ["eth0 10.0.0.1:5 to 10.0.0.9:8"]);
    }

    #[test]
    fn destination_selects_its_interface() {
        let none = hints(|_| ());
        let to = AddressQuery { node: Some("127.0.0.1"), service: Some("5"), ..ANYWHERE };
        assert_eq!(found(&none, to).unwrap(), ["lo 127.0.0.1:0 to 127.0.0.1:5"]);
        let hinted = hints(|hints| hints.destination = at("127.0.0.1:6"));
        assert_eq!(found(&hinted, ANYWHERE).unwrap(), ["lo 127.0.0.1:0 to 127.0.0.1:6"]);
        assert_eq!(found(&hinted, to).unwrap(), ["lo 127.0.0.1:0 to 127.0.0.1:5"], "the node takes precedence");
        let own = AddressQuery { interface: Some("eth0"), ..to };
        assert_eq!(found(&none, own).unwrap(), ["eth0 10.0.0.1:0 to 127.0.0.1:5"], "the user chose that interface");
        let both = hints(|hints| hints.source = at("10.0.0.1:3"));
        assert_eq!(found(&both, to).unwrap(), ["eth0 10.0.0.1:3 to 127.0.0.1:5"]);
    }

    #[test]
    fn unreachable_hints_are_rejected_by_name() {
        let numeric = AddressQuery { flags: FI_NUMERICHOST, ..ANYWHERE };
        let source = AddressQuery { flags: FI_SOURCE | FI_NUMERICHOST, ..ANYWHERE };
        let nothing = hints(|_| ());
        let refused: [(Hints, AddressQuery<'_>, &str); 9] = [
            (hints(|hints| hints.addr_format = 9), ANYWHERE, "addr_format 9"),
            (hints(|hints| hints.domain_name = Some("ib0".into())), ANYWHERE, "domain_attr->name \"ib0\""),
            (hints(|hints| hints.source = OptionalAddress::Unusable), ANYWHERE, "src_addr"),
            (hints(|hints| hints.destination = OptionalAddress::Unusable), ANYWHERE, "dest_addr"),
            (hints(|hints| hints.source = at("10.9.0.1:1")), ANYWHERE, "10.9.0.1 is not an address"),
            (
                hints(|hints| (hints.addr_format, hints.source) = (FI_SOCKADDR_IN6, at("10.0.0.1:1"))),
                ANYWHERE,
                "addr_format 3",
            ),
            (
                hints(|hints| hints.source = at("[2001:db8::1]:1")),
                AddressQuery { node: Some("10.0.0.2"), ..numeric },
                "families",
            ),
            (nothing, AddressQuery { node: Some("10.0.0.2"), ..source }, "10.0.0.2 is not an address"),
            (hints(|_| ()), AddressQuery { interface: Some("eth7"), ..ANYWHERE }, "FI_PERCALE_INTERFACE is \"eth7\""),
        ];
        for (hints, requested, expected) in refused {
            let why = found(&hints, requested).unwrap_err();
            assert!(why.contains(expected), "{why:?} does not contain {expected:?}");
        }
    }
}
