//! Shortens a run (delta debugging): removes steps while the run still finds the same kind of fault.

use std::time::{Duration, Instant};

use super::spawn::batch;
use super::{Fault, RunPlan, RunTransport, likeness};

/// The time limit for shortening in a search.
pub(super) const LIMIT: Duration = Duration::from_secs(20);

/// The time limit of the command `shorten`. Long runs have thousands of steps.
pub(super) const LONGEST: Duration = Duration::from_secs(20 * 60);

/// Formats indices as `3,5-9`.
pub(super) fn text(indices: &[usize]) -> String {
    let mut parts: Vec<(usize, usize)> = Vec::new();
    for index in indices {
        match parts.last_mut() {
            Some((_, last)) if *last + 1 == *index => *last = *index,
            _ => parts.push((*index, *index)),
        }
    }
    let text =
        |(first, last): &(usize, usize)| if first == last { first.to_string() } else { format!("{first}-{last}") };
    if parts.is_empty() { "-".into() } else { parts.iter().map(text).collect::<Vec<_>>().join(",") }
}

/// Parses the format of [`text`].
pub(super) fn indices(text: &str) -> Vec<usize> {
    let part = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse().ok()?..=last.parse().ok()?)
    };
    text.split(',').filter_map(part).flatten().collect()
}

/// Returns the steps that are sufficient to reproduce the fault, and the original number of steps. Returns `None` if
/// the fault does not recur.
pub(super) fn shrink(
    transport: RunTransport,
    seed: u64,
    fault: &Fault,
    limit: Duration,
) -> Option<(Vec<usize>, usize)> {
    let begin = Instant::now();
    let wanted = likeness(fault);
    let shows = |kept: &[usize]| {
        // If other threads run, a fault does not recur every time.
        let times = if matches!(transport, RunTransport::Sim | RunTransport::Loopback) { 1 } else { 3 };
        let mut tries = (0..times).map(|_| batch(transport, seed, Duration::ZERO, Some(&text(kept))).fault);
        let again = tries.find_map(|found| found);
        again.is_some_and(|(_, _, again)| {
            again.kind == fault.kind && (fault.kind != "panicked" || likeness(&again) == wanted)
        })
    };
    let all = RunPlan::new(seed, transport).steps.len();
    let mut kept: Vec<usize> = (0..all).collect();
    if !shows(&kept) {
        return None;
    }
    let mut size = all.div_ceil(2).max(1);
    loop {
        let mut at = 0;
        let mut is_shorter = false;
        while at < kept.len() && begin.elapsed() < limit {
            let end = (at + size).min(kept.len());
            let without: Vec<usize> = kept[..at].iter().chain(&kept[end..]).copied().collect();
            if shows(&without) {
                (kept, is_shorter) = (without, true);
            } else {
                at = end;
            }
        }
        if begin.elapsed() >= limit || (size == 1 && !is_shorter) {
            return Some((kept, all));
        }
        size = if size == 1 { 1 } else { size.div_ceil(2) };
    }
}

#[cfg(test)]
mod tests {
    use super::{indices, text};

    #[test]
    fn indices_round_trip_through_text() {
        for list in [vec![], vec![3], vec![0, 1, 2, 5, 9, 10]] {
            assert_eq!(indices(&text(&list)), list);
        }
    }
}
