//! Accesses and messages that are too long. A single rejection ends an access. A message that exceeds the maximum
//! length is not posted.

#![expect(unsafe_code, reason = "posts operations on memory that is never accessed: each of them is rejected")]

use std::time::{Duration, Instant};

use percale::{
    CompletionQueue, OpFlags, PeerAddress, PostError, RemoteMemory, RemotePieces, RmaWork, Segment, Segments, SendWork,
};
use percale_conformance::peers::{Open, domain, open_in};
use percale_conformance::watchdog::Watchdog;

use super::{ALL, work};

crate::on!(shm, tcp: { one_refusal_ends_a_long_access });

/// Returns memory at an unmapped address, which rejected operations do not access.
fn nowhere(len: usize) -> Segments {
    // SAFETY: the operations with this segment are rejected before they read or write it.
    Segments::one(unsafe { Segment::new(std::ptr::without_provenance_mut(4096), len) })
}

/// Requirements: RMA-016.
fn one_refusal_ends_a_long_access(transport: &str) {
    let _watchdog = Watchdog::new("one rejection ends a long access");
    let domain = domain(transport, |domain| domain);
    let queue = CompletionQueue::default();
    let a = open_in(&domain, "127.0.0.1:0", |endpoint| endpoint.transmit_queue(&queue));
    let b = open_in(&domain, "127.0.0.1:0", |endpoint| endpoint);
    let peer = a.insert(&b.endpoint.address().to_string());
    let region = b.domain.registration(ALL).own(vec![7; 64]).expect("a region");
    let known = region.remote();
    let both = || {
        work(&a);
        b.endpoint.progress();
    };
    // Lengths with more parts than could be rejected one by one in this time: 2^47 bytes are 4 million parts.
    for len in [1_u64 << 40, 1 << 47, (1 << 62) + 5] {
        for (name, write) in [("read", false), ("write", true)] {
            for place in [RemoteMemory { len, ..known }, RemoteMemory { key: known.key ^ 0x5a5a, len, ..known }] {
                let (local, remote) = (nowhere(len as usize), RemotePieces::one(place));
                let work = RmaWork { peer, local, remote, data: None, context: 5, flags: OpFlags::COMPLETION };
                let start = Instant::now();
                let posted = if write {
                    // SAFETY: the operation is rejected.
                    unsafe { a.endpoint.post_write(&work) }
                } else {
                    // SAFETY: as above.
                    unsafe { a.endpoint.post_read(&work) }
                };
                posted.unwrap_or_else(|error| panic!("a {name} of {len} bytes: {error}"));
                let error = loop {
                    if let Some(error) = queue.read_error() {
                        break error;
                    }
                    assert!(start.elapsed() < Duration::from_secs(30), "a {name} of {len} bytes does not end");
                    both();
                };
                assert_eq!(error.entry.context, 5, "{error:?}");
                println!("{transport}: a {name} of {len} bytes: {:?} after {:?}", error.error, start.elapsed());
            }
        }
    }
    too_long(&a, peer);
    // Later operations succeed.
    let mut read = a.endpoint.read(peer, known, vec![0; 64]).start().expect("a read");
    a.until(|| {
        b.endpoint.progress();
        read.is_ready()
    });
    assert_eq!(read.wait().expect("the read is allowed").into_vec(), vec![7; 64]);
}

/// Posts operations that are too long to a connected peer.
fn too_long(a: &Open, peer: PeerAddress) {
    let len = (isize::MAX as usize) + 1;
    let segments = nowhere(len);
    let work = SendWork { peer, segments, tag: Some(1), data: None, context: 6, flags: OpFlags::COMPLETION };
    // SAFETY: the operation is rejected.
    assert_eq!(unsafe { a.endpoint.post_send(&work) }, Err(PostError::TooLong(len)));
    let remote = RemotePieces::one(RemoteMemory { key: 1, address: 0, len: len as u64 });
    let work = RmaWork { peer, local: segments, remote, data: None, context: 6, flags: OpFlags::COMPLETION };
    // SAFETY: the operation is rejected.
    assert_eq!(unsafe { a.endpoint.post_write(&work) }, Err(PostError::TooLong(len)));
}
