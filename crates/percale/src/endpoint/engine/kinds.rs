//! Classifies messages by the kind of their frames.

use crate::endpoint::matching::Envelope;
use crate::transport::Connection;
use crate::wire::head::{Head, Kind};

/// Returns whether a frame of this kind belongs to the tagged messages.
#[inline]
pub(crate) fn is_tagged(kind: Kind) -> bool {
    matches!(kind, Kind::Tagged | Kind::TaggedOffer)
}

/// Returns whether a frame of this kind is a message of a collective operation.
#[inline]
pub(crate) fn is_collective(kind: Kind) -> bool {
    matches!(kind, Kind::Collective | Kind::CollectiveOffer)
}

/// Returns whether a frame of this kind is a message with its payload.
#[inline]
pub(crate) fn is_eager(kind: Kind) -> bool {
    matches!(kind, Kind::Message | Kind::Tagged | Kind::Collective)
}

/// Returns the envelope of a message, which is matched with receives.
#[inline]
pub(crate) fn envelope(from: Connection, head: &Head) -> Envelope {
    let untagged = matches!(head.kind, Kind::Message | Kind::MessageOffer);
    Envelope { tag: if untagged { 0 } else { head.tag }, source: u64::from(from) }
}
