//! Tests of peeking at messages, of claiming them and of discarding them.

use percale::{CompletionFlags, ErrorCode, OpFlags, PostError};

use crate::fabric::Transport;
use crate::memory::{Memory, content, same};
use crate::mesh::{Mesh, Receive, Send};

/// A peek reports the message correctly, and has no other effect.
///
/// Requirements: TAG-004.
pub fn peek_reports_the_message_and_changes_nothing<F: Transport>() {
    let mesh = Mesh::<F>::connected(2);
    for len in [0, 8, 2048, 9000, F::BULK] {
        let sent = mesh.send(0, 1, Send::of(Memory::content(1, len)).tag(6).data(9));
        mesh.settle(0, 1);
        let untouched = Memory::blank(8);
        for _ in 0..3 {
            let peek = Receive::into(untouched).with(OpFlags::PEEK).tag(4, 2);
            let peeked = mesh.receive(1, peek);
            let entry = mesh.done(peeked);
            assert_eq!((entry.len, entry.tag, entry.data), (len as u64, 6, 9));
            assert_eq!(entry.source, mesh.peer(0));
            assert!(
                entry.flags.contains(CompletionFlags::TAGGED | CompletionFlags::RECEIVE | CompletionFlags::REMOTE_DATA)
            );
        }
        assert_eq!(untouched.read(), [0xEE; 8]);
        let target = Memory::blank(len);
        let received = mesh.receive(1, Receive::into(target).tag(6, 0));
        mesh.done(received);
        mesh.done(sent);
        same(&target.read(), &content(1, len), "the peeked message");
    }
}

/// A peek fails if there is no message, no message with this tag, or no message of this peer.
///
/// Requirements: TAG-005.
pub fn peek_without_match_fails_with_no_message<F: Transport>() {
    let mesh = Mesh::<F>::connected(2);
    let none = |receive: Receive| {
        let context = mesh.receive(1, receive);
        let error = mesh.failed(context);
        assert_eq!((error.error, error.errno()), (ErrorCode::NoMessage, libc::ENOMSG));
    };
    none(Receive::peek(OpFlags::empty()).tag(0, !0));
    none(Receive::peek(OpFlags::CLAIM).tag(0, !0));
    none(Receive::peek(OpFlags::DISCARD));
    none(Receive::peek(OpFlags::empty()).tag(0, !0).silent());
    mesh.inject(0, 1, Some(5), b"five");
    mesh.settle(0, 1);
    none(Receive::peek(OpFlags::empty()).tag(4, 0));
    none(Receive::peek(OpFlags::empty()));
    if !F::ALONE {
        none(Receive::peek(OpFlags::empty()).tag(5, 0).from(mesh.peer(1)));
    }
    let received = mesh.receive(1, Receive::into(Memory::blank(4)).tag(5, 0));
    mesh.done(received);
}

/// A claimed message matches no other receive. It is received with the context of the claim.
///
/// Requirements: TAG-006.
pub fn claimed_message_matches_only_its_claim<F: Transport>() {
    let mesh = Mesh::<F>::connected(2);
    for len in [8, 2048, 9000, F::BULK] {
        let sends = [1, 2].map(|number| mesh.send(0, 1, Send::of(Memory::content(number, len)).tag(7)));
        mesh.settle(0, 1);
        let claim = mesh.receive(1, Receive::peek(OpFlags::CLAIM).tag(7, 0));
        assert_eq!(mesh.done(claim).len, len as u64);
        let second = Memory::blank(len);
        let received = mesh.receive(1, Receive::into(second).tag(7, 0));
        mesh.done(received);
        same(&second.read(), &content(2, len), "the message that is not claimed");
        let peeked = mesh.receive(1, Receive::peek(OpFlags::empty()).tag(7, 0));
        assert_eq!(mesh.failed(peeked).error, ErrorCode::NoMessage);
        let first = Memory::blank(len);
        let claimed = Receive::into(first).tag(7, 0).with(OpFlags::CLAIM);
        assert_eq!(mesh.try_receive(1, claimed.context(u64::MAX - 9)), Err(PostError::NotClaimed));
        mesh.receive(1, claimed.context(claim));
        mesh.done(claim);
        same(&first.read(), &content(1, len), "the claimed message");
        assert_eq!(
            mesh.try_receive(1, claimed.context(claim)),
            Err(PostError::NotClaimed),
            "a claimed message is received once"
        );
        mesh.all_done(sends);
    }
}

/// A message is discarded immediately or after a claim. The next receive gets the next message, and the sends complete.
///
/// Requirements: TAG-007.
pub fn discard_removes_the_message_and_completes_its_send<F: Transport>() {
    let mesh = Mesh::<F>::connected(2);
    for len in [0, 8, 2048, 9000, F::BULK] {
        for delivered in [OpFlags::empty(), OpFlags::DELIVERY_COMPLETE] {
            let send = |number| mesh.send(0, 1, Send::of(Memory::content(number, len)).tag(7).with(delivered));
            let sends = [1, 2, 3].map(send);
            mesh.settle(0, 1);
            let discarded = mesh.receive(1, Receive::peek(OpFlags::DISCARD).tag(7, 0));
            assert_eq!(mesh.done(discarded).len, len as u64);
            let claim = mesh.receive(1, Receive::peek(OpFlags::CLAIM).tag(7, 0));
            mesh.done(claim);
            let drop_it = Receive::vector(percale::Segments::EMPTY).tag(7, 0).with(OpFlags::CLAIM | OpFlags::DISCARD);
            mesh.receive(1, drop_it.context(claim));
            mesh.done(claim);
            let target = Memory::blank(len);
            let received = mesh.receive(1, Receive::into(target).tag(7, 0));
            mesh.done(received);
            same(&target.read(), &content(3, len), "the message that is left");
            mesh.all_done(sends);
        }
    }
}

/// Contradictory flags are rejected and have no effect.
pub fn contradictory_flags_are_rejected_without_effect<F: Transport>() {
    let mesh = Mesh::<F>::connected(2);
    let memory = Memory::blank(100);
    for flags in [OpFlags::DISCARD, OpFlags::MULTI_RECEIVE | OpFlags::PEEK, OpFlags::MULTI_RECEIVE | OpFlags::CLAIM] {
        let refused = mesh.try_receive(1, Receive::into(memory).with(flags));
        assert!(matches!(refused, Err(PostError::Flags(_))), "{flags:?}: {refused:?}");
    }
    let received = mesh.receive(1, Receive::into(memory));
    mesh.inject(0, 1, None, b"fine");
    assert_eq!(mesh.done(received).len, 4);
}
