//! Tests that random sequences of calls to [`Matching`] and to two plain vectors, which are walked in order, have the
//! same results.

use proptest::prelude::*;

use crate::endpoint::matching::{AfterMatch, Envelope, HeldMessage, Matching, Pattern, PostedHandle, SourceFilter};

/// One call. A handle is given by a number, modulo the number of handles returned so far. It may be outdated.
#[derive(Clone, Debug)]
enum Call {
    Post(Pattern),
    Arrive(Envelope),
    ArriveAndStay(Envelope),
    CancelWhere(u32),
    DrainPosted(SourceFilter),
    Redirect(u64, u64),
    Hold(Envelope),
    Find(Pattern),
    FindAndTake(Pattern),
    FindAndClaim(Pattern),
    Claim(usize),
    Take(usize),
    ExtractHeld(u32, usize),
    DrainHeld(SourceFilter),
    Leave(u64, Vec<u64>),
}

fn envelope() -> impl Strategy<Value = Envelope> {
    (0..8_u64, 0..4_u64).prop_map(|(tag, source)| Envelope { tag, source })
}

fn source() -> impl Strategy<Value = SourceFilter> {
    prop_oneof![Just(SourceFilter::Any), (0..4_u64).prop_map(SourceFilter::From)]
}

fn pattern() -> impl Strategy<Value = Pattern> {
    // Ignored bits may be set in the tag, and bits that no tag has may be ignored.
    let ignore = prop_oneof![4 => Just(0), 3 => 0..16_u64, 1 => Just(u64::MAX)];
    (0..8_u64, ignore, source()).prop_map(|(tag, ignore, source)| Pattern { tag, ignore, source })
}

/// Generates one call. `growth` is how much more likely posts and holds are than removals: with a high value queues get
/// long.
fn call(growth: u32) -> impl Strategy<Value = Call> {
    prop_oneof![
        6 * growth => pattern().prop_map(Call::Post),
        6 => envelope().prop_map(Call::Arrive),
        2 => envelope().prop_map(Call::ArriveAndStay),
        3 => (0..5_u32).prop_map(Call::CancelWhere),
        6 * growth => envelope().prop_map(Call::Hold),
        6 => pattern().prop_map(Call::Find),
        6 => pattern().prop_map(Call::FindAndTake),
        2 => pattern().prop_map(Call::FindAndClaim),
        1 => any::<usize>().prop_map(Call::Claim),
        2 => any::<usize>().prop_map(Call::Take),
    ]
}

/// Generates senders that disconnect. Most of them are one of a pair with the same names (0 and 1, 2 and 3), because
/// only senders with the same names share a label.
fn leave() -> impl Strategy<Value = Call> {
    let pair = (0..4_u64).prop_map(|from| Call::Leave(from, vec![from ^ 1]));
    let any = (0..4_u64, prop::collection::vec(0..6_u64, 0..3)).prop_map(|(from, names)| Call::Leave(from, names));
    prop_oneof![3 => pair, 1 => any]
}

/// Generates the calls above, and occasionally a call that removes most of a queue or a sender that disconnects. In
/// half of the sequences, senders disconnect often (`leaves`), so that labels are shared while many messages are held.
fn calls() -> impl Strategy<Value = Vec<Call>> {
    let rare = prop_oneof![
        source().prop_map(Call::DrainPosted),
        (0..4_u64, 0..4_u64).prop_map(|(from, to)| Call::Redirect(from, to)),
        source().prop_map(Call::DrainHeld),
        (0..5_u32, 0..6_usize).prop_map(|(modulus, limit)| Call::ExtractHeld(modulus, limit)),
    ];
    let rare = rare.boxed();
    (prop_oneof![Just(1_u32), Just(2), Just(5)], prop_oneof![Just(1_u32), Just(8)]).prop_flat_map(
        move |(growth, leaves)| {
            let call = prop_oneof![160 => call(growth), 3 => rare.clone(), leaves => leave()];
            prop::collection::vec(call, 1..400)
        },
    )
}

/// Returns whether a number is one of those that a test with this modulus picks.
fn picked(modulus: u32, value: u32) -> bool {
    value.is_multiple_of(modulus + 2)
}

/// Applies the matching rule, as documented in the manual.
fn fits(pattern: &Pattern, envelope: &Envelope) -> bool {
    let source = match pattern.source {
        SourceFilter::Any => true,
        SourceFilter::From(source) => source == envelope.source,
    };
    source && (pattern.tag | pattern.ignore) == (envelope.tag | pattern.ignore)
}

fn from(filter: SourceFilter, source: u64) -> bool {
    filter == SourceFilter::Any || filter == SourceFilter::From(source)
}

#[derive(Default)]
struct Model {
    posted: Vec<(u32, Pattern)>,
    held: Vec<(u32, Envelope)>,
    claimed: Vec<(u32, Envelope)>,
    /// The names of senders that disconnected while their messages were held, in the order in which they disconnected.
    left: Vec<Vec<u64>>,
}

impl Model {
    fn receive_for(&self, envelope: &Envelope) -> Option<usize> {
        self.posted.iter().position(|(_, pattern)| fits(pattern, envelope))
    }

    fn find(&self, pattern: &Pattern) -> Option<u32> {
        let named = |envelope: &Envelope, name| {
            let label = usize::try_from(u64::MAX - envelope.source).ok();
            label.and_then(|label| self.left.get(label)).is_some_and(|names| names.contains(&name))
        };
        let fits = |envelope: &Envelope| match pattern.source {
            SourceFilter::From(name) if named(envelope, name) => fits(pattern, &Envelope { source: name, ..*envelope }),
            _ => fits(pattern, envelope),
        };
        self.held.iter().find(|(_, envelope)| fits(envelope)).map(|&(number, _)| number)
    }

    fn leave(&mut self, from: u64, names: &[u64]) {
        let of = |held: &mut [(u32, Envelope)], label| {
            let mut any = false;
            for (_, envelope) in held.iter_mut().filter(|(_, envelope)| envelope.source == from) {
                (envelope.source, any) = (label, true);
            }
            any
        };
        let mut all = [names, &[from]].concat();
        all.sort_unstable();
        all.dedup();
        let is_held = |label| self.held.iter().chain(&self.claimed).any(|(_, envelope)| envelope.source == label);
        let same = |at: &usize| self.left[*at] == all && is_held(u64::MAX - *at as u64);
        let at = (0..self.left.len()).find(same).unwrap_or(self.left.len());
        let label = u64::MAX - at as u64;
        if !names.is_empty() && of(&mut self.held, label) | of(&mut self.claimed, label) && at == self.left.len() {
            self.left.push(all);
        }
    }

    fn claim(&mut self, number: u32) -> bool {
        let Some(at) = self.held.iter().position(|&(held, _)| held == number) else { return false };
        let held = self.held.remove(at);
        self.claimed.push(held);
        true
    }

    fn take(&mut self, number: u32) -> Option<u32> {
        for list in [&mut self.held, &mut self.claimed] {
            if let Some(at) = list.iter().position(|&(held, _)| held == number) {
                return Some(list.remove(at).0);
            }
        }
        None
    }
}

/// Both implementations. Receives and messages are numbered in the order of their creation, and the stored value is the
/// number.
#[derive(Default)]
struct Pair {
    real: Matching<u32, u32>,
    model: Model,
    posted: Vec<PostedHandle>,
    held: Vec<HeldMessage>,
}

impl Pair {
    fn number(&self, held: Option<HeldMessage>) -> Option<u32> {
        held.map(|held| *self.real.held(held).expect("a found message is held"))
    }

    fn apply(&mut self, call: Call) -> Result<(), TestCaseError> {
        match call {
            Call::Post(pattern) => {
                let number = self.posted.len() as u32;
                self.posted.push(self.real.post(pattern, number));
                self.model.posted.push((number, pattern));
            }
            Call::Arrive(envelope) => {
                let expected = self.model.receive_for(&envelope).map(|at| self.model.posted.remove(at).0);
                prop_assert_eq!(self.real.arrive(envelope), expected);
            }
            Call::ArriveAndStay(envelope) => self.arrive_and_stay(envelope)?,
            Call::CancelWhere(modulus) => {
                let at = self.model.posted.iter().position(|&(number, _)| picked(modulus, number));
                let expected = at.map(|at| self.model.posted.remove(at).0);
                prop_assert_eq!(self.real.cancel_first(|&number| picked(modulus, number)), expected);
            }
            Call::DrainPosted(filter) => {
                let gone = self.model.posted.extract_if(.., |(_, p)| filter == SourceFilter::Any || filter == p.source);
                let expected: Vec<u32> = gone.map(|(number, _)| number).collect();
                prop_assert_eq!(self.real.drain_posted(filter).collect::<Vec<_>>(), expected);
            }
            Call::Redirect(from, to) => self.redirect(from, to)?,
            Call::Hold(envelope) => {
                let number = self.held.len() as u32;
                self.held.push(self.real.hold(envelope, number));
                self.model.held.push((number, envelope));
            }
            Call::Find(pattern) => {
                let found = self.real.find(&pattern);
                prop_assert_eq!(self.number(found), self.model.find(&pattern));
            }
            Call::FindAndTake(pattern) => {
                let found = self.real.find(&pattern);
                prop_assert_eq!(self.number(found), self.model.find(&pattern));
                if let Some(held) = found {
                    let taken = self.real.take(held).expect("a found message is held");
                    prop_assert_eq!(self.model.take(taken), Some(taken));
                }
            }
            Call::FindAndClaim(pattern) => {
                let found = self.real.find(&pattern);
                prop_assert_eq!(self.number(found), self.model.find(&pattern));
                if let (Some(held), Some(number)) = (found, self.number(found)) {
                    prop_assert!(self.real.claim(held) && self.model.claim(number));
                }
            }
            Call::Claim(which) if !self.held.is_empty() => {
                let number = which % self.held.len();
                prop_assert_eq!(self.real.claim(self.held[number]), self.model.claim(number as u32));
            }
            Call::Take(which) if !self.held.is_empty() => {
                let number = which % self.held.len();
                let handle = self.held[number];
                let expected = self.model.take(number as u32);
                prop_assert_eq!(self.real.held(handle).copied(), expected);
                prop_assert_eq!(self.real.held_mut(handle).copied(), expected);
                prop_assert_eq!(self.real.take(handle), expected);
            }
            Call::ExtractHeld(modulus, limit) => self.extract_held(modulus, limit)?,
            Call::DrainHeld(filter) => self.drain_held(filter)?,
            Call::Leave(from, names) => {
                self.real.leave(from, &names);
                self.model.leave(from, &names);
            }
            Call::Claim(_) | Call::Take(_) => {}
        }
        Ok(())
    }

    fn arrive_and_stay(&mut self, envelope: Envelope) -> Result<(), TestCaseError> {
        let expected = self.model.receive_for(&envelope).map(|at| self.model.posted[at].0);
        let handles = &self.posted;
        let seen = self.real.arrive_with(envelope, |handle, receive| {
            (AfterMatch::Stay, (*receive, handle == handles[*receive as usize]))
        });
        prop_assert_eq!(seen, expected.map(|number| ((number, true), None)));
        Ok(())
    }

    fn redirect(&mut self, from: u64, to: u64) -> Result<(), TestCaseError> {
        let mut expected = Vec::new();
        for (_, pattern) in self.model.posted.iter_mut().filter(|(_, p)| p.source == SourceFilter::From(from)) {
            pattern.source = SourceFilter::From(to);
            expected.push(*pattern);
        }
        prop_assert_eq!(self.real.redirect(SourceFilter::From(from), SourceFilter::From(to)), expected);
        Ok(())
    }

    fn extract_held(&mut self, modulus: u32, limit: usize) -> Result<(), TestCaseError> {
        let picks = |&mut (number, _): &mut (u32, Envelope)| picked(modulus, number);
        let mut expected = Vec::new();
        for (claimed, list) in [(false, &mut self.model.held), (true, &mut self.model.claimed)] {
            let wanted = limit - expected.len();
            expected.extend(list.extract_if(.., picks).take(wanted).map(|(n, e)| (claimed, e, n)));
        }
        let mut seen_claimed = false;
        let gone = self.real.extract_held(|_, claimed, &number| {
            seen_claimed = claimed;
            picked(modulus, number)
        });
        let gone: Vec<_> = gone.take(limit).collect();
        prop_assert_eq!(&gone, &expected.iter().map(|&(_, e, n)| (e, n)).collect::<Vec<_>>());
        if let Some(&(claimed, ..)) = expected.last().filter(|_| expected.len() == limit) {
            prop_assert_eq!(seen_claimed, claimed);
        }
        Ok(())
    }

    fn drain_held(&mut self, filter: SourceFilter) -> Result<(), TestCaseError> {
        let mut expected = Vec::new();
        for list in [&mut self.model.held, &mut self.model.claimed] {
            expected.extend(list.extract_if(.., |(_, e)| from(filter, e.source)).map(|(n, e)| (e, n)));
        }
        let drained = self.real.extract_held(|envelope, _, _| from(filter, envelope.source));
        prop_assert_eq!(drained.collect::<Vec<_>>(), expected);
        Ok(())
    }

    fn compare(&self) -> Result<(), TestCaseError> {
        let posted = self.real.posted().map(|(handle, pattern, &number)| {
            assert_eq!(handle, self.posted[number as usize]);
            (number, pattern)
        });
        prop_assert_eq!(posted.collect::<Vec<_>>(), self.model.posted.clone());
        prop_assert_eq!(self.real.posted_len(), self.model.posted.len());
        let held = self.real.unexpected().map(|(handle, envelope, &number)| {
            assert_eq!(handle, self.held[number as usize]);
            (number, envelope)
        });
        prop_assert_eq!(held.collect::<Vec<_>>(), self.model.held.clone());
        prop_assert_eq!(self.real.unexpected_len(), self.model.held.len());
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn matching_agrees_with_two_vector_model(calls in calls()) {
        let mut pair = Pair::default();
        for call in calls {
            pair.apply(call)?;
            pair.compare()?;
        }
    }
}
