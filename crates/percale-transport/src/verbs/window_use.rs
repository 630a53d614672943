//! How the windows of a device are used for the accesses of peers.

use super::DeviceLimits;
use super::WindowKind;

/// The vendor number of rdma_rxe, Linux's RDMA over Ethernet in software. The numbers of hardware vendors have 24 bits, too, but none has this one.
const SOFT_ROCE: u32 = 0xff_ffff;

/// What is registered beneath a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Extent {
    /// The region, once for a peer, until it is closed; under windows that are granted when it was dropped already, their own bytes.
    Region,
    /// The window's own bytes, as long as it is bound: for devices that let accesses through which are outside the window, or still under
    /// way when its invalidation completes, but keep to registrations.
    Window,
}

/// How a device's windows are used.
#[derive(Clone, Copy, Debug)]
pub(super) struct Using {
    pub(super) kind: WindowKind,
    pub(super) extent: Extent,
}

impl Using {
    /// Type 2, where the device has it: its keys are ours to choose, and its rights are worth nothing over other queue pairs. Else type 1, which
    /// comes to the same in a protection domain with only one queue pair. Soft-RoCE lets any peer's message invalidate any window of type 2,
    /// regardless of the queue pair that it is bound for; windows of type 1 cannot be invalidated.
    pub(super) fn of(limits: &DeviceLimits) -> Option<Self> {
        let (one, a2, b2) = limits.windows;
        let kind = match (one, a2 || b2) {
            (true, _) if limits.vendor == SOFT_ROCE => WindowKind::One,
            (_, true) => WindowKind::Two,
            (true, false) => WindowKind::One,
            (false, false) => return None,
        };
        let extent = if limits.vendor == SOFT_ROCE { Extent::Window } else { Extent::Region };
        (limits.window_count > 0).then(|| Self::with(kind, extent))
    }

    pub(super) const fn with(kind: WindowKind, extent: Extent) -> Self {
        Self { kind, extent }
    }
}
