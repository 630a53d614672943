//! Tests of sleepers without an engine, a doorbell or a descriptor.

use super::*;

const ALL: [WakeMethod; 2] = [WakeMethod::Event, WakeMethod::Word];

fn modes(waiting: &Sleepers) -> [WakeMethod; 2] {
    ALL.map(|one| waiting.mode_with(one))
}

#[test]
fn doorbell_wakes_each_kind_of_sleeper() {
    let mut waiting = Sleepers::default();
    assert!(!waiting.any());
    assert_eq!(modes(&waiting), ALL);
    waiting.add_sleeper(SleepsOn::Doorbell);
    assert_eq!(modes(&waiting), [WakeMethod::Both, WakeMethod::Word]);
    waiting.add_sleeper(SleepsOn::Descriptor);
    assert_eq!(modes(&waiting), [WakeMethod::Both, WakeMethod::Both]);
    waiting.wake_up(SleepsOn::Doorbell);
    assert_eq!(modes(&waiting), [WakeMethod::Event, WakeMethod::Both]);
    waiting.wake_up(SleepsOn::Descriptor);
    assert!(!waiting.any() && modes(&waiting) == ALL);
}

#[test]
fn watcher_counts_as_asleep_permanently() {
    let mut waiting = Sleepers::default();
    waiting.watch();
    assert!(waiting.any() && waiting.is_watched());
    assert_eq!(modes(&waiting), [WakeMethod::Event, WakeMethod::Both]);
    waiting.add_sleeper(SleepsOn::Doorbell);
    waiting.wake_up(SleepsOn::Doorbell);
    assert!(waiting.any());
}

#[test]
fn sleepers_waiting_for_results_are_counted() {
    let mut waiting = Sleepers::default();
    waiting.watch();
    assert!(!waiting.any_for_results(), "the sleeper may wait only for messages");
    waiting.watch_results();
    assert!(waiting.any_for_results());
    let mut waiting = Sleepers::default();
    waiting.add_sleeper(SleepsOn::Doorbell);
    assert!(waiting.any_for_results() && waiting.any_on_doorbell());
    waiting.wake_up(SleepsOn::Doorbell);
    assert!(!waiting.any_for_results() && !waiting.any_on_doorbell());
}

#[test]
fn nap_duration_grows_while_idle_and_resets_after_a_result() {
    let mut waiting = Sleepers::default();
    let naps: Vec<Duration> = (0..200).map(|_| waiting.nap(1)).collect();
    assert!(naps.is_sorted() && naps[..EMPTY_POLLS as usize - 1].iter().all(|nap| *nap == NAP));
    assert_eq!(naps.last(), Some(&(NAP * 32)));
    assert!(waiting.naps_long());
    assert_eq!(waiting.nap(2), NAP, "a result resets the delay");
    assert!(!waiting.naps_long());
    (0..200).for_each(|_| _ = waiting.nap(2));
    waiting.shorten_naps();
    assert_eq!((waiting.naps_long(), waiting.nap(2)), (false, NAP));
}

#[test]
fn a_reader_that_finds_nothing_makes_progress_at_every_fourth_read() {
    let mut pace = ReadPace::new();
    pace.begin_progress();
    pace.allow_peeks();
    let mut peeks = 0;
    loop {
        pace.count();
        assert!(!pace.is_progress_due());
        if !pace.may_peek_only() {
            break;
        }
        peeks += 1;
    }
    assert_eq!(peeks, EMPTY_READS_PER_PROGRESS - 1);
    pace.begin_progress();
    pace.count();
    assert!(!pace.may_peek_only(), "everything must be polled once more first");
}

#[test]
fn a_reader_that_always_finds_results_makes_progress_at_every_sixteenth_read() {
    let mut pace = ReadPace::new();
    let reads = (1..).find(|_| {
        pace.count();
        pace.is_progress_due()
    });
    assert_eq!(reads, Some(16));
    pace.begin_progress();
    pace.require_progress();
    assert!(pace.is_progress_due(), "sending requires progress");
}

#[test]
fn optional_work_is_polled_only_while_present() {
    assert!(!OptionalWork::new(false, false).any());
    assert!(OptionalWork::new(true, false).any() && OptionalWork::new(false, true).any());
    let mut optional_work = OptionalWork::new(true, false);
    optional_work.set_role(false);
    assert!(!optional_work.any() && !optional_work.triggers());
    optional_work.expect_triggers();
    assert!(optional_work.any() && optional_work.triggers());
    optional_work.set_role(true);
    optional_work.set_role(false);
    assert!(optional_work.any(), "operations have been deferred");
}
