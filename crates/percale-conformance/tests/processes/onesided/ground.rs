//! Memory that an owner registers repeatedly. Writers write stamps to it. No write may arrive between two
//! registrations.
//!
//! A registration is an *epoch*. Its key and the byte value that writers write (the stamp) are computed from its
//! number. A stamp has the highest bit set. The owner fills its memory with values without that bit. Therefore each
//! byte shows whether it was written, and in which epoch.

#![expect(unsafe_code, reason = "registers memory that is never freed; the block states its reason")]

use std::sync::Arc;

use percale::{Allocation, Buffer, Domain, ErrorCode, PeerAddress, RawRegion, Region};
use percale_conformance::memory::Memory;
use percale_conformance::peers::Open;
use percale_conformance::random::Random;

use super::{ALL, all_of, code};

/// The size of a ground in bytes.
pub(super) const GROUND: usize = 256 << 10;

/// Returns the key of an epoch.
pub(super) const fn key_of(epoch: u64) -> u64 {
    epoch.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1 << 63
}

/// Returns the value that writers write in an epoch.
pub(super) const fn stamp_of(epoch: u64) -> u8 {
    0x80 | (epoch % 128) as u8
}

/// Returns the value with which the owner fills its memory after an epoch.
pub(super) const fn filling_of(epoch: u64) -> u8 {
    (epoch % 127) as u8
}

/// Lengths of writes.
const LENS: [usize; 9] = [8, 64, 500, 4096, 16 << 10, (16 << 10) + 1, 64 << 10, 100_000, GROUND];
/// The number of outstanding writes if they do not complete within the call.
const DEPTH: usize = 4;

/// Writes until the key is rejected. Returns the numbers of successful and rejected writes.
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
    let mut goes_on = end(open.endpoint.write(owner, Arc::clone(&sources[0]), all.at(0..8)).wait());
    while goes_on {
        let under_way: Vec<_> = (0..DEPTH)
            .map(|_| {
                let source = &sources[random.below(LENS.len())];
                let start = random.below(GROUND - source.len() + 1) as u64;
                let part = all.at(start..start + source.len() as u64);
                open.endpoint.write(owner, Arc::clone(source), part).start().expect("a write")
            })
            .collect();
        for mut write in under_way {
            goes_on &= end(write.wait());
        }
    }
    (done, refused)
}

/// Memory that is not registered.
#[derive(Debug)]
pub(super) enum Ground {
    /// Memory that percale allocated, which local peers map.
    Sealed(Allocation),
    /// Other memory, which local peers access through the kernel.
    Plain(Memory),
}

/// Registered memory, with its region.
#[derive(Debug)]
pub(super) enum HeldRegion {
    /// A region of allocated memory, with the address of the memory.
    Sealed(Region, usize),
    Plain(RawRegion, Memory),
}

impl Ground {
    pub(super) fn new(domain: &Domain, sealed: bool) -> Self {
        Self::of_size(domain, sealed, GROUND)
    }

    /// Allocates `len` bytes of zeros.
    pub(super) fn of_size(domain: &Domain, sealed: bool, len: usize) -> Self {
        if sealed {
            Self::Sealed(domain.allocate(len).expect("memory"))
        } else {
            Self::Plain(Memory::of(&vec![0; len]))
        }
    }

    /// Returns the address if percale allocated the memory.
    pub(super) fn place(&self) -> Option<usize> {
        match self {
            Self::Sealed(allocation) => Some(allocation.as_ptr().addr()),
            Self::Plain(_) => None,
        }
    }

    pub(super) fn register(self, domain: &Domain, key: u64) -> HeldRegion {
        let registration = domain.registration(ALL).key(key);
        match self {
            Self::Sealed(allocation) => {
                let place = allocation.as_ptr().addr();
                HeldRegion::Sealed(registration.own(allocation).expect("a region"), place)
            }
            Self::Plain(memory) => {
                // SAFETY: the memory is never freed, and is only copied through its pointer.
                let region = unsafe { registration.raw(&[memory.segment()], true) };
                HeldRegion::Plain(region.expect("a region"), memory)
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

impl HeldRegion {
    /// Closes the region and returns its memory, if no peer is accessing it.
    pub(super) fn close(self) -> Result<Ground, Self> {
        match self {
            Self::Sealed(region, place) => match region.close() {
                Ok(buffer) => Ok(Ground::Sealed(buffer.into_allocation().expect("the registered allocation"))),
                Err(busy) => Err(Self::Sealed(busy.into_inner(), place)),
            },
            Self::Plain(region, memory) => match region.close() {
                Ok(()) => Ok(Ground::Plain(memory)),
                Err(busy) => Err(Self::Plain(busy.into_inner(), memory)),
            },
        }
    }

    /// Returns the address if percale allocated the memory.
    pub(super) fn place(&self) -> Option<usize> {
        match self {
            Self::Sealed(_, place) => Some(*place),
            Self::Plain(..) => None,
        }
    }

    /// Returns the first eight bytes.
    pub(super) fn first(&self) -> [u8; 8] {
        let mut bytes = [0; 8];
        match self {
            Self::Sealed(region, _) => region.read(0, &mut bytes),
            Self::Plain(_, memory) => memory.read_into(&mut bytes),
        }
        bytes
    }
}

/// The expected contents of a ground.
#[derive(Debug)]
pub(super) struct Watch {
    filling: u8,
    scratch: Vec<u8>,
}

impl Watch {
    /// Starts with memory that contains zeros.
    pub(super) fn new() -> Self {
        Self { filling: 0, scratch: vec![0; GROUND] }
    }

    /// Starts again with a new ground.
    pub(super) fn renew(&mut self) {
        self.filling = 0;
    }

    /// Returns whether a writer has written the first byte.
    pub(super) fn is_written(&self, held: &HeldRegion) -> bool {
        held.first()[0] != self.filling
    }

    /// Checks, after an epoch's region was closed, that the memory contains only writes of this epoch. Fills the memory
    /// again. Returns the number of written bytes.
    pub(super) fn closed(&mut self, ground: &mut Ground, epoch: u64) -> usize {
        let (filling, stamp) = (self.filling, stamp_of(epoch));
        ground.read(&mut self.scratch);
        let stamped = self.scratch.iter().filter(|byte| **byte == stamp).count();
        let filled = self.scratch.iter().filter(|byte| **byte == filling).count();
        if stamped + filled != GROUND {
            let at = self.scratch.iter().position(|byte| *byte != stamp && *byte != filling).unwrap_or(0);
            panic!(
                "epoch {epoch}: byte {at} is {:#04x}, which belongs to another epoch (expected {stamp:#04x})",
                self.scratch[at]
            );
        }
        self.filling = filling_of(epoch);
        ground.fill(self.filling, &mut self.scratch);
        stamped
    }

    /// Checks that the memory was not written since the close.
    pub(super) fn check(&mut self, ground: &Ground, epoch: u64) {
        ground.read(&mut self.scratch);
        if let Some(at) = self.scratch.iter().position(|byte| *byte != self.filling) {
            let byte = self.scratch[at];
            panic!("byte {at} became {byte:#04x} after closing had returned (epoch {epoch}, {:#04x})", stamp_of(epoch));
        }
    }
}
