//! Tests of messages of which only a part has arrived when their sender exits, their receive is canceled, or they are
//! discarded.

use std::os::fd::AsFd;

use zerocopy::IntoBytes;

use super::super::types::Notify;
use super::*;
use crate::completion::entry::{CompletionFlags, Entry, ErrorCode, ErrorEntry};
use crate::endpoint::work::{OpFlags, ReceiveWork};
use crate::local_memory::buffer::{Buffer, BufferExt as _};
use crate::transport::any::AnyLink;
use crate::transport::testing::SinkReport;
use crate::wire::head::{Flags, FrameKind};

/// The length of the messages, and of the part that arrives first.
const LEN: usize = 1000;
const PART: usize = 400;
/// The tag of the tagged messages.
const TAG: u64 = 5;
/// The number of the messages that request an acknowledgement.
const ID: u32 = 77;

/// A receiver, a peer that sends messages to it without using its engine, and an honest peer.
struct Scene {
    /// `None` once the sender has exited.
    sender: Option<TestEndpoint>,
    honest: TestEndpoint,
    receiver: TestEndpoint,
    /// The receiver's address in the vector of the honest peer.
    to_receiver: PeerAddress,
    /// The queue in which the receiver reports its receives.
    queue: CompletionQueue,
}

impl Scene {
    fn new() -> Self {
        let queue = CompletionQueue::default();
        let receiver = TestEndpoint::reporting("tcp", Trust::SameUser, &queue);
        let [sender, honest] = [(); 2].map(|()| TestEndpoint::new("tcp"));
        connect(&sender, &receiver);
        let to_receiver = connect(&honest, &receiver);
        Self { sender: Some(sender), honest, receiver, to_receiver, queue }
    }

    /// Uses the sender's link without its engine.
    fn link<R>(&self, f: impl FnOnce(&mut AnyLink, ConnectionId) -> R) -> R {
        let sender = self.sender.as_ref().expect("the sender has not exited");
        let slot = sender.slot(&self.receiver);
        sender.engine(|engine| f(engine.links[slot as usize].as_mut().expect("the endpoints are connected"), slot))
    }

    /// Writes bytes to the sender's socket.
    fn write(&self, bytes: &[u8]) {
        let written = self.link(|link, _| match link {
            AnyLink::Tcp(link) => rustix::io::write(link.as_fd(), bytes),
            other => panic!("{other:?}"),
        });
        assert_eq!(written, Ok(bytes.len()));
    }

    /// Sends the first part of a message, and waits until it has arrived.
    fn begin(&self, kind: FrameKind, flags: Flags) {
        let tag = if kind == FrameKind::Tagged { TAG } else { 0 };
        let id = if flags.contains(Flags::ID) { ID } else { 0 };
        let head = Head { kind, flags, tag, id, len: LEN as u32, ..Head::default() };
        self.write(&[head.to_bytes().as_bytes(), &[9; PART][..]].concat());
        let arrives = || self.receiver.engine(|engine| engine.core.messages.under_way()[0] == 1);
        until(&[&self.receiver], || arrives().then_some(()));
    }

    /// Sends the rest of the message, and waits until it has arrived.
    fn finish(&self) {
        self.write(&[9; LEN - PART]);
        let arrives = || self.receiver.engine(|engine| engine.core.messages.under_way()[0] == 1);
        until(&[&self.receiver], || (!arrives()).then_some(()));
    }

    /// Posts a receive for messages of any sender.
    fn post(&self, kind: FrameKind, segments: Segments, context: u64, flags: OpFlags) {
        let tag = (kind == FrameKind::Tagged).then_some((TAG, 0));
        let flags = flags | OpFlags::COMPLETION;
        let work = ReceiveWork { from: PeerAddress::UNSPECIFIED, segments, tag, context, flags };
        self.receiver.engine(|engine| engine.post_receive(&work, Notify::Event)).unwrap();
    }

    /// Returns the next result of the receiver's receives.
    fn reported(&self) -> Option<Result<Entry, ErrorEntry>> {
        let mut entry = [Entry::default()];
        match self.queue.read(&mut entry) {
            Ok(0) => None,
            Ok(_) => Some(Ok(entry[0])),
            Err(_) => self.queue.read_error().map(Err),
        }
    }

    /// Returns the tags of the acknowledgements that the sender got for its message.
    fn acknowledged(&self) -> Vec<u64> {
        let mut notes = Notes::keeping(0);
        self.link(|link, slot| link.poll(slot, &mut notes)).expect("the connection is up");
        let tag = |report| match report {
            SinkReport::Frame(head, _) if head.kind == FrameKind::Ack && head.id == ID => Some(head.tag),
            _ => None,
        };
        notes.reported.into_iter().filter_map(tag).collect()
    }

    /// Checks that the receiver keeps no record of a message or a receive.
    fn assert_no_records(&self, what: &str) {
        assert_eq!(self.receiver.engine(|engine| engine.remains()), [], "{what}");
    }
}

const KINDS: [FrameKind; 2] = [FrameKind::Message, FrameKind::Tagged];

#[test]
fn part_of_a_message_matches_no_receive_after_its_sender_exits() {
    for kind in KINDS {
        let mut scene = Scene::new();
        scene.begin(kind, Flags::empty());
        drop(scene.sender.take());
        until(&[&scene.receiver], || scene.receiver.ended());
        scene.post(kind, Segments::EMPTY, 1, OpFlags::PEEK);
        let found = scene.reported().expect("a peek is reported at once");
        assert_eq!(found.unwrap_err().error, ErrorCode::NoMessage, "{kind:?}: the rest will never arrive");
        let mut buffer = Buffer::zeroed(LEN);
        scene.post(kind, Segments::one(buffer.segment_for_receive().unwrap()), 2, OpFlags::empty());
        assert!(scene.reported().is_none(), "{kind:?}: no message has arrived completely");
        match kind {
            FrameKind::Tagged => scene.honest.endpoint.tagged_inject(scene.to_receiver, TAG, b"whole").unwrap(),
            _ => scene.honest.endpoint.inject(scene.to_receiver, b"whole").unwrap(),
        }
        let entry = until(&[&scene.receiver, &scene.honest], || scene.reported()).unwrap();
        assert_eq!((entry.context, entry.len), (2, 5), "{kind:?}");
        assert_eq!(&buffer.into_vec()[..5], b"whole", "{kind:?}");
        scene.assert_no_records(&format!("{kind:?}"));
    }
}

/// The buffer belongs to the application again when its release is reported, so this must not happen while a transport
/// writes to it.
///
/// Requirements: MSG-006.
#[test]
fn canceled_multi_receive_is_released_by_the_message_that_arrives() {
    for kind in KINDS {
        let scene = Scene::new();
        let mut buffer = Buffer::zeroed(64 << 10);
        scene.post(kind, Segments::one(buffer.segment_for_receive().unwrap()), 3, OpFlags::MULTI_RECEIVE);
        scene.begin(kind, Flags::empty());
        assert!(scene.receiver.engine(|engine| engine.core.cancel(3, false)), "{kind:?}: the receive is still posted");
        assert!(scene.reported().is_none(), "{kind:?}: reported while a message is received into the buffer");
        scene.finish();
        let entry = scene.reported().expect("the message has arrived").unwrap();
        assert_eq!((entry.context, entry.len), (3, LEN as u64), "{kind:?}");
        assert!(entry.flags.contains(CompletionFlags::MULTI_RECEIVE), "{kind:?}: {:?}", entry.flags);
        assert!(scene.reported().is_none(), "{kind:?}: the buffer was released before");
        assert_eq!(&buffer.into_vec()[..LEN], [9; LEN], "{kind:?}");
        scene.assert_no_records(&format!("{kind:?}"));
    }
}

/// A send that requested an acknowledgement ends with it, also if no receive takes the message.
///
/// Requirements: CMP-005, TAG-007.
#[test]
fn message_that_is_discarded_while_it_arrives_is_acknowledged() {
    for kind in KINDS {
        let scene = Scene::new();
        scene.begin(kind, Flags::ID | Flags::ACK);
        scene.post(kind, Segments::EMPTY, 4, OpFlags::PEEK | OpFlags::DISCARD);
        let entry = scene.reported().expect("a discarded message is reported at once").unwrap();
        assert_eq!((entry.context, entry.len), (4, LEN as u64), "{kind:?}");
        scene.receiver.endpoint.progress();
        assert_eq!(scene.acknowledged(), [], "{kind:?}: the message has not arrived");
        scene.finish();
        let tags = until(&[&scene.receiver], || Some(scene.acknowledged()).filter(|tags| !tags.is_empty()));
        assert_eq!(tags, [0], "{kind:?}: one acknowledgement without an error");
        scene.assert_no_records(&format!("{kind:?}"));
    }
}
