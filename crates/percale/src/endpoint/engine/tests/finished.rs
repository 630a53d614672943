//! Tests of multi-receive buffers that are finished while messages fail.

use zerocopy::IntoBytes;

use super::*;
use crate::endpoint::safe::{Cause, OperationError};
use crate::wire::head::{Flags, FrameKind, Offer};
use crate::{Buffer, ErrorCode};

/// A message that its sender gave up ends with the same code as a canceled receive, but is reported as a message.
///
/// Requirements: MSG-005.
#[test]
fn finish_reports_message_abandoned_by_its_sender() {
    const LEN: usize = 100_000;
    for transport in ["tcp", "shm"] {
        let (a, b) = (TestEndpoint::new(transport), TestEndpoint::new(transport));
        connect(&a, &b);
        let many = b.endpoint.recv(vec![0; LEN]).many().unwrap();
        let offer = Offer { len: (LEN as u64 / 2).into(), pieces: 1.into(), ..Offer::default() };
        let head = Head { kind: FrameKind::MessageOffer, flags: Flags::ID, id: 12_345, ..Head::default() };
        a.forge(&b, &head, offer.as_bytes());
        let over = || b.engine(|engine| engine.core.messages.memory().has_quiet_multi());
        until(&[&a, &b], || over().then_some(()));
        let finished = many.finish();
        assert_eq!((finished.buffer.len(), finished.unread.len()), (LEN, 1), "{transport}");
        let Some(Cause::Completion(error)) = finished.unread[0].as_ref().err().map(OperationError::cause) else {
            panic!("{transport}: {:?}", finished.unread)
        };
        assert_eq!(error.error, ErrorCode::Canceled, "{transport}: {error}");
        // A buffer that is finished without a message reports none.
        let none = b.endpoint.recv(Buffer::from(vec![0; LEN])).many().unwrap().finish();
        assert_eq!((none.buffer.len(), none.unread.len()), (LEN, 0), "{transport}");
    }
}
