use super::groups::Collectives;
use crate::completion::entry::ErrorCode;

/// Any peer that may connect can claim that a group was given up before the group exists here; only the claim of a member counts.
#[test]
fn flt_003_who_is_no_member_breaks_no_group_to_come() {
    let tag = 0x1234;
    let open = |all: &mut Collectives| {
        let index = all.open(1, Box::new([0, 1]), 0);
        all.name(index, tag);
        all.groups[index].broken.is_some()
    };
    assert!(!open(&mut Collectives::default()));
    for (said_by, breaks) in [(7, false), (1, true)] {
        let mut all = Collectives::default();
        all.hear(tag, said_by);
        (0..10_000).for_each(|other| all.hear(other, 7)); // This displaces no record of another peer.
        assert_eq!(open(&mut all), breaks);
        assert!(!all.is_broken(tag), "the messages of members count");
    }
    let mut all = Collectives::default();
    all.hear(tag, 1);
    all.forget_heard(1);
    assert!(!open(&mut all), "the number may be another peer's now");
}

/// A connection to a member that broke before the group had its tag may have carried that member's notice that the group is given up.
#[test]
fn flt_003_a_group_that_lost_a_member_before_it_was_agreed_on_is_broken() {
    let (list, member) = (1, 1);
    // What ended the connection; whether the group was being joined; whether it is broken then.
    let cases =
        [(ErrorCode::PeerDied, true, true), (ErrorCode::PeerDied, false, false), (ErrorCode::Closed, true, false)];
    for (error, is_joining, breaks) in cases {
        let mut all = Collectives::default();
        let index = all.open(list, Box::new([0, member]), 0);
        if is_joining {
            all.joins.join(list, index.to_u64(), 5, &[0, member], 0);
        }
        all.lost(member, error, "no answer");
        all.lost(7, ErrorCode::PeerDied, "it is no member");
        assert!(all.groups[index].broken.is_none(), "the members have yet to agree");
        all.name(index, 0x1234);
        assert_eq!(all.groups[index].broken.is_some(), breaks, "{error:?} {is_joining}");
        // From now on it is for the group's operations to find out.
        all.lost(member, ErrorCode::PeerDied, "no answer");
        assert_eq!(all.groups[index].broken.is_some(), breaks);
    }
}
