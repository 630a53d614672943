//! Tests of the progress that reads of results make.

use super::owned::next;
use super::*;
use crate::Entry;
use crate::endpoint::engine::types::Notify;
use crate::endpoint::work::{OpFlags, SendWork};
use crate::local_memory::buffer::Buffer;
use crate::local_memory::buffer::BufferExt as _;

/// A thread that reads one result at a time makes progress while others wait, so that its peers are served.
#[test]
fn reader_that_always_finds_results_makes_progress() {
    const RESULTS: u64 = 100;
    let (a, b) = (TestEndpoint::new("shm"), TestEndpoint::new("shm"));
    let (to_b, to_a) = (connect(&a, &b), b.peer(&a));
    let bytes = Buffer::from(vec![1; 8]);
    for context in 0..RESULTS {
        let segments = Segments::one(bytes.segment_for_send());
        let work = SendWork { peer: to_b, segments, tag: Some(1), data: None, context, flags: OpFlags::COMPLETION };
        a.engine(|engine| engine.post_send(&work, Notify::Event)).unwrap();
        b.endpoint.progress();
    }
    // The first read after the sends makes progress in any case.
    until(&[&a], || a.engine(|engine| engine.poller.busy.is_empty()).then_some(()));
    let mut entry = [Entry::default()];
    assert_eq!(a.endpoint.poll(&mut entry), Ok(1));
    b.endpoint.tagged_inject(to_a, 7, &[7; 8]).unwrap();
    let has_arrived = || a.engine(|engine| engine.core.messages.table(true).holds_any());
    assert!(!has_arrived(), "the message is in the ring");
    for _ in 2..RESULTS {
        assert_eq!(a.endpoint.poll(&mut entry), Ok(1));
    }
    assert!(has_arrived(), "no read made progress while results waited");
    assert!(a.engine(|engine| next(&mut engine.core.reporting)).is_some(), "every read found a result");
}
