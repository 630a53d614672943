//! The oracle: memory pinned for a device, and whether the device still sees what the processor sees.
//!
//! The device's side is a [`Device`]'s. The processor's side is read and written by process_vm_readv(2) and
//! process_vm_writev(2), which walk the page tables as a load or store does, but answer EFAULT where one would end the
//! process.

use std::io;

use pindown::{Access, Pinned, Range, Registrar, Use};

use super::device::{self, Choice, Device, Sight};
use super::ledger::Ledger;
use crate::limits::kernel::Foreign;
use crate::lot;

/// The device, and the process whose memory it holds. Clones are the same.
#[derive(Clone)]
pub(super) struct Oracle {
    device: Device,
    ledger: Ledger,
    process: i32,
}

/// A registration.
pub(super) struct Pin {
    pin: device::Pin,
    local_key: u64,
}

/// What a use says of its registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    /// Which registration.
    pub(super) number: u64,
    /// Where the device has it.
    pub(super) slot: u32,
}

impl Seen {
    /// As [`Device`] fills in the keys.
    pub(super) fn of(used: &Use) -> Self {
        Self { number: used.remote_key(), slot: used.local_key() as u32 }
    }
}

impl Oracle {
    /// With this device; or why it is not to be had.
    pub(super) fn new(device: Choice) -> Result<Self, String> {
        let process = rustix::process::getpid().as_raw_pid();
        Ok(Self { device: Device::open(device)?, ledger: Ledger::default(), process })
    }

    /// A way to look, for one thread.
    pub(super) fn eye(&self) -> io::Result<Eye> {
        Ok(Eye { process: self.process, sight: self.device.sight()?, looks: 0 })
    }

    /// What is wrong with the keys that a look-up was given for this range and these rights; None if they are right.
    pub(super) fn fault(&self, used: &Use, range: Range, access: Access) -> Option<String> {
        self.ledger.fault(used, range, access)
    }
}

impl Registrar for Oracle {
    type Pin = Pin;

    fn pin(&self, range: Range, access: Access) -> io::Result<Pinned<Pin>> {
        let pinned = self.device.pin(range, access)?;
        self.ledger.made(&pinned, range, access);
        let Pinned { pin, local_key, remote_key } = pinned;
        Ok(Pinned { pin: Pin { pin, local_key }, local_key, remote_key })
    }

    fn unpin(&self, Pin { pin, local_key }: Pin) {
        self.ledger.ends(local_key);
        self.device.unpin(pin);
    }
}

/// Looks through the oracle. Several may look at the same memory at once if each looks at other bytes.
pub(super) struct Eye {
    process: i32,
    sight: Sight,
    looks: u64,
}

impl Eye {
    /// Whether the pages pinned in `slot` are those that the processor sees at `range`, both ways. What the memory held
    /// is put back.
    ///
    /// # Errors
    /// The processor cannot see or write the memory now, or the device refuses.
    pub(super) fn is_current(&mut self, slot: u32, range: Range) -> io::Result<bool> {
        let processor = Foreign { process: self.process, address: range.start() };
        let mut before = vec![0; range.len() as usize];
        processor.read(0, &mut before)?;
        let current = self.compare(slot, range, processor);
        processor.write(0, &before)?;
        current
    }

    /// As [`Self::is_current`], of 8 bytes that nobody else uses, and without putting back what was there.
    pub(super) fn is_word_current(&mut self, slot: u32, address: u64) -> io::Result<bool> {
        let word = lot::range(address, 8)?;
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

    /// Bytes that no look had before, each word another.
    fn pattern(&mut self, len: u64) -> Vec<u8> {
        self.looks += 1;
        let start = self.looks.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (0..len / 8).flat_map(|word| start.wrapping_add(word.wrapping_mul(0x2545_f491)).to_ne_bytes()).collect()
    }
}
