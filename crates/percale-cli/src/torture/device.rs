//! Devices that pin memory. They access the pinned pages even if other memory has since been mapped at the same
//! addresses.

#![expect(unsafe_code, reason = "has a device read and write registered memory; the block states why it is sound")]

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use clap::ValueEnum;
use percale::device::Slot;
use percale_transport::verbs::{Adapter, LoopbackPair, Registration, Rights, VerbsRegistrar};
use pindown::{Access, Pinned, Range, Registrar};
use rustix::fs::MemfdFlags;
use serde::{Deserialize, Serialize};

use crate::fixed_buffers::{BufferDirection, FixedBuffers};

/// The kind of device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub(crate) enum DeviceChoice {
    /// io_uring's fixed buffers, which need no hardware
    IoUring,
    /// The first RDMA device
    Verbs,
}

/// A device. Clones share it. The local key of a registration is its identifier for [`DeviceView`]. The remote key is
/// the number of the registration, because devices reuse keys.
#[derive(Clone)]
pub(super) enum Device {
    IoUring(FixedBuffers),
    Verbs(Arc<Verbs>),
}

/// An RDMA device, and the number of its registrations so far.
pub(super) struct Verbs {
    adapter: Arc<Adapter>,
    registrar: VerbsRegistrar,
    made: AtomicU64,
}

/// A pin, which is needed to unpin the memory.
pub(super) enum DevicePin {
    Slot(Slot),
    Region(Registration),
}

impl Device {
    pub(super) fn open(choice: DeviceChoice) -> Result<Self, String> {
        match choice {
            DeviceChoice::IoUring => {
                FixedBuffers::new().map(Self::IoUring).map_err(|error| format!("io_uring: {error}"))
            }
            DeviceChoice::Verbs => {
                let adapter = Adapter::open().map_err(|error| format!("verbs: {error}"))?;
                let rights = Rights::LOCAL_WRITE | Rights::REMOTE_READ | Rights::REMOTE_WRITE;
                // SAFETY: all memory that is registered here belongs to `crate::memory_range`, and contains no Rust
                // value of this program.
                let registrar = unsafe { VerbsRegistrar::new(Arc::clone(adapter.domain()), rights) };
                Ok(Self::Verbs(Arc::new(Verbs { adapter, registrar, made: AtomicU64::new(0) })))
            }
        }
    }

    /// Makes an object that accesses the pinned memory, for one thread.
    pub(super) fn sight(&self) -> io::Result<DeviceView> {
        Ok(match self {
            Self::IoUring(buffers) => {
                let file = rustix::fs::memfd_create(c"percale-torture", MemfdFlags::CLOEXEC)?;
                DeviceView::File(buffers.clone(), file)
            }
            Self::Verbs(verbs) => {
                let most = pindown::page_size() as usize;
                DeviceView::Peer {
                    reach: LoopbackPair::new(&verbs.adapter, most)?,
                    most,
                    adapter: Arc::clone(&verbs.adapter),
                }
            }
        })
    }
}

impl Registrar for Device {
    type Pin = DevicePin;

    fn pin(&self, range: Range, access: Access) -> io::Result<Pinned<DevicePin>> {
        match self {
            Self::IoUring(buffers) => {
                let Pinned { pin, local_key, remote_key } = buffers.pin(range, access)?;
                Ok(Pinned { pin: DevicePin::Slot(pin), local_key, remote_key })
            }
            Self::Verbs(verbs) => {
                let Pinned { pin, remote_key, .. } = verbs.registrar.pin(range, access)?;
                let number = verbs.made.fetch_add(1, Ordering::Relaxed) + 1;
                Ok(Pinned { pin: DevicePin::Region(pin), local_key: remote_key, remote_key: number })
            }
        }
    }

    fn unpin(&self, pin: DevicePin) {
        match (self, pin) {
            (Self::IoUring(buffers), DevicePin::Slot(slot)) => buffers.unpin(slot),
            (Self::Verbs(verbs), DevicePin::Region(region)) => verbs.registrar.unpin(region),
            // The pin belongs to another device.
            (_, pin) => drop(pin),
        }
    }
}

/// Accesses the memory that a device has pinned, for one thread. The pages pinned in `slot` were mapped at `range` when
/// they were pinned.
pub(super) enum DeviceView {
    /// By transfers to and from this file.
    File(FixedBuffers, OwnedFd),
    /// As a peer, in pieces of at most `most` bytes.
    Peer { reach: LoopbackPair, most: usize, adapter: Arc<Adapter> },
}

impl DeviceView {
    /// Reads the pinned memory.
    pub(super) fn read(&mut self, slot: u32, range: Range, seen: &mut [u8]) -> io::Result<()> {
        match self {
            Self::File(buffers, file) => {
                buffers.transfer(slot, range, BufferDirection::ToFile, file.as_fd())?;
                let read = rustix::io::pread(&*file, &mut *seen, 0)?;
                if read == seen.len() { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
            }
            Self::Peer { .. } => self.peer(seen.len())?.read(seen, range.start(), slot),
        }
    }

    /// Writes the pinned memory.
    pub(super) fn write(&mut self, slot: u32, range: Range, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::File(buffers, file) => {
                let written = rustix::io::pwrite(&*file, bytes, 0)?;
                if written != bytes.len() {
                    return Err(io::ErrorKind::WriteZero.into());
                }
                buffers.transfer(slot, range, BufferDirection::FromFile, file.as_fd())
            }
            Self::Peer { .. } => self.peer(bytes.len())?.write(bytes, range.start(), slot),
        }
    }

    /// Returns the peer, with a buffer for `len` bytes. Threads access only single words. Therefore, while there are
    /// holes, the buffer does not grow and no memory is mapped.
    fn peer(&mut self, len: usize) -> io::Result<&mut LoopbackPair> {
        let Self::Peer { reach, most, adapter } = self else { return Err(io::ErrorKind::InvalidInput.into()) };
        if len > *most {
            (*reach, *most) = (LoopbackPair::new(adapter, len)?, len);
        }
        Ok(reach)
    }
}
