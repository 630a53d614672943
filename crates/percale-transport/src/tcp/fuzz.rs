//! Passes arbitrary bytes to the receiving half.

use rustix::io::Errno;

use super::buffers::with_scratch;
use super::inbound::Inbound;
use super::socket::Stream;
use crate::Broken;
use crate::local_memory::volatile::ViewExt as _;
use crate::local_memory::volatile::{Segments, View};
use crate::stream::Pulls;
use crate::testing::{Lent, Notes};
use crate::wire::head::Offer;

/// Bytes that arrive in pieces. The lengths of the pieces are used in turn.
pub(super) struct Pieces<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) lengths: &'a [u8],
    pub(super) turn: usize,
}

impl Stream for Pieces<'_> {
    fn read(&mut self, into: &Segments, tail: &mut [u8]) -> Result<usize, Errno> {
        if self.bytes.is_empty() {
            return Err(Errno::AGAIN);
        }
        let length = usize::from(self.lengths[self.turn % self.lengths.len()]) + 1;
        self.turn += 1;
        let piece = &self.bytes[..length.min(self.bytes.len())];
        let placed = View::of(piece).copy_into(into, 0);
        let done = placed + View::of(&piece[placed..]).read_into(tail);
        self.bytes = &self.bytes[done..];
        Ok(done)
    }

    fn write(&mut self, _prefix: &[u8], _from: &Segments) -> Result<usize, Errno> {
        Err(Errno::AGAIN)
    }
}

/// Receives arbitrary bytes, in pieces with lengths that the first two bytes determine, while pulls 0 and 1 are in
/// progress. For all inputs the link either breaks or waits for more, and its reports to the sink are consistent.
pub fn fuzz_stream(bytes: &[u8]) {
    receive(bytes, &mut Notes::keeping(300)).ok();
}

/// Receives everything. Returns the error that broke the link before the last byte, if any.
pub(super) fn receive(bytes: &[u8], notes: &mut Notes) -> Result<(), Broken> {
    let Some((lengths, bytes)) = bytes.split_at_checked(2) else { return Ok(()) };
    let targets = [Lent::new(vec![0; 100]), Lent::new(vec![0; 5_000])];
    let (mut inbound, mut pulls) = (Inbound::new(), Pulls::default());
    for (token, target) in targets.iter().enumerate() {
        let offer = Offer { len: 4_000.into(), ..Offer::default() };
        pulls.start(&offer, &target.lease(&[10, 60]), token as u32);
    }
    let mut pieces = Pieces { bytes, lengths, turn: 0 };
    while with_scratch(|scratch| inbound.poll(&mut pieces, scratch, &mut pulls, 0, notes))? {}
    assert!(pieces.bytes.is_empty(), "a waiting link has read everything");
    Ok(())
}
