//! Accesses to a region of device memory. The device's driver makes them through pinned host memory.

use crate::local_memory::access::Refusal;
use crate::local_memory::atomic::AtomicRequest;
use crate::local_memory::volatile::{Segment, Segments, View, ViewExt as _};
use percale_device::{CopyWay, Device, DeviceError, Pieces, Pinned, aligned, changing, pinned};

/// Logs an error, and returns the error that is reported to the peer.
fn refused(error: DeviceError) -> Refusal {
    crate::later::later!(warn: %error, "an access to device memory failed");
    match error {
        DeviceError::Driver { memory: true, .. } => Refusal::Memory,
        _ => Refusal::Fault,
    }
}

/// Returns all bytes of a copy.
pub(super) fn whole(copy: &Pinned) -> Segments {
    Segments::one(copy.segment())
}

/// Writes bytes to the device's memory.
pub(super) fn store(device: Device, to: &Segments, from: View<'_>) -> Result<(), Refusal> {
    if from.is_empty() {
        return Ok(());
    }
    let copy = pinned(device.driver(), from.len()).map_err(refused)?;
    from.copy_into(&whole(&copy), 0);
    Pieces::all(device).copy(to, copy.segment(), CopyWay::ToDevice).map_err(refused)
}

/// Returns a copy of bytes of the device's memory.
pub(super) fn load(device: Device, from: &Segments) -> Result<Option<Pinned>, Refusal> {
    if from.is_empty() {
        return Ok(None);
    }
    Pieces::all(device).load(from, 0).map_err(refused)
}

/// Changes elements of the device's memory. This is atomic with respect to other accesses through this process's
/// endpoints, but not with respect to programs on the device.
pub(super) fn change(
    device: Device,
    target: Segment,
    request: &AtomicRequest<'_>,
    fetched: &mut [u8],
) -> Result<(), Refusal> {
    let _changing = changing();
    let (pieces, memory, offset) = (Pieces::all(device), Segments::one(target), aligned(target));
    let Some(copy) = pieces.load(&memory, offset).map_err(refused)? else { return Ok(()) };
    let here = copy.segment().slice(offset, target.len());
    request.apply(here, fetched).map_err(|_| Refusal::Misaligned)?;
    pieces.copy(&memory, here, CopyWay::ToDevice).map_err(refused)
}
