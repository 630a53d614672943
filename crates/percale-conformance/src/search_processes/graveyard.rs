//! Memory that was given back, which must not change any more.
//!
//! What an operation, a region or an endpoint gave back is filled with a canary and kept for a while. A late write of this process, of a
//! peer that maps the memory, or of the kernel in a peer's name shows as a changed byte.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use percale::{Allocation, Buffer};

/// What buried memory is filled with.
const CANARY: u8 = 0xC5;
/// How long memory is watched.
const WATCH: Duration = Duration::from_secs(25);
/// The most bytes that are watched at a time.
const MOST: usize = 96 << 20;

#[derive(Debug)]
enum Body {
    Heap(Vec<u8>),
    Sealed(Allocation),
}

#[derive(Debug)]
struct Grave {
    body: Body,
    what: String,
    since: Instant,
}

/// Memory that was given back and must not change any more.
#[derive(Debug, Default)]
pub(super) struct Graveyard {
    graves: VecDeque<Grave>,
    bytes: usize,
    /// Where the next look begins.
    next: usize,
}

impl Graveyard {
    /// Takes memory that must not be written any more.
    pub(super) fn bury(&mut self, buffer: impl Into<Buffer>, what: String) {
        let body = match buffer.into().into_allocation() {
            Ok(mut sealed) => {
                sealed.fill(CANARY);
                Body::Sealed(sealed)
            }
            Err(other) => {
                let mut bytes = other.into_vec();
                bytes.fill(CANARY);
                Body::Heap(bytes)
            }
        };
        self.bytes += body.len();
        self.graves.push_back(Grave { body, what, since: Instant::now() });
    }

    /// Looks at some of the memory; returns what was changed, in words.
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

    /// Looks at all of the memory.
    pub(super) fn look_at_all(&mut self) -> Vec<String> {
        self.look(usize::MAX)
    }
}

impl Body {
    fn len(&self) -> usize {
        match self {
            Self::Heap(bytes) => bytes.len(),
            Self::Sealed(sealed) => sealed.len(),
        }
    }
}

impl Grave {
    fn check(&self) -> Option<String> {
        let copy;
        let bytes = match &self.body {
            // The kernel may write here in a peer's name, so the compiler must not know what was written last.
            Body::Heap(bytes) => std::hint::black_box(bytes.as_slice()),
            Body::Sealed(sealed) => {
                copy = sealed.to_vec();
                copy.as_slice()
            }
        };
        let first = bytes.iter().position(|&byte| byte != CANARY)?;
        let changed = bytes.iter().filter(|&&byte| byte != CANARY).count();
        Some(format!(
            "written after it was given back: {changed} of {} bytes, from byte {first}, of {}, {:?} after that",
            bytes.len(),
            self.what,
            self.since.elapsed()
        ))
    }
}
