//! One end of a simulated connection.

use std::collections::VecDeque;

use zerocopy::IntoBytes;

use super::{InFlightItem, Network};
use crate::local_memory::volatile::{Segments, SegmentsExt as _, View, ViewExt as _};
use crate::region::lease::Lease;
use crate::stream::{Data, Pulls, Pushes, pull_frame};
use crate::wire::head::{FrameKind, Head, Offer};
use crate::{Broken, ConnectionId, Landing, Link, Refused, Sink};

/// One end of a connection of a [`Network`].
#[derive(Debug)]
pub struct SimLink {
    network: Network,
    connection: usize,
    side: usize,
    frame_limit: usize,
    arrived: VecDeque<InFlightItem>,
    /// A payload. Its first part was already written to its destination.
    body: Option<(Landing, Vec<u8>)>,
    pulls: Pulls,
    pushes: Pushes,
    /// A `Bye` frame that waits until the pushes have ended.
    bye: Option<Head>,
    said_bye: bool,
    broken: Option<Broken>,
}

impl SimLink {
    pub(super) fn new(network: Network, connection: usize, side: usize, frame_limit: usize) -> Self {
        Self {
            network,
            connection,
            side,
            frame_limit,
            arrived: VecDeque::new(),
            body: None,
            pulls: Pulls::default(),
            pushes: Pushes::default(),
            bye: None,
            said_bye: false,
            broken: None,
        }
    }

    fn transmit(&mut self, head: Head, payload: Vec<u8>) -> Result<(), Refused> {
        if self.broken.is_some() || self.said_bye {
            return Err(Refused::Broken);
        }
        self.network.lock().send(self.connection, self.side, head, payload)?;
        self.said_bye = head.kind == FrameKind::Bye;
        Ok(())
    }

    /// Sends the data of pulls, and then the `Bye` frame that waited for it. Returns whether anything was sent.
    fn serve(&mut self) -> bool {
        let mut moved = false;
        while let Some((head, payload)) = self.pushes.next(self.frame_limit, 0) {
            let bytes = payload.enter().map(|(payload, _held)| payload.to_vec());
            let Some(bytes) = bytes else {
                self.pushes.revoked();
                continue;
            };
            if self.transmit(head, bytes).is_err() {
                return moved;
            }
            self.pushes.advance(payload.len());
            moved = true;
        }
        if let Some(bye) = self.bye
            && self.transmit(bye, Vec::new()).is_ok()
        {
            self.bye = None;
            moved = true;
        }
        moved
    }

    /// Passes the frames that have arrived to the sink, up to a payload that arrives in pieces. The rest of that
    /// payload follows in the next poll.
    fn deliver(&mut self, me: ConnectionId, sink: &mut impl Sink) -> Result<bool, Broken> {
        let mut moved = false;
        if let Some((landing, payload)) = self.body.take() {
            let first = payload.len() / 2;
            if let Some((into, _held)) = landing.into.enter() {
                View::of(&payload[first..]).copy_into(into, first);
            }
            sink.landed(me, landing.token);
            moved = true;
        }
        while (sink.takes(me) || matches!(self.arrived.back(), Some(InFlightItem::End(_))))
            && let Some(cargo) = self.arrived.pop_front()
        {
            moved = true;
            match cargo {
                InFlightItem::End(broken) => return Err(broken),
                InFlightItem::Frame { head, payload, .. } if head.kind == FrameKind::Data => {
                    self.deliver_data(&head, &payload, me, sink)?;
                }
                InFlightItem::Frame { head, payload, pieces: true } => {
                    let landing = sink.begin(me, head);
                    if let Some((into, _held)) = landing.into.enter() {
                        View::of(&payload[..payload.len() / 2]).copy_into(into, 0);
                    }
                    self.body = Some((landing, payload));
                    return Ok(true);
                }
                InFlightItem::Frame { head, payload, pieces: false } => {
                    if head.kind != FrameKind::Nothing {
                        sink.frame(me, &head, View::of(&payload));
                    }
                    if head.kind == FrameKind::Bye {
                        return Err(Broken::Closed);
                    }
                }
            }
        }
        Ok(moved)
    }

    fn deliver_data(
        &mut self,
        head: &Head,
        payload: &[u8],
        me: ConnectionId,
        sink: &mut impl Sink,
    ) -> Result<(), Broken> {
        let ended = match self.pulls.data(head)? {
            Data::Bytes(into) => {
                match into.enter() {
                    Some((into, _held)) => drop(View::of(payload).copy_into(into, 0)),
                    None => self.pulls.revoked(head.id),
                }
                self.pulls.arrived(head.id, head.len)
            }
            Data::Ended(ended) => Some(ended),
        };
        if let Some((token, result)) = ended {
            sink.pulled(me, token, result);
        }
        Ok(())
    }
}

#[doc(hidden)]
impl Link for SimLink {
    fn frame_limit(&self) -> usize {
        self.frame_limit
    }

    #[inline]
    fn is_stream(&self) -> bool {
        true
    }

    fn send(&mut self, head: &Head, payload: &Segments, _more: bool) -> Result<(), Refused> {
        debug_assert_eq!(head.len as usize, payload.len());
        if self.bye.is_some() {
            return Err(Refused::Broken);
        }
        if head.kind == FrameKind::Bye && !self.pushes.is_empty() {
            self.bye = Some(*head);
            return Ok(());
        }
        self.transmit(*head, payload.to_vec())
    }

    fn poll(&mut self, me: ConnectionId, sink: &mut impl Sink) -> Result<bool, Broken> {
        if let Some(broken) = &self.broken {
            return Err(broken.clone());
        }
        let served = self.serve();
        while let Some((id, result)) = self.pushes.next_ended() {
            sink.pushed(me, id, result);
        }
        {
            let mut state = self.network.lock();
            state.now += state.options.tick;
            self.arrived.extend(state.arrivals(self.connection, self.side));
        }
        match self.deliver(me, sink) {
            Ok(delivered) => Ok(served | delivered),
            Err(broken) => {
                self.broken = Some(broken.clone());
                Err(broken)
            }
        }
    }

    fn pull(&mut self, id: u32, offer: &Offer, into: &Lease, token: u32) -> Result<(), Refused> {
        let (head, wanted) = pull_frame(id, offer, into, token);
        self.transmit(head, wanted.as_bytes().to_vec())?;
        self.pulls.start(offer, into, token);
        Ok(())
    }

    fn expect(&mut self, into: &Lease, token: u32) {
        self.pulls.expect(into, token);
    }

    fn push(&mut self, id: u32, token: u64, request: View<'_>, source: &Lease) -> Result<(), Refused> {
        if self.broken.is_some() {
            return Err(Refused::Broken);
        }
        if let Err(broken) = self.pushes.start(id, token, request, source) {
            self.broken = Some(broken);
            return Err(Refused::Broken);
        }
        self.serve();
        Ok(())
    }

    /// Frames in flight to this side also count, because there is no descriptor that would wake up a sleeping thread
    /// when they arrive.
    fn is_idle(&self) -> bool {
        self.pushes.is_idle()
            && self.bye.is_none()
            && self.body.is_none()
            && self.arrived.is_empty()
            && self.network.lock().wires[self.connection].directions[1 - self.side].flights.is_empty()
    }
}

impl Drop for SimLink {
    fn drop(&mut self) {
        self.network.lock().drop_link(self.connection, self.side);
    }
}
