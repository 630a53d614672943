//! Decides whether a read that found nothing polls again before it returns.
//!
//! A client that waits polls, and does other work between two polls: Open MPI polls its other components, and MPICH
//! yields the processor, which takes longer than a message. A message that arrives in that time is not read. Therefore,
//! if a receive is posted, a read lingers for at most [`AT_MOST`] on one of two conditions:
//! * The client spins: its previous read also found nothing and was less than [`AT_ONCE`] ago. A client that computes
//!   between two polls is not delayed. If there are more processes than processors, the client is not delayed either,
//!   because a yield to another process takes longer than that.
//! * The last lingering read found a result. A lingering read without a result ends this condition, so a client that
//!   sends, computes and polls loses that time once.
//!
//! After a number of lingering reads without a result in a row, no read lingers until a read has found a result. A
//! client that polls in short steps of its work looks like a client that waits: HPCC's MPIRandomAccess tests for a
//! message after each update. Therefore the number adapts. It is halved when it was reached, and doubled up to
//! [`IN_VAIN`] when lingering found a result. With a constant [`IN_VAIN`], that benchmark took 2.0 s instead of 0.7 s
//! on two processes over shared memory. A client that really waits has waited for 24 µs by then, so its work between
//! two polls matters little.

use std::time::{Duration, Instant};

/// The maximum time for which a read lingers.
pub(super) const AT_MOST: Duration = Duration::from_nanos(1500);

/// The maximum time between two reads of a client that spins.
const AT_ONCE: Duration = Duration::from_nanos(1000);

/// The upper limit of `Linger::limit`.
const IN_VAIN: u32 = 16;

/// The state that is kept between reads.
#[derive(Debug)]
pub(super) struct Linger {
    /// The number of lingering reads without a result since a read found a result.
    in_vain: u32,
    /// The value of `in_vain` at which reads stop lingering, from 1 to [`IN_VAIN`].
    limit: u32,
    /// The end of the last read that found nothing.
    nothing: Option<Instant>,
    /// Set if the last lingering read found a result.
    hopeful: bool,
}

impl Default for Linger {
    fn default() -> Self {
        Self { in_vain: 0, limit: IN_VAIN, nothing: None, hopeful: false }
    }
}

impl Linger {
    /// Returns whether a read that found nothing should linger.
    #[inline]
    pub(super) fn is_worth_while(&mut self) -> bool {
        !self.is_over() && (self.hopeful || self.is_soon_at(Instant::now()))
    }

    /// Returns whether no read lingers until a read has found a result.
    #[inline]
    pub(super) const fn is_over(&self) -> bool {
        self.in_vain >= self.limit
    }

    /// Records that a read found a result.
    #[inline(always)]
    pub(super) const fn found(&mut self) {
        self.in_vain = 0;
    }

    /// Returns whether the previous read that found nothing was less than [`AT_ONCE`] ago, and records the time of this
    /// one.
    fn is_soon_at(&mut self, now: Instant) -> bool {
        self.nothing.replace(now).is_some_and(|last| now.saturating_duration_since(last) < AT_ONCE)
    }

    /// Records whether a lingering read found a result.
    #[inline]
    pub(super) fn ended(&mut self, came: bool) {
        self.hopeful = came;
        if came {
            (self.in_vain, self.nothing) = (0, None);
            self.limit = (2 * self.limit).min(IN_VAIN);
            return;
        }
        (self.in_vain, self.nothing) = (self.in_vain + 1, Some(Instant::now()));
        if self.in_vain >= self.limit {
            // From now on `in_vain` is at least the limit until a result is found.
            self.limit = (self.limit / 2).max(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOMENT: Duration = Duration::from_nanos(300);

    #[test]
    fn only_a_client_that_spins_is_kept() {
        let mut linger = Linger::default();
        let start = Instant::now();
        assert!(!linger.is_soon_at(start), "it may have come from anywhere");
        assert!(linger.is_soon_at(start + MOMENT));
        assert!(linger.is_soon_at(start + 2 * MOMENT));
        // The client computed, or other processes ran while it yielded.
        let later = start + 2 * MOMENT + AT_ONCE;
        assert!(!linger.is_soon_at(later));
        assert!(linger.is_soon_at(later + MOMENT));
    }

    #[test]
    fn what_was_worth_while_is_done_again_until_it_was_in_vain() {
        let mut linger = Linger::default();
        assert!(!linger.is_worth_while());
        linger.ended(true);
        assert!(linger.is_worth_while());
        assert!(linger.is_worth_while(), "whenever that is");
        linger.ended(false);
        assert!(!linger.hopeful);
        assert!(!linger.is_soon_at(Instant::now() + AT_ONCE));
    }

    /// Lingers without a result until reads stop lingering. Returns the number of lingering reads.
    fn linger_in_vain(linger: &mut Linger) -> u32 {
        for count in 0.. {
            linger.nothing = Some(Instant::now() + MOMENT);
            if !linger.is_worth_while() {
                return count;
            }
            linger.ended(false);
        }
        unreachable!("the limit is finite")
    }

    #[test]
    fn a_client_that_polls_for_long_is_kept_more_and_more_briefly_until_lingering_succeeds() {
        let mut linger = Linger::default();
        for expected in [16, 8, 4, 2, 1, 1] {
            assert_eq!(linger_in_vain(&mut linger), expected);
            linger.found();
        }
        // The limit is doubled twice and halved once.
        for expected in [4, 8, 16, 16] {
            linger.ended(true);
            linger.ended(true);
            assert_eq!(linger_in_vain(&mut linger), expected);
            linger.found();
        }
    }
}
