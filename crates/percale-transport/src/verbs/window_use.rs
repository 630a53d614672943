//! The use of a device's memory windows for the accesses of peers.

use super::DeviceLimits;
use super::WindowKind;

/// The vendor number of rdma_rxe, the software RoCE of Linux. No hardware vendor has this number.
const SOFT_ROCE: u32 = 0xff_ffff;

/// The memory that is registered for a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Extent {
    /// The whole region. It is registered once for each peer, until the region is closed. If the registration was
    /// already dropped, later windows have registrations of their own ranges.
    Region,
    /// Only the range of the window, while it is bound. Used for devices that allow accesses outside a window, or
    /// accesses that are still in progress when the invalidation of the window completes, but enforce the bounds of
    /// registrations.
    Window,
}

/// How a device's windows are used.
#[derive(Clone, Copy, Debug)]
pub(super) struct WindowUse {
    pub(super) kind: WindowKind,
    pub(super) extent: Extent,
}

impl WindowUse {
    /// Selects the type of windows. Type 2 is used if the device supports it, because software chooses its keys and its
    /// rights do not apply to other queue pairs. Otherwise type 1 is used, which is equivalent in a protection domain
    /// with only one queue pair. Soft-RoCE executes an invalidation by any peer's message for any window of type 2,
    /// even if the window is bound to another queue pair. Windows of type 1 cannot be invalidated, so they are used
    /// with soft-RoCE.
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
