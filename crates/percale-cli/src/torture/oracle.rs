//! The oracle. It pins memory for a device, and checks whether the device still accesses the same memory as the CPU.
//!
//! The device's accesses are made through a [`Device`]. The CPU's accesses are made by process_vm_readv(2) and
//! process_vm_writev(2). These walk the page tables like a load or a store, but fail with EFAULT where a load or a
//! store would end the process.

use std::io;

use pindown::{Access, Pinned, Range, Registrar, Use};

use super::device::{self, Device, DeviceChoice, DeviceView};
use super::ledger::Ledger;
use crate::limits::kernel::Foreign;
use crate::memory_range;

/// The device, and the process that owns the memory it pins. Clones share the device.
#[derive(Clone)]
pub(super) struct Oracle {
    device: Device,
    ledger: Ledger,
    process: i32,
}

/// A registration.
pub(super) struct PinnedRange {
    pin: device::DevicePin,
    local_key: u64,
}

/// The registration that a [`Use`] refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct UsedRegistration {
    /// The number of the registration.
    pub(super) number: u64,
    /// The device's slot of the registration.
    pub(super) slot: u32,
}

impl UsedRegistration {
    /// Reads the registration from the keys that [`Device`] sets.
    pub(super) fn of(used: &Use) -> Self {
        Self { number: used.remote_key(), slot: used.local_key() as u32 }
    }
}

impl Oracle {
    /// Makes an oracle with this device. Returns the reason if the device is not available.
    pub(super) fn new(device: DeviceChoice) -> Result<Self, String> {
        let process = rustix::process::getpid().as_raw_pid();
        Ok(Self { device: Device::open(device)?, ledger: Ledger::default(), process })
    }

    /// Makes a [`MemoryComparer`] for one thread.
    pub(super) fn comparer(&self) -> io::Result<MemoryComparer> {
        Ok(MemoryComparer { process: self.process, sight: self.device.sight()?, looks: 0 })
    }

    /// Checks the keys that a lookup returned for this range and these rights. Returns `None` if they are correct,
    /// otherwise the reason.
    pub(super) fn fault(&self, used: &Use, range: Range, access: Access) -> Option<String> {
        self.ledger.fault(used, range, access)
    }
}

impl Registrar for Oracle {
    type Pin = PinnedRange;

    fn pin(&self, range: Range, access: Access) -> io::Result<Pinned<PinnedRange>> {
        let pinned = self.device.pin(range, access)?;
        self.ledger.made(&pinned, range, access);
        let Pinned { pin, local_key, remote_key } = pinned;
        Ok(Pinned { pin: PinnedRange { pin, local_key }, local_key, remote_key })
    }

    fn unpin(&self, PinnedRange { pin, local_key }: PinnedRange) {
        self.ledger.ends(local_key);
        self.device.unpin(pin);
    }
}

/// Compares the memory that the device accesses with the memory that the CPU accesses, for one thread. Several threads
/// may check the same memory at the same time if each checks different bytes.
pub(super) struct MemoryComparer {
    process: i32,
    sight: DeviceView,
    looks: u64,
}

impl MemoryComparer {
    /// Returns whether the pages pinned in `slot` are the pages that the CPU accesses at `range`. Checks reads and
    /// writes, and restores the previous contents.
    ///
    /// # Errors
    /// Fails if the CPU cannot currently read or write the memory, or if the device fails.
    pub(super) fn is_current(&mut self, slot: u32, range: Range) -> io::Result<bool> {
        let processor = Foreign { process: self.process, address: range.start() };
        let mut before = vec![0; range.len() as usize];
        processor.read(0, &mut before)?;
        let current = self.compare(slot, range, processor);
        processor.write(0, &before)?;
        current
    }

    /// Like [`Self::is_current`], for 8 bytes that are not used otherwise. Does not restore the previous contents.
    pub(super) fn is_word_current(&mut self, slot: u32, address: u64) -> io::Result<bool> {
        let word = memory_range::range(address, 8)?;
        self.compare(slot, word, Foreign { process: self.process, address })
    }

    fn compare(&mut self, slot: u32, range: Range, processor: Foreign) -> io::Result<bool> {
        let mut written = self.pattern(range.len());
        processor.write(0, &written)?;
        let mut seen = vec![0; written.len()];
        self.sight.read(slot, range, &mut seen)?;
        if seen != written {
            return Ok(false);
        }
        written = self.pattern(range.len());
        self.sight.write(slot, range, &written)?;
        processor.read(0, &mut seen)?;
        Ok(seen == written)
    }

    /// Returns bytes that no previous check has used. All words differ.
    fn pattern(&mut self, len: u64) -> Vec<u8> {
        self.looks += 1;
        let start = self.looks.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (0..len / 8).flat_map(|word| start.wrapping_add(word.wrapping_mul(0x2545_f491)).to_ne_bytes()).collect()
    }
}
