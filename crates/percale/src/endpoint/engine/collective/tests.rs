use super::groups::Collectives;

/// Whoever may connect can say that a group was given up, before it is here; only a member's word counts.
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
        (0..10_000).for_each(|other| all.hear(other, 7)); // He makes nobody else's word forgotten.
        assert_eq!(open(&mut all), breaks);
        assert!(!all.is_broken(tag), "the messages of members count");
    }
    let mut all = Collectives::default();
    all.hear(tag, 1);
    all.forget_heard(1);
    assert!(!open(&mut all), "the number may be another peer's now");
}
