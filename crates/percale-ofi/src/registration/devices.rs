//! The memory interface and the device of a registration (fi_mr(3), `iface` and `device`).

use percale::Segment;
use percale::device::{Device, DeviceError, Interface};

use super::pieces::Pieces;
use crate::abi::{
    FI_HMEM_CUDA, FI_HMEM_DEVICE_ONLY, FI_HMEM_HOST_ALLOC, FI_HMEM_NEURON, FI_HMEM_ROCR, FI_HMEM_SYNAPSEAI,
    FI_HMEM_SYSTEM, FI_HMEM_ZE, FI_LOG_MR,
};
use crate::log;

/// Returns the interface for an `FI_HMEM_*` number.
pub(crate) const fn interface(iface: u32) -> Result<Interface, i32> {
    Ok(match iface {
        FI_HMEM_CUDA => Interface::Cuda,
        FI_HMEM_ROCR => Interface::Rocr,
        FI_HMEM_ZE => Interface::LevelZero,
        FI_HMEM_NEURON => Interface::Neuron,
        FI_HMEM_SYNAPSEAI => Interface::SynapseAi,
        _ => return Err(libc::ENOSYS),
    })
}

/// Returns the device of this interface and number. The number is the union of fi_mr(3), with an int in the low bytes
/// (HMEM-007).
pub(crate) fn device(iface: u32, device: u64) -> Result<Device, DeviceError> {
    let interface = interface(iface).map_err(|_| DeviceError::Lacks("interface with this number"))?;
    Device::new(interface, device as u32)
}

/// Returns the device that a registration's memory belongs to, or `None` for host memory. Fails if the memory is not of
/// the stated kind.
pub(crate) fn of(iface: u32, number: u64, flags: u64, memory: &Pieces) -> Result<Option<Device>, i32> {
    if iface == FI_HMEM_SYSTEM {
        return Ok(None); // The device (HMEM-008) and the flags have no meaning then.
    }
    let log_error = |error: DeviceError| {
        log::warning!(FI_LOG_MR, "fi_mr_regattr: {error}");
        error.errno()
    };
    // Host memory that the device's interface allocated belongs to no device (HMEM-015).
    let host = flags & FI_HMEM_HOST_ALLOC != 0;
    let device = device(iface, if host { 0 } else { number }).map_err(log_error)?;
    let Pieces::Some(pieces) = memory else { return if host { Ok(None) } else { Err(log_error(DeviceError::Mixed)) } };
    let filled = || pieces.iter().filter(|piece| !piece.is_empty());
    let find = |piece: &Segment| Device::of(device.interface(), *piece).map_err(log_error);
    let mut found = filled().map(find).collect::<Result<Vec<_>, _>>()?;
    found.dedup();
    match found[..] {
        [None] if flags & FI_HMEM_DEVICE_ONLY == 0 => Ok(None),
        [Some(of)] if !host && of == device => Ok(Some(device)),
        _ => Err(log_error(DeviceError::Mixed)),
    }
}
