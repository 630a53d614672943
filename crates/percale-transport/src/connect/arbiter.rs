//! The choice between several connections of two incarnations. The functions have no side effects and use only the
//! state of one endpoint.
//!
//! An initiator *claims* a connection when it receives an accepting verdict and no other connection takes precedence.
//! From then on it rejects calls of the peer. If two endpoints with incarnations i < b call each other at the same
//! time, exactly one connection survives, for these reasons:
//! 1. Both may accept each other's call before they receive a verdict. When b receives i's verdict, it has accepted i's
//!    call and i is smaller, so b gives up its own call. When i receives b's verdict, its own incarnation is the
//!    smaller one, so i claims its call.
//! 2. If b has already claimed its call when i calls, i receives `Busy` and waits for b's call.
//! 3. Each endpoint makes its decisions one after the other on one thread. So each decision is made either before or
//!    after the other endpoint's message arrives, and both orders give the same result.
//!
//! An endpoint that waits for a call that never completes tries again, after a timer or as soon as that call ends.

use std::net::SocketAddr;

use super::ConnectError;
use crate::wire::hello::{Hello, HelloFlags, Incarnation, Ruling, Token, Verdict};
use crate::wire::refusal_reason::RefusalReason;

/// The state of an endpoint's connections with one peer.
#[derive(Clone, Copy, Debug)]
pub(super) struct PeerKnowledge {
    /// The incarnation of this endpoint.
    pub(super) own: Incarnation,
    /// The established connection.
    pub(super) held: Option<EstablishedConnection>,
    /// Whether the endpoint has claimed a connection in another set-up that has not ended.
    pub(super) claimed: bool,
    /// Whether the endpoint has accepted a call from this peer in another set-up that has not ended.
    pub(super) accepted: Option<AddressStatus>,
    /// Whether a call of this endpoint has reached this incarnation and has not ended. If two endpoints call each
    /// other, and neither can be called at the address that it advertises, the call of the endpoint with the smaller
    /// incarnation proceeds.
    pub(super) met: bool,
    /// For an initiator: whether its call arrived at this same endpoint.
    pub(super) at_home: bool,
}

/// An established connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct EstablishedConnection {
    pub(super) token: Token,
    pub(super) address_status: AddressStatus,
    /// Whether its peer was reached at the address that is being called now.
    pub(super) there: bool,
}

/// Whether a peer's address is confirmed. Any third party that has learned an incarnation can use it. So the
/// incarnation alone does not entitle a caller to anything that belongs to another connection with that incarnation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AddressStatus {
    /// A call to the address has reached the peer.
    Met,
    /// The peer has only claimed to have the address.
    Claimed,
}

/// An acceptor's decision about a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallDecision {
    /// Accept the call.
    Accept,
    /// Accept the call and give up the established connection.
    AcceptInstead,
    /// Reject the call, and name the established connection (all zero if the caller called itself).
    Duplicate(Token),
    /// The caller has to wait.
    Busy,
}

/// An initiator's decision about a verdict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum VerdictDecision {
    /// Claim the connection.
    Claim,
    /// A connection already exists.
    Aliased,
    /// Wait for the other connection.
    Wait,
    /// The peer is temporarily unable to accept. Try again later, and report this error if no attempt succeeds.
    Later(ConnectError),
    /// Try again at once, and request that the peer give up this connection.
    Reset(Token),
    /// Query whether the endpoint that answered is the peer of the established connection.
    Ask,
    /// Give up.
    Fail(ConnectError),
}

/// Decides about a call with this hello. The call is not from this endpoint itself.
pub(super) fn call(knowledge: &PeerKnowledge, hello: &Hello, caller: AddressStatus) -> CallDecision {
    match (knowledge.held, caller) {
        (Some(EstablishedConnection { token, .. }), AddressStatus::Met)
            if hello.flags.contains(HelloFlags::RESET) && hello.reset == token =>
        {
            CallDecision::AcceptInstead
        }
        (Some(EstablishedConnection { token, .. }), AddressStatus::Met) => CallDecision::Duplicate(token),
        // The token belongs to the connection, so it is sent only to its other end.
        (Some(_), AddressStatus::Claimed) => CallDecision::Busy,
        (None, AddressStatus::Met) if knowledge.claimed || knowledge.accepted == Some(AddressStatus::Met) => {
            CallDecision::Busy
        }
        (None, AddressStatus::Claimed)
            if knowledge.claimed
                || knowledge.accepted.is_some()
                || (knowledge.met && knowledge.own < hello.incarnation) =>
        {
            CallDecision::Busy
        }
        (None, _) => CallDecision::Accept,
    }
}

/// Decides about `verdict` from `peer`, which was reached at this address and context.
pub(super) fn verdict(
    knowledge: &PeerKnowledge,
    peer: Incarnation,
    verdict: &Verdict,
    called: (SocketAddr, u16),
) -> VerdictDecision {
    if peer == knowledge.own {
        let error = || ConnectError::Identity(called.0, "the peer claims to be the calling endpoint".into());
        return if knowledge.at_home { VerdictDecision::Aliased } else { VerdictDecision::Fail(error()) };
    }
    if let Some(held) = knowledge.held
        && (held.there || (verdict.ruling == Ruling::Duplicate && verdict.token == held.token))
    {
        return VerdictDecision::Aliased;
    }
    match verdict.ruling {
        Ruling::Refuse => refused(verdict.why, called),
        Ruling::Known => VerdictDecision::Fail(ConnectError::Protocol("unexpected verdict".into())),
        _ if knowledge.held.is_some() => VerdictDecision::Ask,
        Ruling::Tcp | Ruling::Shm | Ruling::Verbs
            if knowledge.claimed || (knowledge.accepted.is_some() && peer < knowledge.own) =>
        {
            VerdictDecision::Wait
        }
        Ruling::Tcp | Ruling::Shm | Ruling::Verbs => VerdictDecision::Claim,
        Ruling::Busy => VerdictDecision::Wait,
        Ruling::Duplicate if knowledge.claimed || knowledge.accepted.is_some() => VerdictDecision::Wait,
        Ruling::Duplicate => VerdictDecision::Reset(verdict.token),
    }
}

fn refused(why: RefusalReason, called: (SocketAddr, u16)) -> VerdictDecision {
    match why {
        RefusalReason::Authorization => VerdictDecision::Fail(ConnectError::Authorization),
        RefusalReason::NotItsAddress => VerdictDecision::Fail(ConnectError::Relayed(called.0)),
        RefusalReason::OwnAddress | RefusalReason::OwnIncarnation | RefusalReason::NotKnown => {
            VerdictDecision::Fail(ConnectError::Identity(called.0, why.to_string()))
        }
        RefusalReason::Descriptors => VerdictDecision::Later(ConnectError::Descriptors { peer: true }),
        RefusalReason::NoContext | RefusalReason::ContextClosed => {
            let closed = why == RefusalReason::ContextClosed;
            let error = ConnectError::Context { peer: called.0, context: called.1, closed };
            if closed { VerdictDecision::Later(error) } else { VerdictDecision::Fail(error) }
        }
        why => VerdictDecision::Fail(ConnectError::NoTransport(why.to_string())),
    }
}

/// The decision after the answer to [`VerdictDecision::Ask`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum QueryDecision {
    /// The endpoint is the peer of the established connection.
    Aliased,
    /// The established connection is with a third party that used this peer's incarnation: give it up, and call again.
    Displace,
    /// Call again later, and report this error if the answer does not change.
    Later(ConnectError),
}

/// Decides according to the answer of the endpoint that was called. `holds` is true if the endpoint has proved that it
/// is the peer of the established connection.
pub(super) fn handle_query_answer(held: AddressStatus, holds: bool, called: SocketAddr) -> QueryDecision {
    match (holds, held) {
        (true, _) => QueryDecision::Aliased,
        (false, AddressStatus::Claimed) => QueryDecision::Displace,
        // The peer of the connection was reached at its own address, and this endpoint at a different one: they cannot
        // be the same.
        (false, AddressStatus::Met) => {
            let why = "the peer claims to be an endpoint that is connected at another address".to_owned();
            QueryDecision::Later(ConnectError::Identity(called, why))
        }
    }
}

/// Returns the transport for two endpoints and the reason for it, or the reason why there is none.
pub(super) fn transport(a: &Hello, b: &Hello) -> Result<(Ruling, RefusalReason), RefusalReason> {
    let both = a.flags & b.flags;
    let why = if !a.place.same_host(&b.place) {
        RefusalReason::AnotherHost
    } else if !a.place.same_network(&b.place) {
        RefusalReason::AnotherNamespace
    } else if a.place.user != b.place.user {
        RefusalReason::AnotherUser
    } else if !both.contains(HelloFlags::SHM) {
        RefusalReason::ShmNotAllowed
    } else {
        return Ok((Ruling::Shm, RefusalReason::SameHost));
    };
    if both.contains(HelloFlags::VERBS) {
        return Ok((Ruling::Verbs, why));
    }
    if both.contains(HelloFlags::TCP) {
        return Ok((Ruling::Tcp, why));
    }
    // If TCP is not allowed but both sides request shared memory, the error is the reason why shared memory cannot be
    // used.
    Err(if both.contains(HelloFlags::SHM) { why } else { RefusalReason::NoTransport })
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;
    use crate::connect::handshake::fuzz::hello;

    #[test]
    fn transport_is_chosen_by_host_user_and_namespace() {
        let (a, mut b) = (hello(1, false), hello(2, false));
        assert_eq!(transport(&a, &b), Ok((Ruling::Shm, RefusalReason::SameHost)));
        b.place.user += 1;
        assert_eq!(transport(&a, &b), Ok((Ruling::Tcp, RefusalReason::AnotherUser)));
        b.place.namespace.1 += 1;
        assert_eq!(transport(&a, &b), Ok((Ruling::Tcp, RefusalReason::AnotherNamespace)));
        b.flags = HelloFlags::SHM;
        assert_eq!(transport(&a, &b), Err(RefusalReason::AnotherNamespace));
        b.place.boot = [2; 16];
        b.flags = HelloFlags::TCP;
        assert_eq!(transport(&a, &b), Ok((Ruling::Tcp, RefusalReason::AnotherHost)));
        let verbs = |hello: &Hello, flags| Hello { flags: flags | HelloFlags::VERBS, ..hello.clone() };
        let far = verbs(&b, HelloFlags::TCP);
        assert_eq!(transport(&a, &far), Ok((Ruling::Tcp, RefusalReason::AnotherHost)), "both sides must allow verbs");
        assert_eq!(transport(&verbs(&a, HelloFlags::TCP), &far), Ok((Ruling::Verbs, RefusalReason::AnotherHost)));
        let near = verbs(&a, HelloFlags::SHM);
        assert_eq!(transport(&near, &near), Ok((Ruling::Shm, RefusalReason::SameHost)), "shared memory first");
        let alone = verbs(&a, HelloFlags::empty());
        assert_eq!(transport(&alone, &alone), Ok((Ruling::Verbs, RefusalReason::ShmNotAllowed)));
    }

    /// A call names the connection that its caller has lost. If there is another connection now, it is kept.
    #[test]
    fn only_the_connection_that_a_call_names_is_given_up() {
        let held = EstablishedConnection { token: token(1), address_status: AddressStatus::Met, there: true };
        let knowledge = PeerKnowledge {
            own: Incarnation([0; 16]),
            held: Some(held),
            claimed: false,
            accepted: None,
            met: false,
            at_home: false,
        };
        let decision = |flags, reset, caller| {
            super::call(&knowledge, &Hello { flags: flags | HelloFlags::TCP, reset, ..hello(1, false) }, caller)
        };
        let (met, claimed, none) = (AddressStatus::Met, AddressStatus::Claimed, HelloFlags::empty());
        assert_eq!(decision(HelloFlags::RESET, token(1), met), CallDecision::AcceptInstead);
        assert_eq!(decision(HelloFlags::RESET, token(2), met), CallDecision::Duplicate(token(1)));
        assert_eq!(decision(HelloFlags::PROBE, token(1), met), CallDecision::Duplicate(token(1)));
        assert_eq!(decision(none, [0; 16], met), CallDecision::Duplicate(token(1)));
        assert_eq!(decision(HelloFlags::RESET, token(1), claimed), CallDecision::Busy, "the caller is not confirmed");
    }

    /// If both endpoints have accepted the other's call, the call of the smaller incarnation proceeds. Both endpoints
    /// decide this on their own, and they may be of different versions of this library.
    #[test]
    fn of_two_accepted_calls_that_of_the_smaller_incarnation_proceeds() {
        let accepting = Verdict { ruling: Ruling::Tcp, why: RefusalReason::AnotherHost, token: token(1) };
        let decision = |own, peer, accepted| {
            let knowledge = PeerKnowledge {
                own: Incarnation([own; 16]),
                held: None,
                claimed: false,
                accepted,
                met: false,
                at_home: false,
            };
            verdict(&knowledge, Incarnation([peer; 16]), &accepting, (([127, 0, 0, 1], 1).into(), 0))
        };
        for accepted in [AddressStatus::Met, AddressStatus::Claimed].map(Some) {
            assert_eq!(decision(1, 2, accepted), VerdictDecision::Claim);
            assert_eq!(decision(2, 1, accepted), VerdictDecision::Wait);
        }
        assert_eq!([decision(1, 2, None), decision(2, 1, None)], [VerdictDecision::Claim, VerdictDecision::Claim]);
    }

    /// The state of one call at its initiator.
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum CallState {
        Called,
        Claimed,
        Gone,
    }

    #[derive(Debug)]
    enum Message {
        Call {
            reset: Option<Token>,
        },
        Verdict(Verdict),
        Commit,
        /// The initiator has closed the call.
        End,
    }

    /// One endpoint of the model. Calls are numbered, and each direction of a call is a queue.
    #[derive(Debug, Default)]
    struct Side {
        held: Option<Token>,
        out: Vec<(usize, CallState)>,
        accepted: Vec<usize>,
        wanted: bool,
        waiting: bool,
        reset: Option<Token>,
    }

    #[derive(Debug)]
    struct Model {
        sides: [Side; 2],
        /// For each call, the initiator, the queue to the acceptor and the queue to the initiator. The index is the
        /// call number.
        calls: Vec<(usize, VecDeque<Message>, VecDeque<Message>)>,
    }

    fn token(call: usize) -> Token {
        (call as u128 + 1).to_le_bytes()
    }

    impl Model {
        fn knowledge(&self, side: usize, but: usize) -> PeerKnowledge {
            let me = &self.sides[side];
            PeerKnowledge {
                own: Incarnation([side as u8; 16]),
                held: me.held.map(|token| EstablishedConnection {
                    token,
                    address_status: AddressStatus::Met,
                    there: true,
                }),
                claimed: me.out.iter().any(|&(call, state)| call != but && state == CallState::Claimed),
                accepted: me.accepted.iter().any(|&call| call != but).then_some(AddressStatus::Met),
                met: false,
                at_home: false,
            }
        }

        fn start(&mut self, side: usize) {
            let reset = self.sides[side].reset.take();
            self.sides[side].waiting = false;
            self.sides[side].out.push((self.calls.len(), CallState::Called));
            self.calls.push((side, VecDeque::from([Message::Call { reset }]), VecDeque::new()));
        }

        fn set(&mut self, side: usize, call: usize, state: CallState) {
            self.sides[side].out.iter_mut().filter(|(n, _)| *n == call).for_each(|(_, old)| *old = state);
        }

        /// Delivers the next message of a call to its acceptor or its initiator.
        fn deliver(&mut self, call: usize, to_acceptor: bool) -> bool {
            let (initiator, forth, back) = &mut self.calls[call];
            let (side, message) =
                if to_acceptor { (1 - *initiator, forth.pop_front()) } else { (*initiator, back.pop_front()) };
            let Some(message) = message else { return false };
            let knowledge = self.knowledge(side, call);
            match message {
                Message::Call { reset } => {
                    let mut hello = hello((1 - side) as u8, false);
                    hello.flags.set(HelloFlags::RESET, reset.is_some());
                    hello.reset = reset.unwrap_or_default();
                    let (ruling, token) = match super::call(&knowledge, &hello, AddressStatus::Met) {
                        CallDecision::Accept => (Ruling::Tcp, token(call)),
                        CallDecision::AcceptInstead => {
                            self.sides[side].held = None;
                            (Ruling::Tcp, token(call))
                        }
                        CallDecision::Duplicate(token) => (Ruling::Duplicate, token),
                        CallDecision::Busy => (Ruling::Busy, [0; 16]),
                    };
                    if ruling == Ruling::Tcp {
                        self.sides[side].accepted.push(call);
                    }
                    let verdict = Verdict { ruling, why: RefusalReason::AnotherHost, token };
                    self.calls[call].2.push_back(Message::Verdict(verdict));
                }
                Message::Verdict(verdict) => {
                    let peer = Incarnation([(1 - side) as u8; 16]);
                    let reply = super::verdict(&knowledge, peer, &verdict, (([127, 0, 0, 1], 1).into(), 0));
                    if reply == VerdictDecision::Claim {
                        self.set(side, call, CallState::Claimed);
                        return true;
                    }
                    self.set(side, call, CallState::Gone);
                    self.calls[call].1.push_back(Message::End);
                    match reply {
                        VerdictDecision::Wait => self.sides[side].waiting = true,
                        VerdictDecision::Reset(token) => {
                            self.sides[side].reset = Some(token);
                            self.sides[side].waiting = true;
                        }
                        VerdictDecision::Aliased => self.sides[side].wanted = false,
                        other => panic!("{other:?}"),
                    }
                }
                Message::Commit => {
                    self.sides[side].accepted.retain(|&n| n != call);
                    assert!(self.sides[side].held.is_none(), "two connections at the acceptor");
                    self.sides[side].held = Some(token(call));
                }
                Message::End => self.sides[side].accepted.retain(|&n| n != call),
            }
            true
        }

        /// Commits a claimed call.
        fn commit(&mut self, side: usize) -> bool {
            let Some(&(call, _)) = self.sides[side].out.iter().find(|(_, state)| *state == CallState::Claimed) else {
                return false;
            };
            assert!(self.sides[side].held.is_none(), "two connections at the initiator");
            self.sides[side].held = Some(token(call));
            self.sides[side].wanted = false;
            self.set(side, call, CallState::Gone);
            self.calls[call].1.push_back(Message::Commit);
            true
        }

        fn retry(&mut self, side: usize) -> bool {
            if !self.sides[side].waiting {
                return false;
            }
            self.sides[side].waiting = false;
            if self.sides[side].held.is_some() {
                self.sides[side].wanted = false;
                return true;
            }
            self.start(side);
            true
        }

        fn step(&mut self, choice: usize) -> bool {
            let calls = self.calls.len();
            match choice % (calls * 2 + 4) {
                n if n < calls * 2 => self.deliver(n / 2, n % 2 == 0),
                n if n < calls * 2 + 2 => self.commit(n - calls * 2),
                n => self.retry(n - calls * 2 - 2),
            }
        }
    }

    proptest! {
        /// Both endpoints call, once or twice, in any order of events. In the end both hold the same connection.
        #[test]
        fn any_order_settles_on_one_connection(
            starts in proptest::collection::vec(0..2usize, 1..4),
            lost: [bool; 2],
            order in proptest::collection::vec(any::<u16>(), 0..200),
        ) {
            let mut model = Model { sides: Default::default(), calls: Vec::new() };
            // The remains of an earlier connection, which one side or both may still hold.
            for (side, lost) in lost.iter().enumerate() {
                model.sides[side].held = (!lost).then_some([0xff; 16]);
            }
            let mut starts = starts.into_iter();
            for choice in order {
                if choice % 7 == 0 && let Some(side) = starts.next() {
                    model.sides[side].wanted = true;
                    model.start(side);
                } else {
                    model.step(choice.into());
                }
            }
            for side in starts {
                model.sides[side].wanted = true;
                model.start(side);
            }
            // All messages arrive eventually. Retries are made last, because they wait for timers.
            for round in 0.. {
                prop_assert!(round < 100, "does not settle: {model:?}");
                let mut moved = true;
                while moved {
                    moved = false;
                    for choice in 0..model.calls.len() * 2 + 2 {
                        moved |= model.step(choice);
                    }
                }
                if !model.retry(round % 2) && !model.retry(1 - round % 2) {
                    break;
                }
            }
            let [a, b] = &model.sides;
            prop_assert!(!a.wanted && !b.wanted);
            prop_assert!(a.accepted.is_empty() && b.accepted.is_empty());
            // A side that still holds a connection that the other has lost, and that was never called, cannot detect
            // the loss. In all other cases the sides agree.
            if lost[0] == lost[1] {
                prop_assert_eq!(a.held, b.held);
                prop_assert!(a.held.is_some());
            }
        }
    }
}
