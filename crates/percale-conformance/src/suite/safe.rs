//! Safe operations, which own their buffers.

use std::sync::Arc;
use std::time::Duration;

use percale::endpoint::safe::Cause;
use percale::{Buffer, ErrorCode, PeerAddress, PostError};

use crate::fabric::Transport;
use crate::memory::{Memory, content, same};
use crate::mesh::{Mesh, Receive};

/// Tests all kinds of buffers, tags, data and sources.
pub fn safe_operations_give_their_buffers_back<F: Transport>() {
    let mesh = Mesh::<F>::new(2);
    let (a, b) = (mesh.endpoint(0), mesh.endpoint(1));
    for len in [0, 8, 2048, 9000, F::BULK] {
        let bytes = content(1, len);
        let receiving = b.recv(vec![0; len]).from(mesh.peer(0)).start().expect("a receive");
        let sent = a.send(mesh.peer(1), bytes.clone()).data(5).start().expect("a send");
        let got = mesh.finish(receiving).expect("a message");
        assert_eq!((got.len, got.data, got.tag, got.source), (len, Some(5), 0, Some(mesh.peer(0))));
        same(got.buffer.as_slice().expect("a vector"), &bytes, "the message");
        same(&mesh.finish(sent).expect("the send").into_vec(), &bytes, "the source");
        let sent =
            a.tagged_send(mesh.peer(1), 7, Arc::<[u8]>::from(bytes.clone())).delivered().start().expect("a send");
        let got = mesh.finish(b.tagged_recv(5, 2, Buffer::zeroed(len + 9))).expect("a message");
        assert_eq!((got.len, got.tag, got.data), (len, 7, None));
        same(&got.to_vec(), &bytes, "the tagged message");
        mesh.finish(sent).expect("the send");
    }
    let receiving = b.recv(vec![0; 4]).start().expect("a receive");
    mesh.finish(a.send(mesh.peer(1), "too long").fenced()).expect("the send");
    let error = mesh.finish(receiving).expect_err("the message is truncated");
    assert_eq!(error.errno(), 265);
    assert_eq!(error.into_buffer().expect("the buffer is returned").into_vec(), b"too ");
    let mut receiving = b.recv(vec![0; 4]).start().expect("a receive");
    assert!(!receiving.is_ready() && receiving.cancel() && !receiving.cancel());
    let error = receiving.wait().expect_err("the operation is cancelled");
    assert!(matches!(error.cause(), Cause::Completion(entry) if entry.error == ErrorCode::Canceled), "{error}");
    assert_eq!(error.into_buffer().map(|buffer| buffer.len()), Some(4));
}

/// Parts are returned in order with their contents. `finish` returns the buffer.
pub fn safe_multi_receive_returns_parts_in_order<F: Transport>() {
    let mesh = Mesh::<F>::connected(2);
    let (a, b) = (mesh.endpoint(0), mesh.endpoint(1));
    let mut many = b.recv(vec![0; 10_000]).many().expect("a receive");
    let mut sends = Vec::new();
    for (number, len) in [(0, 8), (1, 3000), (2, 0), (3, 2048)] {
        sends.push(a.send(mesh.peer(1), content(number, len)).data(number).start().expect("a send"));
        let part = mesh.until(|| many.wait_for(Duration::ZERO).ok()).expect("a part");
        same(&part.bytes, &content(number, len), "a part");
        assert_eq!((part.data, part.source), (Some(number), Some(mesh.peer(0))));
    }
    let error = many.wait_for(Duration::ZERO).expect_err("no more messages");
    assert!(matches!(error.cause(), Cause::TimedOut));
    let buffer = many.finish().buffer.into_vec();
    same(&buffer[..8], &content(0, 8), "the first part");
    same(&buffer[8..3008], &content(1, 3000), "the second part");
    sends.into_iter().for_each(|sent| drop(mesh.finish(sent).expect("the send")));
    let mut many = b.recv(vec![0; 100]).many().expect("a receive");
    for number in 0..2 {
        mesh.inject(0, 1, None, &content(number, 20));
        let part = mesh.until(|| many.wait_for(Duration::ZERO).ok()).expect("a part");
        assert_eq!((part.bytes, part.offset), (content(number, 20), 20 * number as usize));
    }
    assert!(many.wait().expect("no error").is_none(), "60 bytes are less than the minimum");
    assert_eq!(many.finish().buffer.len(), 100);
}

/// A send with a dropped or forgotten handle either arrives or is cancelled. Its buffer is not freed before that.
///
/// Requirements: RES-010.
pub fn a_dropped_send_keeps_its_buffer_while_the_peer_may_use_it<F: Transport>() {
    let mesh = Mesh::<F>::connected(2);
    for (forget, turns) in [(false, 0), (false, 1), (false, 50), (true, 0), (true, 50)] {
        let bytes: Arc<[u8]> = content(1, F::BULK).into();
        let sending = mesh.endpoint(0).send(mesh.peer(1), Arc::clone(&bytes)).start().expect("a send");
        mesh.turns(turns);
        if forget {
            std::mem::forget(sending);
        } else {
            drop(sending);
        }
        mesh.settle(0, 1);
        assert_eq!(Arc::strong_count(&bytes), 2, "the offered buffer is still lent");
        let target = Memory::blank(F::BULK);
        let received = mesh.receive(1, Receive::into(target));
        mesh.done(received);
        same(&target.read(), &bytes, "the message of a dropped send");
        if forget {
            mesh.turns(50);
            assert_eq!(Arc::strong_count(&bytes), 2, "the buffer of a forgotten handle is never returned");
        } else {
            mesh.until(|| (Arc::strong_count(&bytes) == 1).then_some(()));
        }
    }
}

/// The handle of a receive is forgotten, or dropped after the match. The message is written to memory that is still
/// allocated.
///
/// Requirements: RES-010.
pub fn a_forgotten_receive_keeps_its_buffer<F: Transport>() {
    let mesh = Mesh::<F>::connected(2);
    for len in [8, F::BULK] {
        for forget in [false, true] {
            for turns in 0..8 {
                let receiving = mesh.endpoint(1).tagged_recv(1, 0, vec![0; len]).start().expect("a receive");
                let send = mesh.endpoint(0).tagged_send(mesh.peer(1), 1, content(1, len)).delivered();
                let sending = send.start().expect("a send");
                mesh.turns(turns);
                if forget {
                    std::mem::forget(receiving);
                } else {
                    drop(receiving);
                    // A receive that is dropped before its match is cancelled, and the message waits for another
                    // receive.
                    mesh.settle(0, 1);
                    let peeked = mesh.receive(1, Receive::peek(percale::OpFlags::empty()).tag(1, 0));
                    if mesh.report(peeked).is_ok() {
                        let target = Memory::blank(len);
                        let received = mesh.receive(1, Receive::into(target).tag(1, 0));
                        mesh.done(received);
                        same(&target.read(), &content(1, len), "the message of a dropped receive");
                    }
                }
                // The message is delivered whether or not its receive still exists. No operation hangs, and freed
                // memory is not written.
                let back = mesh.finish(sending).expect("the send");
                same(&back.into_vec(), &content(1, len), "the source");
            }
        }
    }
}

/// Dropping a receive that has not received a message cancels it.
pub fn a_dropped_receive_takes_no_message<F: Transport>() {
    let mesh = Mesh::<F>::connected(2);
    drop(mesh.endpoint(1).recv(vec![0; 8]).start().expect("a receive"));
    let late = mesh.endpoint(1).recv(vec![0; 8]).start().expect("a receive").wait_for(Duration::from_millis(1));
    assert!(matches!(late.expect_err("there is no message").cause(), Cause::TimedOut));
    let received = mesh.endpoint(1).recv(vec![0; 8]).start().expect("a receive");
    mesh.inject(0, 1, None, b"message!");
    assert_eq!(mesh.finish(received).expect("the message").to_vec(), b"message!");
}

/// Operations with unknown peers, without a vector, or with read-only buffers return their buffers, and leave no record.
pub fn rejected_operation_returns_its_buffer<F: Transport>() {
    let mesh = Mesh::<F>::new(2);
    let endpoint = mesh.endpoint(0);
    let refused = |cause: &Cause, wanted: &PostError| match cause {
        Cause::Post(error) => assert_eq!(error, wanted),
        other => panic!("rejected with another cause: {other}"),
    };
    for unknown in [PeerAddress(99), PeerAddress::UNSPECIFIED] {
        let error = endpoint.send(unknown, vec![1, 2, 3]).wait().expect_err("nobody");
        refused(error.cause(), &PostError::UnknownPeer(unknown.0));
        assert_eq!(error.errno(), libc::EINVAL);
        assert_eq!(error.into_buffer().expect("the buffer is returned").into_vec(), [1, 2, 3]);
        assert_eq!(endpoint.inject(unknown, b"x"), Err(PostError::UnknownPeer(unknown.0)));
    }
    let error = endpoint.recv(vec![0; 3]).from(PeerAddress(99)).wait().expect_err("nobody");
    refused(error.cause(), &PostError::UnknownPeer(99));
    let error = endpoint.recv("constant").wait().expect_err("the memory is read-only");
    refused(error.cause(), &PostError::ReadOnly);
    assert_eq!(error.into_buffer().map(Buffer::into_vec), Some(b"constant".to_vec()));
    let remains = endpoint.remains();
    assert!(remains.is_empty(), "{remains:?}");
    let alone =
        mesh.test_endpoint(0).domain.endpoint().bind(mesh.fabric.address()).expect("an endpoint without a vector");
    assert_eq!(alone.inject(PeerAddress(0), b"x"), Err(PostError::NoVector));
    assert_eq!(alone.inject(PeerAddress(0), b"x").map_err(|error| error.errno()), Err(267));
}
