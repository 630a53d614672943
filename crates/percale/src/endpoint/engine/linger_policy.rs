//! Decides whether a poll that found nothing watches the rings for a while before it returns.
//!
//! A waiting application polls, and does other work between two polls: Open MPI polls its other components, and MPICH
//! yields the processor, which takes longer than a message. A message that arrives meanwhile is not read. Therefore, if
//! a receive is posted, a poll lingers for at most [`AT_MOST`], on one of two conditions:
//! * The application spins: its last poll also found nothing, and ended less than [`AT_ONCE`] ago. An application that
//!   computes between two polls is not delayed. An application with more processes than processors is not delayed
//!   either, because a yield that lets other processes run takes longer than [`AT_ONCE`].
//! * Lingering was successful the last time. After an unsuccessful attempt this condition no longer holds, so an
//!   application that sends, computes and polls loses that time only once.
//!
//! After a number of unsuccessful attempts in a row, no poll lingers until one has found a result. An application that
//! polls in short steps of its work looks as if it were waiting: HPCC's MPIRandomAccess tests for a message after each
//! update. So the number adapts: it is halved when it was used up, and doubled, up to [`MAX_UNSUCCESSFUL`], when
//! lingering was successful. With a constant number of [`MAX_UNSUCCESSFUL`], that benchmark took 2.0 s instead of 0.7 s
//! on two processes over shared memory. An application that really waits has waited for 24 µs by then, so the work that
//! it does between two polls makes little difference.

use std::num::NonZeroU64;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// The longest time that a poll lingers.
pub(super) const AT_MOST: Duration = Duration::from_nanos(1500);

/// A poll that begins this soon after one that found nothing comes from an application that spins.
const AT_ONCE: Duration = Duration::from_nanos(1000);

/// The largest number of unsuccessful attempts in a row.
const MAX_UNSUCCESSFUL: u8 = 16;

/// The state of an endpoint that is kept from poll to poll. The type is small, because an idle endpoint should take
/// little memory.
#[derive(Debug)]
pub(super) struct LingerPolicy {
    /// The number of unsuccessful attempts since a poll last found a result.
    unsuccessful: u8,
    /// The number of unsuccessful attempts that are allowed, from 1 to [`MAX_UNSUCCESSFUL`].
    limit: u8,
    /// The end of the last poll that found nothing, in nanoseconds (see [`nanoseconds`]): an `Option<Instant>` takes
    /// twice the memory.
    nothing: Option<NonZeroU64>,
    /// Set if the last lingering read found a result.
    hopeful: bool,
}

impl Default for LingerPolicy {
    fn default() -> Self {
        Self { unsuccessful: 0, limit: MAX_UNSUCCESSFUL, nothing: None, hopeful: false }
    }
}

impl LingerPolicy {
    /// Returns whether a poll that found nothing should linger.
    #[inline]
    pub(super) fn is_worthwhile(&mut self) -> bool {
        self.is_worthwhile_at(Instant::now)
    }

    #[inline]
    fn is_worthwhile_at(&mut self, now: impl FnOnce() -> Instant) -> bool {
        !self.is_over() && (self.hopeful || self.is_soon_at(now()))
    }

    /// Returns whether polls do not linger until one has found a result.
    #[inline]
    pub(super) const fn is_over(&self) -> bool {
        self.unsuccessful >= self.limit
    }

    /// Records that a poll found a result.
    #[inline(always)]
    pub(super) const fn found(&mut self) {
        self.unsuccessful = 0;
    }

    /// Returns whether the last poll that found nothing ended just before, and records this one as the last.
    fn is_soon_at(&mut self, now: Instant) -> bool {
        let now = nanoseconds(now);
        let at_once = AT_ONCE.as_nanos() as u64;
        self.nothing.replace(now).is_some_and(|last| now.get().saturating_sub(last.get()) < at_once)
    }

    /// Records whether a lingering read found a result.
    #[inline]
    pub(super) fn ended(&mut self, came: bool) {
        self.hopeful = came;
        if came {
            (self.unsuccessful, self.nothing) = (0, None);
            self.limit = (2 * self.limit).min(MAX_UNSUCCESSFUL);
            return;
        }
        (self.unsuccessful, self.nothing) = (self.unsuccessful + 1, Some(nanoseconds(Instant::now())));
        if self.unsuccessful >= self.limit {
            // From now on `unsuccessful` is at least the limit, until a poll finds a result.
            self.limit = (self.limit / 2).max(1);
        }
    }
}

/// Returns a time in nanoseconds since the first call, and at least 1.
fn nanoseconds(time: Instant) -> NonZeroU64 {
    static FIRST: OnceLock<Instant> = OnceLock::new();
    let since = time.saturating_duration_since(*FIRST.get_or_init(Instant::now));
    NonZeroU64::MIN.saturating_add(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOMENT: Duration = Duration::from_nanos(300);

    #[test]
    fn lingering_starts_only_while_application_spins() {
        let mut linger = LingerPolicy::default();
        nanoseconds(Instant::now());
        let start = Instant::now();
        assert!(!linger.is_soon_at(start), "the first poll has no poll before it");
        assert!(linger.is_soon_at(start + MOMENT));
        assert!(linger.is_soon_at(start + 2 * MOMENT));
        // The client computed, or other processes ran while it yielded.
        let later = start + 2 * MOMENT + AT_ONCE;
        assert!(!linger.is_soon_at(later));
        assert!(linger.is_soon_at(later + MOMENT));
    }

    #[test]
    fn successful_lingering_is_repeated_until_it_is_unsuccessful() {
        let mut linger = LingerPolicy::default();
        assert!(!linger.is_worthwhile());
        linger.ended(true);
        assert!(linger.is_worthwhile());
        assert!(linger.is_worthwhile(), "lingering stays worthwhile until an attempt fails");
        linger.ended(false);
        assert!(!linger.hopeful);
        assert!(!linger.is_soon_at(Instant::now() + AT_ONCE));
    }

    /// Lingers without success until the policy refuses, and returns the number of attempts.
    fn linger_without_success(linger: &mut LingerPolicy) -> u8 {
        for count in 0.. {
            let last = Instant::now();
            linger.nothing = Some(nanoseconds(last));
            if !linger.is_worthwhile_at(|| last + MOMENT) {
                return count;
            }
            linger.ended(false);
        }
        unreachable!("the limit is finite")
    }

    #[test]
    fn the_limit_halves_while_lingering_fails_and_doubles_when_it_succeeds() {
        let mut linger = LingerPolicy::default();
        for expected in [16, 8, 4, 2, 1, 1] {
            assert_eq!(linger_without_success(&mut linger), expected);
            linger.found();
        }
        // The limit is doubled twice and halved once.
        for expected in [4, 8, 16, 16] {
            linger.ended(true);
            linger.ended(true);
            assert_eq!(linger_without_success(&mut linger), expected);
            linger.found();
        }
    }
}
