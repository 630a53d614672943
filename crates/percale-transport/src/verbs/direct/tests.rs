//! Tests of the grants of a target. They use a device if there is one.

#![expect(unsafe_code, reason = "makes regions of the test's own memory; each block states its own reason")]

use std::sync::Arc;

use super::grantee::VerbsGrantee;
use super::{Direct, PENDING_LIMIT, WireParts};
use crate::local_memory::volatile::{Segment, Segments, View, ViewExt as _};
use crate::region::{AccessOrigin, Grantee, Registered, Revocation};
use crate::table::WIRE_SLOTS;
use crate::verbs::tests::{NoCache, adapter};
use crate::verbs::{ProtectionDomain, Wire};
use crate::wire::head::{Flags, FrameKind, Head};
use crate::wire::located::LocateAnswer;

static FIXED: [u8; 8192] = [7; 8192];

fn grantee() -> Option<Arc<VerbsGrantee>> {
    let adapter = adapter()?;
    let domain = ProtectionDomain::new(adapter.domain().context()).expect("a protection domain");
    Some(Arc::new(VerbsGrantee::new(domain, None)))
}

fn region(memory: &mut [u8]) -> Arc<Registered> {
    // SAFETY: no peer can access the memory, because there is no queue pair. Its registration is used only while the
    // memory exists.
    Registered::for_test(Segments::one(unsafe { Segment::new(memory.as_mut_ptr(), memory.len()) }))
}

fn number(located: LocateAnswer) -> u32 {
    match located {
        LocateAnswer::Granted(grant) => grant.number,
        other => panic!("{other:?}"),
    }
}

#[test]
fn unregistrable_regions_are_accessed_by_the_target() {
    let Some(grantee) = grantee() else { return };
    // SAFETY: the memory is not written, because it is never registered with the device.
    let fixed = unsafe { Segment::new(FIXED.as_ptr().cast_mut(), FIXED.len()) };
    assert_eq!(
        grantee.grant(&Registered::for_test(Segments::one(fixed))),
        LocateAnswer::Executed,
        "the memory is read-only"
    );
    let mut memory = vec![0; 100];
    let whole = region(&mut memory);
    let pieces = [whole.place().slice(0, 50), whole.place().slice(50, 50)].map(|part| part.as_slice()[0]);
    let pieces = Registered::for_test(Segments::new(&pieces).expect("two pieces"));
    assert_eq!(grantee.grant(&pieces), LocateAnswer::Executed, "several pieces");
}

/// Requirements: REV-001.
#[test]
fn grant_number_and_key_are_not_reused_before_peer_release() {
    let Some(grantee) = grantee() else { return };
    let mut memory = vec![0; 4096];
    let mut numbers = Vec::new();
    for _ in 0..100 {
        let region = region(&mut memory);
        let first = grantee.grant(&region);
        assert_eq!(grantee.grant(&region), first, "granted twice");
        numbers.push(number(first));
        let mut revocation = Revocation::start(Arc::clone(&region));
        assert!(revocation.is_over());
        assert_eq!(grantee.grant(&region), LocateAnswer::Unknown, "the region is closed");
    }
    assert!(grantee.forgotten(numbers[5]).is_err(), "the peer was not notified");
    assert!(grantee.has_changes());
    assert_eq!(grantee.take_changes().0.into_iter().map(|(number, _)| number).collect::<Vec<_>>(), numbers);
    assert!(!grantee.has_changes() && grantee.take_changes().0.is_empty());
    grantee.forgotten(numbers[5]).expect("the peer was notified");
    // Late confirmations and confirmations of unknown numbers are ignored.
    grantee.forgotten(numbers[5]).expect("late");
    grantee.forgotten(1000).expect("unknown numbers are ignored");
    // The slot is reused under a different number. A late revocation of the old number has no effect.
    let anew = region(&mut memory);
    let again = number(grantee.grant(&anew));
    assert_eq!((again % WIRE_SLOTS as u32, numbers.contains(&again)), (numbers[5] % WIRE_SLOTS as u32, false));
    Grantee::revoke(&*grantee, numbers[5]);
    assert_eq!(number(grantee.grant(&anew)), again);
    grantee.end();
}

/// A peer that sends requests and does not read the answers is disconnected.
#[test]
fn waiting_answers_about_regions_are_limited() {
    let Some(adapter) = adapter() else { return };
    let wire = Wire::new(&adapter).expect("a wire");
    let parts = WireParts { adapter: Arc::clone(&adapter), queue: Arc::clone(wire.queue()), peer: None };
    let mut direct = Direct::new(None, AccessOrigin::default(), Arc::new(NoCache));
    let question = Head { kind: FrameKind::Locate, flags: Flags::ID, ..Head::default() };
    for _ in 0..PENDING_LIMIT {
        let refused = direct.frame(&parts, &question, View::of(&[]));
        assert_eq!(refused, Err("a question about a region without a queue pair"));
        direct.pending_frames.push(question, &[]);
    }
    assert_eq!(direct.frame(&parts, &question, View::of(&[])), Err("too many requests about regions"));
    direct.pending_frames.0.pop_front();
    assert_ne!(direct.frame(&parts, &question, View::of(&[])), Err("too many requests about regions"));
}

/// Requirements: REV-002.
#[test]
fn grants_of_a_lost_peer_are_closed_immediately() {
    let Some(grantee) = grantee() else { return };
    let mut memory = vec![0; 4096];
    let region = region(&mut memory);
    number(grantee.grant(&region));
    grantee.end();
    let me: Arc<dyn Grantee> = grantee;
    assert!(region.grants().find(&me).is_none());
    assert!(Revocation::start(region).is_over());
}
