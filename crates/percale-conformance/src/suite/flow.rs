//! Tests that send more messages than there is room for: no message is lost, no operation waits forever, and memory
//! stays bounded.

use percale::{OpFlags, PostError};

use crate::fabric::Transport;
use crate::memory::{Memory, content, same};
use crate::mesh::{Mesh, Receive, Send};

/// Above a small cap, senders must offer messages, and injects must wait. All messages arrive in order once receives
/// are posted.
///
/// Requirements: MSG-013.
pub fn above_unexpected_cap_inject_waits_and_no_message_is_lost<F: Transport>() {
    const CAP: usize = 64 << 10;
    const LEN: usize = 1000;
    let mesh = Mesh::<F>::with(2, |domain| domain.unexpected_cap(CAP), |_, endpoint| endpoint);
    mesh.connect();
    let before = crate::measure::anonymous_kib();
    let mut injected: u64 = 0;
    let mut refused = 0;
    // `Again` is returned temporarily while a ring is full, and permanently once the cap is reached.
    while refused < 2000 {
        match mesh.endpoint(0).inject(mesh.peer(1), &content(injected, LEN)) {
            Ok(()) => {
                injected += 1;
                refused = 0;
            }
            Err(error) => {
                assert_eq!(error, PostError::Again);
                refused += 1;
            }
        }
        mesh.turn();
        assert!(
            injected < 100_000,
            "inject never returns Again; {injected} messages were accepted with a cap of {CAP} bytes"
        );
    }
    let held = injected as usize * LEN;
    assert!(held >= CAP / 2, "only {held} bytes were accepted before the cap");
    println!("{}: {held} bytes were accepted with a cap of {CAP}", F::NAME);
    // Messages that were being transferred when the sender was notified may exceed the cap.
    assert!(held <= 2 * CAP, "{held} bytes were accepted with a cap of {CAP}");
    let source = Memory::content(1 << 40, LEN);
    let sends: Vec<u64> = (0..3000).map(|_| mesh.send(0, 1, Send::of(source))).collect();
    mesh.settle(0, 1);
    let grown = crate::measure::anonymous_kib().saturating_sub(before);
    println!("{}: {grown} KiB more than before", F::NAME);
    let target = Memory::blank(LEN);
    for number in 0..injected {
        let received = mesh.receive(1, Receive::into(target));
        mesh.done(received);
        same(&target.read(), &content(number, LEN), &format!("injected message {number}"));
    }
    for sent in sends {
        let received = mesh.receive(1, Receive::into(target));
        mesh.done(received);
        same(&target.read(), &source.read(), "a message behind the injected ones");
        mesh.done(sent);
    }
    // Messages are accepted again now.
    mesh.turns(20);
    let received = mesh.receive(1, Receive::into(target));
    mesh.inject(0, 1, None, b"free");
    assert_eq!(mesh.done(received).len, 4);
}

/// After a message was reported as sent, its sender need not make progress: the message arrives, even if the receiver
/// is slow.
///
/// Requirements: MSG-019.
pub fn completed_send_arrives_without_sender_progress<F: Transport>() {
    const LEN: usize = 2_000;
    let mesh = Mesh::<F>::connected(2);
    let (source, target) = (Memory::content(1, LEN), Memory::blank(LEN));
    let mut reported = 0;
    // The receiver makes no progress, so that the path to it becomes full.
    for _ in 0..20_000 {
        let Ok(sent) = mesh.try_send(0, mesh.peer(1), Send::of(source)) else { break };
        let mut is_over = false;
        for _ in 0..200 {
            mesh.turn_one(0);
            is_over = mesh.take(sent).is_some();
            if is_over {
                break;
            }
        }
        if !is_over {
            break;
        }
        reported += 1;
    }
    println!("{}: {reported} messages of {LEN} bytes were sent before the link was full", F::NAME);
    assert!(reported > 0);
    for number in 0..reported {
        let received = mesh.receive(1, Receive::into(target));
        let mut turns = 0;
        while mesh.take(received).is_none() {
            mesh.turn_one(1);
            turns += 1;
            assert!(turns < 2_000_000, "of {reported} messages that were sent, number {number} does not arrive");
        }
    }
}

/// A thousand long messages are sent in each direction before either side posts a receive.
///
/// Requirements: MSG-014.
pub fn both_may_send_long_messages_before_either_receives<F: Transport>() {
    const COUNT: usize = 1000;
    let mesh = Mesh::<F>::new(2);
    let sources = [Memory::content(1, F::BULK), Memory::content(2, F::BULK)];
    let mut sends = Vec::new();
    for _ in 0..COUNT {
        sends.extend([(0, 1), (1, 0)].map(|(from, to)| mesh.send(from, to, Send::of(sources[from]).tag(from as u64))));
    }
    mesh.turns(100);
    let target = Memory::blank(F::BULK);
    for number in 0..COUNT {
        for (at, from) in [(1, 0), (0, 1)] {
            let received = mesh.receive(at, Receive::into(target).tag(from as u64, 0));
            mesh.done(received);
            if number % 16 == 0 {
                same(&target.read(), &sources[from].read(), "a message of a flood");
            }
        }
    }
    mesh.all_done(sends);
}

/// Like [`both_may_send_long_messages_before_either_receives`], with messages that are placed in rings and sockets
/// until those are full.
pub fn both_may_send_small_messages_before_either_receives<F: Transport>() {
    const COUNT: u64 = 20_000;
    let mesh = Mesh::<F>::new(2);
    for number in 0..COUNT {
        mesh.inject(0, 1, Some(0), &number.to_le_bytes());
        mesh.inject(1, 0, Some(1), &number.to_le_bytes());
    }
    let target = Memory::blank(8);
    for number in 0..COUNT {
        for (at, tag) in [(1, 0), (0, 1)] {
            let received = mesh.receive(at, Receive::into(target).tag(tag, 0));
            mesh.done(received);
            assert_eq!(target.read(), number.to_le_bytes());
        }
    }
}

/// If a peer makes no progress, posting is eventually rejected for lack of room. Rejected messages are not sent.
///
/// Requirements: MSG-018.
pub fn posting_without_room_has_no_effect<F: Transport>() {
    let mesh = Mesh::<F>::connected(2);
    let mut sent: u64 = 0;
    let mut flags = OpFlags::empty();
    loop {
        let bytes = sent.to_le_bytes();
        match mesh.try_send(0, mesh.peer(1), Send::of(Memory::of(&bytes)).silent().with(flags)) {
            Ok(_) => sent += 1,
            Err(error) => {
                assert_eq!((&error, error.errno()), (&PostError::Again, libc::EAGAIN));
                break;
            }
        }
        flags.toggle(OpFlags::INJECT);
        assert!(sent < 5_000_000, "there is always room although no receive is posted");
    }
    println!("{}: room for {sent} sends of 8 bytes", F::NAME);
    let target = Memory::blank(8);
    let more = Memory::of(&sent.to_le_bytes());
    mesh.send(0, 1, Send::of(more).silent());
    for number in 0..=sent {
        let received = mesh.receive(1, Receive::into(target));
        mesh.done(received);
        assert_eq!(target.read(), number.to_le_bytes());
    }
    let beyond = mesh.receive(1, Receive::into(target));
    mesh.settle(0, 1);
    mesh.nothing(beyond);
}
