//! Tests of memory that is revoked while a transfer is in progress. The transfer fails, and the frame boundaries of the
//! stream stay intact.

use std::collections::VecDeque;

use proptest::prelude::*;
use zerocopy::IntoBytes;
use zerocopy::little_endian::U64;

use super::TcpOptions;
use super::buffers::with_scratch;
use super::fuzz::{Pieces, receive};
use super::inbound::Inbound;
use super::outbound::Outbound;
use super::tests::outbound::Slow;
use super::tests::{SMALL, links, pattern, stream, tagged, until};
use crate::local_memory::volatile::View;
use crate::local_memory::volatile::ViewExt as _;
use crate::stream::Pulls;
use crate::testing::{Lent, Notes, Revocable, SinkReport};
use crate::wire::head::{Flags, FrameKind, HEAD_BYTES, Head, Offer};
use crate::{Link, PullError};

/// The length of the transfers in bytes.
const LEN: usize = 4_000;

/// The length of the last frame of a revocable source.
const LAST: usize = 64;

/// Requirements: MR-069.
#[test]
fn source_revoked_after_any_byte_keeps_the_stream_in_step() {
    let first = HEAD_BYTES + LEN - LAST;
    for cut in (0..first + 40).filter(|cut| cut % 13 == 0 || *cut < 70 || *cut > first - 70) {
        // The kernel accepts `cut` bytes (the next call may request bytes that the first one did not), and later
        // accepts the rest in small portions.
        let room =
            [cut.min(first), cut.saturating_sub(first), 0].into_iter().chain(std::iter::repeat_n(700, 50)).collect();
        let (mut out, mut to) = (Outbound::new(), Slow { room, ..Slow::default() });
        let source = Lent::new(pattern(LEN, 1));
        let revocable = Revocable::new(source.cut(&[10, 3_000]));
        let request = U64::new(LEN as u64);
        out.pushes.start(8, 1 << 32, View::of(request.as_bytes()), &revocable.lease()).unwrap();
        out.push_started(&mut to);
        assert_eq!(to.bytes.len(), cut);
        revocable.revoke();
        let message = Lent::new(pattern(900, 2));
        out.send(&mut to, &tagged(900, 5), &message.whole(), false).unwrap();
        while !out.is_empty() {
            out.poll(&mut to);
        }
        let whole = cut >= first;
        let result = if whole { Ok(()) } else { Err(PullError::Revoked) };
        assert_eq!(out.pushes.next_ended(), Some((8, result)), "after {cut} bytes");
        if cut > 0 && !whole {
            let promised = &to.bytes[HEAD_BYTES..first];
            let left = cut.saturating_sub(HEAD_BYTES);
            assert!(promised[..left] == source.bytes()[..left]);
            assert!(
                promised[left..].iter().all(|byte| *byte == 0),
                "bytes were sent after the revocation at byte {cut}"
            );
        }
        let mut notes = Notes::keeping(usize::MAX);
        let bytes: Vec<u8> = [255, 100].iter().chain(&to.bytes).copied().collect();
        receive(&bytes, &mut notes).unwrap();
        let pulled = if whole { Ok(LEN as u64) } else { Err(PullError::Gone) };
        notes.reported.sort_by_key(|reported| matches!(reported, SinkReport::Frame(..)));
        assert_eq!(notes.reported, [SinkReport::Pulled(1, pulled), SinkReport::Frame(tagged(900, 5), message.bytes())]);
    }
}

/// Requirements: MR-069.
#[test]
fn target_revoked_after_any_byte_keeps_the_stream_in_step() {
    let data =
        |tag, len: usize| (Head { kind: FrameKind::Data, flags: Flags::ID, len: len as u32, tag, data: 0, id: 1 }, len);
    let bytes = stream(&[data(0, 2_500), data(2_500, 1_500), (tagged(900, 5), 900)]);
    let bytes = &bytes[2..];
    let last = 2 * HEAD_BYTES + LEN;
    for cut in (0..last + 40).filter(|cut| cut % 13 == 0 || *cut < 70 || *cut > last - 70) {
        let target = Lent::new(vec![0; LEN]);
        let revocable = Revocable::new(target.cut(&[10, 3_000]));
        let (mut inbound, mut pulls) = (Inbound::new(), Pulls::default());
        pulls.start(&Offer { len: (LEN as u64).into(), ..Offer::default() }, &revocable.lease(), 1);
        let mut notes = Notes::keeping(usize::MAX);
        let (before, after) = bytes.split_at(cut);
        let mut feed = |bytes| {
            let mut pieces = Pieces { bytes, lengths: &[255, 100], turn: 0 };
            while with_scratch(|scratch| inbound.poll(&mut pieces, scratch, &mut pulls, 0, &mut notes)).unwrap() {}
            assert!(pieces.bytes.is_empty());
        };
        feed(before);
        revocable.revoke();
        let arrived = target.bytes();
        feed(after);
        assert!(target.bytes() == arrived, "bytes were written after the revocation at byte {cut}");
        let result = if cut >= last { Ok(LEN as u64) } else { Err(PullError::Revoked) };
        let message = SinkReport::Frame(tagged(900, 5), pattern(900, 0));
        assert_eq!(notes.reported, [SinkReport::Pulled(1, result), message], "after {cut} bytes");
        assert!(pulls.is_empty());
    }
}

/// Requirements: MR-069.
#[test]
fn revoked_write_target_fails_no_pull() {
    let flags = Flags::DATA | Flags::ID;
    let write = Head { kind: FrameKind::Write, flags, len: LEN as u32, tag: 5, data: 6, id: 7 };
    let data = Head { kind: FrameKind::Data, flags: Flags::ID, len: 900, tag: 0, data: 0, id: 1 };
    let bytes = stream(&[(write, LEN), (data, 900)]);
    for cut in [200, 1_000, LEN] {
        let (target, pulled) = (Lent::new(vec![0; LEN]), Lent::new(vec![0; 900]));
        let revocable = Revocable::new(target.cut(&[10, 3_000]));
        let (mut inbound, mut pulls) = (Inbound::new(), Pulls::default());
        // The token is equal to that of the landing.
        pulls.expect(&pulled.lease(&[]), 1);
        let mut notes = Notes::keeping(usize::MAX);
        notes.place = Some(revocable.lease());
        let (before, after) = bytes[2..].split_at(cut);
        let mut feed = |bytes| {
            let mut pieces = Pieces { bytes, lengths: &[255, 100], turn: 0 };
            while with_scratch(|scratch| inbound.poll(&mut pieces, scratch, &mut pulls, 0, &mut notes)).unwrap() {}
        };
        feed(before);
        revocable.revoke();
        let arrived = target.bytes();
        assert!(arrived[..cut - HEAD_BYTES] == pattern(LEN, 0)[..cut - HEAD_BYTES]);
        feed(after);
        assert!(target.bytes() == arrived, "bytes were written after the revocation at byte {cut}");
        assert_eq!(notes.reported, [SinkReport::Frame(write, Vec::new()), SinkReport::Pulled(1, Ok(900))]);
        assert!(pulled.bytes() == pattern(900, 0));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Requirements: MR-069.
    #[test]
    fn both_ends_detect_a_revocation_at_any_time(
        len in 1..3_000_000usize,
        polls in 0..80usize,
        small in any::<bool>(),
        revoke_source in any::<bool>(),
    ) {
        let (mut a, mut b) = links(if small { SMALL } else { TcpOptions::default() });
        let (mut at_a, mut at_b) = (Notes::keeping(usize::MAX), Notes::keeping(usize::MAX));
        let (source, target) = (Lent::new(pattern(len, 1)), Lent::new(vec![0; len]));
        let (from, into) = (Revocable::new(source.cut(&[len / 3])), Revocable::new(target.cut(&[len / 2])));
        b.pull(8, &Offer { len: (len as u64).into(), ..Offer::default() }, &into.lease(), 5).unwrap();
        until(|| a.poll(0, &mut at_a).unwrap());
        let Some(SinkReport::Frame(head, request)) = at_a.reported.pop() else { panic!("no pull") };
        a.push(8, head.tag, View::of(&request), &from.lease()).unwrap();
        for _ in 0..polls {
            a.poll(0, &mut at_a).unwrap();
            b.poll(0, &mut at_b).unwrap();
        }
        if revoke_source { from.revoke() } else { into.revoke() }
        let arrived = target.bytes();
        let mut messages = VecDeque::from([700usize, 30_000]);
        until(|| {
            if let Some(&next) = messages.front()
                && a.send(&tagged(next, 6), &Lent::new(pattern(next, 6)).whole(), false).is_ok()
            {
                messages.pop_front();
            }
            a.poll(0, &mut at_a).unwrap();
            b.poll(0, &mut at_b).unwrap();
            at_a.reported.len() == 1 && at_b.reported.len() == 3
        });
        at_b.reported.sort_by_key(|reported| matches!(reported, SinkReport::Frame(..)));
        let SinkReport::Pulled(5, pulled) = at_b.reported[0] else { panic!("{:?}", at_b.reported[0]) };
        let SinkReport::Pushed(8, pushed) = at_a.reported[0] else { panic!("{:?}", at_a.reported[0]) };
        match (revoke_source, pulled, pushed) {
            (_, Ok(all), Ok(())) => {
                prop_assert_eq!(all, len as u64);
                prop_assert!(target.bytes() == source.bytes());
            }
            (true, Err(PullError::Gone), Err(PullError::Revoked)) => {}
            (false, Err(PullError::Revoked), Ok(())) => prop_assert!(target.bytes() == arrived),
            other => prop_assert!(false, "{:?}", other),
        }
        for (reported, len) in at_b.reported[1..].iter().zip([700, 30_000]) {
            prop_assert!(*reported == SinkReport::Frame(tagged(len, 6), pattern(len, 6)), "a message of {} bytes", len);
        }
    }
}
