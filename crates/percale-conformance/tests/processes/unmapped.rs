//! Operations on unmapped memory.

use percale::{ErrorCode, Event, EventQueue};
use percale_conformance::fabric::Shm;
use percale_conformance::memory::{Memory, content, same};
use percale_conformance::mesh::{Mesh, Receive, Send};
use percale_conformance::skipped;

crate::on!(shm: { unmapped_memory_fails_only_its_operation });

/// Long messages from and to unmapped addresses, posted between valid messages. The kernel detects the error.
///
/// Requirements: FLT-011.
fn unmapped_memory_fails_only_its_operation(transport: &str) {
    let events = EventQueue::default();
    let mesh = Mesh::<Shm>::with(2, |domain| domain, |_, endpoint| endpoint.event_queue(&events));
    mesh.connect();
    while let Some(event) = events.read() {
        assert!(matches!(event, Event::Connected { transport: by, .. } if by == transport), "{event:?}");
    }
    let how = mesh.endpoint(0).describe_peers();
    if !how.iter().any(|(_, how)| how.contains("process_vm_readv and process_vm_writev")) {
        return skipped("CMA", "unmapped memory", &format!("the kernel does not copy here: {how:?}"));
    }
    for len in [20_000, 100_000, 4 << 20] {
        for (source, target) in [
            (Memory::unmapped(len), Memory::blank(len)),
            (Memory::content(1, len), Memory::unmapped(len)),
            (Memory::unmapped(len), Memory::unmapped(len)),
        ] {
            let received = mesh.receive(1, Receive::into(target));
            let sent = mesh.send(0, 1, Send::of(source));
            for context in [received, sent] {
                let error = mesh.failed(context);
                assert_eq!((error.error, error.errno()), (ErrorCode::Fault, libc::EFAULT), "{error}");
            }
            let good = Memory::blank(len);
            let received = mesh.receive(1, Receive::into(good));
            let sent = mesh.send(0, 1, Send::of(Memory::content(2, len)));
            mesh.done(received);
            mesh.done(sent);
            same(&good.read(), &content(2, len), "a message after one that failed");
        }
    }
    assert_eq!(events.read(), None, "the connection is established");
}
