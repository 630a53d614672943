//! Tests of peers that send too many requests or false answers.

use rustix::net::{RecvFlags, SendFlags};
use zerocopy::IntoBytes;

use super::*;
use crate::Refused;
use crate::local_memory::sealed::Allocation;
use crate::local_memory::volatile::SegmentsExt as _;
use crate::shm::direct::grantee::ShmGrantee;
use crate::shm::direct::resolution::{Resolution, Status};
use crate::shm::direct::{ENTRIES, PAGE_BYTES, REQUEST_LIMIT};
use crate::shm::transfer::Sharing;
use crate::wire::head::{Flags, FrameKind, Head};

/// Returns the initiator's result after it has received an answer to its first request. The answer has `bytes` bytes
/// and refers to the request with number `id`.
fn answered(bytes: usize, id: u32, change: impl FnOnce(&mut Resolution)) -> Result<Lookup, String> {
    let mut two = Two::new(true);
    let region = two.region(1 << 20, true, BOTH);
    let registered = two.domain.inner.keys.find(region.key(), AccessOrigin::default()).unwrap();
    let located = registered.located().unwrap();
    assert_eq!(two.initiator.look_up(region.key()), Lookup::Unknown);
    let (_, side) = two.target.direct();
    let grantee = Arc::new(ShmGrantee::new(side.pair, side.side, None).unwrap());
    let (number, size, fd) = grantee.page();
    assert!(side.arenas.give((number, Sharing::ReadOnly), size, fd));
    assert!(side.arenas.give((located.arena, Sharing::Writable), located.size, &located.fd));
    let (entry, generation) = grantee.grant(&registered).unwrap().unwrap();
    let mut resolution = Resolution {
        status: Status::Mapped as u8,
        rights: 3,
        notify: 0,
        reserved: 0,
        entry: entry.into(),
        generation: generation.into(),
        base: 0.into(),
        len: (1 << 20).into(),
        place: 0.into(),
        arena: located.arena.into(),
        page: number.into(),
    };
    change(&mut resolution);
    let head = Head { kind: FrameKind::Resolved, flags: Flags::ID, len: bytes as u32, id, ..Head::default() };
    Segments::lend(&resolution.as_bytes()[..bytes], |payload| two.target.send(&head, payload, false)).unwrap();
    match poll(&mut two.initiator) {
        Err(Broken::Protocol(why)) => Err(why),
        Err(other) => panic!("{other}"),
        Ok(()) => {
            let known = two.initiator.look_up(region.key());
            if let Lookup::Ready(grant) = known {
                // No answer causes an access beyond the arena.
                for address in [0, (1 << 20) - 8, 1 << 20, u64::MAX - 8] {
                    Segments::lend(&[1; 8], |from| two.initiator.direct_write(grant, address, from)).ok();
                }
            }
            Ok(known)
        }
    }
}

#[test]
fn invalid_answers_break_only_the_link() {
    let all = size_of::<Resolution>();
    assert!(matches!(answered(all, 1, |_| ()), Ok(Lookup::Ready(_))), "the answer is good before it is changed");
    type Change = fn(&mut Resolution);
    let changes: &[(&str, Change)] = &[
        ("unknown access method", |it| it.status = 0),
        ("unknown access method", |it| it.status = 9),
        ("malformed", |it| it.rights = 0),
        ("malformed", |it| it.rights = 16),
        ("malformed", |it| it.notify = 2),
        ("malformed", |it| it.page = 0.into()),
        ("invalid grant", |it| it.generation = 0.into()),
        ("invalid grant", |it| it.entry = (ENTRIES as u32).into()),
        ("invalid grant", |it| it.entry = u32::MAX.into()),
        ("invalid region", |it| it.len = 0.into()),
        ("invalid region", |it| it.base = (u64::MAX - (1 << 20) + 2).into()),
        ("beyond", |it| it.len = ((1 << 20) + 1).into()),
        ("beyond", |it| it.len = u64::MAX.into()),
        ("beyond", |it| it.place = 1.into()),
        ("beyond", |it| it.place = u64::MAX.into()),
    ];
    for (number, (expected, change)) in changes.iter().enumerate() {
        let why = answered(all, 1, change).expect_err(&format!("change {number} was accepted"));
        assert!(why.contains(expected), "change {number}: {why}");
    }
    assert!(answered(all - 1, 1, |_| ()).unwrap_err().contains("too short"));
    assert!(answered(0, 1, |_| ()).unwrap_err().contains("too short"));
    assert!(answered(all, 2, |_| ()).unwrap_err().contains("unexpected reply"));
}

#[test]
fn possibly_late_answers_do_not_break_the_link() {
    let all = size_of::<Resolution>();
    // The arena may have been taken back in the meantime.
    assert_eq!(answered(all, 1, |it| it.arena = 0xFFFF_FFF0.into()), Ok(Lookup::Unknown));
    // The page may have been taken back as well. The region is then reached through its owner.
    assert_eq!(answered(all, 1, |it| it.page = (it.page.get() + 1000).into()), Ok(Lookup::Executed));
    assert_eq!(answered(all, 1, |it| it.page = it.arena), Ok(Lookup::Executed));
    // The arena was given for writing, but the answer states that it is only readable, so it is not found.
    assert_eq!(answered(all, 1, |it| it.rights = 1), Ok(Lookup::Unknown));
    // With a generation that is not valid, or an entry that is not in use, the region is granted, and the grant is
    // stale.
    assert!(matches!(answered(all, 1, |it| it.generation = u64::MAX.into()), Ok(Lookup::Ready(_))));
    assert!(matches!(answered(all, 1, |it| it.entry = (ENTRIES as u32 - 1).into()), Ok(Lookup::Ready(_))));
}

#[test]
fn a_page_of_the_wrong_size_is_refused() {
    let mut two = Two::new(true);
    assert_eq!(two.initiator.look_up(7), Lookup::Unknown);
    let page: Allocation = allocate(1 << 20).unwrap();
    let located = crate::local_memory::sealed::locate(page.as_ptr(), 8).unwrap();
    let (_, side) = two.target.direct();
    assert!(located.size > PAGE_BYTES && side.arenas.give((77, Sharing::ReadOnly), located.size, &located.fd));
    let resolution = Resolution {
        rights: 1,
        generation: 1.into(),
        len: 8.into(),
        page: 77.into(),
        ..Resolution::of(Status::Mapped)
    };
    let len = size_of::<Resolution>() as u32;
    let head = Head { kind: FrameKind::Resolved, flags: Flags::ID, len, id: 1, ..Head::default() };
    Segments::lend(resolution.as_bytes(), |payload| two.target.send(&head, payload, false)).unwrap();
    assert_eq!(poll(&mut two.initiator), Err(Broken::Protocol("a key page of the wrong size".into())));
}

#[test]
fn unsolicited_answers_and_unnumbered_requests_break_the_link() {
    for head in [
        Head { kind: FrameKind::Resolved, flags: Flags::ID, id: 1, ..Head::default() },
        Head { kind: FrameKind::Resolved, ..Head::default() },
        Head { kind: FrameKind::Resolve, flags: Flags::DATA, data: 7, ..Head::default() },
    ] {
        let mut two = Two::new(true);
        two.initiator.send(&head, &Segments::EMPTY, false).unwrap();
        assert!(matches!(poll(&mut two.target), Err(Broken::Protocol(_))), "{head:?}");
    }
}

/// Fills the ring in which this end of a link sends.
fn fill(link: &mut ShmLink) {
    let head = Head { kind: FrameKind::Message, len: 2000, ..Head::default() };
    while Segments::lend(&[0; 2000], |payload| link.send(&head, payload, false)) != Err(Refused::Full) {}
    let head = Head { kind: FrameKind::Message, ..Head::default() };
    while link.send(&head, &Segments::EMPTY, false) != Err(Refused::Full) {}
}

/// A request for which there is no room is sent when the key is looked up again.
#[test]
fn lookup_without_room_for_its_request_is_repeated() {
    let mut two = Two::new(true);
    let region = two.region(8, true, BOTH);
    fill(&mut two.initiator);
    for _ in 0..2 * REQUEST_LIMIT {
        assert_eq!(two.initiator.look_up(region.key()), Lookup::Unknown);
    }
    two.write(region.key(), 0, &[4; 8]).unwrap();
    assert_eq!(bytes_of(&region), [4; 8]);
}

/// Grants name entries of the key page that the target showed first.
#[test]
fn a_second_key_page_is_refused() {
    let mut two = Two::new(true);
    let region = two.region(8, true, BOTH);
    two.grant(region.key());
    assert_eq!(two.initiator.look_up(7), Lookup::Unknown);
    let resolution = Resolution {
        rights: 1,
        generation: 1.into(),
        len: 8.into(),
        page: 0xFFFF_FFF0.into(),
        ..Resolution::of(Status::Mapped)
    };
    let len = size_of::<Resolution>() as u32;
    let head = Head { kind: FrameKind::Resolved, flags: Flags::ID, len, id: 2, ..Head::default() };
    Segments::lend(resolution.as_bytes(), |payload| two.target.send(&head, payload, false)).unwrap();
    assert_eq!(poll(&mut two.initiator), Err(Broken::Protocol("a second key page".into())));
}

#[test]
fn lookup_requests_are_answered_when_there_is_room() {
    let mut two = Two::new(true);
    let regions: Vec<_> = (0..2 * REQUEST_LIMIT).map(|_| two.region(8, true, BOTH)).collect();
    fill(&mut two.target);
    for region in &regions {
        assert_eq!(two.initiator.look_up(region.key()), Lookup::Unknown);
        // The target accepts all requests, because the initiator limits the number of pending ones.
        poll(&mut two.target).unwrap();
    }
    assert!(!two.target.is_idle() && !two.target.is_quiet() && !two.target.set_cold(), "answers are pending");
    for region in &regions {
        two.write(region.key(), 0, &[4; 8]).unwrap();
        assert_eq!(bytes_of(region), [4; 8]);
    }
    two.turn();
    assert!(two.target.is_idle() && two.target.set_cold());
}

#[test]
fn too_many_outstanding_lookups_break_the_link() {
    let mut two = Two::new(true);
    fill(&mut two.target);
    let mut result = Ok(());
    for id in 0..2 * REQUEST_LIMIT as u32 {
        let head = Head { kind: FrameKind::Resolve, flags: Flags::DATA | Flags::ID, data: 5, id, ..Head::default() };
        two.initiator.send(&head, &Segments::EMPTY, false).unwrap();
        result = poll(&mut two.target);
        if result.is_err() {
            assert_eq!(id, REQUEST_LIMIT as u32);
            break;
        }
    }
    assert!(matches!(result, Err(Broken::Protocol(why)) if why.contains("too many key requests in progress")));
}

/// The control socket carries other data than the ring. The link trusts neither.
#[test]
fn invalid_data_on_the_control_socket_breaks_the_link() {
    let [initiator, target] = parts(true);
    let control = rustix::io::dup(&target.control).unwrap();
    let domain = domain();
    let (initiator, target) = (ShmLink::new(initiator).unwrap(), ShmLink::new(target).unwrap());
    let mut two = Two { initiator, target, domain };
    // This kind of sharing does not exist.
    let mut announcement = [0u8; 16];
    (announcement[0], announcement[4], announcement[8]) = (9, 2, 1);
    rustix::net::send(&control, &announcement, SendFlags::empty()).unwrap();
    assert_eq!(two.initiator.look_up(7), Lookup::Unknown);
    let resolution =
        Resolution { rights: 1, generation: 1.into(), len: 8.into(), page: 9.into(), ..Resolution::of(Status::Mapped) };
    let len = size_of::<Resolution>() as u32;
    let head = Head { kind: FrameKind::Resolved, flags: Flags::ID, len, id: 1, ..Head::default() };
    Segments::lend(resolution.as_bytes(), |payload| two.target.send(&head, payload, false)).unwrap();
    assert!(
        matches!(poll(&mut two.initiator), Err(Broken::Protocol(why)) if why.contains("unknown sharing method of an arena"))
    );
    let mut byte = [0; 1];
    assert!(rustix::net::recv(&control, &mut byte, RecvFlags::DONTWAIT).is_err(), "an answer arrived");
}
