//! Tests of an application that does not read its completion queue while peers send to it.

use super::*;
use crate::Entry;
use crate::region::Access;

/// The number of results that a queue takes before its endpoint stops polling, and the number that one poll of a link
/// may add: a batch of frames of shared memory, or the content of a socket's buffer.
const LIMIT: usize = 8;
const BATCHES: [(&str, usize, u64); 2] = [("shm", 16, 3000), ("tcp", 2048, 20_000)];

/// Requirements: CMP-009.
#[test]
fn remote_completion_data_does_not_overflow_an_unread_queue() {
    for (transport, batch, count) in BATCHES {
        let queue = CompletionQueue::new(1, LIMIT);
        let (writer, target) = (TestEndpoint::new(transport), TestEndpoint::reporting(transport, Trust::None, &queue));
        let peer = connect(&writer, &target);
        let region = target.domain.register(vec![0; 8], Access::REMOTE_WRITE).unwrap();
        let write = |data: u64| {
            writer.endpoint.write(peer, data.to_le_bytes().to_vec(), region.remote()).data(data).start().unwrap()
        };
        let writes: Vec<_> = (0..count).map(write).collect();
        until(&[&writer, &target], || (queue.len() >= LIMIT).then_some(()));
        for _ in 0..2000 {
            writer.endpoint.progress();
            target.endpoint.progress();
            // The endpoint does not poll either when it prepares to sleep.
            target.endpoint.try_wait();
            assert!(queue.len() < LIMIT + batch, "{transport}: {} results wait", queue.len());
        }
        assert!(writer.finished() < count, "{transport}: all writes completed although the queue is not read");
        // Nothing is lost: once the results are read, the remaining messages arrive.
        let mut next = 0;
        let mut entries = [Entry::default(); 64];
        until(&[&writer, &target], || {
            let got = queue.read(&mut entries).unwrap();
            for entry in &entries[..got] {
                assert_eq!(entry.data, next, "{transport}");
                next += 1;
            }
            (next == count).then_some(())
        });
        until(&[&writer, &target], || writes.iter().all(|_| writer.finished() > count).then_some(()));
        writes.into_iter().for_each(|mut write| drop(write.wait().unwrap()));
    }
}
