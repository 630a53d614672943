//! Matching of tagged messages.

use percale::{CompletionFlags, ErrorCode};

use crate::fabric::Transport;
use crate::memory::{Memory, content, same};
use crate::mesh::{Mesh, Receive, Send};

/// A receive gets the oldest message whose tag equals the tag of the receive in all bits that are not ignored.
///
/// Requirements: TAG-001.
pub fn oldest_matching_message_is_received<F: Transport>() {
    let mesh = Mesh::<F>::connected(2);
    for len in [8, 20_000] {
        let tags = [0x10, 0x21, 0x11, 0x20, 0x12, u64::MAX];
        let sends: Vec<u64> =
            tags.iter().map(|&tag| mesh.send(0, 1, Send::of(Memory::content(tag, len)).tag(tag))).collect();
        mesh.settle(0, 1);
        let take = |tag, ignore, wanted| {
            let target = Memory::blank(len);
            let received = mesh.receive(1, Receive::into(target).tag(tag, ignore));
            let entry = mesh.done(received);
            assert_eq!(entry.tag, wanted, "asked for {tag:#x}, ignoring {ignore:#x}");
            assert!(entry.flags.contains(CompletionFlags::TAGGED) && !entry.flags.contains(CompletionFlags::MESSAGE));
            same(&target.read(), &content(wanted, len), "the message with this tag");
        };
        take(0x20, 0, 0x20);
        take(0x20, 0xf, 0x21);
        take(0, 0xf0, 0x10);
        take(0xdead, !0 ^ 1, 0x11);
        take(0, !0, 0x12);
        take(0, !0, u64::MAX);
        mesh.all_done(sends);
    }
}

/// Each of the 64 bits is compared, and each can be ignored.
///
/// Requirements: TAG-001.
pub fn every_bit_may_be_ignored_or_compared<F: Transport>() {
    let mesh = Mesh::<F>::connected(2);
    let base: u64 = 0x0123_4567_89ab_cdef;
    for bit in 0..64 {
        let other = base ^ (1 << bit);
        let target = Memory::blank(8);
        let exact = mesh.receive(1, Receive::into(target).tag(base, 0));
        mesh.inject(0, 1, Some(other), b"other");
        mesh.settle(0, 1);
        assert!(mesh.take(exact).is_none(), "bit {bit} is compared");
        let loose = mesh.receive(1, Receive::into(target).tag(base, 1 << bit));
        assert_eq!(mesh.done(loose).tag, other, "bit {bit} is ignored");
        mesh.inject(0, 1, Some(base), b"base");
        assert_eq!(mesh.done(exact).tag, base);
    }
}

/// If several receives match, the one posted first gets the message, regardless of its other criteria.
///
/// Requirements: TAG-002.
pub fn first_posted_matching_receive_gets_the_message<F: Transport>() {
    let mesh = Mesh::<F>::connected(2);
    for len in [8, 20_000] {
        let target = Memory::blank(len);
        let from = mesh.peer(0);
        let receives = [
            Receive::into(target).tag(0, !0),
            Receive::into(target).tag(5, 0).from(from),
            Receive::into(target).tag(5, 0),
            Receive::into(target).tag(4, 1).from(from),
            Receive::into(target).tag(0, !0).from(from),
        ];
        let posted = receives.map(|receive| mesh.receive(1, receive));
        for (at, &context) in posted.iter().enumerate() {
            let sent = mesh.send(0, 1, Send::of(Memory::content(5, len)).tag(5));
            mesh.done(context);
            mesh.done(sent);
            assert!(
                posted[at + 1..].iter().all(|&later| mesh.take(later).is_none()),
                "message {at}: one receive takes it"
            );
        }
    }
}

/// A tagged receive never gets an untagged message, and an untagged receive never gets a tagged one.
///
/// Requirements: TAG-003.
pub fn tagged_and_untagged_do_not_mix<F: Transport>() {
    let mesh = Mesh::<F>::connected(2);
    let (plain, tagged) = (Memory::blank(8), Memory::blank(8));
    let any_tag = mesh.receive(1, Receive::into(tagged).tag(0, !0));
    mesh.inject(0, 1, None, b"untagged");
    mesh.nothing(any_tag);
    mesh.inject(0, 1, Some(0), b"tagged");
    assert_eq!(mesh.done(any_tag).len, 6);
    mesh.inject(0, 1, Some(3), b"waiting");
    let untagged = mesh.receive(1, Receive::into(plain));
    assert_eq!(mesh.done(untagged).len, 8);
    let untagged = mesh.receive(1, Receive::into(plain));
    mesh.nothing(untagged);
    mesh.inject(0, 1, None, b"end");
    assert_eq!(mesh.done(untagged).len, 3);
    let rest = mesh.receive(1, Receive::into(tagged).tag(3, 0));
    assert_eq!(mesh.done(rest).len, 7);
}

/// A cancelled receive ends with the error for cancellation, and later messages match other receives.
///
/// Requirements: TAG-008.
pub fn a_cancelled_receive_takes_nothing<F: Transport>() {
    let mesh = Mesh::<F>::connected(2);
    for tag in [None, Some(4)] {
        for len in [8, 20_000] {
            let (cancelled, kept) = (Memory::blank(len), Memory::blank(len));
            let receive = |memory| match tag {
                Some(tag) => Receive::into(memory).tag(tag, 0),
                None => Receive::into(memory),
            };
            let (first, second) = (mesh.receive(1, receive(cancelled)), mesh.receive(1, receive(kept)));
            assert!(mesh.endpoint(1).cancel(first));
            assert!(!mesh.endpoint(1).cancel(first), "an operation is cancelled only once");
            let error = mesh.failed(first);
            assert_eq!((error.error, error.errno()), (ErrorCode::Canceled, libc::ECANCELED));
            let mut send = Send::of(Memory::content(1, len));
            send = tag.map_or(send, |tag| send.tag(tag));
            let sent = mesh.send(0, 1, send);
            mesh.done(second);
            mesh.done(sent);
            same(&kept.read(), &content(1, len), "the message");
            assert!(cancelled.read().iter().all(|&byte| byte == 0xEE), "a cancelled buffer is left alone");
        }
    }
    assert!(!mesh.endpoint(1).cancel(u64::MAX - 7), "no operation has this context");
}

/// Cancelling a receive that has already been matched has no effect.
///
/// Requirements: TAG-009.
pub fn a_matched_receive_completes_once<F: Transport>() {
    let mesh = Mesh::<F>::connected(2);
    for len in [8, 2048, F::BULK] {
        for turns in 0..12 {
            let target = Memory::blank(len);
            let received = mesh.receive(1, Receive::into(target).tag(1, 0));
            let sent = mesh.send(0, 1, Send::of(Memory::content(2, len)).tag(1));
            mesh.turns(turns);
            let cancelled = mesh.endpoint(1).cancel(received);
            if cancelled {
                assert_eq!(mesh.failed(received).error, ErrorCode::Canceled);
                let second = mesh.receive(1, Receive::into(target).tag(1, 0));
                mesh.done(second);
            } else {
                mesh.done(received);
            }
            same(&target.read(), &content(2, len), "the message");
            mesh.done(sent);
            mesh.turns(20);
            assert!(mesh.take(received).is_none(), "one report for one operation");
        }
    }
}
