//! Shared code of the transports' tests: memory that is lent to links, and a sink that records all reports.

#![expect(unsafe_code, reason = "tests lend memory to links; each block states its own reason")]

use std::collections::HashMap;
#[cfg(test)]
use std::process::{Child, Command};
#[cfg(test)]
use std::sync::Arc;

use super::{ConnectionId, Landing, PullError, Sink};
use crate::local_memory::volatile::SegmentsExt as _;
use crate::local_memory::volatile::ViewExt as _;
use crate::local_memory::volatile::{Segment, Segments, View};
#[cfg(test)]
use crate::peer_process::PeerProcess;
use crate::region::lease::Lease;
use crate::wire::head::Head;

/// Starts a process that sleeps, and waits until it has executed its program: a peer that executes a program has ended.
/// (In QEMU's emulation, `spawn` returns before that.)
#[cfg(test)]
pub fn sleeping_peer() -> (Child, Arc<PeerProcess>) {
    let child = Command::new("sleep").arg("100").spawn().unwrap();
    let name = format!("/proc/{}/comm", child.id());
    while std::fs::read_to_string(&name).unwrap().trim_end() != "sleep" {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    let process = PeerProcess::of(child.id().cast_signed()).unwrap();
    (child, Arc::new(process))
}

/// Memory that is lent to links. It lives as long as this value, which the test keeps until it has dropped its links.
#[derive(Debug)]
pub struct Lent {
    ptr: *mut u8,
    len: usize,
}

impl Lent {
    /// Creates memory with this content.
    pub fn new(bytes: Vec<u8>) -> Self {
        let bytes = bytes.into_boxed_slice();
        let len = bytes.len();
        Self { ptr: Box::into_raw(bytes).cast(), len }
    }

    /// Returns the memory as one segment.
    pub fn whole(&self) -> Segments {
        self.cut(&[])
    }

    /// Returns the memory as segments that are split at these offsets (at most three).
    pub fn cut(&self, at: &[usize]) -> Segments {
        let mut at: Vec<usize> = at.iter().map(|cut| cut.min(&self.len)).copied().collect();
        at.sort_unstable();
        at.insert(0, 0);
        at.push(self.len);
        // SAFETY: the memory belongs to this object until `self` is dropped, and is accessed only through segments
        // until then.
        let whole = unsafe { Segment::new(self.ptr, self.len) };
        let pieces: Vec<Segment> = at.windows(2).map(|ends| whole.slice(ends[0], ends[1] - ends[0])).collect();
        Segments::new(&pieces).expect("at most three cuts")
    }

    /// Returns a lease of the memory that cannot be revoked, split as in [`cut`](Self::cut).
    pub fn lease(&self, at: &[usize]) -> Lease {
        Lease::own(&self.cut(at))
    }

    /// Returns a copy of the content.
    pub fn bytes(&self) -> Vec<u8> {
        self.whole().to_vec()
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        // SAFETY: `Box::into_raw` in `new` returned this pointer for a slice of this length, and nothing else frees it.
        drop(unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(self.ptr, self.len)) });
    }
}

/// A report of a link to its sink.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SinkReport {
    /// A whole frame, received at once or in pieces, with at most `keep` bytes of its payload.
    Frame(Head, Vec<u8>),
    Pulled(u32, Result<u64, PullError>),
    Pushed(u32, Result<(), PullError>),
}

/// A sink that records all reports. Each payload that arrives in pieces is written to new memory of `keep` bytes. If
/// `place` is set, the next payload is written there instead, and is recorded without its bytes.
#[derive(Debug)]
pub struct Notes {
    pub reported: Vec<SinkReport>,
    pub keep: usize,
    pub place: Option<Lease>,
    landing: HashMap<u32, (Head, Lent)>,
    next: u32,
    pub begun: usize,
}

impl Notes {
    pub fn keeping(keep: usize) -> Self {
        Self { reported: Vec::new(), keep, place: None, landing: HashMap::new(), next: 0, begun: 0 }
    }
}

impl Sink for Notes {
    fn frame(&mut self, _from: ConnectionId, head: &Head, payload: View<'_>) {
        assert_eq!(head.len as usize, payload.len());
        let mut bytes = payload.to_vec();
        bytes.truncate(self.keep);
        self.reported.push(SinkReport::Frame(*head, bytes));
    }

    fn begin(&mut self, _from: ConnectionId, head: Head) -> Landing {
        self.next += 1;
        self.begun += 1;
        if let Some(into) = self.place.take() {
            self.landing.insert(self.next, (head, Lent::new(Vec::new())));
            return Landing { token: self.next, into };
        }
        let lent = Lent::new(vec![0; self.keep.min(head.len as usize)]);
        let into = lent.lease(&[lent.len / 3]);
        self.landing.insert(self.next, (head, lent));
        Landing { token: self.next, into }
    }

    fn landed(&mut self, _from: ConnectionId, token: u32) {
        let (head, lent) = self.landing.remove(&token).expect("landed data was announced");
        self.reported.push(SinkReport::Frame(head, lent.bytes()));
    }

    fn pulled(&mut self, _from: ConnectionId, token: u32, result: Result<u64, PullError>) {
        self.reported.push(SinkReport::Pulled(token, result));
    }

    fn undone(&mut self, _: ConnectionId, _: u32) {}

    fn assisted(&mut self, _: ConnectionId, _: u32, _: Result<(), PullError>) {}

    fn pushed(&mut self, _from: ConnectionId, id: u32, result: Result<(), PullError>) {
        self.reported.push(SinkReport::Pushed(id, result));
    }
}

/// A region that a test revokes in the middle of a transfer.
#[cfg(test)]
#[derive(Debug)]
pub(crate) struct Revocable {
    region: std::sync::Arc<crate::region::Registered>,
}

#[cfg(test)]
impl Revocable {
    pub(crate) fn new(memory: Segments) -> Self {
        Self { region: crate::region::Registered::for_test(memory) }
    }

    /// Returns a lease of the whole region.
    pub(crate) fn lease(&self) -> Lease {
        Lease::of(&self.region, *self.region.place())
    }

    /// Revokes the region. No link may be inside the lease: links leave it before they return.
    pub(crate) fn revoke(&self) {
        assert!(self.region.pin().revoke());
        assert!(self.region.pin().is_quiet(), "a link still holds the lease after its call");
    }

    /// Revokes the region while another thread may be inside the lease, and waits until no thread is inside.
    #[cfg(not(loom))]
    pub(crate) fn revoke_and_wait(&self) {
        assert!(self.region.pin().revoke());
        while !self.region.pin().is_quiet() {
            std::thread::yield_now();
        }
    }
}
