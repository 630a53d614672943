//! Whether a read that found nothing polls again before it returns.
//!
//! Clients that wait poll, and do other things between two polls: Open MPI asks its other components, MPICH yields the processor, which takes longer
//! than a message. A message that arrives meanwhile is not read. So if a receive is posted, a read lingers for [`AT_MOST`] at most, on one of two
//! conditions:
//! * The client spins: its last read found nothing either, and was less than [`AT_ONCE`] ago. A client that computes between two polls is not
//!   delayed. Neither is a client where there are more processes than processors, as a yield that lets others run takes longer than that.
//! * Lingering was successful the last time. An unsuccessful one ends this, so a client that sends, computes and polls loses that time once.
//!
//! After a number of unsuccessful ones in a row, no read lingers until one has found something. A client that polls in short steps of its work
//! looks as if it were waiting: HPCC's MPIRandomAccess tests for a message after each update. So the number adapts: it is halved when it was
//! used up, and doubled, up to [`IN_VAIN`], when lingering was successful. With [`IN_VAIN`] each time, that benchmark took 2.0 s instead of 0.7 on
//! two processes over shared memory. A client that really waits has waited for 24 µs by then, so what it does between two polls matters little.

use std::time::{Duration, Instant};

/// How long a read lingers at most.
pub(super) const AT_MOST: Duration = Duration::from_nanos(1500);

/// A read so soon after one that found nothing comes from a client that spins.
const AT_ONCE: Duration = Duration::from_nanos(1000);

/// How often in a row reads linger without success, at most.
const IN_VAIN: u32 = 16;

/// The state that is kept from read to read.
#[derive(Debug)]
pub(super) struct Linger {
    /// How often reads have lingered without success since something was found.
    in_vain: u32,
    /// How often they may, from 1 to [`IN_VAIN`].
    limit: u32,
    /// The end of the last read that found nothing.
    nothing: Option<Instant>,
    /// Lingering was successful the last time.
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

    /// Whether no read lingers until one has found something.
    #[inline]
    pub(super) const fn is_over(&self) -> bool {
        self.in_vain >= self.limit
    }

    /// Records that a read found something.
    #[inline(always)]
    pub(super) const fn found(&mut self) {
        self.in_vain = 0;
    }

    /// Whether the last read that found nothing was just before; records this one as the last.
    fn is_soon_at(&mut self, now: Instant) -> bool {
        self.nothing.replace(now).is_some_and(|last| now.saturating_duration_since(last) < AT_ONCE)
    }

    /// Records whether lingering found something.
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
            // From now on `in_vain` is at least the limit, until something is found.
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
        // It computed, or others ran while it yielded.
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

    /// Lingers without success until reads linger no more; returns how often.
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
        // Twice doubled and once halved.
        for expected in [4, 8, 16, 16] {
            linger.ended(true);
            linger.ended(true);
            assert_eq!(linger_in_vain(&mut linger), expected);
            linger.found();
        }
    }
}
