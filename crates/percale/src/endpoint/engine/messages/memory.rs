//! The memory of receives: the segments of receives that have several, and buffers for many messages.

use std::sync::Arc;

use super::super::types::{Notify, Receive, ReceiveDestination};
use crate::endpoint::pool::Many;
use crate::local_memory::volatile::{Segment, Segments, View, ViewExt as _};
use crate::table::{Id, Table};

/// A buffer for many messages.
#[derive(Debug)]
pub(crate) struct MultiReceive {
    /// The whole buffer.
    segments: Segments,
    /// Bytes assigned to messages so far.
    used: usize,
    /// Messages that were assigned a part and are not complete.
    in_flight: usize,
    /// Whether the buffer takes no more messages. Then it is released when the last message in flight completes.
    closed: bool,
    /// Set if this is a part, for one message, of a buffer of a shared receive context: that buffer.
    pooled: Option<Arc<Many>>,
    /// The context of all completions of the buffer.
    context: u64,
    /// Where the messages and the release of the buffer are reported.
    notify: Notify,
}

/// The memory of receives.
///
/// Invariants:
/// 1. The segments of a [`ReceiveDestination::Several`] are kept until [`leave`](Self::leave).
/// 2. A multi-receive buffer is kept until it takes no more messages and none is in flight. The function that ends it
///    reports the release once.
/// 3. A buffer with less than the minimum left takes no more messages.
#[derive(Debug)]
pub(in super::super) struct ReceiveMemory {
    /// The segments of receives that have several.
    vectors: Table<Segments>,
    multis: Table<MultiReceive>,
    /// A multi-receive buffer with fewer bytes left takes no more messages.
    minimum: usize,
}

impl ReceiveMemory {
    pub(super) const fn new(minimum: usize) -> Self {
        Self { vectors: Table::new(), multis: Table::new(), minimum }
    }

    /// Returns the number of bytes below which a multi-receive buffer takes no more messages.
    pub(in super::super) const fn minimum(&self) -> usize {
        self.minimum
    }

    /// Sets the number of bytes below which a multi-receive buffer takes no more messages.
    pub(in super::super) const fn set_minimum(&mut self, minimum: usize) {
        self.minimum = minimum;
    }

    /// Returns the place for the message of a receive with these segments. Valid until [`leave`](Self::leave).
    #[inline]
    pub(in super::super) fn place(&mut self, segments: &Segments) -> ReceiveDestination {
        match segments.as_slice() {
            [] => ReceiveDestination::One(Segment::EMPTY),
            [only] => ReceiveDestination::One(*only),
            _ => self.place_of_several(segments),
        }
    }

    #[inline(never)]
    fn place_of_several(&mut self, segments: &Segments) -> ReceiveDestination {
        ReceiveDestination::Several(self.vectors.insert(*segments), segments.len())
    }

    /// Frees the place of a receive that has ended.
    #[inline]
    pub(in super::super) fn leave(&mut self, place: ReceiveDestination) {
        if let ReceiveDestination::Several(vector, _) = place {
            self.vectors.remove(vector);
        }
    }

    /// Returns the segments of a place.
    pub(in super::super) fn segments(&self, place: ReceiveDestination) -> Segments {
        match place {
            ReceiveDestination::One(segment) => Segments::one(segment),
            ReceiveDestination::Several(vector, _) => self.vectors[vector],
        }
    }

    /// Copies a whole payload to its place.
    #[inline]
    pub(in super::super) fn put(&self, payload: View<'_>, place: ReceiveDestination) {
        match place {
            ReceiveDestination::One(segment) => payload.copy_to_one(segment),
            ReceiveDestination::Several(vector, _) => payload.copy_into(&self.vectors[vector], 0),
        };
    }

    /// Adds a buffer for many messages, which is one segment.
    pub(in super::super) fn add_multi(&mut self, segments: Segments, context: u64, notify: Notify) -> Id<MultiReceive> {
        let (used, in_flight, closed, pooled) = (0, 0, false, None);
        self.multis.insert(MultiReceive { segments, used, in_flight, closed, pooled, context, notify })
    }

    /// Adds the part of a buffer of a shared receive context that is assigned to one message.
    pub(in super::super) fn add_shared_part(
        &mut self,
        segments: Segments,
        many: Arc<Many>,
        context: u64,
        notify: Notify,
    ) -> Id<MultiReceive> {
        let (used, in_flight, closed, pooled) = (segments.len(), 1, true, Some(many));
        self.multis.insert(MultiReceive { segments, used, in_flight, closed, pooled, context, notify })
    }

    /// Takes the next part of a buffer, for a message of `len` bytes. Returns whether the buffer takes no more messages
    /// after that.
    pub(in super::super) fn take_part(&mut self, multi: Id<MultiReceive>, len: u64) -> (Receive, bool) {
        let minimum = self.minimum.max(1);
        let state = &mut self.multis[multi];
        // The buffer has one segment, as was checked before. An empty message has a place in it too.
        let whole = state.segments.as_slice().first().copied().unwrap_or(Segment::EMPTY);
        let part = whole.slice(state.used, usize::try_from(len).unwrap_or(usize::MAX));
        state.used = state.used.saturating_add(part.len());
        state.in_flight = state.in_flight.saturating_add(1);
        if state.segments.len().saturating_sub(state.used) < minimum {
            state.closed = true;
        }
        let (context, notify) = (state.context, state.notify);
        (Receive { place: ReceiveDestination::One(part), context, notify, multi: Some(multi) }, state.closed)
    }

    /// Returns the number of lists of segments, and of multi-receive buffers.
    #[cfg(any(test, feature = "sim"))]
    pub(super) fn remains(&self) -> [usize; 2] {
        [self.vectors.len(), self.multis.len()]
    }

    /// Records that one message of a buffer is complete. Returns whether that released the buffer.
    pub(in super::super) fn part_over(&mut self, multi: Id<MultiReceive>) -> bool {
        let Some(state) = self.multis.get_mut(multi) else { return false };
        state.in_flight -= 1;
        let released = state.closed && state.in_flight == 0;
        if released {
            self.multis.remove(multi);
        }
        released
    }

    /// Records that a buffer gets no more messages, because its receive ends. Returns whether that released the buffer.
    /// If not, the last message in flight releases it.
    pub(in super::super) fn close(&mut self, multi: Id<MultiReceive>) -> bool {
        let state = &mut self.multis[multi];
        state.closed = true;
        let released = state.in_flight == 0;
        if released {
            self.multis.remove(multi);
        }
        released
    }

    /// Removes a part of a buffer of a shared receive context, and returns that buffer. Returns `None`, and does
    /// nothing, for a buffer of this endpoint.
    #[cold]
    pub(in super::super) fn take_shared_part(&mut self, multi: Id<MultiReceive>) -> Option<Arc<Many>> {
        self.multis.get(multi)?.pooled.as_ref()?;
        self.multis.remove(multi)?.pooled
    }

    /// Returns whether the buffer got a message, and every message that it got is complete.
    #[cfg(all(test, not(loom)))]
    pub(in super::super) fn has_quiet_multi(&self) -> bool {
        self.multis.iter().any(|(_, multi)| multi.used > 0 && multi.in_flight == 0)
    }
}
