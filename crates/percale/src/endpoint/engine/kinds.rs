//! Classifies messages by the kind of their frames.

use crate::endpoint::matching::Envelope;
use crate::transport::ConnectionId;
use crate::wire::head::{FrameKind, Head};

/// Returns whether a frame of this kind belongs to the tagged messages.
#[inline]
pub(crate) fn is_tagged(kind: FrameKind) -> bool {
    matches!(kind, FrameKind::Tagged | FrameKind::TaggedOffer)
}

/// Returns whether a frame of this kind is a message of a collective operation.
#[inline]
pub(crate) fn is_collective(kind: FrameKind) -> bool {
    matches!(kind, FrameKind::Collective | FrameKind::CollectiveOffer)
}

/// Returns whether a frame of this kind is a message with its payload.
#[inline]
pub(crate) fn is_eager(kind: FrameKind) -> bool {
    matches!(kind, FrameKind::Message | FrameKind::Tagged | FrameKind::Collective)
}

/// Returns the envelope of a message, which is matched with receives.
#[inline]
pub(crate) fn envelope(from: ConnectionId, head: &Head) -> Envelope {
    let untagged = matches!(head.kind, FrameKind::Message | FrameKind::MessageOffer);
    Envelope { tag: if untagged { 0 } else { head.tag }, source: u64::from(from) }
}
