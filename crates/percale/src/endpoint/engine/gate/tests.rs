//! Tests of the gate without an engine.

use super::*;

fn request() -> Control {
    Control::Request { data: Vec::new() }
}

#[test]
fn open_gate_admits_everything_but_control_frames() {
    let mut gate = Gate::default();
    assert!(gate.admits(Kind::Message) && gate.admits(Kind::Write) && gate.over().is_none());
    assert!(!gate.takes_control());
    gate.hear(1, request());
    assert!(gate.take_heard().is_empty());
}

#[test]
fn closed_gate_admits_only_connection_frames() {
    let mut gate = Gate::closed();
    for kind in [Kind::Message, Kind::TaggedOffer, Kind::Write, Kind::Collective, Kind::Pull] {
        assert!(!gate.admits(kind), "{kind:?}");
    }
    assert!(gate.admits(Kind::Control) && gate.admits(Kind::Bye) && gate.takes_control());
    for from in [1, 2, 1] {
        gate.hear(from, request());
    }
    gate.forget(1);
    assert_eq!(gate.take_heard().iter().map(|(from, _)| *from).collect::<Vec<_>>(), [2]);
    gate.hear(3, request());
    gate.open();
    assert!(gate.admits(Kind::Message) && gate.take_heard().is_empty());
}

#[test]
fn a_gate_that_closed_permanently_returns_the_reason() {
    let mut gate = Gate::closed();
    gate.close(ErrorCode::PeerDied, "for a test");
    assert!(!gate.admits(Kind::Message) && !gate.takes_control());
    assert_eq!(gate.over().map(|(error, why)| (*error, why.as_str())), Some((ErrorCode::PeerDied, "for a test")));
}
