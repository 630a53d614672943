//! Resolution of nodes and services: names, numbers, and libfabric's text form of addresses.

use std::ffi::{CStr, CString, c_int};
use std::net::{IpAddr, SocketAddr};

use percale::address::name::Name;

use crate::address;

/// The prefixes of addresses in libfabric's text form.
const SCHEMES: [&str; 3] = ["fi_sockaddr://", "fi_sockaddr_in://", "fi_sockaddr_in6://"];

/// A query for addresses.
#[derive(Clone, Copy, Debug)]
pub(super) struct Query<'a> {
    /// The name or address of a host, or a complete address in text form. `None` stands for this host.
    pub(super) node: Option<&'a str>,
    /// The number or name of a port.
    pub(super) service: Option<&'a str>,
    /// The node is a numeric address, and the resolver is not called (FI_NUMERICHOST).
    pub(super) numeric: bool,
    /// The addresses are for binding instead of connecting. Without a node, they are the wildcard addresses.
    pub(super) local: bool,
}

/// Returns the addresses for a query, IPv4 first, or the reason why there are none.
pub(super) fn resolve(query: Query<'_>) -> Result<Vec<SocketAddr>, String> {
    if let Some(node) = query.node
        && let Some(text) = SCHEMES.iter().find_map(|scheme| node.strip_prefix(scheme))
    {
        return match query.service {
            Some(service) => Err(format!(
                "node {node:?} is an address with a port, so it cannot be combined with service {service:?}"
            )),
            None => whole(node, text),
        };
    }
    // This name stands for this host by definition (RFC 6761), even if the resolver does not know it.
    let localhost = query.node.is_some_and(|node| node.eq_ignore_ascii_case("localhost"));
    let query = if localhost { Query { node: None, local: false, ..query } } else { query };
    let mut found = ask(query)?;
    found.sort_by_key(SocketAddr::is_ipv6);
    found.dedup();
    Ok(found)
}

/// Parses an address in libfabric's form after its scheme: a host, an optional port, and more fields, which are
/// ignored.
fn whole(node: &str, text: &str) -> Result<Vec<SocketAddr>, String> {
    let end = text.find(['/', '?']).unwrap_or(text.len());
    let text = &text[..end];
    let bare = text.trim_start_matches('[').trim_end_matches(']');
    let found = match bare.parse::<IpAddr>() {
        Ok(ip) => Ok(SocketAddr::new(ip, 0)),
        Err(_) => text.resolve(None),
    };
    let found = found.map_err(|error| format!("node {node:?}: {error}"))?;
    let wanted = if node.starts_with("fi_sockaddr_in://") {
        found.is_ipv4()
    } else {
        found.is_ipv6() || !node.starts_with("fi_sockaddr_in6://")
    };
    if wanted { Ok(vec![found]) } else { Err(format!("node {node:?} has a different address family than specified")) }
}

fn ask(query: Query<'_>) -> Result<Vec<SocketAddr>, String> {
    let text = |text: Option<&str>| {
        text.map(CString::new).transpose().map_err(|_| "the node or service contains a zero byte".to_owned())
    };
    let (node, service) = (text(query.node)?, text(query.service)?);
    // The resolver requires a node or a service.
    let (mut passive, mut numeric) = (0, 0);
    if query.local {
        passive = libc::AI_PASSIVE;
    }
    if query.numeric {
        numeric = libc::AI_NUMERICHOST;
    }
    let service = if node.is_none() && service.is_none() { Some(c"0".to_owned()) } else { service };
    // SAFETY: all zero is the empty value of this structure.
    let mut wanted: libc::addrinfo = unsafe { std::mem::zeroed() };
    wanted.ai_flags = passive | numeric;
    wanted.ai_socktype = libc::SOCK_STREAM;
    let pointer = |text: &Option<CString>| text.as_ref().map_or(std::ptr::null(), |text| text.as_ptr());
    let mut first = std::ptr::null_mut();
    // SAFETY: the texts end with a zero byte, and `first` receives the address of the list.
    let code = unsafe { libc::getaddrinfo(pointer(&node), pointer(&service), &raw const wanted, &raw mut first) };
    if code != 0 {
        let shown = [query.node, query.service].map(Option::unwrap_or_default).join(" ");
        return Err(format!("{shown:?} cannot be resolved: {}", explain(code)));
    }
    let (mut found, mut at) = (Vec::new(), first);
    while !at.is_null() {
        // SAFETY: the list is valid until it is freed below.
        let one = unsafe { &*at };
        // SAFETY: the address of an entry has the stated length.
        found.extend(unsafe { address::read(one.ai_addr.cast(), one.ai_addrlen as usize) });
        at = one.ai_next;
    }
    // SAFETY: getaddrinfo returned the list, and no part of it is used any more.
    unsafe { libc::freeaddrinfo(first) };
    Ok(found)
}

fn explain(code: c_int) -> String {
    // SAFETY: the texts of the resolver are constants.
    unsafe { CStr::from_ptr(libc::gai_strerror(code)) }.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolved(node: Option<&str>, service: Option<&str>, numeric: bool, local: bool) -> Result<Vec<String>, String> {
        let found = resolve(Query { node, service, numeric, local })?;
        Ok(found.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn nodes_and_services_are_names_numbers_or_whole_addresses() {
        let one = |node, service| resolved(Some(node), service, true, false).unwrap();
        assert_eq!(one("10.1.1.1", Some("7471")), ["10.1.1.1:7471"]);
        assert_eq!(one("10.1.1.1", None), ["10.1.1.1:0"]);
        assert_eq!(one("2001:db8::1", Some("5")), ["[2001:db8::1]:5"]);
        assert_eq!(one("fi_sockaddr://10.31.6.12:7471?qos=3", None), ["10.31.6.12:7471"]);
        assert_eq!(one("fi_sockaddr_in://10.31.6.12", None), ["10.31.6.12:0"]);
        assert_eq!(one("fi_sockaddr_in6://[2001:db8::2]:9/x", None), ["[2001:db8::2]:9"]);
        assert_eq!(one("fi_sockaddr_in6://[2001:db8::2]", None), ["[2001:db8::2]:0"]);
        assert_eq!(one("localhost", Some("9"))[0], "127.0.0.1:9");
    }

    #[test]
    fn missing_node_resolves_to_this_host() {
        assert_eq!(resolved(None, Some("80"), false, true).unwrap()[0], "0.0.0.0:80");
        assert_eq!(resolved(None, Some("80"), false, false).unwrap()[0], "127.0.0.1:80");
        assert_eq!(resolved(None, None, false, true).unwrap()[0], "0.0.0.0:0");
    }

    #[test]
    fn unresolvable_node_error_contains_it() {
        for (node, service) in [
            ("no.such.address", None),
            ("10.1.1.1", Some("no-such-service")),
            ("fi_sockaddr://10.1.1.1:5", Some("6")),
            ("fi_sockaddr_in6://10.1.1.1:5", None),
            ("fi_sockaddr_in://[::1]:5", None),
            ("fi_sockaddr://:::", None),
        ] {
            let error = resolved(Some(node), service, true, false).unwrap_err();
            assert!(error.contains(node), "{error}");
        }
    }
}
