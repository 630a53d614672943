//! Tests of the filter without an engine.

use super::*;

fn request() -> Control {
    Control::Request { data: Vec::new() }
}

#[test]
fn open_filter_admits_everything_but_control_frames() {
    let mut admission = Admission::default();
    assert!(admission.admits(FrameKind::Message) && admission.admits(FrameKind::Write) && admission.over().is_none());
    assert!(!admission.takes_control());
    admission.keep_control_frame(1, request());
    assert!(admission.take_control_frames().is_empty());
}

#[test]
fn closed_filter_admits_only_connection_frames() {
    let mut admission = Admission::closed();
    for kind in [FrameKind::Message, FrameKind::TaggedOffer, FrameKind::Write, FrameKind::Collective, FrameKind::Pull] {
        assert!(!admission.admits(kind), "{kind:?}");
    }
    assert!(admission.admits(FrameKind::Control) && admission.admits(FrameKind::Bye) && admission.takes_control());
    for from in [1, 2, 1] {
        admission.keep_control_frame(from, request());
    }
    admission.forget(1);
    assert_eq!(admission.take_control_frames().iter().map(|(from, _)| *from).collect::<Vec<_>>(), [2]);
    admission.keep_control_frame(3, request());
    admission.open();
    assert!(admission.admits(FrameKind::Message) && admission.take_control_frames().is_empty());
}

#[test]
fn filter_closed_permanently_returns_the_reason() {
    let mut admission = Admission::closed();
    admission.close(ErrorCode::PeerDied, "for a test");
    assert!(!admission.admits(FrameKind::Message) && !admission.takes_control());
    assert_eq!(admission.over().map(|(error, why)| (*error, why.as_str())), Some((ErrorCode::PeerDied, "for a test")));
}
