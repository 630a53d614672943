//! Returned memory, which must not change any more.
//!
//! Memory that an operation, a region or an endpoint has returned is filled with a canary and kept for a while. A late
//! write by this process, by a peer that maps the memory, or by the kernel on behalf of a peer is detected as a changed
//! byte.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use percale::{Allocation, Buffer};

/// The byte that fills the memory.
const CANARY: u8 = 0xC5;
/// How long memory is checked.
const WATCH: Duration = Duration::from_secs(25);
/// The maximum number of bytes that are kept for checking.
const MOST: usize = 96 << 20;

#[derive(Debug)]
enum FreedBytes {
    Heap(Vec<u8>),
    Sealed(Allocation),
}

#[derive(Debug)]
struct FreedMemory {
    body: FreedBytes,
    what: String,
    since: Instant,
}

/// Returned memory, which must not change any more.
#[derive(Debug, Default)]
pub(super) struct FreedMemoryList {
    graves: VecDeque<FreedMemory>,
    bytes: usize,
    /// The index of the next memory to check.
    next: usize,
}

impl FreedMemoryList {
    /// Takes over returned memory, which must not be written any more.
    pub(super) fn add_freed(&mut self, buffer: impl Into<Buffer>, what: String) {
        let body = match buffer.into().into_allocation() {
            Ok(mut sealed) => {
                sealed.fill(CANARY);
                FreedBytes::Sealed(sealed)
            }
            Err(other) => {
                let mut bytes = other.into_inner().into_vec();
                bytes.fill(CANARY);
                FreedBytes::Heap(bytes)
            }
        };
        self.bytes += body.len();
        self.graves.push_back(FreedMemory { body, what, since: Instant::now() });
    }

    /// Checks at least `most` bytes of the memory. Returns descriptions of the changes found.
    pub(super) fn look(&mut self, most: usize) -> Vec<String> {
        let mut found = Vec::new();
        let mut looked = 0;
        for _ in 0..self.graves.len() {
            if looked >= most {
                break;
            }
            self.next = if self.next < self.graves.len() { self.next } else { 0 };
            looked += self.graves[self.next].body.len().max(64);
            found.extend(self.graves[self.next].check());
            self.next += 1;
        }
        while self.graves.front().is_some_and(|grave| grave.since.elapsed() > WATCH || self.bytes > MOST) {
            let Some(grave) = self.graves.pop_front() else { break };
            self.bytes -= grave.body.len();
            self.next = self.next.saturating_sub(1);
            found.extend(grave.check());
        }
        found
    }

    /// Checks all of the memory.
    pub(super) fn look_at_all(&mut self) -> Vec<String> {
        self.look(usize::MAX)
    }
}

impl FreedBytes {
    fn len(&self) -> usize {
        match self {
            Self::Heap(bytes) => bytes.len(),
            Self::Sealed(sealed) => sealed.len(),
        }
    }
}

impl FreedMemory {
    fn check(&self) -> Option<String> {
        let copy;
        let bytes = match &self.body {
            // The kernel may write here on behalf of a peer, so the compiler must not assume the contents.
            FreedBytes::Heap(bytes) => std::hint::black_box(bytes.as_slice()),
            FreedBytes::Sealed(sealed) => {
                copy = sealed.to_vec();
                copy.as_slice()
            }
        };
        let first = bytes.iter().position(|&byte| byte != CANARY)?;
        let changed = bytes.iter().filter(|&&byte| byte != CANARY).count();
        Some(format!(
            "memory was written after it was returned: {changed} of {} bytes, from byte {first}, of {}, {:?} after that",
            bytes.len(),
            self.what,
            self.since.elapsed()
        ))
    }
}
