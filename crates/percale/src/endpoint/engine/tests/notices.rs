//! Tests of notices of accesses: notices that arrive after their region was closed and another region got its key, and
//! notices that a full link did not take.

use super::*;
use crate::region::Access;
use crate::wire::head::{FrameKind, WriteNotice};
use crate::{Counter, Entry, Region, RemoteMemory};

const KEY: u64 = 0x1234;
const DATA: u64 = 99;
/// A length that does not fit into one frame.
const LONG: usize = 64 << 10;

/// An initiator, and a target that gets the notices of accesses to its regions late.
struct Scene {
    a: TestEndpoint,
    b: TestEndpoint,
    to_b: PeerAddress,
    /// The queue in which the target reports the writes of peers.
    queue: CompletionQueue,
}

impl Scene {
    fn new(transport: &str) -> Self {
        let queue = CompletionQueue::default();
        let (a, b) = (TestEndpoint::new(transport), TestEndpoint::reporting(transport, Trust::SameUser, &queue));
        let to_b = connect(&a, &b);
        Self { a, b, to_b, queue }
    }

    /// Registers a region with the key that all regions of the test have, and a counter that counts writes to it. Peers
    /// of this user can map its memory.
    fn region(&self) -> (Region, Counter) {
        let counter = Counter::new();
        let rights = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        let memory = self.b.domain.allocate(LONG).unwrap();
        let registration = self.b.domain.registration(rights).key(KEY).counter(&counter);
        (registration.own(memory).unwrap(), counter)
    }

    /// Makes progress at the target alone until the region's first byte is this.
    fn until_written(&self, region: &Region, byte: u8) {
        let written = || {
            let mut first = [0];
            region.read(0, &mut first);
            (first[0] == byte).then_some(())
        };
        until(&[&self.b], written);
    }

    /// Sends messages to the target without using the engine, until the link takes no notice any more.
    fn fill_link(&self) {
        let slot = self.a.slot(&self.b);
        self.a.engine(|engine| {
            let link = engine.links[slot as usize].as_mut().expect("the endpoints are connected");
            for len in [1000, size_of::<WriteNotice>()] {
                let head = Head { kind: FrameKind::Tagged, tag: 3, len: len as u32, ..Head::default() };
                while Segments::lend(&vec![3; len], |payload| link.send(&head, payload, false)).is_ok() {}
            }
        });
    }

    /// Sends a message that follows everything that the initiator has sent.
    fn barrier(&self) {
        let mut receive = self.b.endpoint.tagged_recv(2, 0, vec![0; 8]).start().unwrap();
        let mut send = self.a.endpoint.tagged_send(self.to_b, 2, vec![0; 8]).start().unwrap();
        until(&[&self.a, &self.b], || (send.is_ready() && receive.is_ready()).then_some(()));
        send.wait().unwrap();
        receive.wait().unwrap();
    }

    /// Returns the data of a write of a peer that the target reported.
    fn reported(&self) -> Option<u64> {
        let mut entries = [Entry::default()];
        (self.queue.read(&mut entries).unwrap() > 0).then(|| entries[0].data)
    }

    fn assert_told_of_nothing(&self, counter: &Counter, what: &str) {
        self.barrier();
        assert_eq!((counter.read(), self.reported()), (0, None), "{what}: another region had the key");
    }
}

/// Requirements: RMA-003, BIND-001.
#[test]
fn direct_write_notice_applies_to_the_written_region() {
    let scene = Scene::new("shm");
    let (Scene { a, b, to_b, .. }, (region, counter)) = (&scene, scene.region());
    let remote: RemoteMemory = region.remote().at(0..8);
    let mut write = a.endpoint.write(*to_b, vec![1; 8], remote).start().unwrap();
    until(&[a, b], || write.is_ready().then_some(()));
    write.wait().unwrap();
    until(&[a, b], || (counter.read() == 1).then_some(()));
    // Now the region is granted: this write ends before the target makes progress.
    let mut write = a.endpoint.write(*to_b, vec![2; 8], remote).data(DATA).start().unwrap();
    until(&[a], || write.is_ready().then_some(()));
    write.wait().unwrap();
    region.close().unwrap();
    let (_region, other) = scene.region();
    scene.assert_told_of_nothing(&other, "a write");
    assert_eq!(counter.read(), 1);
}

/// A message that was posted after a write arrives after the notice of the write, even if the link was full when the
/// write was made, and has room when the message is posted.
///
/// Requirements: RMA-003, RMA-006.
#[test]
fn message_does_not_overtake_the_notice_of_an_earlier_write() {
    let scene = Scene::new("shm");
    let (Scene { a, b, to_b, .. }, (region, counter)) = (&scene, scene.region());
    let remote: RemoteMemory = region.remote().at(0..8);
    let mut write = a.endpoint.write(*to_b, vec![1; 8], remote).start().unwrap();
    until(&[a, b], || write.is_ready().then_some(()));
    write.wait().unwrap();
    until(&[a, b], || (counter.read() == 1).then_some(()));
    // Now the region is granted: this write ends before the target makes progress.
    scene.fill_link();
    let mut write = a.endpoint.write(*to_b, vec![2; 8], remote).data(DATA).start().unwrap();
    until(&[a], || write.is_ready().then_some(()));
    write.wait().unwrap();
    let slot = a.slot(b);
    assert!(a.engine(|engine| engine.core.peers.get(slot).has_queued_answers()), "the link took the notice");
    // The target makes room before the initiator makes progress.
    (0..1000).for_each(|_| _ = b.endpoint.progress());
    let mut receive = b.endpoint.tagged_recv(8, 0, vec![0; 8]).start().unwrap();
    a.endpoint.tagged_inject(*to_b, 8, &[8; 8]).unwrap();
    (0..1000).for_each(|_| _ = b.endpoint.progress());
    assert!(!receive.is_ready(), "the message arrived before the notice");
    until(&[a, b], || receive.is_ready().then_some(()));
    receive.wait().unwrap();
    assert_eq!((counter.read(), scene.reported()), (2, Some(DATA)));
}

/// Requirements: RMA-003, BIND-001.
#[test]
fn executed_access_notice_applies_to_the_written_region() {
    let scene = Scene::new("tcp");
    let Scene { a, to_b, .. } = &scene;
    let (region, counter) = scene.region();
    let mut write = a.endpoint.write(*to_b, vec![1; LONG], region.remote()).data(DATA).start().unwrap();
    a.endpoint.progress();
    scene.until_written(&region, 1);
    region.close().unwrap();
    let (region, other) = scene.region();
    until(&[a], || write.is_ready().then_some(()));
    write.wait().unwrap();
    scene.assert_told_of_nothing(&other, "a write");
    assert_eq!(counter.read(), 0);
    // For an atomic operation the notice is only for the report.
    let mut add = a.endpoint.fetch_add(*to_b, region.remote().at(0..8), 2_u64).data(DATA).start().unwrap();
    a.endpoint.progress();
    scene.until_written(&region, 2);
    region.close().unwrap();
    let (region, another) = scene.region();
    until(&[a], || add.is_ready().then_some(()));
    add.wait().unwrap();
    scene.assert_told_of_nothing(&another, "an atomic operation");
    assert_eq!(other.read(), 1, "the operation was counted when it was executed");
    // A notice that arrives in time is counted and reported.
    let mut write = a.endpoint.write(*to_b, vec![1; LONG], region.remote()).data(DATA).start().unwrap();
    until(&[a, &scene.b], || write.is_ready().then_some(()));
    write.wait().unwrap();
    scene.barrier();
    assert_eq!((another.read(), scene.reported()), (1, Some(DATA)));
}
