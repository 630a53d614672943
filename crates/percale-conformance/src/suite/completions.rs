//! Completion entries: contents, time, queue and order.

use percale::{Access, CompletionFlags, CompletionQueue, Counter, Entry, ErrorCode, OpFlags, PostError};

use crate::fabric::{Peers, Transport};
use crate::memory::{Memory, content, same};
use crate::mesh::{Mesh, Receive, Send};

/// Every field of an entry is correct on both sides.
///
/// Requirements: CMP-001.
pub fn completion_entry_fields_are_correct<F: Transport>() {
    let mesh = Mesh::<F>::connected(2);
    for len in [0, 8, 2048, 9000] {
        let received = mesh.receive(1, Receive::into(Memory::blank(len + 1)).tag(0xf0, 0xf));
        let sent = mesh.send(0, 1, Send::of(Memory::content(1, len)).tag(0xf7).data(!0));
        let entry = mesh.done(received);
        let flags = CompletionFlags::RECEIVE | CompletionFlags::TAGGED | CompletionFlags::REMOTE_DATA;
        let source = mesh.peer(0);
        let wanted = Entry { context: received, flags, len: len as u64, buffer: 0, data: !0, tag: 0xf7, source };
        assert_eq!(entry, wanted);
        let entry = mesh.done(sent);
        assert_eq!((entry.context, entry.flags), (sent, CompletionFlags::SEND | CompletionFlags::TAGGED));
        let received = mesh.receive(1, Receive::into(Memory::blank(len)));
        let sent = mesh.send(0, 1, Send::of(Memory::content(1, len)));
        let entry = mesh.done(received);
        let flags = CompletionFlags::RECEIVE | CompletionFlags::MESSAGE;
        assert_eq!((entry.context, entry.flags, entry.data, entry.tag), (received, flags, 0, 0));
        assert_eq!(mesh.done(sent).flags, CompletionFlags::SEND | CompletionFlags::MESSAGE);
    }
}

/// Without COMPLETION, a success is not reported. A failure is always reported.
///
/// Requirements: CMP-002.
pub fn success_is_reported_only_if_requested<F: Transport>() {
    let mesh = Mesh::<F>::connected(2);
    for len in [8, 20_000] {
        let target = Memory::blank(len);
        let silent = mesh.receive(1, Receive::into(target).tag(1, 0).silent());
        let quiet = mesh.send(0, 1, Send::of(Memory::content(1, len)).tag(1).silent());
        let loud = mesh.receive(1, Receive::into(target).tag(2, 0));
        let reported = mesh.send(0, 1, Send::of(Memory::content(2, len)).tag(2));
        mesh.done(loud);
        mesh.done(reported);
        mesh.nothing(silent);
        mesh.nothing(quiet);
        let cut = mesh.receive(1, Receive::into(target.part(0, 4)).tag(3, 0).silent());
        let sent = mesh.send(0, 1, Send::of(Memory::content(3, len)).tag(3).silent());
        assert_eq!(mesh.failed(cut).error, ErrorCode::Truncated);
        mesh.nothing(sent);
        let cancelled = mesh.receive(1, Receive::into(target).tag(4, 0).silent());
        assert!(mesh.endpoint(1).cancel(cancelled));
        assert_eq!(mesh.failed(cancelled).error, ErrorCode::Canceled);
    }
}

/// After the completion of a send, the source may be overwritten. The send needs no further progress of the sender.
///
/// Requirements: CMP-003, CMP-004.
pub fn completed_send_needs_no_further_sender_progress<F: Transport>() {
    let mesh = Mesh::<F>::connected(2);
    for len in [0, 8, 600, 2048] {
        for flags in [OpFlags::empty(), OpFlags::TRANSMIT_COMPLETE] {
            let source = Memory::content(1, len);
            let sent = mesh.send(0, 1, Send::of(source).with(flags));
            while mesh.take(sent).is_none() {
                mesh.turn_one(0);
            }
            source.write(&vec![0x55; len]);
            let target = Memory::blank(len);
            let received = mesh.receive(1, Receive::into(target));
            while mesh.take(received).is_none() {
                mesh.turn_one(1);
            }
            same(&target.read(), &content(1, len), "a transmitted message");
        }
    }
    // Sends several messages in a row and reads their completions one after another. The later completions may wait for
    // the first.
    for flags in [OpFlags::empty(), OpFlags::MORE] {
        let sent = [1, 2, 3].map(|seed| mesh.send(0, 1, Send::of(Memory::content(seed, 600)).with(flags)));
        let (mut one, mut turns) = ([Entry::default()], 0..1_000_000);
        for sent in sent {
            let completed = turns.any(|_| {
                let completed = mesh.endpoint(0).poll(&mut one) == Ok(1);
                if !completed {
                    mesh.turn_one(1);
                }
                completed
            });
            assert!(completed, "a send does not complete");
            assert_eq!(one[0].context, sent);
        }
        for seed in [1, 2, 3] {
            let target = Memory::blank(600);
            let received = mesh.receive(1, Receive::into(target));
            let arrived = turns.any(|_| {
                mesh.turn_one(1);
                mesh.take(received).is_some()
            });
            assert!(arrived, "a message did not leave although its send has completed");
            same(&target.read(), &content(seed, 600), "one of several messages");
        }
    }
    // Longer messages need the progress of both sides until they complete.
    let source = Memory::content(2, F::BULK);
    let target = Memory::blank(F::BULK);
    let received = mesh.receive(1, Receive::into(target));
    let sent = mesh.send(0, 1, Send::of(source));
    mesh.done(sent);
    source.write(&vec![0x55; F::BULK]);
    mesh.until(|| {
        mesh.turn_one(1);
        mesh.take(received)
    })
    .expect("the message");
    same(&target.read(), &content(2, F::BULK), "a long message whose send has completed");
}

/// Messages and writes without a completion entry arrive even if their sender makes no further call.
///
/// Requirements: CMP-004.
pub fn silent_operations_need_no_further_sender_progress<F: Transport>() {
    const COUNT: u64 = 6;
    let mesh = Mesh::<F>::connected(2);
    let region = mesh.test_endpoint(1).domain.register(vec![0; 8], Access::REMOTE_WRITE).expect("a region");
    let arrives = |context| {
        (0..1_000_000).any(|_| {
            mesh.turn_one(1);
            mesh.take(context).is_some()
        })
    };
    // The first access may have to request the location of the memory.
    let write = |bytes: u64| {
        mesh.endpoint(0)
            .inject_write(mesh.peer(1), &bytes.to_ne_bytes(), region.remote(), Some(bytes))
            .expect("an inject");
    };
    write(0);
    mesh.until(|| mesh.take(0)).expect("the target's completion of the first write");
    for seed in 1..=COUNT {
        mesh.endpoint(0).tagged_inject(mesh.peer(1), seed, &content(seed, 32)).expect("an inject");
        write(seed);
    }
    for seed in 1..=COUNT {
        let target = Memory::blank(32);
        let received = mesh.receive(1, Receive::into(target).tag(seed, 0));
        assert!(arrives(received), "message {seed} did not leave");
        same(&target.read(), &content(seed, 32), "an injected message");
        assert!(arrives(0), "write {seed} did not leave");
    }
    region.close().expect("no access is in progress");
}

/// With DELIVERY_COMPLETE, a send completes only after the receive was posted and the bytes are in its buffer.
///
/// Requirements: CMP-005.
pub fn delivery_complete_waits_for_data_in_the_buffer<F: Transport>() {
    let mesh = Mesh::<F>::connected(2);
    for len in [0, 8, 600, 2048, 9000, F::BULK] {
        let target = Memory::blank(len);
        let sent = mesh.send(0, 1, Send::of(Memory::content(1, len)).with(OpFlags::DELIVERY_COMPLETE));
        mesh.nothing(sent);
        let received = mesh.receive(1, Receive::into(target));
        mesh.done(sent);
        same(&target.read(), &content(1, len), "a delivered message");
        mesh.done(received);
        let received = mesh.receive(1, Receive::into(target));
        let sent = mesh.send(0, 1, Send::of(Memory::content(2, len)).with(OpFlags::DELIVERY_COMPLETE));
        mesh.done(sent);
        same(&target.read(), &content(2, len), "a delivered message that was waited for");
        mesh.done(received);
    }
}

/// With MATCH_COMPLETE, a send completes only after a matching receive was posted. A peek is not sufficient.
///
/// Requirements: CMP-006.
pub fn match_complete_waits_for_the_receive<F: Transport>() {
    let mesh = Mesh::<F>::connected(2);
    for len in [0, 8, 2048, 9000, F::BULK] {
        let sent = mesh.send(0, 1, Send::of(Memory::content(1, len)).tag(1).with(OpFlags::MATCH_COMPLETE));
        mesh.settle(0, 1);
        let peeked = mesh.receive(1, Receive::peek(OpFlags::empty()).tag(1, 0));
        mesh.done(peeked);
        let other = mesh.receive(1, Receive::into(Memory::blank(len)).tag(2, 0));
        mesh.nothing(sent);
        let received = mesh.receive(1, Receive::into(Memory::blank(len)).tag(1, 0));
        mesh.done(sent);
        mesh.done(received);
        assert!(mesh.endpoint(1).cancel(other));
        mesh.failed(other);
    }
}

/// Reads stop at an error entry until the error is read.
///
/// Requirements: CMP-007.
pub fn error_entry_blocks_reads_until_taken<F: Transport>() {
    let mesh = Mesh::<F>::connected(2);
    let rooms = [8, 8, 4, 8, 2, 0, 8];
    let contexts = rooms.map(|room| mesh.receive(1, Receive::into(Memory::blank(room))));
    for _ in rooms {
        mesh.inject(0, 1, None, b"8 bytes!");
    }
    let endpoint = mesh.endpoint(1);
    let mut seen = Vec::new();
    while seen.len() < rooms.len() {
        mesh.fabric.tick();
        mesh.endpoint(0).progress();
        let mut entries = [Entry::default(); 3];
        match endpoint.poll(&mut entries) {
            Ok(count) => seen.extend(entries[..count].iter().map(|entry| (entry.context, entry.len, 0))),
            Err(available) => {
                assert_eq!(available.errno(), 259);
                assert!(endpoint.poll(&mut entries).is_err(), "the error stays until it is taken");
                let error = endpoint.read_error().expect("an error");
                assert_eq!(error.error, ErrorCode::Truncated);
                seen.push((error.entry.context, error.entry.len, error.overflow));
            }
        }
    }
    assert_eq!(endpoint.read_error(), None);
    let wanted: Vec<_> =
        contexts.iter().zip(rooms).map(|(&context, room)| (context, room as u64, 8 - room as u64)).collect();
    assert_eq!(seen, wanted);
}

/// A read returns up to the requested number of entries, oldest first, and each entry once.
///
/// Requirements: CMP-008.
pub fn entries_are_read_in_batches<F: Transport>() {
    let mesh = Mesh::<F>::connected(2);
    let contexts: Vec<u64> = (0..10).map(|_| mesh.receive(1, Receive::into(Memory::blank(8)))).collect();
    for _ in 0..10 {
        mesh.inject(0, 1, None, b"8 bytes!");
    }
    let mut seen = Vec::new();
    let mut entries = [Entry::default(); 4];
    while seen.len() < 10 {
        mesh.fabric.tick();
        mesh.endpoint(0).progress();
        assert_eq!(mesh.endpoint(1).poll(&mut []), Ok(0));
        let count = mesh.endpoint(1).poll(&mut entries).expect("no error");
        assert!(count <= 4);
        seen.extend(entries[..count].iter().map(|entry| entry.context));
    }
    assert_eq!(seen, contexts);
    assert_eq!(mesh.endpoint(1).poll(&mut entries), Ok(0));
}

/// A reader that reads one result at a time gets the results of every peer, even if one peer always has more results.
/// Each message has different data.
///
/// Requirements: CMP-001, CMP-008.
pub fn busy_peer_does_not_starve_others<F: Peers>() {
    const FEW: u64 = 5;
    let mesh = Mesh::<F>::connected(3);
    let post = |tag| mesh.receive(0, Receive::into(Memory::blank(8)).tag(tag, 0));
    let send = |from: usize, number: u64| {
        let (bytes, data) = (number.to_le_bytes(), number << 8 | from as u64);
        mesh.endpoint(from).inject_with(mesh.peer(0), &bytes, Some(from as u64), Some(data))
    };
    for _ in 0..FEW {
        post(2);
    }
    let (mut busy, mut sent, mut delivered) = (0, 0, [0, 0]);
    for _ in 0..2000 {
        post(1);
        busy += u64::from(send(1, busy).is_ok());
        sent += u64::from(sent < FEW && send(2, sent).is_ok());
        mesh.turn_one(1);
        mesh.turn_one(2);
        let mut entry = [Entry::default()];
        if mesh.endpoint(0).poll(&mut entry).expect("no error") == 1 {
            let [Entry { tag, data, len, flags, .. }] = entry;
            let delivered = &mut delivered[tag as usize - 1];
            assert_eq!((data, len), (*delivered << 8 | tag, 8));
            assert!(flags.contains(CompletionFlags::REMOTE_DATA));
            *delivered += 1;
        }
    }
    assert_eq!(delivered[1], FEW, "{} messages of the busy sender", delivered[0]);
    assert!(delivered[0] > FEW);
}

/// Posting is rejected before a result could be lost, and succeeds again after a read.
///
/// Requirements: CMP-009.
pub fn posting_fails_before_a_queue_overruns<F: Transport>() {
    let queues = [CompletionQueue::new(1, 4), CompletionQueue::new(1, 4)];
    let mesh = Mesh::<F>::with(
        2,
        |domain| domain,
        |_, endpoint| endpoint.transmit_queue(&queues[0]).receive_queue(&queues[1]),
    );
    let target = Memory::blank(8);
    let mut entries = [Entry::default(); 8];
    for round in 0..3 {
        let receives: Vec<u64> = (0..4).map(|_| mesh.receive(1, Receive::into(target))).collect();
        assert_eq!(mesh.try_receive(1, Receive::into(target)), Err(PostError::Again));
        let source = Memory::content(1, 8);
        let sends: Vec<u64> =
            (0..4).map(|_| mesh.try_send(0, mesh.peer(1), Send::of(source)).expect("room for four")).collect();
        assert_eq!(mesh.try_send(0, mesh.peer(1), Send::of(source)), Err(PostError::Again), "round {round}");
        for (queue, posted) in queues.iter().zip([sends, receives]) {
            mesh.until(|| (queue.len() == 4).then_some(()));
            let count = queue.read(&mut entries).expect("no error");
            let contexts: Vec<u64> = entries[..count].iter().map(|entry| entry.context).collect();
            assert_eq!(contexts, posted);
        }
    }
    // Operations without a completion entry need no room, and an error is never lost for lack of room.
    let receives: Vec<u64> = (0..4).map(|_| mesh.receive(1, Receive::into(target))).collect();
    let cut = mesh.receive(1, Receive::into(target.part(0, 1)).tag(1, 0).silent());
    mesh.send(0, 1, Send::of(target).tag(1).silent());
    mesh.until(|| (queues[1].len() == 1).then_some(()));
    assert!(queues[1].read(&mut entries).is_err());
    assert_eq!(queues[1].read_error().expect("an error").entry.context, cut);
    receives.into_iter().for_each(|context| assert!(mesh.endpoint(1).cancel(context)));
}

/// The messages of a multi-receive reserve no entries in the queue. While the queue has no room, the endpoint accepts
/// no such messages.
///
/// Requirements: CMP-009.
pub fn multi_receives_wait_for_room_in_the_queue<F: Transport>() {
    const COUNT: usize = 500;
    let queue = CompletionQueue::new(1, 8);
    let mesh = Mesh::<F>::with(
        2,
        |domain| domain,
        |number, endpoint| if number == 1 || F::ALONE { endpoint.receive_queue(&queue) } else { endpoint },
    );
    let buffer = Memory::blank(COUNT * 8 + 64);
    let context = mesh.receive(1, Receive::into(buffer).with(OpFlags::MULTI_RECEIVE));
    let mut sent = 0;
    let mut seen: u64 = 0;
    let mut most = 0;
    let mut entries = [Entry::default(); 8];
    while seen < COUNT as u64 {
        if sent < COUNT && mesh.endpoint(0).inject(mesh.peer(1), &(sent as u64).to_le_bytes()).is_ok() {
            sent += 1;
            if sent % 100 != 0 && sent < COUNT {
                mesh.turn();
                continue;
            }
        }
        mesh.turns(3);
        most = most.max(queue.len());
        let count = queue.read(&mut entries).expect("no error");
        for entry in &entries[..count] {
            assert_eq!((entry.context, entry.len), (context, 8));
            let at = (entry.buffer - buffer.address()) as usize;
            assert_eq!(buffer.part(at, 8).read(), seen.to_le_bytes());
            seen += 1;
        }
    }
    println!("{}: {most} results waited in a queue of 8", F::NAME);
}

/// A counter is incremented for each success, and its error value for each failure.
///
/// Requirements: CMP-011.
pub fn counters_count_each_side<F: Transport>() {
    let (sends, receives) = (Counter::new(), Counter::new());
    let mesh =
        Mesh::<F>::with(2, |domain| domain, |_, endpoint| endpoint.transmit_counter(&sends).receive_counter(&receives));
    let target = Memory::blank(20_000);
    for len in [8, 20_000] {
        sends.set(0);
        receives.set(0);
        for round in 1..=20 {
            let received = mesh.receive(1, Receive::into(target).silent());
            mesh.send(0, 1, Send::of(Memory::content(1, len)).silent());
            mesh.until(|| (receives.value() == round && sends.value() == round).then_some(()));
            assert!(mesh.take(received).is_none());
        }
        assert_eq!((sends.read_error(), receives.read_error()), (0, 0));
    }
    mesh.inject(0, 1, None, b"counted too");
    let cut = mesh.receive(1, Receive::into(target.part(0, 1)).silent());
    mesh.failed(cut);
    assert_eq!((sends.value(), sends.read_error()), (21, 0));
    assert_eq!((receives.value(), receives.read_error()), (20, 1));
}

/// One queue can receive the results of both directions of all endpoints.
pub fn shared_queues_take_the_results_of_both_sides<F: Transport>() {
    let queue = CompletionQueue::default();
    let mesh = Mesh::<F>::with(2, |domain| domain, |_, endpoint| endpoint.transmit_queue(&queue).receive_queue(&queue));
    let target = Memory::blank(20_000);
    for len in [8, 20_000] {
        let received = mesh.receive(1, Receive::into(target));
        let sent = mesh.send(0, 1, Send::of(Memory::content(1, len)));
        let mut seen = Vec::new();
        mesh.until(|| {
            let mut entries = [Entry::default(); 4];
            let count = queue.read(&mut entries).expect("no error");
            seen.extend(entries[..count].iter().map(|entry| entry.context));
            (seen.len() == 2).then_some(())
        });
        seen.sort_unstable();
        assert_eq!(seen, [received, sent]);
        same(&target.read()[..len], &content(1, len), "the message");
    }
}
