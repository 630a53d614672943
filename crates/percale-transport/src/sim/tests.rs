//! Tests that the simulated network behaves as documented and is reproducible.

use proptest::prelude::*;

use super::{EventKind, Network, SimEvent, SimOptions};
use crate::local_memory::volatile::ViewExt as _;
use crate::local_memory::volatile::{Segments, View};
use crate::testing::{Lent, Notes, Revocable, SinkReport};
use crate::wire::head::{FrameKind, Head, Offer};
use crate::{Broken, ConnectionId, Landing, Link, PullError, Refused, Sink};

const MESSAGES: u64 = 60;
const OFFERED: usize = 9_000;
const WANTED: usize = 8_000;

fn tagged(len: usize, tag: u64) -> Head {
    Head { kind: FrameKind::Tagged, len: len as u32, tag, ..Head::default() }
}

/// The reports to one receiver.
#[derive(Debug, PartialEq)]
struct Seen {
    reported: Vec<SinkReport>,
    begun: usize,
    end: Option<Broken>,
}

fn length(message: u64) -> usize {
    (message * 97 % 2_000) as usize
}

/// Sends messages over several connections, and makes one pull over each connection, until everything has arrived or is
/// lost.
fn run(seed: u64, options: SimOptions) -> (Vec<SimEvent>, Vec<Seen>) {
    let network = Network::new(seed, options);
    let source = Lent::new((0..OFFERED).map(|at| (at * 7) as u8).collect());
    let offer = Offer { len: (OFFERED as u64).into(), ..Offer::default() };
    let targets: Vec<_> = (0..3).map(|_| Lent::new(vec![0; WANTED])).collect();
    let mut seen = Vec::new();
    let mut ends: Vec<_> = targets
        .iter()
        .map(|target| {
            let (a, mut b) = network.connect();
            b.pull(4, &offer, &target.lease(&[1_000]), 5).ok();
            (a, Notes::keeping(usize::MAX), b, Notes::keeping(usize::MAX), 0u64, false)
        })
        .collect();
    while seen.len() < ends.len() {
        seen.clear();
        for (a, at_a, b, at_b, next, over) in &mut ends {
            if *next < MESSAGES {
                let payload = source.whole().slice(0, length(*next));
                match a.send(&tagged(length(*next), *next), &payload, false) {
                    Ok(()) => *next += 1,
                    Err(Refused::Full) => {}
                    Err(Refused::Broken) => *next = MESSAGES,
                }
            }
            a.poll(0, at_a).ok();
            for reported in at_a.reported.drain(..) {
                if let SinkReport::Frame(head, request) = reported {
                    a.push(head.id, head.tag, View::of(&request), &source.lease(&[])).ok();
                }
            }
            let end = b.poll(0, at_b).err();
            *over |= end.is_some() || at_b.reported.len() as u64 == MESSAGES + 1;
            if *over {
                seen.push(Seen { reported: at_b.reported.clone(), begun: at_b.begun, end });
            }
        }
        assert!(network.now() < 1_000_000_000, "the run does not end: {network}");
    }
    for (seen, target) in seen.iter().zip(&targets) {
        if seen.reported.contains(&SinkReport::Pulled(5, Ok(WANTED as u64))) {
            assert!(target.bytes() == source.bytes()[..WANTED]);
        }
    }
    (network.trace(), seen)
}

proptest! {
    #[test]
    fn within_a_connection_frames_keep_their_order(
        seed in any::<u64>(),
        delay in (0..1_000u64, 1_000..200_000u64),
        window in 2_100..60_000usize,
        loss in prop_oneof![Just(0u32), 0..30_000u32],
    ) {
        let (_, seen) = run(seed, SimOptions { delay, window, loss, ..SimOptions::default() });
        for Seen { reported, end, .. } in seen {
            let messages: Vec<_> = reported.iter().filter(|reported| matches!(reported, SinkReport::Frame(..))).cloned().collect();
            let count = messages.len() as u64;
            let sent: Vec<_> = (0..count)
                .map(|n| SinkReport::Frame(tagged(length(n), n), (0..length(n)).map(|at| (at * 7) as u8).collect()))
                .collect();
            prop_assert!(messages == sent, "a prefix of what was sent, in order");
            match end {
                None => prop_assert_eq!(count, MESSAGES),
                Some(end) => prop_assert!(matches!(end, Broken::Died(_)) && loss > 0, "{:?}", end),
            }
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_events(seed in any::<u64>()) {
        let options = SimOptions { loss: 2_000, ..SimOptions::default() };
        let first = run(seed, options);
        prop_assert!(first == run(seed, options));
        prop_assert!(first.0 != run(seed ^ 1, options).0);
    }
}

#[test]
fn connections_overtake_each_other_and_payloads_come_in_pieces() {
    let (trace, seen) = run(1, SimOptions::default());
    let arrived = |connection: usize| {
        trace.iter().filter(move |event| event.connection == connection && event.side == 1).filter_map(|event| {
            match event.what {
                EventKind::Arrived(head) if head.kind == FrameKind::Tagged => Some((event.now, head.tag)),
                _ => None,
            }
        })
    };
    // In each round connection 0 sends first, but its frame does not always arrive first.
    assert!(arrived(0).zip(arrived(1)).any(|(zero, one)| one.0 < zero.0));
    assert!(arrived(0).zip(arrived(1)).any(|(zero, one)| one.0 > zero.0));
    assert!(seen.iter().all(|seen| seen.begun > 0 && (seen.begun as u64) < MESSAGES));
}

#[test]
fn a_goodbye_waits_for_pushes_and_closes() {
    let network = Network::new(3, SimOptions::default());
    let (mut a, mut b) = network.connect();
    let (mut at_a, mut at_b) = (Notes::keeping(9), Notes::keeping(9));
    let (source, target) = (Lent::new(vec![7; 200_000]), Lent::new(vec![0; 200_000]));
    b.pull(1, &Offer { len: 200_000.into(), ..Offer::default() }, &target.lease(&[]), 2).unwrap();
    assert!(network.advance_to_arrival());
    a.poll(0, &mut at_a).unwrap();
    let Some(SinkReport::Frame(head, request)) = at_a.reported.pop() else { panic!() };
    a.push(1, head.tag, View::of(&request), &source.lease(&[])).unwrap();
    a.send(&Head { kind: FrameKind::Bye, ..Head::default() }, &Segments::EMPTY, false).unwrap();
    assert_eq!(a.send(&tagged(0, 0), &Segments::EMPTY, false), Err(Refused::Broken));
    let mut end = None;
    while end.is_none() {
        a.poll(0, &mut at_a).unwrap();
        end = b.poll(0, &mut at_b).err();
        assert!(end.is_some() || !b.is_idle() || !a.is_idle(), "a waiting link is not idle");
    }
    assert_eq!(end, Some(Broken::Closed));
    assert_eq!(at_b.reported[0], SinkReport::Pulled(2, Ok(200_000)));
    assert!(target.bytes() == source.bytes());
}

#[test]
fn link_loss_is_reported_after_sent_messages() {
    for lose in [false, true] {
        let network = Network::new(5, SimOptions::default());
        let (mut a, mut b) = network.connect();
        let mut notes = Notes::keeping(9);
        a.send(&tagged(0, 1), &Segments::EMPTY, false).unwrap();
        if lose {
            network.lose(0)
        } else {
            drop(a)
        }
        network.advance(1_000_000);
        let end = b.poll(0, &mut notes).unwrap_err();
        let Broken::Died(why) = &end else { panic!("{end:?}") };
        assert_eq!(why.contains("seed 0x5"), lose, "{why}");
        assert_eq!(notes.reported, [SinkReport::Frame(tagged(0, 1), vec![])]);
        assert_eq!(b.send(&tagged(0, 2), &Segments::EMPTY, false), Err(Refused::Broken));
    }
}

#[test]
fn lost_connection_is_reported_at_both_ends() {
    // Every frame ends its connection.
    let network = Network::new(5, SimOptions { loss: 1_000_000, ..SimOptions::default() });
    let (mut a, mut b) = network.connect();
    assert_eq!(a.send(&tagged(0, 1), &Segments::EMPTY, false), Ok(()), "the sender does not detect the loss yet");
    network.advance(1_000_000);
    for link in [&mut a, &mut b] {
        let mut notes = Notes::keeping(9);
        let end = link.poll(0, &mut notes);
        assert!(matches!(&end, Err(Broken::Died(why)) if why.contains("seed 0x5")), "{end:?}");
        assert!(notes.reported.is_empty());
    }
}

/// A sink that takes no frames.
struct Paused(Notes);

impl Sink for Paused {
    fn takes(&self, _: ConnectionId) -> bool {
        false
    }

    fn frame(&mut self, from: ConnectionId, head: &Head, payload: View<'_>) {
        self.0.frame(from, head, payload);
    }

    fn begin(&mut self, from: ConnectionId, head: Head) -> Landing {
        self.0.begin(from, head)
    }

    fn landed(&mut self, from: ConnectionId, token: u32) {
        self.0.landed(from, token);
    }

    fn pulled(&mut self, _: ConnectionId, _: u32, _: Result<u64, PullError>) {}

    fn undone(&mut self, _: ConnectionId, _: u32) {}

    fn assisted(&mut self, _: ConnectionId, _: u32, _: Result<(), PullError>) {}

    fn pushed(&mut self, _: ConnectionId, _: u32, _: Result<(), PullError>) {}
}

#[test]
fn receiver_that_takes_no_frames_gets_the_end_of_its_connection() {
    let network = Network::new(5, SimOptions::default());
    let (mut a, mut b) = network.connect();
    let mut sink = Paused(Notes::keeping(9));
    a.send(&tagged(0, 1), &Segments::EMPTY, false).unwrap();
    network.advance(1_000_000);
    assert_eq!(b.poll(0, &mut sink), Ok(false));
    drop(a);
    network.advance(1_000_000);
    assert!(matches!(b.poll(0, &mut sink), Err(Broken::Died(_))));
    assert_eq!(sink.0.reported, [SinkReport::Frame(tagged(0, 1), vec![])]);
}

#[test]
fn a_full_window_refuses_messages_but_not_answers() {
    let network = Network::new(5, SimOptions::default());
    let (mut a, _b) = network.connect();
    while a.send(&tagged(0, 1), &Segments::EMPTY, false).is_ok() {}
    assert_eq!(a.send(&tagged(0, 1), &Segments::EMPTY, false), Err(Refused::Full));
    assert_eq!(a.send(&Head { kind: FrameKind::Ack, ..Head::default() }, &Segments::EMPTY, false), Ok(()));
}

/// Pulls 200,000 bytes and revokes the memory at one end once some of them have arrived. Returns the results at both
/// ends.
fn revoke_in_the_middle(revoke_source: bool) {
    const LEN: usize = 200_000;
    let network = Network::new(3, SimOptions::default());
    let (mut a, mut b) = network.connect();
    let (mut at_a, mut at_b) = (Notes::keeping(9), Notes::keeping(9));
    let (source, target) = (Lent::new(vec![7; LEN]), Lent::new(vec![0; LEN]));
    let (from, into) = (Revocable::new(source.whole()), Revocable::new(target.cut(&[90_000])));
    b.pull(1, &Offer { len: (LEN as u64).into(), ..Offer::default() }, &into.lease(), 2).unwrap();
    assert!(network.advance_to_arrival());
    a.poll(0, &mut at_a).unwrap();
    let Some(SinkReport::Frame(head, request)) = at_a.reported.pop() else { panic!("no pull") };
    a.push(1, head.tag, View::of(&request), &from.lease()).unwrap();
    let arrived = || target.bytes().iter().filter(|byte| **byte == 7).count();
    while arrived() == 0 {
        assert!(network.advance_to_arrival());
        b.poll(0, &mut at_b).unwrap();
    }
    if revoke_source {
        from.revoke()
    } else {
        into.revoke()
    }
    let before = arrived();
    assert!(before < LEN && at_b.reported.is_empty(), "this is the middle");
    while !a.is_idle() || !b.is_idle() {
        a.poll(0, &mut at_a).unwrap();
        b.poll(0, &mut at_b).unwrap();
    }
    a.send(&tagged(5, 6), &source.whole().slice(0, 5), false).unwrap();
    while at_b.reported.len() < 2 {
        b.poll(0, &mut at_b).unwrap();
    }
    let (pulled, pushed) =
        if revoke_source { (PullError::Gone, Err(PullError::Revoked)) } else { (PullError::Revoked, Ok(())) };
    assert_eq!(at_b.reported, [SinkReport::Pulled(2, Err(pulled)), SinkReport::Frame(tagged(5, 6), vec![7; 5])]);
    assert_eq!(at_a.reported, [SinkReport::Pushed(1, pushed)]);
    // Nothing more is sent from a revoked source, and nothing is written to a revoked destination.
    assert!(revoke_source || arrived() == before);
    assert!(arrived() < LEN);
}

/// Requirements: MR-069.
#[test]
fn target_revoked_during_a_simulated_pull_fails_only_it() {
    revoke_in_the_middle(false);
}

/// Requirements: MR-069.
#[test]
fn source_revoked_during_a_simulated_pull_fails_only_both_ends() {
    revoke_in_the_middle(true);
}

#[test]
fn end_of_earlier_connection_keeps_the_later_one() {
    let network = Network::new(5, SimOptions::default());
    let open = |port| network.port(([127, 0, 0, 1], port).into()).unwrap();
    let (caller, called) = (open(1), open(2));
    caller.connect(1, called.address(), 0);
    let earlier = called.take_notices();
    assert_eq!(earlier.len(), 1);
    drop((caller.take_notices(), caller));
    let caller = open(1);
    caller.connect(1, called.address(), 0);
    // The end of the first connection is detected only now. Its peer is called while the notice of the second
    // connection has not been read.
    drop(earlier);
    called.connect(7, caller.address(), 0);
    assert_eq!((called.take_notices().len(), caller.take_notices().len()), (1, 1));
    // Both ends were dropped, so each endpoint may call again.
    called.connect(8, caller.address(), 0);
    assert_eq!((called.take_notices().len(), caller.take_notices().len()), (1, 1));
}
