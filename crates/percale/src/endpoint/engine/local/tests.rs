//! Tests of local regions without an engine and without links.

use super::*;
use crate::endpoint::window_work::{Bind, WindowAction, WindowPost};
use crate::local_memory::access::Access;
use crate::memory::region::Region;
use crate::memory::window::{Window, WindowAccess};
use crate::{Domain, Info};

/// The incarnations of two peers.
const PEER: u128 = 7;
const OTHER: u128 = 8;

fn domain() -> Domain {
    Info::discover().unwrap().domain().transport("tcp".parse().unwrap()).open().unwrap()
}

fn regions(domain: &Domain, number: u64, trust: Trust) -> LocalRegions {
    let domain = &domain.inner;
    let mut regions =
        LocalRegions::new(Arc::clone(&domain.keys), 0, Arc::clone(&domain.mapped), trust, domain.pins.clone());
    regions.set_endpoint(number);
    regions
}

fn bind(regions: &mut LocalRegions, window: &Window, region: &Region, peer: u128) -> Result<u64, WindowError> {
    let bind = Bind { range: 0..8, access: WindowAccess::all(), key: 1 };
    let (post, remote) = WindowPost::bind(PeerAddress(5), window, region, &bind)?;
    let WindowAction::Bind { window, region, binding, key } = post.what else { panic!("not a bind") };
    regions.bind(window, (region, &binding), key, (peer, post.peer))?;
    Ok(remote.key)
}

#[test]
fn a_region_of_the_domain_is_found_by_its_key() {
    let domain = domain();
    let region = domain.register(vec![0; 8], Access::REMOTE_READ).unwrap();
    let regions = regions(&domain, 1, Trust::SameUser);
    let key = region.remote().key;
    assert!(regions.find(key, PEER).is_ok() && regions.find(key, OTHER).is_ok());
    assert_eq!(regions.find(key + 1, PEER).err(), Some(Refusal::Key));
    drop(region);
    assert_eq!(regions.find(key, PEER).err(), Some(Refusal::Key));
}

#[test]
fn peers_get_the_key_table_only_if_they_are_trusted() {
    let domain = domain();
    let (keys, via) = regions(&domain, 3, Trust::SameUser).granted(PEER);
    assert!(keys.is_some());
    assert_eq!(via, AccessOrigin { endpoint: 3, peer: PEER, authority: 0 });
    assert!(regions(&domain, 3, Trust::None).granted(PEER).0.is_none());
}

#[test]
fn window_is_valid_for_one_peer_of_one_endpoint_until_invalidated() {
    let domain = domain();
    let region = domain.register(vec![0; 8], Access::all()).unwrap();
    let window = domain.window(domain.type_two().into()).unwrap();
    let [mut one, other] = [1, 2].map(|number| regions(&domain, number, Trust::SameUser));
    assert!(!one.has_windows());
    let key = bind(&mut one, &window, &region, PEER).unwrap();
    assert!(one.has_windows() && !other.has_windows());
    assert!(one.find(key, PEER).is_ok());
    assert_eq!(one.find(key, OTHER).err(), Some(Refusal::Key), "another peer");
    assert_eq!(other.find(key, PEER).err(), Some(Refusal::Key), "another endpoint");
    assert_eq!(bind(&mut one, &window, &region, PEER), Err(WindowError::StillBound));
    assert!(one.invalidate(key, Invalidator::Peer(one.via(OTHER))).is_err(), "the window belongs to another peer");
    assert!(one.invalidate(key, Invalidator::Peer(one.via(PEER))).unwrap().is_none(), "no peer is using it");
    assert_eq!(one.find(key, PEER).err(), Some(Refusal::Key));
    assert!(one.invalidate(key, Invalidator::Peer(one.via(PEER))).is_err(), "the key is already invalid");
}

#[test]
fn a_window_of_another_domain_is_not_bound() {
    let (ours, theirs) = (domain(), domain());
    let region = theirs.register(vec![0; 8], Access::all()).unwrap();
    let window = theirs.window(theirs.type_two().into()).unwrap();
    let mut regions = regions(&ours, 1, Trust::SameUser);
    assert_eq!(bind(&mut regions, &window, &region, PEER), Err(WindowError::Domain));
}

#[test]
fn a_closed_endpoint_leaves_no_window_bound() {
    let domain = domain();
    let region = domain.register(vec![0; 8], Access::all()).unwrap();
    let window = domain.window(domain.type_two().into()).unwrap();
    let mut regions = regions(&domain, 1, Trust::SameUser);
    let key = bind(&mut regions, &window, &region, PEER).unwrap();
    regions.close();
    assert!(!regions.has_windows() && regions.find(key, PEER).is_err());
}
