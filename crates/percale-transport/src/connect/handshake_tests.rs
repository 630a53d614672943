//! Tests of two handshakes connected to each other, and of unrelated clients.

use proptest::prelude::*;

use super::fuzz::hello;
use super::*;

/// Transfers bytes in both directions until neither side has output. Returns the last results of both sides.
fn converse(a: &mut Handshake, b: &mut Handshake, ruling: Ruling) -> [Result<Option<HandshakeEvent>, ConnectError>; 2] {
    converse_over(a, b, ruling, |_, _| ())
}

/// Like [`converse`]. Calls `change` with the number of the sender and the bytes, before they arrive.
fn converse_over(
    a: &mut Handshake,
    b: &mut Handshake,
    ruling: Ruling,
    mut change: impl FnMut(usize, &mut [u8]),
) -> [Result<Option<HandshakeEvent>, ConnectError>; 2] {
    let mut results = [Ok(None), Ok(None)];
    loop {
        let mut idle = true;
        for turn in 0..2 {
            let (from, to) = if turn == 0 { (&mut *a, &mut *b) } else { (&mut *b, &mut *a) };
            let wants = to.wants().min(from.output().len());
            if wants == 0 {
                continue;
            }
            idle = false;
            let mut bytes: Vec<u8> = from.output().drain(..wants).collect();
            change(turn, &mut bytes);
            let result = match to.feed(&bytes) {
                Ok(Some(HandshakeEvent::Wanted { .. })) => {
                    to.answer_with_hello(&hello(1 - turn as u8, to.key.is_some()))
                }
                result => result,
            };
            if let Ok(Some(HandshakeEvent::Hello(_))) = &result {
                to.answer(Verdict { ruling, why: RefusalReason::SameHost, token: [9; 16] });
            }
            if result != Ok(None) && results[1 - turn].is_ok() {
                results[1 - turn] = result;
            }
        }
        if idle {
            return results;
        }
    }
}

fn pair(keys: [Option<&str>; 2]) -> [Handshake; 2] {
    let side = |n: u8| {
        let key = keys[usize::from(n)].map(|key| AuthorizationKey::new(key.into()));
        Handshake::new(n == 0, &hello(n, key.is_some()), key)
    };
    [side(0), side(1)]
}

/// Test cases 2 and 6 of RFC 4231 cover a short key and a key that is longer than a block.
#[test]
fn proofs_are_hmac_sha_256() {
    let mac = |key: &[u8], parts: &[&[u8]]| -> String {
        AuthorizationKey::new(key.to_vec()).mac(parts).finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    };
    assert_eq!(
        mac(b"Jefe", &[b"what do ya want ", b"for nothing?"]),
        "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843",
    );
    assert_eq!(
        mac(&[0xaa; 131], &[b"Test Using Larger Than Block-Size Key", b" - Hash Key First"]),
        "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54",
    );
}

#[test]
fn the_verdict_arrives_with_and_without_a_key() {
    for keys in [[None, None], [Some("secret"), Some("secret")]] {
        let [mut a, mut b] = pair(keys);
        let [first, second] = converse(&mut a, &mut b, Ruling::Tcp);
        let key = keys[0].is_some();
        let verdict = Verdict { ruling: Ruling::Tcp, why: RefusalReason::SameHost, token: [9; 16] };
        assert_eq!(first, Ok(Some(HandshakeEvent::Verdict(hello(1, key), verdict))));
        assert_eq!(second, Ok(Some(HandshakeEvent::Hello(hello(0, key)))));
        assert_eq!(b.wants(), size_of::<CommitBytes>());
    }
}

#[test]
fn both_sides_notice_keys_that_do_not_match() {
    for keys in [[Some("a"), Some("b")], [Some("a"), None], [None, Some("b")]] {
        let [mut a, mut b] = pair(keys);
        let results = converse(&mut a, &mut b, Ruling::Tcp);
        assert_eq!(results, [Err(ConnectError::Authorization), Err(ConnectError::Authorization)], "{keys:?}");
        assert_eq!(b.wants(), 0);
    }
}

#[test]
fn reflected_proof_is_rejected() {
    let [mut a, _] = pair([Some("k"), None]);
    a.output().clear();
    let mirror = hello(0, true).to_bytes();
    assert_eq!(a.feed(&mirror.as_bytes()[..PREFIX_BYTES]), Ok(None));
    assert_eq!(a.feed(&mirror.as_bytes()[PREFIX_BYTES..]), Ok(None));
    let own: Vec<u8> = a.output().drain(..).collect();
    let mut verdict = Verdict { ruling: Ruling::Tcp, why: RefusalReason::SameHost, token: [0; 16] }.to_bytes();
    verdict.mac.copy_from_slice(&own);
    assert_eq!(a.feed(verdict.as_bytes()), Err(ConnectError::Authorization));
}

#[test]
fn caller_receives_descriptor_shortage_with_and_without_key() {
    for key in [None, Some("k")] {
        let [mut a, b] = pair([key; 2]);
        let mut bytes = b.no_descriptors();
        let mut last = Ok(None);
        while a.wants() > 0 && last == Ok(None) {
            let next: Vec<u8> = bytes.drain(..a.wants()).collect();
            last = a.feed(&next);
        }
        match last {
            Ok(Some(HandshakeEvent::Verdict(
                _,
                Verdict { ruling: Ruling::Refuse, why: RefusalReason::Descriptors, .. },
            ))) => {
                assert_eq!(key, None);
            }
            other => assert_eq!((other, key), (Err(ConnectError::Descriptors { peer: true }), Some("k"))),
        }
    }
}

#[test]
fn answered_caller_gets_no_descriptor_shortage_reply() {
    let [mut a, mut b] = pair([Some("k"); 2]);
    let words: Vec<u8> = a.output().drain(..).collect();
    assert_eq!(b.feed(&words[..PREFIX_BYTES]), Ok(None));
    assert!(matches!(b.feed(&words[PREFIX_BYTES..]), Ok(Some(HandshakeEvent::Wanted { .. }))));
    assert!(!b.no_descriptors().is_empty());
    assert_eq!(b.answer_with_hello(&hello(1, true)), Ok(None));
    assert!(b.no_descriptors().is_empty(), "a second hello would be taken for a verdict");
}

/// A member of the group may pass a call on to another member. Without a key, any address is accepted.
#[test]
fn keyed_call_is_direct_only_at_the_address_that_was_called() {
    for (key, called, direct) in [(None, 9, true), (None, 7471, true), (Some("k"), 7471, true), (Some("k"), 9, false)] {
        let [ours, theirs] = [1, 0].map(|number| hello(number, key.is_some()));
        let theirs = Hello { called: ([127, 0, 0, 1], called).into(), ..theirs };
        let side =
            |initiator, hello| Handshake::new(initiator, hello, key.map(|key| AuthorizationKey::new(key.into())));
        let (mut a, mut b) = (side(true, &theirs), side(false, &ours));
        let words: Vec<u8> = a.output().drain(..).collect();
        assert_eq!(b.feed(&words[..PREFIX_BYTES]), Ok(None));
        assert!(matches!(b.feed(&words[PREFIX_BYTES..]), Ok(Some(HandshakeEvent::Wanted { .. }))));
        b.answer_with_hello(&ours).unwrap();
        assert_eq!(b.is_direct(), direct, "{key:?}, port {called}");
    }
}

#[test]
fn other_version_receives_our_hello() {
    let [_, mut b] = pair([None, None]);
    let mut old = hello(0, false).to_bytes();
    old.as_mut_bytes()[8] = 77;
    assert_eq!(b.feed(&old.as_bytes()[..PREFIX_BYTES]), Err(ConnectError::Version { theirs: 77 }));
    assert_eq!(b.output().len(), HELLO_BYTES);
}

/// Flips each bit of the hellos, the proof and the verdict in turn. The side that receives the message does not accept
/// it, and neither side accepts the exchange if a hello was changed.
#[test]
fn keyed_handshake_rejects_any_changed_bit() {
    const LENGTHS: [usize; 2] = [HELLO_BYTES + size_of::<Proof>(), HELLO_BYTES + size_of::<VerdictBytes>()];
    for (sender, length) in LENGTHS.into_iter().enumerate() {
        for bit in 0..length * 8 {
            let [mut a, mut b] = pair([Some("k"), Some("k")]);
            let mut passed = 0..0;
            let results = converse_over(&mut a, &mut b, Ruling::Tcp, |turn, bytes| {
                if turn == sender {
                    passed = passed.end..passed.end + bytes.len();
                    if passed.contains(&(bit / 8)) {
                        bytes[bit / 8 - passed.start] ^= 1 << (bit % 8);
                    }
                }
            });
            let accepted = |side: usize| matches!(results[side], Ok(Some(_)));
            assert!(passed.end > bit / 8, "bit {bit} of side {sender} was not sent");
            assert!(!accepted(1 - sender), "bit {bit} of side {sender}: {results:?}");
            assert!(bit / 8 >= HELLO_BYTES || !accepted(sender), "bit {bit} of side {sender}: {results:?}");
        }
    }
}

proptest! {
    #[test]
    fn arbitrary_handshake_bytes_end_only_their_connection(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        fuzz::drive(&bytes);
    }

    /// Mutated valid hellos reach more code than random bytes.
    #[test]
    fn mutated_handshakes_end_only_their_connection(
        changes in proptest::collection::vec((0..200usize, any::<u8>()), 0..6), key: bool,
    ) {
        let mut bytes = hello(2, key).to_bytes().as_bytes().to_vec();
        let verdict = Verdict { ruling: Ruling::Shm, why: RefusalReason::SameHost, token: [3; 16] };
        bytes.extend_from_slice(verdict.to_bytes().as_bytes());
        bytes.extend_from_slice(Commit { choice: crate::wire::hello::ConnectionChoice::Tcp, why: RefusalReason::AnotherHost, errno: 0 }.to_bytes().as_bytes());
        for (at, value) in changes {
            if let Some(byte) = bytes.get_mut(at) {
                *byte = value;
            }
        }
        fuzz::drive(&bytes);
    }
}
