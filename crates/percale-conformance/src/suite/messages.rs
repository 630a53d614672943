//! Untagged messages.

use percale::{CompletionFlags, ErrorCode, OpFlags, PostError, Segments};

use crate::fabric::{Fabric, Peers, Transport};
use crate::memory::{Memory, content, same};
use crate::mesh::{Mesh, Receive, Send};
use crate::random::{Random, seed};

/// Lengths near each limit at which a transport changes its protocol.
pub const SIZES: [usize; 24] = [
    0, 1, 7, 8, 40, 41, 47, 48, 49, 63, 64, 511, 512, 513, 2047, 2048, 2049, 4096, 8191, 8192, 8193, 65_535, 65_536,
    65_537,
];

/// Returns the sizes to test on this transport.
fn sizes<F: Fabric>() -> Vec<usize> {
    let long = if F::REAL { vec![(1 << 20) + 3, 16 << 20] } else { vec![(1 << 18) + 3] };
    SIZES.into_iter().chain(long).collect()
}

/// Messages of every size arrive in both directions, with the receive posted before and after the send.
///
/// Requirements: MSG-001.
pub fn messages_of_every_size_arrive<F: Transport>() {
    let mesh = Mesh::<F>::new(2);
    for (number, len) in sizes::<F>().into_iter().enumerate() {
        for (from, to, receive_first) in [(0, 1, true), (1, 0, true), (0, 1, false), (1, 0, false)] {
            let source = Memory::content(number as u64, len);
            let target = Memory::blank(len + 5);
            let (sent, received);
            if receive_first {
                received = mesh.receive(to, Receive::into(target));
                sent = mesh.send(from, to, Send::of(source));
            } else {
                sent = mesh.send(from, to, Send::of(source));
                mesh.turns(20);
                received = mesh.receive(to, Receive::into(target));
            }
            let entry = mesh.done(received);
            assert_eq!(entry.len, len as u64);
            assert!(entry.flags.contains(CompletionFlags::RECEIVE | CompletionFlags::MESSAGE));
            let got = target.read();
            same(&got[..len], &content(number as u64, len), &format!("{len} bytes from {from} to {to}"));
            assert!(got[len..].iter().all(|&byte| byte == 0xEE), "nothing behind the message was written");
            assert!(mesh.done(sent).flags.contains(CompletionFlags::SEND | CompletionFlags::MESSAGE));
        }
    }
}

/// Messages arrive if peers can map the source memory, the destination memory, or both.
///
/// Requirements: MSG-001.
pub fn messages_between_allocations_arrive<F: Transport>() {
    let mesh = Mesh::<F>::connected(2);
    for len in [1, 2048, 4097, 65_536, F::BULK + 3] {
        for (from_allocation, to_allocation) in [(true, true), (true, false), (false, true)] {
            let bytes = content(7, len);
            let source = if from_allocation {
                let mut memory = mesh.test_endpoint(0).domain.allocate(len).expect("memory");
                memory.write(0, &bytes);
                percale::Buffer::from(memory)
            } else {
                bytes.clone().into()
            };
            let target = if to_allocation {
                mesh.test_endpoint(1).domain.allocate(len).expect("memory").into()
            } else {
                percale::Buffer::zeroed(len)
            };
            let receiving = mesh.endpoint(1).recv(target).start().expect("a receive");
            let sending = mesh.endpoint(0).send(mesh.peer(1), source).start().expect("a send");
            let got = mesh.finish(receiving).expect("a message");
            same(&got.to_vec(), &bytes, "the message");
            assert_eq!(got.buffer.into_allocation().is_ok(), to_allocation);
            let back = mesh.finish(sending).expect("the send");
            same(&back.into_vec(), &bytes, "the source");
        }
    }
}

/// Messages arrive with several pieces of different lengths on both sides. Some pieces are empty.
///
/// Requirements: MSG-002.
pub fn pieces_are_gathered_and_scattered<F: Transport>() {
    let mesh = Mesh::<F>::new(2);
    for len in [4, 40, 49, 600, 2048, 5000, 70_000, F::BULK + 3] {
        let (source, target) = (Memory::content(3, len), Memory::blank(len));
        let cut = |memory: &Memory, first: usize, second: usize| {
            let rest = memory.len() - second;
            let pieces = [
                memory.part(0, first).segment(),
                memory.part(first, 0).segment(),
                memory.part(first, second - first).segment(),
                memory.part(second, rest).segment(),
            ];
            Segments::new(&pieces).expect("four pieces")
        };
        let received = mesh.receive(1, Receive::vector(cut(&target, len / 2, len - 1)));
        let sent = mesh.send(0, 1, Send::vector(cut(&source, 1, len / 3 + 1)));
        assert_eq!(mesh.done(received).len, len as u64);
        mesh.done(sent);
        same(&target.read(), &source.read(), &format!("{len} bytes in pieces"));
    }
}

/// The test overwrites the buffer immediately after the call. No completion is reported.
///
/// Requirements: MSG-003.
pub fn an_injected_buffer_may_be_reused_at_once<F: Transport>() {
    let mesh = Mesh::<F>::new(2);
    let buffer = Memory::blank(2048);
    let mut injected = Vec::new();
    // The first messages are sent before the connection is established, the others afterwards.
    for (number, len) in [0, 1, 8, 40, 41, 512, 513, 2047, 2048].into_iter().cycle().take(60).enumerate() {
        buffer.write(&content(number as u64, len));
        let work = Send::of(buffer.part(0, len)).silent().with(OpFlags::INJECT);
        injected.push((mesh.send(0, 1, work), number as u64, len));
        buffer.write(&vec![0x55; len]);
    }
    let target = Memory::blank(2048);
    for &(_, number, len) in &injected {
        let received = mesh.receive(1, Receive::into(target));
        assert_eq!(mesh.done(received).len, len as u64);
        same(&target.read()[..len], &content(number, len), "an injected message");
    }
    mesh.turns(50);
    assert!(injected.iter().all(|&(context, ..)| mesh.take(context).is_none()), "injects write no entries");
}

/// A message that is one byte longer than the inject limit is rejected.
///
/// Requirements: MSG-004.
pub fn inject_above_the_limit_is_rejected<F: Transport>() {
    let mesh = Mesh::<F>::new(2);
    let received = mesh.receive(1, Receive::into(Memory::blank(4096)));
    for _ in 0..2 {
        let limit = percale::endpoint::work::INJECT_LIMIT;
        let refused = mesh.endpoint(0).inject(mesh.peer(1), &vec![0; limit + 1]);
        assert_eq!(refused, Err(PostError::InjectTooLong(limit + 1)));
        assert_eq!(refused.map_err(|error| error.errno()), Err(libc::EMSGSIZE));
        mesh.nothing(received);
        mesh.settle(0, 1); // The connection exists in the second round.
    }
    mesh.inject(0, 1, None, b"short");
    assert_eq!(mesh.done(received).len, 5);
}

/// Messages are placed one after another. When less than the minimum space is left, the buffer is released and the next
/// buffer is used.
///
/// Requirements: MSG-005, MSG-006.
pub fn a_multi_receive_buffer_takes_messages_until_it_is_full<F: Transport>() {
    let mesh = Mesh::<F>::with(2, |domain| domain, |_, endpoint| endpoint.multi_receive_minimum(3000));
    let buffers = [Memory::blank(20_000), Memory::blank(20_000)];
    let contexts = buffers.map(|buffer| mesh.receive(1, Receive::into(buffer).with(OpFlags::MULTI_RECEIVE)));
    // These sizes are chosen so that 17,000 bytes fill a buffer up to its minimum.
    let sizes = [100, 0, 2048, 7000, 40, 5000, 2812, 1, 3000, 9000, 5000];
    let sends: Vec<u64> = (0..)
        .zip(sizes)
        .map(|(number, len)| mesh.send(0, 1, Send::of(Memory::content(number, len)).data(number)))
        .collect();
    // Messages are placed in the order in which they were sent, but long ones may complete later.
    let mut first = 0;
    for (buffer, context) in buffers.into_iter().zip(contexts) {
        let mut places = Vec::new();
        let mut end = 0;
        for &len in &sizes[first..] {
            if 20_000 - end < 3000 {
                break;
            }
            places.push((end, len));
            end += len;
        }
        for number in 0..places.len() {
            let entry = mesh.done(context);
            let (place, len) = places[entry.data as usize - first];
            assert_eq!((entry.len, entry.buffer), (len as u64, buffer.address() + place as u64));
            same(&buffer.part(place, len).read(), &content(entry.data, len), "a message in a multi-receive buffer");
            let released = 20_000 - end < 3000 && number + 1 == places.len();
            assert_eq!(entry.flags.contains(CompletionFlags::MULTI_RECEIVE), released, "message {}", entry.data);
        }
        first += places.len();
    }
    assert_eq!(first, sizes.len());
    mesh.all_done(sends);
    mesh.nothing(contexts[0]);
}

/// The minimum can be changed while the endpoint is open.
///
/// Requirements: MSG-006.
pub fn the_minimum_may_be_changed<F: Transport>() {
    let mesh = Mesh::<F>::connected(2);
    let context = mesh.receive(1, Receive::into(Memory::blank(10_000)).with(OpFlags::MULTI_RECEIVE));
    for (minimum, len, released) in [(8001, 2000, true), (100, 9900, false), (101, 9900, true), (0, 9999, false)] {
        let context = if minimum == 8001 {
            context // It was posted before.
        } else {
            mesh.receive(1, Receive::into(Memory::blank(10_000)).with(OpFlags::MULTI_RECEIVE))
        };
        mesh.endpoint(1).set_multi_receive_minimum(minimum);
        assert_eq!(mesh.endpoint(1).multi_receive_minimum(), minimum);
        mesh.send(0, 1, Send::of(Memory::content(1, len)).silent());
        let entry = mesh.done(context);
        assert_eq!(entry.flags.contains(CompletionFlags::MULTI_RECEIVE), released, "minimum {minimum}");
        if !released {
            assert!(mesh.endpoint(1).cancel(context));
            mesh.failed(context);
        }
    }
}

/// Messages that arrived before the buffer was posted are placed before later ones.
///
/// Requirements: MSG-005.
pub fn multi_receive_takes_earlier_messages_first<F: Transport>() {
    let mesh = Mesh::<F>::connected(2);
    let sends: Vec<u64> = (0..6).map(|at| mesh.send(0, 1, Send::of(Memory::content(at, 3000)))).collect();
    mesh.settle(0, 1);
    let buffer = Memory::blank(5 * 3000 + 10);
    let context = mesh.receive(1, Receive::into(buffer).with(OpFlags::MULTI_RECEIVE));
    for at in 0..5 {
        let entry = mesh.done(context);
        assert_eq!((entry.len, entry.buffer), (3000, buffer.address() + 3000 * at));
        assert_eq!(entry.flags.contains(CompletionFlags::MULTI_RECEIVE), at == 4);
        same(&buffer.part(3000 * at as usize, 3000).read(), &content(at, 3000), "an early message");
    }
    let last = Memory::blank(3000);
    let received = mesh.receive(1, Receive::into(last));
    mesh.done(received);
    same(&last.read(), &content(5, 3000), "the message behind the buffer");
    mesh.all_done(sends);
}

/// A receive directed at a peer does not match messages of other peers.
///
/// Requirements: MSG-007.
pub fn a_directed_receive_waits_for_its_peer<F: Peers>() {
    let mesh = Mesh::<F>::new(3);
    for len in [8, 20_000] {
        let (directed, any) = (Memory::blank(len), Memory::blank(len));
        let from_two = mesh.receive(0, Receive::into(directed).from(mesh.peer(2)));
        let first = mesh.send(1, 0, Send::of(Memory::content(1, len)));
        mesh.settle(1, 0);
        mesh.nothing(from_two);
        let second = mesh.send(2, 0, Send::of(Memory::content(2, len)));
        let entry = mesh.done(from_two);
        assert_eq!(entry.source, mesh.peer(2));
        same(&directed.read(), &content(2, len), "the message that was waited for");
        let from_any = mesh.receive(0, Receive::into(any));
        assert_eq!(mesh.done(from_any).source, mesh.peer(1));
        same(&any.read(), &content(1, len), "the message of the other sender");
        mesh.done(first);
        mesh.done(second);
        // Test the same after both messages have arrived.
        let sends = [1, 2].map(|from| mesh.send(from, 0, Send::of(Memory::content(from as u64 + 4, len))));
        mesh.settle(1, 0);
        mesh.settle(2, 0);
        let from_two = mesh.receive(0, Receive::into(directed).from(mesh.peer(2)));
        mesh.done(from_two);
        same(&directed.read(), &content(6, len), "the held message that was asked for");
        let rest = mesh.receive(0, Receive::into(any));
        mesh.done(rest);
        mesh.all_done(sends);
    }
}

/// Entries identify the sender by its number in the receiver's vector, even if the sender was inserted later. A sender
/// that is not in the vector has the address of its connection, or no source if the endpoint was opened without these.
///
/// Requirements: MSG-008, CMP-010.
pub fn completion_contains_the_source_if_in_the_vector<F: Peers>() {
    for answers in [true, false] {
        let mesh = Mesh::<F>::with(2, |domain| domain, |_, endpoint| endpoint.connection_addresses(answers));
        mesh.connect();
        let received = mesh.receive(1, Receive::into(Memory::blank(8)));
        mesh.inject(0, 1, None, b"known");
        assert_eq!(mesh.done(received).source, mesh.peer(0));
        let vector = &mesh.test_endpoint(1).vector;
        vector.remove(mesh.peer(0)).expect("the peer is in the vector");
        let received = mesh.receive(1, Receive::into(Memory::blank(8)));
        mesh.inject(0, 1, None, b"stranger");
        let entry = mesh.done(received);
        assert_eq!((entry.len, entry.source.is_specified(), vector.lookup(entry.source)), (8, answers, None));
        let again = vector.insert(mesh.endpoint(0).address()).expect("an address");
        let received = mesh.receive(1, Receive::into(Memory::blank(8)));
        mesh.inject(0, 1, None, b"again");
        assert_eq!(mesh.done(received).source, again);
    }
}

/// A message can have eight bytes of remote data, or none.
///
/// Requirements: MSG-009.
pub fn remote_data_arrives_with_the_message<F: Transport>() {
    let mesh = Mesh::<F>::new(2);
    for len in [0, 8, 40, 41, 600, 2048, 30_000] {
        for (tagged, data) in [(false, Some(u64::MAX - 5)), (true, Some(0)), (false, None), (true, None)] {
            let mut receive = Receive::into(Memory::blank(len));
            let mut send = Send::of(Memory::content(1, len));
            if tagged {
                (receive, send) = (receive.tag(9, 0), send.tag(9));
            }
            if let Some(data) = data {
                send = send.data(data);
            }
            let received = mesh.receive(1, receive);
            let sent = mesh.send(0, 1, send);
            let entry = mesh.done(received);
            assert_eq!(entry.flags.contains(CompletionFlags::REMOTE_DATA), data.is_some(), "{len} bytes");
            assert_eq!(entry.data, data.unwrap_or(0), "{len} bytes");
            mesh.done(sent);
        }
    }
}

/// Ten thousand messages, with lengths from inline to offered, are received in the order in which they were sent.
///
/// Requirements: MSG-010.
pub fn messages_do_not_overtake_each_other<F: Transport>() {
    const COUNT: usize = 10_000;
    const SLOTS: usize = 64;
    let mesh = Mesh::<F>::new(2);
    let mut random = Random::new(seed());
    let limits = [16, 48, 600, 2100, 6000, 30_000];
    let longest = if F::REAL { limits.len() } else { limits.len() - 1 };
    let sources: Vec<Memory> = (0..SLOTS).map(|_| Memory::blank(30_000)).collect();
    let targets: Vec<Memory> = (0..SLOTS).map(|_| Memory::blank(30_000)).collect();
    let mut len = || {
        let limit = limits[random.below(longest)];
        8 + random.below(limit - 8)
    };
    let lens: Vec<usize> = (0..COUNT).map(|_| len()).collect();
    let mut sends = [None; SLOTS];
    let mut receives = [None; SLOTS];
    let (mut sent, mut posted, mut got) = (0, 0, 0);
    while got < COUNT {
        // Receives are posted alternately before and after the sends.
        for _ in 0..random.below(SLOTS) {
            let slot = posted % SLOTS;
            if posted < COUNT && receives[slot].is_none() {
                receives[slot] = Some(mesh.receive(1, Receive::into(targets[slot])));
                posted += 1;
            }
        }
        for _ in 0..random.below(SLOTS) {
            let slot = sent % SLOTS;
            if let Some(context) = sends[slot] {
                if mesh.take(context).is_none() {
                    break;
                }
                sends[slot] = None;
            }
            if sent < COUNT {
                sources[slot].write(&content(sent as u64, lens[sent]));
                let part = sources[slot].part(0, lens[sent]);
                sends[slot] = mesh.try_send(0, mesh.peer(1), Send::of(part)).ok();
                sent += usize::from(sends[slot].is_some());
            }
        }
        mesh.turn();
        while let Some(report) = receives[got % SLOTS].and_then(|context| mesh.take(context)) {
            let entry = report.expect("a message");
            assert_eq!(entry.len, lens[got] as u64, "message {got}");
            same(&targets[got % SLOTS].read()[..lens[got]], &content(got as u64, lens[got]), &format!("message {got}"));
            receives[got % SLOTS] = None;
            got += 1;
        }
    }
}

/// Tests an endpoint that is in its own vector.
///
/// Requirements: MSG-011.
pub fn an_endpoint_reaches_itself<F: Transport>() {
    let mesh = Mesh::<F>::new(2);
    for len in [0, 40, 2048, 10_000, F::BULK] {
        let target = Memory::blank(len);
        let sent = mesh.send(0, 0, Send::of(Memory::content(4, len)).tag(5).data(6));
        let received = mesh.receive(0, Receive::into(target).tag(5, 0).from(mesh.peer(0)));
        let entry = mesh.done(received);
        assert_eq!((entry.len, entry.tag, entry.data, entry.source), (len as u64, 5, 6, mesh.peer(0)));
        mesh.done(sent);
        same(&target.read(), &content(4, len), "a message to itself");
        let delivered = mesh.send(0, 0, Send::of(Memory::content(5, len)).with(OpFlags::DELIVERY_COMPLETE));
        mesh.nothing(delivered);
        let received = mesh.receive(0, Receive::into(target));
        mesh.done(delivered);
        same(&target.read(), &content(5, len), "a delivered message to oneself");
        mesh.done(received);
    }
}

/// Thousands of messages of all kinds are sent before their receives are posted.
///
/// Requirements: MSG-012.
pub fn unexpected_messages_are_kept_in_order<F: Transport>() {
    const COUNT: u64 = 3000;
    let mesh = Mesh::<F>::new(2);
    let len = |number: u64| [0, 8, 40, 100, 2048, 3000, 9000][number as usize % 7];
    let sends: Vec<u64> =
        (0..COUNT).map(|number| mesh.send(0, 1, Send::of(Memory::content(number, len(number))))).collect();
    mesh.settle(0, 1);
    let target = Memory::blank(9000);
    for number in 0..COUNT {
        let received = mesh.receive(1, Receive::into(target));
        assert_eq!(mesh.done(received).len, len(number) as u64, "message {number}");
        same(&target.read()[..len(number)], &content(number, len(number)), &format!("message {number}"));
    }
    mesh.all_done(sends);
}

/// The receiver's error reports the number of received bytes and the number of truncated bytes. The send succeeds.
///
/// Requirements: MSG-015, TAG-010.
pub fn too_long_message_is_truncated_and_reported<F: Transport>() {
    let mesh = Mesh::<F>::new(2);
    for len in [1, 40, 600, 2048, 9000, F::BULK] {
        for (room, receive_first, tagged) in
            [(0, true, true), (len / 2, true, true), (len - 1, true, false), (len / 2, false, true), (0, false, false)]
        {
            let memory = Memory::blank(len);
            let mut receive = Receive::into(memory.part(0, room));
            let mut send = Send::of(Memory::content(8, len)).data(77);
            if tagged {
                (receive, send) = (receive.tag(6, 0), send.tag(6));
            }
            let early = receive_first.then(|| mesh.receive(1, receive));
            let sent = mesh.send(0, 1, send);
            mesh.turns(20);
            let received = early.unwrap_or_else(|| mesh.receive(1, receive));
            let error = mesh.failed(received);
            assert_eq!((error.error, error.errno()), (ErrorCode::Truncated, 265));
            assert_eq!((error.entry.len, error.overflow), (room as u64, (len - room) as u64), "of {len} bytes");
            assert_eq!((error.entry.tag, error.entry.data), (if tagged { 6 } else { 0 }, 77));
            mesh.done(sent);
            same(&memory.read()[..room], &content(8, len)[..room], "the bytes that fit");
            assert!(memory.read()[room..].iter().all(|&byte| byte == 0xEE), "nothing behind the receive was written");
        }
    }
}

/// A send with a fence is not matched before all operations posted earlier have completed.
///
/// Requirements: MSG-016.
pub fn fenced_send_waits_for_earlier_operations<F: Transport>() {
    let mesh = Mesh::<F>::connected(2);
    for len in [100, F::BULK] {
        let (big, small) = (Memory::blank(len), Memory::blank(8));
        let behind = mesh.receive(1, Receive::into(small).tag(2, 0));
        let first = mesh.send(0, 1, Send::of(Memory::content(1, len)).tag(1).with(OpFlags::DELIVERY_COMPLETE));
        let fenced = mesh.send(0, 1, Send::of(Memory::content(2, 8)).tag(2).with(OpFlags::FENCE));
        mesh.nothing(behind);
        assert!(mesh.take(fenced).is_none(), "the fenced message waits");
        let received = mesh.receive(1, Receive::into(big).tag(1, 0));
        mesh.done(behind);
        same(&big.read(), &content(1, len), "the data sent before the fence");
        same(&small.read(), &content(2, 8), "the data sent after the fence");
        for context in [first, fenced, received] {
            mesh.done(context);
        }
    }
}

/// A send with the flag MORE is executed even if no further send follows.
///
/// Requirements: MSG-017.
pub fn send_with_more_flag_is_executed_without_a_successor<F: Transport>() {
    let mesh = Mesh::<F>::connected(2);
    for len in [8, 2048, 20_000] {
        let target = Memory::blank(len);
        let received = mesh.receive(1, Receive::into(target));
        let sent = mesh.send(0, 1, Send::of(Memory::content(1, len)).with(OpFlags::MORE));
        mesh.done(received);
        mesh.done(sent);
        let targets: Vec<_> = (0..10).map(|_| Memory::blank(len)).collect();
        let received: Vec<u64> = targets.iter().map(|target| mesh.receive(1, Receive::into(*target))).collect();
        let more = |at| if at == 9 { OpFlags::empty() } else { OpFlags::MORE };
        let sent: Vec<u64> =
            (0..10).map(|at| mesh.send(0, 1, Send::of(Memory::content(at, len)).with(more(at)))).collect();
        mesh.all_done(received.into_iter().chain(sent));
        for (target, at) in targets.iter().zip(0..) {
            same(&target.read(), &content(at, len), "one of ten");
        }
    }
}
