//! Tests that the limits transfer complete messages between two threads in place of the two processes. Every byte is
//! checked.

use std::os::unix::net::UnixStream;
use std::thread;

use super::access::Access;
use super::ring;
use super::shared::{LimitSide, Shared};
use crate::channel::control::Control;
use crate::channel::watch::Watch;
use crate::failure::Failure;
use crate::pattern::CheckedPart;
use crate::perf::far;
use crate::perf::session::Session;
use crate::perf::subjects::MachinePlacement;
use crate::round::{MessageShape, Round};
use crate::row::{MeasuredOperation, MessageMemory};
use crate::subject::{AccessMeans, SubjectKind};

const CHECKED: Round =
    Round { number: 0, warm: 1, count: 20, batch: 1, write: CheckedPart::Whole, check: CheckedPart::Whole, setting: 0 };

fn shape(bytes: usize, stream: bool) -> MessageShape {
    of(if stream { MeasuredOperation::Bandwidth } else { MeasuredOperation::TaggedLatency }, bytes)
}

fn of(op: MeasuredOperation, bytes: usize) -> MessageShape {
    MessageShape { op, bytes, memory: MessageMemory::Ordinary }
}

/// Runs `test` with the other side in a thread, which must succeed.
fn with_session(test: impl FnOnce(&mut Session)) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let memory = Shared::create(ring::BUFFER).unwrap();
    let theirs_memory = memory.try_clone().unwrap();
    let other = thread::spawn(move || {
        // The threads of a test may share a processor, so waits yield.
        let mut watch = Watch::new(Control::local(theirs).unwrap(), true);
        far::serve(&mut watch, &MachinePlacement::Local(theirs_memory), None)
    });
    let mut session = Session::with(memory, Control::local(ours).unwrap()).unwrap();
    test(&mut session);
    drop(session);
    other.join().unwrap().unwrap();
}

#[test]
fn every_limit_carries_verified_messages_both_ways() {
    with_session(|session| {
        for (kind, sizes) in [
            (SubjectKind::Ring, [1, 8, 64, 513, 8 << 10].as_slice()),
            (SubjectKind::Copy, &[1, 100, 64 << 10, 300_000]),
            (SubjectKind::Sockets, &[1, 8, 4096, 16385, 64 << 10, 300_000]),
        ] {
            for &bytes in sizes {
                let settings = session.prepare(kind, &shape(bytes, false)).unwrap().len();
                for setting in 0..settings {
                    let (samples, verified) = session.round(kind, Round { setting, ..CHECKED }).unwrap();
                    assert_eq!(verified, 21, "{kind:?} {bytes}");
                    let summary = samples.summary().unwrap();
                    assert_eq!(summary.count, 20);
                    assert!(summary.p50 > 0.0 && summary.p50 <= summary.p99);
                }
            }
        }
    });
}

#[test]
fn streams_longer_than_their_window_arrive_verified() {
    with_session(|session| {
        for (kind, sizes) in
            [(SubjectKind::Ring, [8, 24, 8 << 10].as_slice()), (SubjectKind::Sockets, &[3, 8, 16 << 10, 100_000])]
        {
            for &bytes in sizes {
                let settings = session.prepare(kind, &shape(bytes, true)).unwrap().len();
                for setting in 0..settings {
                    let round = Round { setting, count: 500, ..CHECKED };
                    let (samples, verified) = session.round(kind, round).unwrap();
                    assert_eq!((samples.summary().unwrap().count, verified), (1, 501), "{kind:?} {bytes}");
                }
            }
        }
    });
}

#[test]
fn accesses_are_verified_at_their_destination() {
    use MeasuredOperation::{CompareSwap, FetchAdd, FetchAddAlone, Get, Put};
    with_session(|session| {
        for (kind, op, sizes) in [
            (SubjectKind::Access(AccessMeans::Copy), Put, [1, 8, 4096, 300_000].as_slice()),
            (SubjectKind::Access(AccessMeans::Copy), Get, &[1, 8, 4096, 300_000]),
            (SubjectKind::Access(AccessMeans::Kernel), Put, &[8, 100, 300_000]),
            (SubjectKind::Access(AccessMeans::Kernel), Get, &[8, 100, 300_000]),
            (SubjectKind::Access(AccessMeans::Word), FetchAdd, &[8]),
            (SubjectKind::Access(AccessMeans::Word), FetchAddAlone, &[8]),
            (SubjectKind::Access(AccessMeans::Word), CompareSwap, &[8]),
            (SubjectKind::Twice, Put, &[8, 100, 300_000]),
            (SubjectKind::Twice, Get, &[8, 100, 300_000]),
            (SubjectKind::Ring, FetchAdd, &[8]),
            (SubjectKind::Sockets, Put, &[8, 300_000]),
            (SubjectKind::Sockets, Get, &[8, 300_000]),
        ] {
            for &bytes in sizes {
                session.prepare(kind, &of(op, bytes)).unwrap();
                // First check completely, with a slot for each access. Then test as in a timed round, with batches of
                // accesses to one slot.
                let timed = Round { batch: of(op, bytes).batch(), check: CheckedPart::Ends, ..CHECKED };
                for round in [CHECKED, timed] {
                    let (samples, _) = session.round(kind, round).unwrap();
                    assert_eq!(samples.summary().unwrap().count, 20, "{kind:?} {op:?} {bytes}");
                }
            }
        }
    });
}

#[test]
fn missing_write_is_detected() {
    use crate::subject::{DynSubject, Runner};
    let memory = Shared::create(ring::BUFFER).unwrap();
    let (ours, theirs) = UnixStream::pair().unwrap();
    let watch = |stream| Watch::new(Control::local(stream).unwrap(), true);
    let (mut near_watch, mut far_watch) = (watch(ours), watch(theirs));
    let there = memory.try_clone().unwrap();
    for (number, means, op) in
        [(1, AccessMeans::Copy, MeasuredOperation::Put), (2, AccessMeans::Word, MeasuredOperation::FetchAdd)]
    {
        let mut far = Runner::new(Access::far(means, Shared::map(&there).unwrap()));
        far.prepare(&of(op, 8)).unwrap();
        thread::scope(|scope| {
            let near = scope.spawn(|| {
                let mut near = Runner::new(Access::near(means, Shared::map(&memory).unwrap()).unwrap());
                near.prepare(&of(op, 8)).unwrap();
                // One access fewer than the other side expects.
                let short = Round { number, count: 19, ..CHECKED };
                near.near(&short, &crate::clock::Clock::calibrate(), &mut near_watch).map(drop)
            });
            let error = far.far(&Round { number, ..CHECKED }, &mut far_watch).unwrap_err();
            assert!(matches!(error, Failure::Data(_)), "{error}");
            near.join().unwrap().unwrap();
        });
    }
}

#[test]
fn sockets_try_every_relevant_combination() {
    with_session(|session| {
        for (bytes, settings) in [(8, 2), (64 << 10, 3 * 2 * 2), (1 << 20, 3 * 4 * 2)] {
            let names = session.prepare(SubjectKind::Sockets, &shape(bytes, false)).unwrap();
            let distinct: std::collections::HashSet<_> = names.iter().collect();
            assert_eq!((names.len(), distinct.len()), (settings, settings));
        }
    });
}

#[test]
fn wrong_data_is_an_error() {
    let memory = Shared::create(ring::BUFFER).unwrap();
    let (ours, theirs) = UnixStream::pair().unwrap();
    let there = memory.try_clone().unwrap();
    // The other side does not write its messages, so their bytes are wrong.
    let other = thread::spawn(move || {
        use crate::subject::{DynSubject, Runner};
        let mut watch = Watch::new(Control::local(theirs).unwrap(), true);
        let mut bench = Runner::new(ring::LimitRing::new(Shared::map(there).unwrap(), LimitSide::Far));
        bench.prepare(&shape(8, false)).unwrap();
        bench.far(&Round { write: CheckedPart::Nothing, ..CHECKED }, &mut watch)
    });
    use crate::subject::{DynSubject, Runner};
    let mut watch = Watch::new(Control::local(ours).unwrap(), true);
    let mut bench = Runner::new(ring::LimitRing::new(Shared::map(memory).unwrap(), LimitSide::Near));
    bench.prepare(&shape(8, false)).unwrap();
    let error = bench.near(&CHECKED, &crate::clock::Clock::calibrate(), &mut watch).unwrap_err();
    assert!(matches!(error, Failure::Data(_)), "{error}");
    // The thread waits for the next message of this side. Closing the channel ends the wait.
    drop(watch);
    assert!(matches!(other.join().unwrap(), Err(Failure::PeerEnded)));
}

#[test]
fn other_side_reports_its_failure() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let memory = Shared::create(4096).unwrap();
    let theirs_memory = memory.try_clone().unwrap();
    let other = thread::spawn(move || {
        far::serve(
            &mut Watch::new(Control::local(theirs).unwrap(), true),
            &MachinePlacement::Local(theirs_memory),
            None,
        )
    });
    let mut session = Session::with(memory, Control::local(ours).unwrap()).unwrap();
    assert!(matches!(session.round(SubjectKind::Ring, CHECKED), Err(Failure::Peer(why)) if why.contains("not open")));
    assert!(other.join().unwrap().is_err());
}
