//! percale's messages by the safe API.
//!
//! Ping-pongs use one buffer in each direction, and streams use those of the window in turn.

use percale::endpoint::safe::Received;
use percale::{Buffer, Endpoint, PeerAddress, PostError};

use super::super::node::Node;
use super::super::percale::{ANSWER, INJECTED, TAG};
use super::{OnEndpoint, Waits, buffer, fill, lost, post};
use crate::channel::watch::{Spin, Watch};
use crate::failure::{Failure, Result, percale};
use crate::pattern::Content;
use crate::round::MessageShape;
use crate::row::{MeasuredOperation, Pattern};
use crate::subject::{Lender, Subject};

/// The buffers of a side, and its endpoint.
pub(in super::super) struct SafeMessages {
    node: Node,
    out: Vec<Option<Buffer>>,
    into: Vec<Option<Buffer>>,
    bytes: usize,
    tagged: bool,
}

impl SafeMessages {
    /// Makes a side that uses this endpoint. It has no buffers before it is prepared.
    pub(in super::super) fn new(node: Node) -> Self {
        Self { node, out: Vec::new(), into: Vec::new(), bytes: 0, tagged: true }
    }
}

impl Lender for SafeMessages {
    type Side<'a> = Side<'a>;

    fn prepare(&mut self, shape: &MessageShape) -> Result<()> {
        let window = if shape.op.pattern() == Pattern::Stream { shape.window() } else { 1 };
        let buffer = |_| buffer(&self.node.domain, shape.memory, shape.bytes).map(Some);
        self.out = (0..window).map(buffer).collect::<Result<_>>()?;
        self.into = (0..window).map(buffer).collect::<Result<_>>()?;
        (self.bytes, self.tagged) = (shape.bytes, shape.op != MeasuredOperation::MessageLatency);
        Ok(())
    }

    fn side(&mut self) -> Side<'_> {
        let operations = self.out.len();
        Side {
            endpoint: &self.node.endpoint,
            peer: self.node.peer,
            bytes: self.bytes,
            tagged: self.tagged,
            stream: 0,
            waits: Waits::new(),
            sends: (0..operations).map(|_| None).collect(),
            receives: (0..operations).map(|_| None).collect(),
            out: &mut self.out,
            into: &mut self.into,
        }
    }

    fn progress(&mut self) -> Result<()> {
        self.node.progress();
        Ok(())
    }
}

/// One side of a round.
pub(in super::super) struct Side<'a> {
    endpoint: &'a Endpoint,
    peer: PeerAddress,
    bytes: usize,
    tagged: bool,
    /// The number of messages of the current stream.
    stream: u64,
    waits: Waits,
    /// The operations in progress. Each has taken the buffer with the same index.
    sends: Vec<Option<OnEndpoint<'a, Buffer>>>,
    receives: Vec<Option<OnEndpoint<'a, Received>>>,
    out: &'a mut [Option<Buffer>],
    into: &'a mut [Option<Buffer>],
}

impl<'a> Side<'a> {
    #[inline]
    const fn window(&self) -> usize {
        self.out.len()
    }

    /// Waits until the send has returned its buffer.
    #[inline]
    fn sent(&mut self, slot: usize, watch: &mut Watch) -> Result<()> {
        if let Some(sending) = &mut self.sends[slot] {
            self.out[slot] = Some(self.waits.result(sending, watch)?);
            self.sends[slot] = None;
        }
        Ok(())
    }

    #[inline]
    fn fill(&mut self, slot: usize, content: Content) -> Result<()> {
        fill(self.out[slot].as_mut().ok_or_else(lost)?, content, self.bytes);
        Ok(())
    }

    #[inline]
    fn start_send(&mut self, slot: usize, watch: &mut Watch) -> Result<()> {
        let (endpoint, peer, tagged) = (self.endpoint, self.peer, self.tagged);
        let buffer = self.out[slot].take().ok_or_else(lost)?;
        self.sends[slot] = Some(post("sending", endpoint, buffer, watch, |buffer| {
            if tagged { endpoint.tagged_send(peer, TAG, buffer).start() } else { endpoint.send(peer, buffer).start() }
        })?);
        Ok(())
    }

    #[inline]
    fn start_receive(&mut self, slot: usize, watch: &mut Watch) -> Result<()> {
        let (endpoint, tagged) = (self.endpoint, self.tagged);
        let buffer = self.into[slot].take().ok_or_else(lost)?;
        self.receives[slot] = Some(post("receiving", endpoint, buffer, watch, |buffer| {
            if tagged { endpoint.tagged_recv(TAG, 0, buffer).start() } else { endpoint.recv(buffer).start() }
        })?);
        Ok(())
    }

    /// Waits until the message has arrived.
    #[inline]
    fn received(&mut self, slot: usize, watch: &mut Watch) -> Result<()> {
        let receiving = self.receives[slot].as_mut().ok_or_else(lost)?;
        let received = self.waits.result(receiving, watch)?;
        self.receives[slot] = None;
        self.into[slot] = Some(received.buffer);
        if received.len == self.bytes {
            Ok(())
        } else {
            Err(Failure::Data(format!("{} bytes arrived instead of {}", received.len, self.bytes)))
        }
    }

    #[inline]
    fn compare(&self, slot: usize, content: Content) -> Result<()> {
        let buffer = self.into[slot].as_ref().ok_or_else(lost)?;
        content.check_from(self.bytes, |at, to| {
            buffer.copy_to(at, to);
        })
    }

    /// Sends a short message, whose bytes can be used again immediately. Applications with many short messages do the
    /// same.
    #[inline]
    fn inject(&self, content: Content, watch: &mut Watch) -> Result<()> {
        let mut bytes = [0; INJECTED];
        content.write_to(self.bytes, |at, part| bytes[at..at + part.len()].copy_from_slice(part));
        let mut spin = Spin::default();
        loop {
            match self.endpoint.tagged_inject(self.peer, TAG, &bytes[..self.bytes]) {
                Ok(()) => return Ok(()),
                Err(PostError::Again) => {
                    let _happened: bool = self.endpoint.progress();
                    spin.polled(watch)?;
                }
                Err(error) => {
                    watch.control.check()?;
                    return Err(percale("sending")(error));
                }
            }
        }
    }
}

impl Subject for Side<'_> {
    fn prepare(&mut self, _shape: &MessageShape) -> Result<()> {
        Err(Failure::Protocol("a round is in progress".into()))
    }

    #[inline]
    fn write(&mut self, content: Content, watch: &mut Watch) -> Result<()> {
        self.sent(0, watch)?;
        self.fill(0, content)
    }

    #[inline]
    fn expect(&mut self, watch: &mut Watch) -> Result<()> {
        self.start_receive(0, watch)
    }

    #[inline]
    fn send(&mut self, watch: &mut Watch) -> Result<()> {
        self.start_send(0, watch)
    }

    #[inline]
    fn receive(&mut self, watch: &mut Watch) -> Result<()> {
        self.received(0, watch)
    }

    #[inline]
    fn check(&mut self, content: Content) -> Result<()> {
        self.compare(0, content)
    }

    fn end(&mut self, watch: &mut Watch) -> Result<()> {
        (0..self.window()).try_for_each(|slot| self.sent(slot, watch))
    }

    #[inline]
    fn stream_out(&mut self, index: u64, content: Content, watch: &mut Watch) -> Result<()> {
        if self.bytes <= INJECTED {
            return self.inject(content, watch);
        }
        let slot = index as usize % self.window();
        self.sent(slot, watch)?;
        self.fill(slot, content)?;
        self.start_send(slot, watch)
    }

    fn flush(&mut self, watch: &mut Watch) -> Result<()> {
        self.end(watch)
    }

    fn expect_stream(&mut self, count: u64, watch: &mut Watch) -> Result<()> {
        self.stream = count;
        (0..self.window().min(count as usize)).try_for_each(|slot| self.start_receive(slot, watch))
    }

    #[inline]
    fn stream_in(&mut self, index: u64, content: Content, watch: &mut Watch) -> Result<()> {
        // Message `index` is in the buffer that was posted as number `index`: receives with one tag are matched in
        // order, and messages of one peer arrive in order.
        let slot = index as usize % self.window();
        self.received(slot, watch)?;
        self.compare(slot, content)?;
        if index + (self.window() as u64) < self.stream {
            self.start_receive(slot, watch)?;
        }
        Ok(())
    }

    fn answer(&mut self, watch: &mut Watch) -> Result<()> {
        let (endpoint, peer) = (self.endpoint, self.peer);
        let start = |buffer| endpoint.tagged_send(peer, ANSWER, buffer).start();
        let mut sending = post("sending", endpoint, Buffer::zeroed(8), watch, start)?;
        self.waits.result(&mut sending, watch).map(drop)
    }

    fn await_answer(&mut self, watch: &mut Watch) -> Result<()> {
        let endpoint = self.endpoint;
        let start = |buffer| endpoint.tagged_recv(ANSWER, 0, buffer).start();
        let mut receiving = post("receiving", endpoint, Buffer::zeroed(8), watch, start)?;
        self.waits.result(&mut receiving, watch).map(drop)
    }

    fn progress(&mut self) -> Result<()> {
        let _happened: bool = self.endpoint.progress();
        Ok(())
    }
}
