//! Tests that messages can be encoded and decoded.

use std::net::{IpAddr, Ipv4Addr};

use proptest::prelude::*;

use super::*;

fn address() -> impl Strategy<Value = SocketAddr> {
    let ip = prop_oneof![any::<[u8; 4]>().prop_map(IpAddr::from), any::<[u8; 16]>().prop_map(IpAddr::from)];
    (ip, 1..u16::MAX).prop_filter_map("cannot be connected to", |(ip, port)| {
        let usable = !ip.is_unspecified() && !ip.is_multicast() && ip != IpAddr::V4(Ipv4Addr::BROADCAST);
        usable.then(|| SocketAddr::new(ip, port))
    })
}

/// An identity of which a part is unknown matches no other, not even one of which the same part is unknown.
#[test]
fn unknown_hosts_and_networks_match_no_other() {
    let known = HostIdentity { boot: [1; 16], namespace: (2, 3), user: 4 };
    assert!(known.same_host(&known) && known.same_network(&known));
    let no_network = HostIdentity { namespace: (0, 0), ..known };
    assert!(no_network.same_host(&known) && !no_network.same_network(&known));
    assert!(!no_network.same_network(&no_network));
    let no_host = HostIdentity { boot: [0; 16], ..known };
    assert!(!no_host.same_host(&no_host) && !no_host.same_network(&no_host));
    for other in [HostIdentity { namespace: (2, 4), ..known }, HostIdentity { namespace: (1, 3), ..known }] {
        assert!(known.same_host(&other) && !known.same_network(&other));
    }
}

proptest! {
    #[test]
    fn hello_round_trips(
        flags in 0u32..64, boot: [u8; 16], namespace: (u64, u64), user: u32, address in address(), called in address(),
        contexts: [u16; 2], incarnation: [u8; 16], reset: [u8; 16], nonce: [u8; 32],
    ) {
        let flags = HelloFlags::from_bits_retain(flags);
        let names_a_call = flags.intersects(HelloFlags::RESET | HelloFlags::PROBE);
        let hello = Hello {
            flags,
            place: HostIdentity { boot, namespace, user },
            address,
            called,
            context: contexts[0],
            wanted: contexts[1],
            incarnation: Incarnation(incarnation),
            reset: if names_a_call { reset } else { [0; 16] },
            nonce,
        };
        let read = Hello::from_bytes(&hello.to_bytes());
        if flags.contains(HelloFlags::RESET | HelloFlags::PROBE) {
            prop_assert!(read.is_err());
        } else {
            prop_assert_eq!(read, Ok(hello));
        }
    }

    #[test]
    fn damaged_hello_is_rejected_or_valid(at in 0..HELLO_BYTES, value: u8) {
        let hello = Hello {
            flags: HelloFlags::TCP,
            place: HostIdentity { boot: [1; 16], namespace: (2, 3), user: 4 },
            address: "127.0.0.1:7471".parse().unwrap(),
            called: "127.0.0.1:7472".parse().unwrap(),
            context: 1,
            wanted: 2,
            incarnation: Incarnation([5; 16]),
            reset: [0; 16],
            nonce: [6; 32],
        };
        let mut bytes = hello.to_bytes();
        bytes.as_mut_bytes()[at] = value;
        if let Ok(read) = Hello::from_bytes(&bytes) {
            let written = read.to_bytes();
            prop_assert_eq!(written.as_bytes(), bytes.as_bytes());
        }
    }

    #[test]
    fn any_bytes_parse_or_are_refused(bytes: Vec<u8>) {
        if let Ok((verdict, _)) = VerdictBytes::read_from_prefix(&bytes)
            && let Ok(read) = Verdict::from_bytes(&verdict)
        {
            let written = read.to_bytes();
            prop_assert_eq!(written.covered(), verdict.covered());
        }
        if let Ok((commit, _)) = CommitBytes::read_from_prefix(&bytes)
            && let Ok(read) = Commit::from_bytes(&commit)
        {
            let written = read.to_bytes();
            prop_assert_eq!(written.as_bytes(), commit.as_bytes());
        }
    }
}

#[test]
fn other_protocol_and_version_give_different_errors() {
    let mut prefix = Prefix { magic: MAGIC, version: U16::new(VERSION + 1), size: U16::new(3), flags: U32::new(!0) };
    assert_eq!(prefix.check(), Err(Malformed::Version(VERSION + 1)));
    prefix.magic = *b"SSH-2.0-";
    assert_eq!(prefix.check(), Err(Malformed::Magic));
}
