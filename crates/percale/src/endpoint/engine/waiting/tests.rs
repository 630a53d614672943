//! Tests of sleepers without an engine, a bell or a descriptor.

use super::*;

const ALL: [Rouse; 2] = [Rouse::Event, Rouse::Word];

fn modes(waiting: &Waiting) -> [Rouse; 2] {
    ALL.map(|one| waiting.mode_with(one))
}

#[test]
fn bell_wakes_each_kind_of_sleeper() {
    let mut waiting = Waiting::default();
    assert!(!waiting.any());
    assert_eq!(modes(&waiting), ALL);
    waiting.fall_asleep(SleepsOn::Bell);
    assert_eq!(modes(&waiting), [Rouse::Both, Rouse::Word]);
    waiting.fall_asleep(SleepsOn::Descriptor);
    assert_eq!(modes(&waiting), [Rouse::Both, Rouse::Both]);
    waiting.wake_up(SleepsOn::Bell);
    assert_eq!(modes(&waiting), [Rouse::Event, Rouse::Both]);
    waiting.wake_up(SleepsOn::Descriptor);
    assert!(!waiting.any() && modes(&waiting) == ALL);
}

#[test]
fn watcher_counts_as_asleep_permanently() {
    let mut waiting = Waiting::default();
    waiting.watch();
    assert!(waiting.any() && waiting.is_watched());
    assert_eq!(modes(&waiting), [Rouse::Event, Rouse::Both]);
    waiting.fall_asleep(SleepsOn::Bell);
    waiting.wake_up(SleepsOn::Bell);
    assert!(waiting.any());
}

#[test]
fn sleepers_waiting_for_results_are_counted() {
    let mut waiting = Waiting::default();
    waiting.watch();
    assert!(!waiting.any_for_results(), "it may wait for messages alone");
    waiting.watch_results();
    assert!(waiting.any_for_results());
    let mut waiting = Waiting::default();
    waiting.fall_asleep(SleepsOn::Bell);
    assert!(waiting.any_for_results() && waiting.any_on_the_bell());
    waiting.wake_up(SleepsOn::Bell);
    assert!(!waiting.any_for_results() && !waiting.any_on_the_bell());
}

#[test]
fn nap_duration_grows_while_idle_and_resets_after_a_result() {
    let mut waiting = Waiting::default();
    let naps: Vec<Duration> = (0..200).map(|_| waiting.nap(1)).collect();
    assert!(naps.is_sorted() && naps[..PATIENCE as usize - 1].iter().all(|nap| *nap == NAP));
    assert_eq!(naps.last(), Some(&(NAP * 32)));
    assert!(waiting.naps_long());
    assert_eq!(waiting.nap(2), NAP, "there was a result");
    assert!(!waiting.naps_long());
    (0..200).for_each(|_| _ = waiting.nap(2));
    waiting.shorten_naps();
    assert_eq!((waiting.naps_long(), waiting.nap(2)), (false, NAP));
}

#[test]
fn a_reader_that_finds_nothing_makes_progress_at_every_fourth_read() {
    let mut pace = ReadPace::new();
    pace.begin_progress();
    pace.allow_glances();
    let mut glances = 0;
    loop {
        pace.count();
        assert!(!pace.is_progress_due());
        if !pace.may_glance() {
            break;
        }
        glances += 1;
    }
    assert_eq!(glances, GLANCES - 1);
    pace.begin_progress();
    pace.count();
    assert!(!pace.may_glance(), "not before everything was polled once more");
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
    pace.owe_progress();
    assert!(pace.is_progress_due(), "something was sent that leaves only with progress");
}

#[test]
fn optional_work_is_polled_only_while_present() {
    assert!(!Attention::new(false, false).any());
    assert!(Attention::new(true, false).any() && Attention::new(false, true).any());
    let mut attention = Attention::new(true, false);
    attention.set_role(false);
    assert!(!attention.any() && !attention.triggers());
    attention.expect_triggers();
    assert!(attention.any() && attention.triggers());
    attention.set_role(true);
    attention.set_role(false);
    assert!(attention.any(), "operations have waited");
}
