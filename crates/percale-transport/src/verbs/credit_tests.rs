//! Tests with two sides that count credits. Simulated devices connect them and deliver at arbitrary times.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;

/// A completion of a device.
#[derive(Clone, Copy, Debug)]
enum Done {
    Came { is_note: bool, immediate: u32 },
    Acknowledged(Option<u64>),
}

/// One side with its device.
#[derive(Debug)]
struct Side {
    credits: Credits,
    /// The number of posted receives.
    posted: usize,
    /// The number of messages that arrived and were not read.
    unread: usize,
    /// Messages in flight to the peer's device: the number of each message (`None` for a note) and its immediate data.
    leaving: VecDeque<(Option<u64>, u32)>,
    /// Messages that were delivered and that were not acknowledged to this side's device yet.
    reported: VecDeque<Option<u64>>,
    completed: VecDeque<Done>,
    /// The number of messages that are still to be sent; `got` is the number of messages that were read.
    to_send: usize,
    got: usize,
}

impl Side {
    fn new(to_send: usize) -> Self {
        Self {
            credits: Credits::new(),
            posted: RECEIVES,
            unread: 0,
            leaving: VecDeque::new(),
            reported: VecDeque::new(),
            completed: VecDeque::new(),
            to_send,
            got: 0,
        }
    }

    fn take(&mut self) {
        for done in std::mem::take(&mut self.completed) {
            match done {
                Done::Came { is_note, immediate } => {
                    self.credits.come(is_note, immediate, self.unread).expect("a valid message");
                    *if is_note { &mut self.posted } else { &mut self.unread } += 1;
                }
                Done::Acknowledged(Some(number)) => self.credits.acknowledge(number).expect("in order"),
                Done::Acknowledged(None) => self.credits.acknowledge_note().expect("a note"),
            }
        }
    }

    /// Writes like a `Wire`.
    fn write(&mut self, at_most: usize) {
        if !self.credits.has_room() {
            self.take();
        }
        for _ in 0..at_most.min(self.to_send) {
            if !self.credits.has_room() {
                return;
            }
            self.leaving.push_back((Some(self.credits.next()), self.credits.owed().unwrap_or(0)));
            self.credits.spend();
            self.to_send -= 1;
        }
    }

    /// Reads like a `Wire`.
    fn read(&mut self, at_most: usize) {
        self.take();
        for _ in 0..at_most.min(self.unread) {
            self.unread -= 1;
            self.posted += 1;
            self.credits.read();
            self.got += 1;
        }
        if let Some(owed) = self.credits.note() {
            self.leaving.push_back((None, owed));
            self.credits.noted();
        }
    }

    /// Delivers the next messages of this side's device to the other side's device.
    fn deliver(&mut self, to: &mut Self, at_most: usize) {
        assert!(self.leaving.len() + self.reported.len() <= SENDS + NOTES, "more sends than the queue pair holds");
        for _ in 0..at_most.min(self.leaving.len()) {
            let (number, immediate) = self.leaving.pop_front().expect("a queued send");
            to.posted = to.posted.checked_sub(1).expect("a posted receive for each message");
            to.completed.push_back(Done::Came { is_note: number.is_none(), immediate });
            assert!(to.completed.len() <= SENDS + NOTES + RECEIVES, "more completions than the queue holds");
            self.reported.push_back(number);
        }
    }

    /// Passes acknowledgements of delivered messages to this side's device.
    fn hear(&mut self, at_most: usize) {
        let reported = at_most.min(self.reported.len());
        self.completed.extend(self.reported.drain(..reported).map(Done::Acknowledged));
        assert!(self.completed.len() <= SENDS + NOTES + RECEIVES, "more completions than the queue holds");
    }
}

/// Executes the steps in this order, and then all kinds of steps in turn. Checks that everything arrives.
fn runs(totals: [usize; 2], steps: &[(bool, u8, usize)]) {
    let [mut one, mut two] = totals.map(Side::new);
    let step = |one: &mut Side, two: &mut Side, (first, what, count): (bool, u8, usize)| {
        let (this, other) = if first { (one, two) } else { (two, one) };
        match what {
            0 => this.write(count),
            1 => this.read(count),
            2 => this.deliver(other, count),
            _ => this.hear(count),
        }
    };
    for &chosen in steps {
        step(&mut one, &mut two, chosen);
    }
    for _ in 0..totals[0] + totals[1] + 10 {
        for what in [0, 2, 3, 1] {
            for first in [true, false] {
                step(&mut one, &mut two, (first, what, usize::MAX));
            }
        }
    }
    assert_eq!([two.got, one.got], totals, "both sides wait forever: {one:?} {two:?}");
    assert!(one.credits.is_calm() && two.credits.is_calm());
}

proptest! {
    /// Requirements: MSG-014.
    #[test]
    fn both_sides_progress_in_any_delivery_order(
        totals in [0usize..2000, 0usize..2000],
        steps in prop::collection::vec((any::<bool>(), 0u8..4, 0usize..200), 0..400),
    ) {
        runs(totals, &steps);
    }

    #[test]
    fn returned_credits_never_exceed_spent_credits(
        spent in 0u64..=CREDITS as u64,
        given in prop::collection::vec((any::<bool>(), 0u32..200, 0usize..200), 0..50),
    ) {
        let mut credits = Credits::new();
        for number in 0..spent {
            credits.spend();
            credits.acknowledge(number).expect("in order");
        }
        for (is_note, immediate, unread) in given {
            let before = credits.free;
            let believed = credits.come(is_note, immediate, unread).is_ok();
            prop_assert_eq!(credits.free, before + if believed { immediate as usize } else { 0 });
            prop_assert!(credits.free <= CREDITS);
            prop_assert!(!believed || !is_note || immediate as usize >= DUE);
            prop_assert!(!believed || is_note || unread < CREDITS);
        }
    }
}

/// The buffer of a message is in use until the message is acknowledged, also if the peer has returned its credit.
#[test]
fn unacknowledged_messages_are_limited_by_the_send_buffers() {
    let mut credits = Credits::new();
    for _ in 0..SENDS {
        assert!(credits.has_room());
        credits.spend();
    }
    assert!(!credits.has_room());
    credits.come(false, 3, 0).unwrap();
    assert!(!credits.has_room());
    for number in 0..(CREDITS + 3 - SENDS) as u64 {
        credits.acknowledge(number).unwrap();
        assert!(credits.has_room());
        credits.spend();
        assert!(!credits.has_room(), "message {number}");
    }
    // Now all messages wait for the peer to read.
    (0..SENDS as u64).for_each(|number| credits.acknowledge((CREDITS + 3 - SENDS) as u64 + number).unwrap());
    assert!(credits.is_calm() && !credits.has_room());
    credits.come(false, 1, 0).unwrap();
    assert!(credits.has_room());
}

/// The last acknowledgement of a peer that exits may be lost. The credits that the peer has returned for the messages
/// that it has read are sufficient.
///
/// Requirements: CON-019.
#[test]
fn credited_messages_count_as_delivered_without_acknowledgement() {
    let [mut one, mut two] = [5, 1].map(Side::new);
    one.write(5);
    one.deliver(&mut two, 5);
    two.read(3);
    two.write(1);
    two.deliver(&mut one, 1);
    assert_eq!(one.credits.delivered(), 0);
    one.take();
    assert_eq!(one.credits.delivered(), 3);
    assert!(!one.credits.is_calm(), "the device may send the messages again");
    one.hear(5);
    one.take();
    assert_eq!((one.credits.delivered(), one.credits.is_calm()), (5, true));
}

/// Requirements: MSG-014.
#[test]
fn both_sides_send_more_than_their_credits_before_either_reads() {
    // Both sides write and deliver until there is no more progress. Neither side reads.
    let mut steps = Vec::new();
    for _ in 0..20 {
        for what in [0, 2, 3] {
            steps.extend([true, false].map(|first| (first, what, usize::MAX)));
        }
    }
    runs([10 * CREDITS, 10 * CREDITS], &steps);
}
