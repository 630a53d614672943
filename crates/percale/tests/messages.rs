//! Tests how a program gets the bytes of received messages, and receives that take many messages.

#![cfg(not(loom))]

use std::time::Duration;

use percale::endpoint::safe::Cause;
use percale::{Domain, Endpoint, Info, PeerAddress};

/// Returns a domain, and an endpoint with its own address in its vector.
fn own_peer() -> (Domain, Endpoint, PeerAddress) {
    let domain = Info::discover().unwrap().best().unwrap().open().unwrap();
    let vector = domain.address_vector().build().unwrap();
    let endpoint = domain.endpoint().vector(&vector).multi_receive_minimum(8).bind("127.0.0.1:0").unwrap();
    let peer = vector.insert(endpoint.address()).unwrap();
    (domain, endpoint, peer)
}

#[test]
fn received_bytes_end_with_the_message() {
    let (_, endpoint, me) = own_peer();
    endpoint.send(me, *b"hello").wait().unwrap();
    let buffer = vec![0; 64];
    let address = buffer.as_ptr();
    let received = endpoint.recv(buffer).wait().unwrap();
    assert_eq!(received.as_slice(), Some(b"hello".as_slice()));
    assert_eq!(received.to_vec(), b"hello");
    let bytes = received.into_vec();
    assert_eq!((bytes.as_ptr(), bytes.as_slice()), (address, b"hello".as_slice()));
}

#[test]
fn allocation_with_a_message_is_read_by_copying() {
    let (_, endpoint, me) = own_peer();
    endpoint.send(me, "hello").wait().unwrap();
    let allocation = percale::memory::sealed::allocate(64).unwrap();
    let received = endpoint.recv(allocation).wait().unwrap();
    assert_eq!(received.as_slice(), None);
    assert_eq!(received.to_vec(), b"hello");
    assert_eq!(received.into_vec(), b"hello");
}

/// Sends two messages of 4 bytes, after which a buffer of 15 bytes is full.
fn send_two(endpoint: &Endpoint, me: PeerAddress) {
    for text in ["one.", "two."] {
        endpoint.send(me, text).wait().unwrap();
    }
}

#[test]
fn iterator_of_many_messages_ends_when_the_buffer_is_full() {
    let (_, endpoint, me) = own_peer();
    let mut many = endpoint.recv(vec![0; 15]).many().unwrap();
    let error = many.wait_for(Duration::ZERO).unwrap_err();
    assert!(matches!(error.cause(), Cause::TimedOut) && error.is_retriable());
    send_two(&endpoint, me);
    let mut bytes = Vec::new();
    for part in &mut many {
        bytes.push(part.unwrap().bytes);
    }
    assert_eq!(bytes, [b"one.", b"two."]);
    assert!(many.iter().next().is_none() && many.wait().unwrap().is_none());
    assert_eq!(&many.finish().buffer.into_vec()[..8], b"one.two.");
}

#[test]
fn iterator_of_many_messages_ends_after_the_endpoint_was_shut() {
    let (_, endpoint, _) = own_peer();
    let mut many = endpoint.recv(vec![0; 15]).many().unwrap();
    endpoint.shut();
    let results: Vec<_> = many.iter().take(10).collect();
    assert!(results.len() < 10 && results.iter().all(Result::is_err), "{results:?}");
    assert!(many.iter().next().is_none());
}

#[tokio::test]
async fn many_messages_are_awaited_in_order() {
    let (_, endpoint, me) = own_peer();
    let mut many = endpoint.recv(vec![0; 15]).many().unwrap();
    let receive = async {
        let mut bytes = Vec::new();
        while let Some(part) = many.next_message().await {
            bytes.push(part.unwrap().bytes);
        }
        bytes
    };
    let send = async {
        tokio::time::sleep(Duration::from_millis(20)).await; // The task of the receive sleeps.
        for text in ["one.", "two."] {
            endpoint.send(me, text).await.unwrap();
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let (bytes, ()) = tokio::join!(receive, send);
    assert_eq!(bytes, [b"one.", b"two."]);
    assert!(many.next_message().await.is_none());
}

#[cfg(feature = "futures")]
mod futures {
    use std::pin::Pin;
    use std::task::{Context, Poll, Waker};

    use futures_core::{FusedFuture, FusedStream, Stream};

    use super::{own_peer, send_two};

    #[test]
    fn stream_of_many_messages_is_terminated_after_its_end() {
        let (_, endpoint, me) = own_peer();
        let mut many = endpoint.recv(vec![0; 15]).many().unwrap();
        send_two(&endpoint, me);
        let mut context = Context::from_waker(Waker::noop());
        let mut lengths = Vec::new();
        while !many.is_terminated() {
            if let Poll::Ready(Some(part)) = Stream::poll_next(Pin::new(&mut many), &mut context) {
                lengths.push(part.unwrap().bytes.len());
            }
        }
        assert_eq!(lengths, [4, 4]);
        assert!(matches!(Stream::poll_next(Pin::new(&mut many), &mut context), Poll::Ready(None)));
    }

    #[test]
    fn operation_is_terminated_when_its_result_was_taken() {
        let (_, endpoint, me) = own_peer();
        let mut receive = endpoint.recv(vec![0; 8]).start().unwrap();
        assert!(!receive.is_terminated());
        endpoint.send(me, "text").wait().unwrap();
        receive.wait().unwrap();
        assert!(receive.is_terminated());
    }
}
