//! The handshake over TCP as a state machine without I/O: bytes in, bytes and events out.
//!
//! It owns what was said so far. It decides nothing about transports or duplicates: an acceptor's owner gets
//! [`Event::Wanted`], says as whom it answers, gets [`Event::Hello`] and answers with a [`Verdict`]; an initiator's owner gets [`Event::Verdict`] and says the last
//! word itself. With a key, nothing of a peer's hello but its version, its flags and the context that it wants is looked at before the peer has proved
//! that it knows the key; the initiator proves first, so that a stranger who merely connects gets nothing to try
//! keys against. Proofs cover the role, both hellos (and so both nonces) and, the acceptor's, the verdict.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use zerocopy::{FromBytes, IntoBytes};

use super::ConnectError;
use crate::wire::hello::{
    Commit, CommitBytes, HELLO_BYTES, Hello, HelloBytes, HelloFlags, Malformed, PREFIX_BYTES, Prefix, Proof, Ruling,
    Verdict, VerdictBytes,
};
use crate::wire::why::Why;

/// An authorization key; its `Debug` does not show it.
#[derive(Clone)]
pub(super) struct Key(Vec<u8>);

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key(..)")
    }
}

impl Key {
    pub(super) const fn new(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }

    fn mac(&self, parts: &[&[u8]]) -> Hmac<Sha256> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("HMAC takes keys of every length");
        parts.iter().for_each(|part| mac.update(part));
        mac
    }
}

const INITIATOR: &[u8] = b"percale initiator";
const ACCEPTOR: &[u8] = b"percale acceptor";

/// What a handshake has to tell its owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// To the acceptor: which context is wanted. It goes on with [`Handshake::speak_for`].
    Wanted(u16),
    /// To the acceptor: who calls. It answers with [`Handshake::answer`].
    Hello(Hello),
    /// To the initiator: who answered, and what.
    Verdict(Hello, Verdict),
    /// To the acceptor: the initiator's last word.
    Commit(Commit),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The start of the peer's hello is awaited.
    Prefix,
    /// The rest of it.
    Hello,
    /// Acceptor: our owner says who is to answer.
    Choosing,
    /// Acceptor: the initiator's proof.
    Proof,
    /// Acceptor: our owner's verdict.
    Deciding,
    /// Initiator: the verdict.
    Verdict,
    /// Acceptor: the last word.
    Commit,
    /// Nothing more is awaited.
    Over,
}

/// One side of a handshake.
#[derive(Debug)]
pub(super) struct Handshake {
    initiator: bool,
    key: Option<Key>,
    ours: HelloBytes,
    theirs: Option<HelloBytes>,
    state: State,
    input: Vec<u8>,
    output: Vec<u8>,
}

impl Handshake {
    /// Starts one. The initiator's first bytes wait in the output at once.
    pub(super) fn new(initiator: bool, ours: &Hello, key: Option<Key>) -> Self {
        let ours = ours.to_bytes();
        let output = if initiator { ours.as_bytes().to_vec() } else { Vec::new() };
        Self {
            initiator,
            key,
            ours,
            theirs: None,
            state: State::Prefix,
            input: Vec::with_capacity(HELLO_BYTES),
            output,
        }
    }

    /// How many bytes the next step takes; more must not be read from the stream. 0 if it waits for its owner.
    pub(super) fn wants(&self) -> usize {
        self.target().saturating_sub(self.input.len())
    }

    fn target(&self) -> usize {
        match self.state {
            State::Prefix => PREFIX_BYTES,
            State::Hello => HELLO_BYTES,
            State::Proof => size_of::<Proof>(),
            State::Verdict => size_of::<VerdictBytes>(),
            State::Commit => size_of::<CommitBytes>(),
            State::Choosing | State::Deciding | State::Over => 0,
        }
    }

    /// What is to be sent; its owner removes what it sent.
    pub(super) const fn output(&mut self) -> &mut Vec<u8> {
        &mut self.output
    }

    /// Takes at most [`wants`](Self::wants) bytes. After an error the output may still hold what tells the peer why.
    pub(super) fn feed(&mut self, bytes: &[u8]) -> Result<Option<Event>, ConnectError> {
        debug_assert!(bytes.len() <= self.wants(), "reading too far loses what follows the handshake");
        self.input.extend_from_slice(bytes);
        if self.wants() > 0 || self.target() == 0 {
            return Ok(None);
        }
        let result = self.step();
        if result.is_err() {
            self.state = State::Over;
        }
        result
    }

    fn step(&mut self) -> Result<Option<Event>, ConnectError> {
        match self.state {
            State::Prefix => self.prefix(),
            State::Hello => self.hello(),
            State::Proof => self.proof(),
            State::Verdict => self.verdict(),
            State::Commit => {
                let bytes: CommitBytes = self.take()?;
                self.state = State::Over;
                Ok(Some(Event::Commit(Commit::from_bytes(&bytes)?)))
            }
            State::Choosing | State::Deciding | State::Over => Ok(None),
        }
    }

    /// The input, whole, as a frame.
    fn take<T: FromBytes>(&mut self) -> Result<T, Malformed> {
        let frame = T::read_from_bytes(&self.input).map_err(|_| Malformed::Field("a frame has a wrong size"));
        self.input.clear();
        frame
    }

    fn prefix(&mut self) -> Result<Option<Event>, ConnectError> {
        let prefix = Prefix::read_from_bytes(&self.input).map_err(|_| Malformed::Magic)?;
        let flags = prefix.check();
        // A stranger of another protocol is told nothing; a percale of another version learns ours.
        if !self.initiator && matches!(flags, Err(ref error) if *error != Malformed::Magic) {
            self.output.extend_from_slice(self.ours.as_bytes());
        }
        if flags?.contains(HelloFlags::AUTHORIZATION) != self.key.is_some() {
            if !self.initiator {
                self.output.extend_from_slice(self.ours.as_bytes());
                self.refuse(Why::Authorization);
            }
            return Err(ConnectError::Authorization);
        }
        self.state = State::Hello;
        Ok(None)
    }

    fn hello(&mut self) -> Result<Option<Event>, ConnectError> {
        let theirs: HelloBytes = self.take()?;
        self.theirs = Some(theirs);
        match (self.initiator, &self.key) {
            (true, key) => {
                if let Some(key) = key {
                    let mac = key.mac(&[INITIATOR, self.ours.as_bytes(), theirs.as_bytes()]);
                    self.output.extend_from_slice(&mac.finalize().into_bytes());
                }
                self.state = State::Verdict;
                Ok(None)
            }
            (false, _) => {
                self.state = State::Choosing;
                Ok(Some(Event::Wanted(theirs.wanted())))
            }
        }
    }

    /// The acceptor answers as `ours`, which is sent now. What [`feed`](Self::feed) would say follows.
    pub(super) fn speak_for(&mut self, ours: &Hello) -> Result<Option<Event>, ConnectError> {
        self.ours = ours.to_bytes();
        self.output.extend_from_slice(self.ours.as_bytes());
        if self.key.is_some() {
            self.state = State::Proof;
            return Ok(None);
        }
        let result = self.introduce();
        if result.is_err() {
            self.state = State::Over;
        }
        result
    }

    fn proof(&mut self) -> Result<Option<Event>, ConnectError> {
        let proof: Proof = self.take()?;
        let (Some(key), Some(theirs)) = (&self.key, &self.theirs) else { return Err(ConnectError::Authorization) };
        let mac = key.mac(&[INITIATOR, theirs.as_bytes(), self.ours.as_bytes()]);
        if mac.verify_slice(&proof.mac).is_err() {
            self.refuse(Why::Authorization);
            return Err(ConnectError::Authorization);
        }
        self.introduce()
    }

    /// The acceptor's peer has proved what it had to: now its hello is looked at.
    fn introduce(&mut self) -> Result<Option<Event>, ConnectError> {
        let Some(theirs) = &self.theirs else { return Err(ConnectError::Authorization) };
        let hello = Hello::from_bytes(theirs)?;
        self.state = State::Deciding;
        Ok(Some(Event::Hello(hello)))
    }

    fn verdict(&mut self) -> Result<Option<Event>, ConnectError> {
        let bytes: VerdictBytes = self.take()?;
        let Some(theirs) = self.theirs else { return Err(ConnectError::Authorization) };
        if let Some(key) = &self.key {
            let mac = key.mac(&[ACCEPTOR, self.ours.as_bytes(), theirs.as_bytes(), bytes.covered()]);
            if mac.verify_slice(&bytes.mac).is_err() {
                return Err(ConnectError::Authorization);
            }
        }
        let event = Event::Verdict(Hello::from_bytes(&theirs)?, Verdict::from_bytes(&bytes)?);
        self.state = State::Over;
        Ok(Some(event))
    }

    /// The acceptor's verdict on [`Event::Hello`].
    pub(super) fn answer(&mut self, verdict: Verdict) {
        let mut bytes = verdict.to_bytes();
        if let (Some(key), Some(theirs)) = (&self.key, &self.theirs) {
            let mac = key.mac(&[ACCEPTOR, theirs.as_bytes(), self.ours.as_bytes(), bytes.covered()]);
            bytes.mac.copy_from_slice(&mac.finalize().into_bytes());
        }
        self.output.extend_from_slice(bytes.as_bytes());
        let goes_on = matches!(verdict.ruling, Ruling::Tcp | Ruling::Shm);
        self.state = if goes_on { State::Commit } else { State::Over };
    }

    /// Tells a peer that proved nothing that it goes no further.
    fn refuse(&mut self, why: Why) {
        let verdict = Verdict { ruling: Ruling::Refuse, why, token: [0; 16] };
        self.output.extend_from_slice(verdict.to_bytes().as_bytes());
    }
}

/// What an acceptor without descriptors says to whoever called: a whole hello and a refusal.
pub(super) fn no_descriptors(ours: &Hello) -> Vec<u8> {
    let mut bytes = ours.to_bytes().as_bytes().to_vec();
    let verdict = Verdict { ruling: Ruling::Refuse, why: Why::Descriptors, token: [0; 16] };
    bytes.extend_from_slice(verdict.to_bytes().as_bytes());
    bytes
}

#[cfg(any(test, fuzzing))]
pub(super) mod fuzz {
    use super::*;
    use crate::wire::hello::{Incarnation, Place};
    use crate::wire::meeting::{Answer, Offer};

    pub(in super::super) fn hello(number: u8, key: bool) -> Hello {
        let mut flags = HelloFlags::TCP | HelloFlags::SHM;
        flags.set(HelloFlags::AUTHORIZATION, key);
        Hello {
            flags,
            place: Place { boot: [1; 16], namespace: (1, 2), user: 3 },
            address: ([127, 0, 0, 1], 7471).into(),
            context: 0,
            wanted: 0,
            incarnation: Incarnation([number; 16]),
            reset: [0; 16],
            nonce: [number; 32],
        }
    }

    /// Feeds `bytes`, in pieces whose sizes they choose themselves, to both roles, with and without a key.
    pub(in super::super) fn drive(bytes: &[u8]) {
        for (initiator, key) in [(true, false), (true, true), (false, false), (false, true)] {
            let ours = hello(1, key);
            let mut side = Handshake::new(initiator, &ours, key.then(|| Key::new(vec![7])));
            let (mut rest, mut piece) = (bytes, 1);
            while side.wants() > 0 && !rest.is_empty() {
                let (now, later) = rest.split_at(piece.min(rest.len()).min(side.wants()));
                rest = later;
                piece = usize::from(now[0] % 64) + 1;
                let heard = match side.feed(now) {
                    Ok(Some(Event::Wanted(_))) => side.speak_for(&ours),
                    heard => heard,
                };
                match heard {
                    Ok(Some(Event::Hello(_))) => {
                        side.answer(Verdict { ruling: Ruling::Tcp, why: Why::AnotherHost, token: [1; 16] });
                    }
                    Ok(_) => {}
                    Err(_) => assert_eq!(side.wants(), 0, "a failed handshake reads on"),
                }
            }
            assert!(side.output().len() <= HELLO_BYTES + size_of::<VerdictBytes>() + size_of::<Proof>());
        }
        if let Ok((offer, _)) = Offer::read_from_prefix(bytes) {
            assert!(!offer.is_sound() || offer.half.reserved.get() == 0);
        }
        if let Ok((answer, _)) = Answer::read_from_prefix(bytes) {
            assert!(answer.outcome().is_none_or(|_| answer.half.reserved.get() == 0));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::fuzz::hello;
    use super::*;

    /// Carries bytes both ways until neither side has any; gives both sides' last results.
    fn converse(a: &mut Handshake, b: &mut Handshake, ruling: Ruling) -> [Result<Option<Event>, ConnectError>; 2] {
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
                let bytes: Vec<u8> = from.output().drain(..wants).collect();
                let result = match to.feed(&bytes) {
                    Ok(Some(Event::Wanted(_))) => to.speak_for(&hello(1 - turn as u8, to.key.is_some())),
                    result => result,
                };
                if let Ok(Some(Event::Hello(_))) = &result {
                    to.answer(Verdict { ruling, why: Why::SameHost, token: [9; 16] });
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
            let key = keys[usize::from(n)].map(|key| Key::new(key.into()));
            Handshake::new(n == 0, &hello(n, key.is_some()), key)
        };
        [side(0), side(1)]
    }

    #[test]
    fn the_verdict_arrives_with_and_without_a_key() {
        for keys in [[None, None], [Some("secret"), Some("secret")]] {
            let [mut a, mut b] = pair(keys);
            let [first, second] = converse(&mut a, &mut b, Ruling::Tcp);
            let key = keys[0].is_some();
            let verdict = Verdict { ruling: Ruling::Tcp, why: Why::SameHost, token: [9; 16] };
            assert_eq!(first, Ok(Some(Event::Verdict(hello(1, key), verdict))));
            assert_eq!(second, Ok(Some(Event::Hello(hello(0, key)))));
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
    fn a_proof_sent_back_is_no_proof() {
        let [mut a, _] = pair([Some("k"), None]);
        a.output().clear();
        let mirror = hello(0, true).to_bytes();
        assert_eq!(a.feed(&mirror.as_bytes()[..PREFIX_BYTES]), Ok(None));
        assert_eq!(a.feed(&mirror.as_bytes()[PREFIX_BYTES..]), Ok(None));
        let own: Vec<u8> = a.output().drain(..).collect();
        let mut verdict = Verdict { ruling: Ruling::Tcp, why: Why::SameHost, token: [0; 16] }.to_bytes();
        verdict.mac.copy_from_slice(&own);
        assert_eq!(a.feed(verdict.as_bytes()), Err(ConnectError::Authorization));
    }

    #[test]
    fn another_version_is_told_ours() {
        let [_, mut b] = pair([None, None]);
        let mut old = hello(0, false).to_bytes();
        old.as_mut_bytes()[8] = 77;
        assert_eq!(b.feed(&old.as_bytes()[..PREFIX_BYTES]), Err(ConnectError::Version { theirs: 77 }));
        assert_eq!(b.output().len(), HELLO_BYTES);
    }

    proptest! {
        #[test]
        fn strangers_only_harm_themselves(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            fuzz::drive(&bytes);
        }

        /// A well-formed conversation with a few bytes changed: whoever has a key never accepts it.
        #[test]
        fn with_a_key_no_changed_byte_passes(at in 0..HELLO_BYTES, bit in 0..8u8, of_initiator: bool) {
            let [mut a, mut b] = pair([Some("k"), Some("k")]);
            if of_initiator {
                a.output()[at] ^= 1 << bit;
                let [first, second] = converse(&mut a, &mut b, Ruling::Tcp);
                prop_assert!(!matches!(first, Ok(Some(_))) && !matches!(second, Ok(Some(_))));
            } else {
                let hello_a: Vec<u8> = a.output().drain(..).collect();
                prop_assert_eq!(b.feed(&hello_a[..PREFIX_BYTES]), Ok(None));
                prop_assert_eq!(b.feed(&hello_a[PREFIX_BYTES..]), Ok(Some(Event::Wanted(0))));
                prop_assert_eq!(b.speak_for(&hello(1, true)), Ok(None));
                b.output()[at] ^= 1 << bit;
                let [first, second] = converse(&mut a, &mut b, Ruling::Tcp);
                prop_assert!(!matches!(first, Ok(Some(_))) && !matches!(second, Ok(Some(_))));
            }
        }

        /// Mutated valid hellos reach deeper than noise.
        #[test]
        fn mutated_conversations_only_harm_themselves(
            changes in proptest::collection::vec((0..200usize, any::<u8>()), 0..6), key: bool,
        ) {
            let mut bytes = hello(2, key).to_bytes().as_bytes().to_vec();
            let verdict = Verdict { ruling: Ruling::Shm, why: Why::SameHost, token: [3; 16] };
            bytes.extend_from_slice(verdict.to_bytes().as_bytes());
            bytes.extend_from_slice(Commit { tcp: true, why: Why::AnotherHost, errno: 0 }.to_bytes().as_bytes());
            for (at, value) in changes {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = value;
                }
            }
            fuzz::drive(&bytes);
        }
    }
}
