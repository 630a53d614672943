//! Sets of operations compared with a simple model, and the slots that they leave.

use std::collections::{BTreeSet, VecDeque};

use proptest::prelude::*;

use super::*;
use crate::ErrorCode;
use crate::endpoint::Owned;
use crate::endpoint::safe::{Cause, OperationSet, PushCause, Received};

const CAPACITY: usize = 5;

/// A step of a program that uses a set of receives.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// Adds a receive.
    Push,
    /// Adds a receive that was canceled before.
    PushEnded,
    /// Sends the message of one of the receives in flight.
    Complete(usize),
    /// Takes the next result, without a wait.
    TryNext,
    /// Takes the next result, with a wait if there is one.
    Next,
    CancelAll,
    /// Drops the set, and creates another one.
    Replace,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => Just(Step::Push),
        1 => Just(Step::PushEnded),
        4 => any::<usize>().prop_map(Step::Complete),
        3 => Just(Step::TryNext),
        3 => Just(Step::Next),
        1 => Just(Step::CancelAll),
        1 => Just(Step::Replace),
    ]
}

/// The expected contents of a set. A key is the tag of its receive.
#[derive(Default)]
struct Model {
    in_flight: Vec<u64>,
    /// The keys of the members that have ended, in groups. Each ended with a message, or was canceled. The order within
    /// a group is not specified.
    ended: VecDeque<(bool, BTreeSet<u64>)>,
}

impl Model {
    fn len(&self) -> usize {
        self.in_flight.len() + self.ended.iter().map(|(_, keys)| keys.len()).sum::<usize>()
    }

    fn end(&mut self, received: bool, keys: impl IntoIterator<Item = u64>) {
        let keys: BTreeSet<_> = keys.into_iter().collect();
        if !keys.is_empty() {
            self.ended.push_back((received, keys));
        }
    }

    /// Checks the next result.
    fn check(&mut self, next: Option<(u64, Result<Received, crate::endpoint::safe::OperationError>)>) {
        let Some((received, keys)) = self.ended.front_mut() else {
            assert!(next.is_none(), "no member has ended");
            return;
        };
        let (key, end) = next.expect("a member has ended");
        assert!(keys.remove(&key), "{key} is not the next one: {keys:?}");
        match end {
            Ok(got) => assert!(*received && got.to_vec() == key.to_le_bytes()),
            Err(error) => assert!(
                !*received && matches!(error.cause(), Cause::Completion(entry) if entry.error == ErrorCode::Canceled)
            ),
        }
        if keys.is_empty() {
            self.ended.pop_front();
        }
    }
}

/// A loopback endpoint, a set of its receives, and the model of the set.
struct Compared<'e> {
    here: &'e TestEndpoint,
    me: PeerAddress,
    set: OperationSet<&'e Owned, Received, u64>,
    model: Model,
    next_tag: u64,
}

impl Compared<'_> {
    fn push(&mut self, ended: bool) {
        let tag = self.next_tag;
        self.next_tag += 1;
        let receive = self.here.endpoint.tagged_recv(tag, 0, vec![0; 8]).start().unwrap();
        assert!(!ended || receive.cancel());
        match self.set.push(receive, tag) {
            Ok(()) if ended => self.model.end(false, [tag]),
            Ok(()) => self.model.in_flight.push(tag),
            Err(refused) => {
                assert_eq!((refused.cause, refused.key, self.model.len()), (PushCause::Full(CAPACITY), tag, CAPACITY));
            }
        }
    }

    fn complete(&mut self, which: usize) {
        if self.model.in_flight.is_empty() {
            return;
        }
        let which = which % self.model.in_flight.len();
        let tag = self.model.in_flight.remove(which);
        let before = self.here.finished();
        self.here.endpoint.tagged_inject(self.me, tag, &tag.to_le_bytes()).unwrap();
        until(&[self.here], || (self.here.finished() > before).then_some(()));
        self.model.end(true, [tag]);
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Push => self.push(false),
            Step::PushEnded => self.push(true),
            Step::Complete(which) => self.complete(which),
            Step::TryNext => self.model.check(self.set.try_next()),
            // A wait without a result would not end.
            Step::Next if !self.model.ended.is_empty() || self.model.in_flight.is_empty() => {
                self.model.check(self.set.next());
            }
            Step::Next => assert!(self.set.next_for(Duration::ZERO).is_err()),
            Step::CancelAll => {
                assert_eq!(self.set.cancel_all(), self.model.in_flight.len());
                let canceled = std::mem::take(&mut self.model.in_flight);
                self.model.end(false, canceled);
            }
            Step::Replace => {
                self.set = self.here.endpoint.operation_set(CAPACITY);
                self.model = Model::default();
            }
        }
        let (len, slots) = (self.model.len(), self.here.engine(|engine| engine.core.operations.in_use()));
        assert_eq!((self.set.len(), self.set.is_full(), self.set.is_empty()), (len, len == CAPACITY, len == 0));
        assert_eq!(slots, 1 + len, "one for the set and one for each member");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn operation_set_matches_its_model(steps in proptest::collection::vec(step(), 1..120)) {
        let here = TestEndpoint::new("loopback");
        let me = here.peer(&here);
        let set = here.endpoint.operation_set(CAPACITY);
        let mut compared = Compared { here: &here, me, set, model: Model::default(), next_tag: 0 };
        steps.into_iter().for_each(|step| compared.take(step));
        drop(compared);
        assert_eq!(here.engine(|engine| engine.core.operations.in_use()), 0, "no slot is left");
    }
}
