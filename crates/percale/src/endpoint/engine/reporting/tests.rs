//! Tests of reporting without an engine.

use super::*;
use crate::completion::counter::Counter;
use crate::completion::entry::{CompletionFlags, ErrorCode};
use crate::endpoint::counted::Counted;

fn entry(context: u64) -> Entry {
    Entry { context, ..Entry::default() }
}

fn next(reporting: &mut Reporting) -> Option<u64> {
    let mut entries = [Entry::default()];
    (reporting.read(&mut entries).unwrap() == 1).then(|| entries[0].context)
}

#[test]
fn results_without_shared_queue_are_in_endpoint_queue_in_order() {
    let mut reporting = Reporting::new(Targets::default(), false);
    assert!(reporting.is_empty() && !reporting.is_receive_fast_path_disabled());
    reporting.reserve(Side::Transmit).unwrap();
    reporting.push(Side::Transmit, entry(1));
    reporting.push_event(Side::Receive, entry(2));
    assert_eq!([next(&mut reporting), next(&mut reporting), next(&mut reporting)], [Some(1), Some(2), None]);
}

#[test]
fn each_direction_reports_to_its_shared_queue() {
    let [transmit, receive] = [CompletionQueue::default(), CompletionQueue::default()];
    let (to_transmit, to_receive) = (Some(transmit.clone()), Some(receive.clone()));
    let targets = Targets { transmit: to_transmit, receive: to_receive, ..Targets::default() };
    let mut reporting = Reporting::new(targets, false);
    reporting.reserve(Side::Transmit).unwrap();
    reporting.push(Side::Transmit, entry(1));
    reporting.push_error_event(Side::Receive, ErrorEntry::new(entry(2), ErrorCode::Canceled));
    let mut entries = [Entry::default()];
    assert_eq!((transmit.read(&mut entries).unwrap(), entries[0].context), (1, 1));
    assert!(receive.read(&mut entries).is_err());
    assert_eq!(receive.read_error().unwrap().entry.context, 2);
    assert!(reporting.is_empty());
    assert!(
        reporting.transmit_path().1 && reporting.receive_path().1,
        "a fast path would use the endpoint's own queue"
    );
}

#[test]
fn reservation_is_consumed_by_a_report_or_returned() {
    let queue = CompletionQueue::default();
    let targets = Targets { transmit: Some(queue), ..Targets::default() };
    for mut reporting in [Reporting::new(Targets::default(), false), Reporting::new(targets, false)] {
        let mut posted = 0;
        while reporting.reserve(Side::Transmit).is_ok() {
            posted += 1;
        }
        assert!(posted > 0);
        reporting.unreserve(Side::Transmit);
        reporting.reserve(Side::Transmit).expect("the room that was given back");
        assert!(reporting.reserve(Side::Transmit).is_err(), "more room than there is");
    }
}

#[test]
fn every_result_and_change_increases_the_number_of_results() {
    let queue = CompletionQueue::default();
    let targets = Targets { receive: Some(queue), ..Targets::default() };
    let mut reporting = Reporting::new(targets, false);
    let mut before = reporting.results();
    let mut grows = |reporting: &Reporting, what: &str| {
        assert!(reporting.results() > before, "{what}");
        before = reporting.results();
    };
    reporting.reserve(Side::Transmit).unwrap();
    reporting.push(Side::Transmit, entry(1));
    grows(&reporting, "a success");
    reporting.push_event(Side::Receive, entry(2));
    grows(&reporting, "a success in a shared queue");
    reporting.push_error_event(Side::Transmit, ErrorEntry::new(entry(3), ErrorCode::Io));
    grows(&reporting, "a failure");
    reporting.count_change();
    grows(&reporting, "a change");
    // A fast path pushes to the queue itself.
    let (own, _) = reporting.transmit_path();
    own.reserve().unwrap();
    own.push(entry(4));
    grows(&reporting, "a result of a fast path");
}

#[test]
fn counted_operations_skip_the_fast_path() {
    let mut reporting = Reporting::new(Targets::default(), false);
    let counter = Counter::default();
    reporting.change_counters(|counters| counters.set(Counted::READS, &counter));
    assert!(reporting.is_counted(Side::Transmit) && reporting.transmit_path().1);
    assert!(!reporting.is_counted(Side::Receive) && !reporting.receive_path().1);
    assert_eq!(reporting.counters().has_any(Counted::SENDS), None);
    assert_eq!(reporting.counters().has_any(Counted::all()), Some("reads"));
    assert!(reporting.counters().of(CompletionFlags::READ).is_some_and(|found| found.is_same(&counter)));
    assert!(reporting.counters().of(CompletionFlags::SEND).is_none());
    assert_eq!(reporting.sources().len(), 1);
}

#[test]
fn receives_skip_the_fast_path_while_any_reason_holds() {
    let mut reporting = Reporting::new(Targets::default(), true);
    assert!(reporting.is_receive_fast_path_disabled());
    reporting.disable_receive_fast_path(false);
    assert!(!reporting.is_receive_fast_path_disabled());
    let queue = Some(CompletionQueue::default());
    let mut reporting = Reporting::new(Targets { receive: queue, ..Targets::default() }, true);
    reporting.disable_receive_fast_path(false);
    assert!(reporting.is_receive_fast_path_disabled(), "the results go to a shared queue");
}

/// Without room an endpoint polls no links, so an application that reads no results does not make them accumulate.
///
/// Requirements: CMP-009.
#[test]
fn unread_results_of_receives_leave_no_room() {
    const LIMIT: u64 = 8;
    let queue = CompletionQueue::new(1, LIMIT as usize);
    let targets = Targets { receive: Some(queue.clone()), ..Targets::default() };
    for (mut reporting, shared) in
        [(Reporting::new(Targets::default(), false), false), (Reporting::new(targets, false), true)]
    {
        reporting.own = Ring::new(1, LIMIT as usize);
        for context in 0..LIMIT {
            assert!(reporting.has_room(), "{context} results wait, shared queue: {shared}");
            reporting.push_event(Side::Receive, entry(context));
        }
        assert!(!reporting.has_room(), "shared queue: {shared}");
        let read = if shared { queue.read(&mut [Entry::default()]) } else { reporting.read(&mut [Entry::default()]) };
        assert_eq!((read, reporting.has_room()), (Ok(1), true), "shared queue: {shared}");
    }
}
