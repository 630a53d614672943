//! The handshake over TCP as a state machine without I/O: its input is bytes, its output is bytes and events.
//!
//! The handshake stores what was exchanged so far. It does not decide about transports or duplicates. The owner of an
//! acceptor receives [`HandshakeEvent::Wanted`], selects the identity that answers, receives [`HandshakeEvent::Hello`]
//! and answers with a [`Verdict`]. The owner of an initiator receives [`HandshakeEvent::Verdict`] and sends the final
//! message itself. With a key, only the version, the flags and the wanted context of a peer's hello are evaluated
//! before the peer has proved that it has the key. The initiator sends its proof first, so that an unauthenticated
//! client receives nothing against which it could test keys. Proofs cover the role, both hellos and, for the acceptor,
//! the verdict. The hellos contain both nonces, both incarnations, the contexts, the address that the initiator
//! advertises, and the called address as each side sees it. With a key, both sides must see the same called address. So
//! a third party that forwards the messages to another address, or back to the caller, does not get a connection.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use hmac_sha256::HMAC;
use zerocopy::{FromBytes, IntoBytes};

use super::ConnectError;
use crate::wire::hello::{
    Commit, CommitBytes, HELLO_BYTES, Hello, HelloBytes, HelloFlags, Malformed, PREFIX_BYTES, Prefix, Proof, Ruling,
    Verdict, VerdictBytes,
};
use crate::wire::queue_pair::{Offered, OfferedBytes};
use crate::wire::refusal_reason::RefusalReason;

/// An authorization key. Its `Debug` output does not contain it.
#[derive(Clone)]
pub(super) struct AuthorizationKey(Vec<u8>);

impl std::fmt::Debug for AuthorizationKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key(..)")
    }
}

impl AuthorizationKey {
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
pub(super) enum HandshakeEvent {
    /// For the acceptor: the wanted context, and whether the call is only a probe. The owner continues with
    /// [`Handshake::answer_with_hello`].
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
enum HandshakeState {
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
    key: Option<AuthorizationKey>,
    ours: HelloBytes,
    theirs: Option<HelloBytes>,
    state: HandshakeState,
    input: Vec<u8>,
    output: Vec<u8>,
}

impl Handshake {
    /// Creates a handshake. An initiator's first bytes are in the output at once.
    pub(super) fn new(initiator: bool, ours: &Hello, key: Option<AuthorizationKey>) -> Self {
        let ours = ours.to_bytes();
        let output = if initiator { ours.as_bytes().to_vec() } else { Vec::new() };
        Self {
            initiator,
            key,
            ours,
            theirs: None,
            state: HandshakeState::Prefix,
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
            HandshakeState::Prefix => PREFIX_BYTES,
            HandshakeState::Hello => HELLO_BYTES,
            HandshakeState::Proof => size_of::<Proof>(),
            HandshakeState::Verdict => size_of::<VerdictBytes>(),
            HandshakeState::Offered => size_of::<OfferedBytes>(),
            HandshakeState::Commit => size_of::<CommitBytes>(),
            HandshakeState::Choosing | HandshakeState::Deciding | HandshakeState::Over => 0,
        }
    }

    /// Returns the bytes to send. The caller removes the bytes that it has sent.
    pub(super) const fn output(&mut self) -> &mut Vec<u8> {
        &mut self.output
    }

    /// Accepts at most [`wants`](Self::wants) bytes. After an error the output may still contain a message that reports
    /// the reason to the peer.
    pub(super) fn feed(&mut self, bytes: &[u8]) -> Result<Option<HandshakeEvent>, ConnectError> {
        debug_assert!(bytes.len() <= self.wants(), "bytes that follow the handshake must not be read");
        self.input.extend_from_slice(bytes);
        if self.wants() > 0 || self.target() == 0 {
            return Ok(None);
        }
        let result = self.step();
        if result.is_err() {
            self.state = HandshakeState::Over;
        }
        result
    }

    fn step(&mut self) -> Result<Option<HandshakeEvent>, ConnectError> {
        match self.state {
            HandshakeState::Prefix => self.prefix(),
            HandshakeState::Hello => self.hello(),
            HandshakeState::Proof => self.proof(),
            HandshakeState::Verdict => self.verdict(),
            HandshakeState::Offered => {
                let bytes: OfferedBytes = self.take()?;
                self.state = HandshakeState::Over;
                Ok(Some(HandshakeEvent::Offered(bytes.parse()?)))
            }
            HandshakeState::Commit => {
                let bytes: CommitBytes = self.take()?;
                self.state = HandshakeState::Over;
                Ok(Some(HandshakeEvent::Commit(Commit::from_bytes(&bytes)?)))
            }
            HandshakeState::Choosing | HandshakeState::Deciding | HandshakeState::Over => Ok(None),
        }
    }

    /// Removes the whole input and returns it as a frame.
    fn take<T: FromBytes>(&mut self) -> Result<T, Malformed> {
        let frame = T::read_from_bytes(&self.input).map_err(|_| Malformed::Field("a frame has a wrong size"));
        self.input.clear();
        frame
    }

    fn prefix(&mut self) -> Result<Option<HandshakeEvent>, ConnectError> {
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
                self.refuse(RefusalReason::Authorization);
            }
            return Err(ConnectError::Authorization);
        }
        self.state = HandshakeState::Hello;
        Ok(None)
    }

    fn hello(&mut self) -> Result<Option<HandshakeEvent>, ConnectError> {
        let theirs: HelloBytes = self.take()?;
        self.theirs = Some(theirs);
        match (self.initiator, &self.key) {
            (true, key) => {
                if let Some(key) = key {
                    let mac = key.mac(&[INITIATOR, self.ours.as_bytes(), theirs.as_bytes()]);
                    self.output.extend_from_slice(&mac.finalize());
                }
                self.state = HandshakeState::Verdict;
                Ok(None)
            }
            (false, _) => {
                self.state = HandshakeState::Choosing;
                Ok(Some(HandshakeEvent::Wanted { context: theirs.wanted(), probes: theirs.probes() }))
            }
        }
    }

    /// Answers as `ours` (acceptor), and queues its hello. Returns the next event, like [`feed`](Self::feed).
    pub(super) fn answer_with_hello(&mut self, ours: &Hello) -> Result<Option<HandshakeEvent>, ConnectError> {
        self.ours = ours.to_bytes();
        self.output.extend_from_slice(self.ours.as_bytes());
        if self.key.is_some() {
            self.state = HandshakeState::Proof;
            return Ok(None);
        }
        let result = self.introduce();
        if result.is_err() {
            self.state = HandshakeState::Over;
        }
        result
    }

    fn proof(&mut self) -> Result<Option<HandshakeEvent>, ConnectError> {
        let proof: Proof = self.take()?;
        let (Some(key), Some(theirs)) = (&self.key, &self.theirs) else { return Err(ConnectError::Authorization) };
        let mac = key.mac(&[INITIATOR, theirs.as_bytes(), self.ours.as_bytes()]);
        if !mac.finalize_verify(&proof.mac) {
            self.refuse(RefusalReason::Authorization);
            return Err(ConnectError::Authorization);
        }
        self.introduce()
    }

    /// Evaluates the peer's hello at the acceptor, after the peer has given the required proofs.
    fn introduce(&mut self) -> Result<Option<HandshakeEvent>, ConnectError> {
        let Some(theirs) = &self.theirs else { return Err(ConnectError::Authorization) };
        let hello = Hello::from_bytes(theirs)?;
        self.state = HandshakeState::Deciding;
        Ok(Some(HandshakeEvent::Hello(hello)))
    }

    fn verdict(&mut self) -> Result<Option<HandshakeEvent>, ConnectError> {
        let bytes: VerdictBytes = self.take()?;
        let Some(theirs) = self.theirs else { return Err(ConnectError::Authorization) };
        if let Some(key) = &self.key {
            let mac = key.mac(&[ACCEPTOR, self.ours.as_bytes(), theirs.as_bytes(), bytes.covered()]);
            if !mac.finalize_verify(&bytes.mac) {
                let unproved = Verdict::from_bytes(&bytes)?;
                // This has the same effect as a closed connection: the call is repeated, and nothing else in the
                // message is used.
                let lacks = (unproved.ruling, unproved.why) == (Ruling::Refuse, RefusalReason::Descriptors);
                return Err(if lacks { ConnectError::Descriptors { peer: true } } else { ConnectError::Authorization });
            }
        }
        if self.key.is_none() && bytes.mac != [0; 32] {
            return Err(Malformed::Field("the verdict has a proof although no key is used").into());
        }
        let hello = Hello::from_bytes(&theirs)?;
        if self.key.is_some() && !theirs.same_call(&self.ours) {
            return Err(ConnectError::Relayed(hello.called));
        }
        let event = HandshakeEvent::Verdict(hello, Verdict::from_bytes(&bytes)?);
        self.state = HandshakeState::Over;
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

    /// Sends the acceptor's verdict on [`HandshakeEvent::Hello`].
    pub(super) fn answer(&mut self, verdict: Verdict) {
        let mut bytes = verdict.to_bytes();
        if let (Some(key), Some(theirs)) = (&self.key, &self.theirs) {
            let mac = key.mac(&[ACCEPTOR, theirs.as_bytes(), self.ours.as_bytes(), bytes.covered()]);
            bytes.mac.copy_from_slice(&mac.finalize());
        }
        self.output.extend_from_slice(bytes.as_bytes());
        self.state = match verdict.ruling {
            Ruling::Tcp | Ruling::Shm => HandshakeState::Commit,
            Ruling::Verbs => HandshakeState::Offered,
            Ruling::Duplicate | Ruling::Busy | Ruling::Refuse | Ruling::Known => HandshakeState::Over,
        };
    }

    /// Sends the end of this side's queue pair, or the error of creating it. The initiator calls this after a verdict
    /// for verbs, the acceptor after [`HandshakeEvent::Offered`].
    pub(super) fn offer(&mut self, offered: &Offered) {
        self.output.extend_from_slice(OfferedBytes::of(offered).as_bytes());
        self.state = if self.initiator { HandshakeState::Offered } else { HandshakeState::Commit };
    }

    /// Returns the answer of an acceptor without descriptors to its caller: a whole hello and a refusal. The answer is
    /// empty if the caller has received an answer before, because it would misinterpret this one.
    pub(super) fn no_descriptors(&self) -> Vec<u8> {
        if !matches!(self.state, HandshakeState::Prefix | HandshakeState::Hello | HandshakeState::Choosing) {
            return Vec::new();
        }
        let mut bytes = self.ours.as_bytes().to_vec();
        let verdict = Verdict { ruling: Ruling::Refuse, why: RefusalReason::Descriptors, token: [0; 16] };
        bytes.extend_from_slice(verdict.to_bytes().as_bytes());
        bytes
    }

    /// Sends a refusal to a peer that is not authenticated.
    fn refuse(&mut self, why: RefusalReason) {
        let verdict = Verdict { ruling: Ruling::Refuse, why, token: [0; 16] };
        self.output.extend_from_slice(verdict.to_bytes().as_bytes());
    }
}

#[cfg(any(test, fuzzing))]
pub(super) mod fuzz {
    use super::*;
    use crate::wire::hello::{HostIdentity, Incarnation};
    use crate::wire::meeting::{MeetingAnswer, MeetingOffer};

    pub(in super::super) fn hello(number: u8, key: bool) -> Hello {
        let mut flags = HelloFlags::TCP | HelloFlags::SHM;
        flags.set(HelloFlags::AUTHORIZATION, key);
        Hello {
            flags,
            place: HostIdentity { boot: [1; 16], namespace: (1, 2), user: 3 },
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
            let mut side = Handshake::new(initiator, &ours, key.then(|| AuthorizationKey::new(vec![7])));
            let (mut rest, mut piece) = (bytes, 1);
            while side.wants() > 0 && !rest.is_empty() {
                let (now, later) = rest.split_at(piece.min(rest.len()).min(side.wants()));
                rest = later;
                piece = usize::from(now[0] % 64) + 1;
                let received = match side.feed(now) {
                    Ok(Some(HandshakeEvent::Wanted { .. })) => side.answer_with_hello(&ours),
                    received => received,
                };
                match received {
                    Ok(Some(HandshakeEvent::Hello(_))) => {
                        let ruling = if now[0] & 1 == 0 { Ruling::Tcp } else { Ruling::Verbs };
                        side.answer(Verdict { ruling, why: RefusalReason::AnotherHost, token: [1; 16] });
                    }
                    Ok(Some(HandshakeEvent::Verdict(_, verdict))) if verdict.ruling == Ruling::Verbs => {
                        side.offer(&Err(1))
                    }
                    Ok(Some(HandshakeEvent::Offered(offered))) if !initiator => side.offer(&offered),
                    Ok(_) => {}
                    Err(_) => assert_eq!(side.wants(), 0, "a failed handshake still reads"),
                }
            }
            assert!(side.output().len() <= MOST);
        }
        if let Ok((offer, _)) = MeetingOffer::read_from_prefix(bytes) {
            assert!(!offer.is_sound() || offer.half.reserved.get() == 0);
        }
        if let Ok((answer, _)) = MeetingAnswer::read_from_prefix(bytes) {
            assert!(answer.outcome().is_none_or(|_| answer.half.reserved.get() == 0));
        }
    }
}

#[cfg(test)]
#[path = "handshake_tests.rs"]
mod tests;
