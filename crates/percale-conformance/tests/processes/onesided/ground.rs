//! Memory that an owner registers again and again: writers stamp it, but no write may arrive between two registrations.
//!
//! A registration is an *epoch*: its key follows from its number, and writers write one byte value that does, too, with the
//! highest bit set. An owner fills its memory with values without that bit. So each byte shows its writer and its epoch.

#![expect(unsafe_code, reason = "registers memory that is never freed; the block states its reason")]

use std::sync::Arc;

use percale::{Allocation, Buffer, Domain, ErrorCode, PeerAddress, RawRegion, Region};
use percale_conformance::memory::Memory;
use percale_conformance::peers::Open;
use percale_conformance::random::Random;

use super::{ALL, all_of, code};

/// Bytes of a ground.
pub(super) const GROUND: usize = 256 << 10;

/// The key of an epoch.
pub(super) const fn key_of(epoch: u64) -> u64 {
    epoch.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1 << 63
}

/// What writers write in an epoch.
pub(super) const fn stamp_of(epoch: u64) -> u8 {
    0x80 | (epoch % 128) as u8
}

/// What the owner fills its memory with after an epoch.
pub(super) const fn filling_of(epoch: u64) -> u8 {
    (epoch % 127) as u8
}

/// Lengths of writes.
const LENS: [usize; 9] = [8, 64, 500, 4096, 16 << 10, (16 << 10) + 1, 64 << 10, 100_000, GROUND];
/// Writes under way, where they do not end within the call.
const DEPTH: usize = 4;

/// How many writes succeeded, and how many were refused.
pub(super) fn write_until_refused(
    open: &Open,
    owner: PeerAddress,
    epoch: u64,
    key: u64,
    random: &mut Random,
) -> (u64, u64) {
    let sources = LENS.map(|len| Arc::<[u8]>::from(vec![stamp_of(epoch); len]));
    let all = all_of(key, GROUND as u64);
    let (mut done, mut refused) = (0, 0);
    let mut end = |result: Result<Buffer, _>| match result {
        Ok(_) => {
            done += 1;
            true
        }
        Err(error) => {
            assert_eq!(code(&error), ErrorCode::KeyRejected, "epoch {epoch}: {error}");
            refused += 1;
            false
        }
    };
    let mut goes_on = end(open.endpoint.write(owner, Arc::clone(&sources[0]), all.slice(0..8)).wait());
    while goes_on {
        let under_way: Vec<_> = (0..DEPTH)
            .map(|_| {
                let source = &sources[random.below(LENS.len())];
                let start = random.below(GROUND - source.len() + 1) as u64;
                let part = all.slice(start..start + source.len() as u64);
                open.endpoint.write(owner, Arc::clone(source), part).start().expect("a write")
            })
            .collect();
        for write in under_way {
            goes_on &= end(write.wait());
        }
    }
    (done, refused)
}

/// Memory that is not registered.
#[derive(Debug)]
pub(super) enum Ground {
    /// What percale allocated: local peers map it.
    Sealed(Allocation),
    /// Any other: local peers reach it by the kernel.
    Plain(Memory),
}

/// Memory that is registered, and the region by which it is owned or vouched for.
#[derive(Debug)]
pub(super) enum Held {
    /// With the memory's address.
    Sealed(Region, usize),
    Plain(RawRegion, Memory),
}

impl Ground {
    pub(super) fn new(domain: &Domain, sealed: bool) -> Self {
        Self::of_size(domain, sealed, GROUND)
    }

    /// `len` zeros.
    pub(super) fn of_size(domain: &Domain, sealed: bool, len: usize) -> Self {
        if sealed {
            Self::Sealed(domain.allocate(len).expect("memory"))
        } else {
            Self::Plain(Memory::of(&vec![0; len]))
        }
    }

    /// Where it is, if percale allocated it.
    pub(super) fn place(&self) -> Option<usize> {
        match self {
            Self::Sealed(allocation) => Some(allocation.as_ptr().addr()),
            Self::Plain(_) => None,
        }
    }

    pub(super) fn register(self, domain: &Domain, key: u64) -> Held {
        let registration = domain.registration(ALL).key(key);
        match self {
            Self::Sealed(allocation) => {
                let place = allocation.as_ptr().addr();
                Held::Sealed(registration.own(allocation).expect("a region"), place)
            }
            Self::Plain(memory) => {
                // SAFETY: the memory is never freed, and only copied from and to through its pointer.
                let region = unsafe { registration.raw(&[memory.segment()], true) };
                Held::Plain(region.expect("a region"), memory)
            }
        }
    }

    pub(super) fn read(&self, into: &mut [u8]) {
        match self {
            Self::Sealed(allocation) => allocation.read(0, into),
            Self::Plain(memory) => memory.read_into(into),
        }
    }

    pub(super) fn fill(&mut self, value: u8, scratch: &mut [u8]) {
        scratch.fill(value);
        match self {
            Self::Sealed(allocation) => allocation.write(0, scratch),
            Self::Plain(memory) => memory.write(scratch),
        }
    }
}

impl Held {
    /// Takes the memory back, if no peer is at it.
    pub(super) fn close(self) -> Result<Ground, Self> {
        match self {
            Self::Sealed(region, place) => match region.close() {
                Ok(buffer) => Ok(Ground::Sealed(buffer.into_allocation().expect("what was registered"))),
                Err(busy) => Err(Self::Sealed(busy.into_region(), place)),
            },
            Self::Plain(region, memory) => match region.close() {
                Ok(()) => Ok(Ground::Plain(memory)),
                Err(busy) => Err(Self::Plain(busy.into_region(), memory)),
            },
        }
    }

    /// Where it is, if percale allocated it.
    pub(super) fn place(&self) -> Option<usize> {
        match self {
            Self::Sealed(_, place) => Some(*place),
            Self::Plain(..) => None,
        }
    }

    /// The first eight bytes.
    pub(super) fn first(&self) -> [u8; 8] {
        let mut bytes = [0; 8];
        match self {
            Self::Sealed(region, _) => region.read(0, &mut bytes),
            Self::Plain(_, memory) => memory.read_into(&mut bytes),
        }
        bytes
    }
}

/// What is known of a ground's bytes.
#[derive(Debug)]
pub(super) struct Watch {
    filling: u8,
    scratch: Vec<u8>,
}

impl Watch {
    /// Begins with memory full of zeros.
    pub(super) fn new() -> Self {
        Self { filling: 0, scratch: vec![0; GROUND] }
    }

    /// Forgets the last ground: this one is new.
    pub(super) fn renew(&mut self) {
        self.filling = 0;
    }

    /// Whether a writer has written the first byte.
    pub(super) fn is_written(&self, held: &Held) -> bool {
        held.first()[0] != self.filling
    }

    /// Checks, when an epoch's region was closed, that only the writes of this epoch are there, and fills the memory anew. Returns how many bytes
    /// were written.
    pub(super) fn closed(&mut self, ground: &mut Ground, epoch: u64) -> usize {
        let (filling, stamp) = (self.filling, stamp_of(epoch));
        ground.read(&mut self.scratch);
        let stamped = self.scratch.iter().filter(|byte| **byte == stamp).count();
        let filled = self.scratch.iter().filter(|byte| **byte == filling).count();
        if stamped + filled != GROUND {
            let at = self.scratch.iter().position(|byte| *byte != stamp && *byte != filling).unwrap_or(0);
            panic!("epoch {epoch}: byte {at} is {:#04x}, of another epoch than this ({stamp:#04x})", self.scratch[at]);
        }
        self.filling = filling_of(epoch);
        ground.fill(self.filling, &mut self.scratch);
        stamped
    }

    /// Checks that nothing was written since.
    pub(super) fn check(&mut self, ground: &Ground, epoch: u64) {
        ground.read(&mut self.scratch);
        if let Some(at) = self.scratch.iter().position(|byte| *byte != self.filling) {
            let byte = self.scratch[at];
            panic!("byte {at} became {byte:#04x} after closing had returned (epoch {epoch}, {:#04x})", stamp_of(epoch));
        }
    }
}
