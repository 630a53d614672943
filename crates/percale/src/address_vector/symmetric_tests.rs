//! Tests of symmetric insertion against a model that generates every name and number.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;

use super::*;

/// Resolves the names in these tests: the address of `hostN` is 10.0.0.0 + N. Names with a multiple of 7 are unknown.
fn resolve(name: &str, port: u16) -> Result<SocketAddr, AddressError> {
    let number: Option<u32> = name.strip_prefix("host").and_then(|number| number.parse().ok());
    let known = number.filter(|number| number % 7 != 0);
    let ip = known.map(|number| Ipv4Addr::from_bits(0x0a00_0000 + number));
    let unknown = || AddressError::Name { name: name.to_owned(), reason: "unknown".to_owned() };
    ip.map(|ip| SocketAddr::new(ip.into(), port)).ok_or_else(unknown)
}

/// Returns the outcome for every address.
fn all(range: &Symmetric<'_>) -> Result<Vec<Option<SocketAddr>>, AddressError> {
    let blocks = range.blocks(None, resolve)?;
    Ok(blocks
        .into_iter()
        .flat_map(|block| match block {
            Ok(block) => (0..block.len()).map(|at| Some(block.get(at))).collect::<Vec<_>>(),
            Err((count, _)) => vec![None; usize::try_from(count).unwrap()],
        })
        .collect())
}

fn texts(node: &str, nodes: usize, service: &str, services: usize) -> Vec<String> {
    let all = all(&Symmetric { node, nodes, service, services }).unwrap();
    all.into_iter().map(|address| address.map_or_else(String::new, |address| address.to_string())).collect()
}

/// Requirements: AV-042, AV-043.
#[test]
fn services_of_a_node_come_before_the_next_node() {
    assert_eq!(texts("10.1.1.1", 2, "5000", 2), ["10.1.1.1:5000", "10.1.1.1:5001", "10.1.1.2:5000", "10.1.1.2:5001"]);
    assert_eq!(texts("fe80::fe%3", 2, "80", 1), ["[fe80::fe%3]:80", "[fe80::ff%3]:80"]);
    assert!(texts("10.1.1.1", 0, "5000", 2).is_empty());
    assert!(texts("10.1.1.1", 2, "5000", 0).is_empty());
}

/// Requirements: AV-044.
#[test]
fn node_names_increment_their_trailing_number() {
    assert_eq!(texts("host10", 2, "5000", 2), ["10.0.0.10:5000", "10.0.0.10:5001", "10.0.0.11:5000", "10.0.0.11:5001"]);
    let names = |node, nodes| {
        let range = Symmetric { node, nodes, service: "1", services: 1 };
        range.names().unwrap().collect::<Vec<_>>()
    };
    assert_eq!(names("n08", 3), ["n08", "n09", "n10"]);
    assert_eq!(names("n099", 2), ["n099", "n100"]);
    assert_eq!(names("rack3-9", 2), ["rack3-9", "rack3-10"]);
    assert_eq!(names("alone", 1), ["alone"]);
    // Consecutive names with consecutive addresses form one block. An unknown name splits it.
    let blocks = |node| Symmetric { node, nodes: 6, service: "5", services: 3 }.blocks(None, resolve).unwrap();
    assert_eq!(blocks("host8").len(), 1);
    assert!(matches!(&blocks("host10")[..], [Ok(_), Err((3, AddressError::Name { .. })), Ok(_)]));
}

/// Requirements: AV-045.
#[test]
fn range_that_cannot_be_incremented_is_rejected() {
    for (node, nodes, service, services) in [
        ("nonumber", 2, "5000", 1),
        ("host99999999999999999999", 2, "5000", 1),
        ("host18446744073709551615", 2, "5000", 1),
        ("10.1.1.1", 1, "65535", 2),
        ("10.1.1.1", usize::MAX, "5000", usize::MAX),
        ("10.1.1.1", 1 << 40, "5000", 1),
        ("223.255.255.255", 2, "5000", 1),
        ("0.0.0.0", 2, "5000", 1),
        ("ff02::1", 1, "5000", 1),
    ] {
        let range = Symmetric { node, nodes, service, services };
        let error = range.blocks(None, resolve).unwrap_err();
        assert!(matches!(error, AddressError::Range { .. }), "{error}");
        assert_eq!(error.errno(), libc::EINVAL);
    }
    let range = Symmetric { node: "10.1.1.1", nodes: 1, service: "5", services: 1 };
    assert!(matches!(range.blocks(Some(Family::V6), resolve), Err(AddressError::Family { .. })));
    for service in ["0", "65536", "no such service", ""] {
        let range = Symmetric { service, ..range };
        assert!(matches!(range.blocks(None, resolve), Err(AddressError::Name { .. })), "{service:?}");
    }
}

/// Implements the insertion in a simple way, which handles every address separately. Returns `None` if the range is not
/// possible.
fn model(range: &Symmetric<'_>) -> Option<Vec<Option<SocketAddr>>> {
    let port: u32 = range.service.parse().unwrap();
    let mut all = Vec::new();
    for node in 0..range.nodes {
        for service in 0..range.services {
            let port = u16::try_from(port + service as u32).ok()?;
            let address = match range.node.parse::<IpAddr>() {
                Ok(IpAddr::V4(ip)) => {
                    let ip = Ipv4Addr::from_bits(ip.to_bits().checked_add(node as u32)?);
                    let good = !ip.is_unspecified() && !ip.is_multicast() && !ip.is_broadcast();
                    Some(good.then_some(SocketAddr::new(ip.into(), port))?)
                }
                Ok(IpAddr::V6(ip)) => {
                    let next = Ipv6Addr::from_bits(ip.to_bits().checked_add(node as u128)?);
                    let good = !next.is_unspecified() && !next.is_multicast();
                    let leaves = ip.is_unicast_link_local() != next.is_unicast_link_local();
                    let scoped = next.is_unicast_link_local() && next.segments()[1..4] != [0, 0, 0];
                    Some((good && !leaves && !scoped).then_some(SocketAddr::new(next.into(), port))?)
                }
                Err(_) => {
                    let digits = range.node.len() - range.node.trim_end_matches(|c: char| c.is_ascii_digit()).len();
                    let (stem, number) = range.node.split_at(range.node.len() - digits);
                    let number = match number.parse::<u64>() {
                        Ok(first) => format!("{:01$}", first + node as u64, digits),
                        Err(_) if range.nodes > 1 => return None,
                        Err(_) => String::new(),
                    };
                    resolve(&format!("{stem}{number}"), port).ok()
                }
            };
            all.push(address);
        }
    }
    Some(all)
}

fn node() -> impl Strategy<Value = String> {
    let near = |edge: u32| (0u32..12).prop_map(move |n| Ipv4Addr::from_bits(edge.wrapping_add(n)).to_string());
    let near6 = |edge: u128| (0u128..12).prop_map(move |n| Ipv6Addr::from_bits(edge.wrapping_sub(n)).to_string());
    prop_oneof![
        any::<u32>().prop_map(|bits| Ipv4Addr::from_bits(bits).to_string()),
        any::<u128>().prop_map(|bits| Ipv6Addr::from_bits(bits).to_string()),
        near(0x0a00_00fa),
        near(0xdfff_fffa),
        near(0xffff_fff0),
        near(0),
        near6(0xfe80_0001u128 << 96),
        near6((0xfe80u128 << 112) + (1 << 64)),
        near6(0xff00u128 << 112),
        near6(0xfe80u128 << 112),
        near6(5),
        "host[0-9]{0,3}",
        "[a-z]{1,4}",
    ]
}

proptest! {
    // PROPTEST_CASES=100000 runs 100,000 cases.
    /// Requirements: AV-042, AV-044, AV-059.
    #[test]
    fn symmetric_range_matches_explicit_list(
        node in node(), nodes in 1usize..14, service in prop_oneof![1u16..=9999, 65_520u16..=65_535], services in 1usize..9,
    ) {
        let service = service.to_string();
        let range = Symmetric { node: &node, nodes, service: &service, services };
        prop_assert_eq!(all(&range).ok(), model(&range));
    }
}
