//! Passes arbitrary pair memory to a receiver, for the fuzz target and the tests.

#![expect(unsafe_code, reason = "overwrites shared memory with arbitrary bytes; each block states its own reason")]

use std::os::fd::AsFd;
use std::sync::{Arc, OnceLock};

use super::pair::{IDLE_LINES as LINES, PAGE as CONTROL};
use super::{Doorbell, PAIR_BYTES, ShmLink, ShmLinkParts, pair_memory};
use crate::local_memory::buffer::Buffer;
use crate::local_memory::mapping::Mapping;
use crate::local_memory::volatile::ViewExt as _;
use crate::local_memory::volatile::{Segment, Segments, View};
use crate::region::lease::Lease;
use crate::region::{AccessOrigin, Keys, table_of_one};
use crate::wire::head::{FrameKind, Head, Offer};
use crate::{ConnectionId, Landing, Link, PullError, Sink};

/// The number of polls in one run.
const POLLS: usize = 200;

/// The frames that the link passed to the sink. They are answered after the poll.
#[derive(Default)]
struct Answers {
    requests: Vec<(u32, u64, Vec<u8>)>,
    offers: Vec<(u32, Offer)>,
}

impl Sink for Answers {
    fn frame(&mut self, _: ConnectionId, head: &Head, payload: View<'_>) {
        let bytes = payload.to_vec();
        assert_eq!(bytes.len(), head.len as usize);
        match head.kind {
            FrameKind::Pull => self.requests.push((head.id, head.tag, bytes)),
            FrameKind::MessageOffer | FrameKind::TaggedOffer | FrameKind::CollectiveOffer => {
                if let Some(offer) = payload.read::<Offer>(0) {
                    self.offers.push((head.id, offer));
                }
            }
            _ => {}
        }
    }

    fn begin(&mut self, _: ConnectionId, _: Head) -> Landing {
        Landing { token: 0, into: crate::region::lease::Lease::own(&Segments::EMPTY) }
    }

    fn landed(&mut self, _: ConnectionId, _: u32) {}

    fn pulled(&mut self, _: ConnectionId, _: u32, _: Result<u64, PullError>) {}

    fn undone(&mut self, _: ConnectionId, _: u32) {}

    fn assisted(&mut self, _: ConnectionId, _: u32, _: Result<(), PullError>) {}

    fn pushed(&mut self, _: ConnectionId, _: u32, _: Result<(), PullError>) {}
}

/// Runs a link on pair memory that contains `bytes`. If the first byte is odd, the other bytes are written to the
/// sender's first lines, with valid marks. If it is even, they are written to the start of the memory: to the control
/// page and, if there are more, to the memory after it. The link must neither panic nor hang, and must not touch memory
/// outside the mapping.
pub fn fuzz_ring(bytes: &[u8]) {
    let Some((&mode, bytes)) = bytes.split_first() else { return };
    let Ok((mut link, scribble)) = receiver() else { return };
    let (at, room) = if mode & 1 == 1 { (CONTROL, PAIR_BYTES - CONTROL) } else { (0, PAIR_BYTES) };
    let len = bytes.len().min(room);
    // SAFETY: the range lies in the mapping, and links allow the peer to write to it at any time.
    unsafe { scribble.as_ptr().wrapping_add(at).copy_from_nonoverlapping(bytes.as_ptr(), len) };
    if mode & 1 == 1 {
        for line in (0..LINES.min(len)).step_by(64) {
            let mark = scribble.as_ptr().wrapping_add(CONTROL + line).cast::<u16>();
            // SAFETY: the pointer is within the mapping and aligned.
            unsafe { mark.write(1) };
        }
    }
    let mut bytes = vec![0u8; 64 << 10];
    // SAFETY: the bytes are dropped after the link, and no other code touches them.
    let memory = Lease::own(&Segments::one(unsafe { Segment::new(bytes.as_mut_ptr(), bytes.len()) }));
    let mut answers = Answers::default();
    for poll in 0..POLLS {
        // Send requests, so that the memory may contain answers to them.
        link.look_up(poll as u64 / 20);
        if link.poll(0, &mut answers).is_err() {
            break;
        }
        for (id, offer) in answers.offers.drain(..) {
            link.pull(id, &offer, &memory, id).ok();
        }
        for (id, token, request) in answers.requests.drain(..) {
            link.push(id, token, View::of(&request), &memory).ok();
        }
    }
    drop(link);
}

/// Creates a link. The caller acts as its peer.
fn receiver() -> std::io::Result<(ShmLink, Mapping)> {
    let pair = pair_memory()?;
    let scribble = Mapping::of(pair.as_fd(), PAIR_BYTES)?;
    let doorbell = Arc::new(Doorbell::new()?);
    let (control, _) = std::os::unix::net::UnixDatagram::pair()?;
    let link = ShmLink::new(ShmLinkParts {
        side: 1,
        pair,
        peer_doorbell: rustix::io::dup(doorbell.descriptors().ok_or(rustix::io::Errno::INVAL)?[0])?,
        mappings: None,
        peer_event: rustix::io::dup(doorbell.event_fd())?,
        my_doorbell: doorbell,
        my_bit: 0,
        peer_bit: 1,
        control: std::os::fd::OwnedFd::from(control).into(),
        peer_nonce: (0, 0),
        // The peer is this process, and the addresses that it sends are arbitrary.
        cma: false,
        process: None,
        keys: Some(keys()?),
        via: AccessOrigin::default(),
    })
    .map_err(std::io::Error::other)?;
    Ok((link, scribble))
}

/// Returns the key table with the only region that the peer may request, which has key 0.
fn keys() -> std::io::Result<Arc<Keys>> {
    static TABLE: OnceLock<(Arc<Keys>, Buffer)> = OnceLock::new();
    if TABLE.get().is_none() {
        let memory = crate::local_memory::sealed::allocate(100).map_err(std::io::Error::other)?;
        // If another thread has set the table first, that table is used.
        TABLE.set(table_of_one(0, memory)?).ok();
    }
    let (keys, _) = TABLE.get().ok_or(std::io::ErrorKind::NotFound)?;
    Ok(Arc::clone(keys))
}
