//! The handshake over TCP as a state machine without I/O: its input is bytes, its output is bytes and events.
//!
//! The handshake stores what was exchanged so far. It does not decide about transports or duplicates. The owner of an
//! acceptor receives [`Event::Wanted`], selects the identity that answers, receives [`Event::Hello`] and answers with a
//! [`Verdict`]. The owner of an initiator receives [`Event::Verdict`] and sends the final message itself. With a key,
//! only the version, the flags and the wanted context of a peer's hello are evaluated before the peer has proved that
//! it has the key. The initiator sends its proof first, so that an unauthenticated client receives nothing against
//! which it could test keys. Proofs cover the role, both hellos and, for the acceptor, the verdict. The hellos contain
//! both nonces, both incarnations, the contexts, the address that the initiator advertises, and the called address as
//! each side sees it. With a key, both sides must see the same called address. So a third party that forwards the
//! messages to another address, or back to the caller, does not get a connection.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use hmac_sha256::HMAC;
use zerocopy::{FromBytes, IntoBytes};

use super::ConnectError;
use crate::wire::hello::{
    Commit, CommitBytes, HELLO_BYTES, Hello, HelloBytes, HelloFlags, Malformed, PREFIX_BYTES, Prefix, Proof, Ruling,
    Verdict, VerdictBytes,
};
use crate::wire::queue_pair::{Offered, OfferedBytes};
use crate::wire::why::Why;

/// An authorization key. Its `Debug` output does not contain it.
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

    fn mac(&self, parts: &[&[u8]]) -> HMAC {
        let mut mac = HMAC::new(&self.0);
        parts.iter().for_each(|part| mac.update(part));
        mac
    }
}

const INITIATOR: &[u8] = b"percale initiator";
const ACCEPTOR: &[u8] = b"percale acceptor";

/// An event that a handshake reports to its owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// For the acceptor: the wanted context, and whether the call is only a probe. The owner continues with
    /// [`Handshake::speak_for`].
    Wanted { context: u16, probes: bool },
    /// For the acceptor: the caller's hello. The acceptor answers with [`Handshake::answer`].
    Hello(Hello),
    /// For the initiator: the hello and the verdict of the endpoint that answered.
    Verdict(Hello, Verdict),
    /// After a verdict for verbs: the peer's queue pair. The acceptor answers with [`Handshake::offer`].
    Offered(Offered),
    /// For the acceptor: the initiator's final message.
    Commit(Commit),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Waits for the start of the peer's hello.
    Prefix,
    /// Waits for the rest of the hello.
    Hello,
    /// Acceptor: waits until its owner has selected the identity that answers.
    Choosing,
    /// Acceptor: waits for the initiator's proof.
    Proof,
    /// Acceptor: waits for its owner's verdict.
    Deciding,
    /// Initiator: waits for the verdict.
    Verdict,
    /// Waits for the peer's queue pair.
    Offered,
    /// Acceptor: waits for the final message.
    Commit,
    /// Does not wait for anything.
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
    /// Creates a handshake. An initiator's first bytes are in the output at once.
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

    /// Returns the number of bytes that the next step needs. The caller must not read more than that from the stream.
    /// Returns 0 if the handshake waits for its owner.
    pub(super) fn wants(&self) -> usize {
        self.target().saturating_sub(self.input.len())
    }

    fn target(&self) -> usize {
        match self.state {
            State::Prefix => PREFIX_BYTES,
            State::Hello => HELLO_BYTES,
            State::Proof => size_of::<Proof>(),
            State::Verdict => size_of::<VerdictBytes>(),
            State::Offered => size_of::<OfferedBytes>(),
            State::Commit => size_of::<CommitBytes>(),
            State::Choosing | State::Deciding | State::Over => 0,
        }
    }

    /// Returns the bytes to send. The caller removes the bytes that it has sent.
    pub(super) const fn output(&mut self) -> &mut Vec<u8> {
        &mut self.output
    }

    /// Accepts at most [`wants`](Self::wants) bytes. After an error the output may still contain a message that reports
    /// the reason to the peer.
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
            State::Offered => {
                let bytes: OfferedBytes = self.take()?;
                self.state = State::Over;
                Ok(Some(Event::Offered(bytes.parse()?)))
            }
            State::Commit => {
                let bytes: CommitBytes = self.take()?;
                self.state = State::Over;
                Ok(Some(Event::Commit(Commit::from_bytes(&bytes)?)))
            }
            State::Choosing | State::Deciding | State::Over => Ok(None),
        }
    }

    /// Removes the whole input and returns it as a frame.
    fn take<T: FromBytes>(&mut self) -> Result<T, Malformed> {
        let frame = T::read_from_bytes(&self.input).map_err(|_| Malformed::Field("a frame has a wrong size"));
        self.input.clear();
        frame
    }

    fn prefix(&mut self) -> Result<Option<Event>, ConnectError> {
        let prefix = Prefix::read_from_bytes(&self.input).map_err(|_| Malformed::Magic)?;
        let flags = prefix.check();
        // A peer with a different protocol gets no answer. A percale peer with a different version gets this side's
        // version.
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
                    self.output.extend_from_slice(&mac.finalize());
                }
                self.state = State::Verdict;
                Ok(None)
            }
            (false, _) => {
                self.state = State::Choosing;
                Ok(Some(Event::Wanted { context: theirs.wanted(), probes: theirs.probes() }))
            }
        }
    }

    /// Answers as `ours` (acceptor), and queues its hello. Returns the next event, like [`feed`](Self::feed).
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
        if !mac.finalize_verify(&proof.mac) {
            self.refuse(Why::Authorization);
            return Err(ConnectError::Authorization);
        }
        self.introduce()
    }

    /// Evaluates the peer's hello at the acceptor, after the peer has given the required proofs.
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
            if !mac.finalize_verify(&bytes.mac) {
                let unproved = Verdict::from_bytes(&bytes)?;
                // This has the same effect as a closed connection: the call is repeated, and nothing else in the
                // message is used.
                let lacks = (unproved.ruling, unproved.why) == (Ruling::Refuse, Why::Descriptors);
                return Err(if lacks { ConnectError::Descriptors { peer: true } } else { ConnectError::Authorization });
            }
        }
        let hello = Hello::from_bytes(&theirs)?;
        if self.key.is_some() && !theirs.same_call(&self.ours) {
            return Err(ConnectError::Relayed(hello.called));
        }
        let event = Event::Verdict(hello, Verdict::from_bytes(&bytes)?);
        self.state = State::Over;
        Ok(Some(event))
    }

    /// Returns whether the address that the caller called is the address of the acceptor's socket. Without a key this
    /// is not required, and the result is true.
    pub(super) fn is_direct(&self) -> bool {
        self.key.is_none() || self.theirs.is_some_and(|theirs| theirs.same_call(&self.ours))
    }

    /// Returns the nonces of the initiator's and of the acceptor's hello.
    pub(super) fn nonces(&self) -> Option<([u8; 32], [u8; 32])> {
        let (ours, theirs) = (*self.ours.nonce(), *self.theirs.as_ref()?.nonce());
        Some(if self.initiator { (ours, theirs) } else { (theirs, ours) })
    }

    /// Sends the acceptor's verdict on [`Event::Hello`].
    pub(super) fn answer(&mut self, verdict: Verdict) {
        let mut bytes = verdict.to_bytes();
        if let (Some(key), Some(theirs)) = (&self.key, &self.theirs) {
            let mac = key.mac(&[ACCEPTOR, theirs.as_bytes(), self.ours.as_bytes(), bytes.covered()]);
            bytes.mac.copy_from_slice(&mac.finalize());
        }
        self.output.extend_from_slice(bytes.as_bytes());
        self.state = match verdict.ruling {
            Ruling::Tcp | Ruling::Shm => State::Commit,
            Ruling::Verbs => State::Offered,
            Ruling::Duplicate | Ruling::Busy | Ruling::Refuse | Ruling::Known => State::Over,
        };
    }

    /// Sends the end of this side's queue pair, or the error of creating it. The initiator calls this after a verdict
    /// for verbs, the acceptor after [`Event::Offered`].
    pub(super) fn offer(&mut self, offered: &Offered) {
        self.output.extend_from_slice(OfferedBytes::of(offered).as_bytes());
        self.state = if self.initiator { State::Offered } else { State::Commit };
    }

    /// Returns the answer of an acceptor without descriptors to its caller: a whole hello and a refusal. The answer is
    /// empty if the caller has received an answer before, because it would misinterpret this one.
    pub(super) fn no_descriptors(&self) -> Vec<u8> {
        if !matches!(self.state, State::Prefix | State::Hello | State::Choosing) {
            return Vec::new();
        }
        let mut bytes = self.ours.as_bytes().to_vec();
        let verdict = Verdict { ruling: Ruling::Refuse, why: Why::Descriptors, token: [0; 16] };
        bytes.extend_from_slice(verdict.to_bytes().as_bytes());
        bytes
    }

    /// Sends a refusal to a peer that is not authenticated.
    fn refuse(&mut self, why: Why) {
        let verdict = Verdict { ruling: Ruling::Refuse, why, token: [0; 16] };
        self.output.extend_from_slice(verdict.to_bytes().as_bytes());
    }
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
            called: ([127, 0, 0, 1], 7471).into(),
            context: 0,
            wanted: 0,
            incarnation: Incarnation([number; 16]),
            reset: [0; 16],
            nonce: [number; 32],
        }
    }

    /// The largest number of bytes that a side sends.
    const MOST: usize = HELLO_BYTES + size_of::<VerdictBytes>() + size_of::<Proof>() + size_of::<OfferedBytes>();

    /// Passes `bytes` to both roles, with and without a key, in pieces. The bytes themselves determine the sizes of the
    /// pieces.
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
                    Ok(Some(Event::Wanted { .. })) => side.speak_for(&ours),
                    heard => heard,
                };
                match heard {
                    Ok(Some(Event::Hello(_))) => {
                        let ruling = if now[0] & 1 == 0 { Ruling::Tcp } else { Ruling::Verbs };
                        side.answer(Verdict { ruling, why: Why::AnotherHost, token: [1; 16] });
                    }
                    Ok(Some(Event::Verdict(_, verdict))) if verdict.ruling == Ruling::Verbs => side.offer(&Err(1)),
                    Ok(Some(Event::Offered(offered))) if !initiator => side.offer(&offered),
                    Ok(_) => {}
                    Err(_) => assert_eq!(side.wants(), 0, "a failed handshake reads on"),
                }
            }
            assert!(side.output().len() <= MOST);
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
#[path = "handshake_tests.rs"]
mod tests;
