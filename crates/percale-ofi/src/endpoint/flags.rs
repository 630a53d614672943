//! Conversion of libfabric's operation flags to percale's.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use percale::OpFlags;

use crate::abi::{
    FI_CLAIM, FI_COMPLETION, FI_DELIVERY_COMPLETE, FI_DISCARD, FI_EBADFLAGS, FI_FENCE, FI_INJECT, FI_INJECT_COMPLETE,
    FI_LOG_EP_CTRL, FI_MATCH_COMPLETE, FI_MORE, FI_MULTI_RECV, FI_PEEK, FI_REMOTE_CQ_DATA, FI_TRANSMIT_COMPLETE,
    FI_TRIGGER,
};
use crate::log;

/// The flags of libfabric that percale supports, with percale's flags.
const PAIRS: [(u64, OpFlags); 10] = [
    (FI_MORE, OpFlags::MORE),
    (FI_FENCE, OpFlags::FENCE),
    (FI_INJECT, OpFlags::INJECT),
    (FI_TRANSMIT_COMPLETE, OpFlags::TRANSMIT_COMPLETE),
    (FI_DELIVERY_COMPLETE, OpFlags::DELIVERY_COMPLETE),
    (FI_MATCH_COMPLETE, OpFlags::MATCH_COMPLETE),
    (FI_MULTI_RECV, OpFlags::MULTI_RECEIVE),
    (FI_PEEK, OpFlags::PEEK),
    (FI_CLAIM, OpFlags::CLAIM),
    (FI_DISCARD, OpFlags::DISCARD),
];

/// Flags that have no counterpart in percale: completion is decided separately, data is an argument, and the completion
/// of a transmission implies that the buffer may be reused.
const ELSEWHERE: u64 = FI_COMPLETION | FI_REMOTE_CQ_DATA | FI_INJECT_COMPLETE;

const KNOWN: u64 = {
    let (mut all, mut at) = (ELSEWHERE, 0);
    while at < PAIRS.len() {
        all |= PAIRS[at].0;
        at += 1;
    }
    all
};

/// Converts the flags of an operation. Returns `None` if there is a flag that percale does not support (such as
/// FI_COMMIT_COMPLETE) or that is handled before (FI_TRIGGER).
#[inline]
pub(crate) fn translate(flags: u64) -> Option<OpFlags> {
    if flags & !KNOWN != 0 {
        return None;
    }
    let mut all = OpFlags::empty();
    for (theirs, ours) in PAIRS {
        all.set(ours, flags & theirs != 0);
    }
    Some(all)
}

/// Rejects unsupported default flags with a positive error code, and logs a message that names their owner `what`.
pub(crate) fn check(what: &str, defaults: u64) -> Result<(), i32> {
    let unknown = defaults & !(KNOWN | FI_TRIGGER);
    if unknown != 0 {
        log::warning!(FI_LOG_EP_CTRL, "{what}: flags {unknown:#x} are not supported");
        return Err(FI_EBADFLAGS);
    }
    Ok(())
}

/// The mark of triggered operations: an operation with default flags begins when the condition in its context is met
/// (FI_TRIGGER in the flags of an endpoint or alias). percale itself does not use this bit.
pub(crate) const TRIGGERED: OpFlags = OpFlags::from_bits_retain(1 << 31);

/// One direction of an endpoint, with the rules for reporting completions. It changes while the endpoint is set up,
/// which clients serialize with all other calls (fi_endpoint(3)).
#[derive(Debug, Default)]
pub(crate) struct Direction {
    /// Set if successful operations are reported.
    reports: AtomicBool,
    /// Set if only operations that request it are reported (FI_SELECTIVE_COMPLETION).
    selective: AtomicBool,
    /// libfabric's default flags, for operations without flags.
    defaults: AtomicU64,
    /// percale's default flags.
    ours: AtomicU32,
    /// Set if the memory of operations may be device memory.
    devices: bool,
}

impl Direction {
    /// Creates a direction that does not report completions yet. `devices` states that the memory of operations may be
    /// device memory.
    pub(crate) fn new(defaults: u64, devices: bool) -> Self {
        let direction = Self { devices, ..Self::default() };
        direction.set_defaults(defaults);
        direction
    }

    /// Sets the options of the binding to a completion queue.
    pub(crate) fn bind(&self, reports: bool, selective: bool) {
        self.reports.store(reports, Ordering::Relaxed);
        self.selective.store(selective, Ordering::Relaxed);
        self.set_defaults(self.defaults());
    }

    /// Returns libfabric's default flags.
    pub(crate) fn defaults(&self) -> u64 {
        self.defaults.load(Ordering::Relaxed)
    }

    /// Sets the default flags, which have passed [`check`].
    pub(crate) fn set_defaults(&self, defaults: u64) {
        let known = defaults & KNOWN;
        let triggered = if defaults & FI_TRIGGER == 0 { OpFlags::empty() } else { TRIGGERED };
        self.defaults.store(defaults & (KNOWN | FI_TRIGGER), Ordering::Relaxed);
        self.ours.store((self.flags(known).unwrap_or_default() | triggered).bits(), Ordering::Relaxed);
    }

    /// Returns percale's default flags.
    #[inline]
    pub(crate) fn own(&self) -> OpFlags {
        OpFlags::from_bits_retain(self.ours.load(Ordering::Relaxed))
    }

    /// Returns percale's flags for the separate inject calls.
    #[inline]
    pub(crate) const fn injecting(&self) -> OpFlags {
        if self.devices { OpFlags::INJECT.union(OpFlags::DEVICE) } else { OpFlags::INJECT }
    }

    /// Returns percale's flags for an operation with these flags.
    #[inline]
    pub(crate) fn flags(&self, flags: u64) -> Option<OpFlags> {
        let mut ours = translate(flags)?;
        let requested = !self.selective.load(Ordering::Relaxed) || flags & FI_COMPLETION != 0;
        ours.set(OpFlags::DEVICE, self.devices);
        ours.set(OpFlags::COMPLETION, requested && self.reports.load(Ordering::Relaxed));
        Some(ours)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::FI_COMMIT_COMPLETE;

    #[test]
    fn completion_flag_follows_the_binding() {
        let completes = |reports, selective, flags| {
            let direction = Direction::new(flags, false);
            direction.bind(reports, selective);
            assert_eq!(direction.flags(flags), Some(direction.own()));
            direction.own().contains(OpFlags::COMPLETION)
        };
        assert!(completes(true, false, 0));
        assert!(!completes(true, true, 0));
        assert!(completes(true, true, FI_COMPLETION));
        assert!(!completes(false, false, FI_COMPLETION));
    }

    /// Requirements: HMEM-001.
    #[test]
    fn device_memory_detection_requires_the_capability() {
        for devices in [false, true] {
            let direction = Direction::new(0, devices);
            direction.bind(true, false);
            let all = [direction.own(), direction.injecting(), direction.flags(FI_FENCE).unwrap()];
            assert!(all.iter().all(|flags| flags.contains(OpFlags::DEVICE) == devices), "{all:?}");
        }
    }

    #[test]
    fn default_flags_are_accepted_entirely_or_rejected() {
        assert_eq!(check("here", FI_COMPLETION | FI_TRIGGER | FI_INJECT), Ok(()));
        for unknown in [FI_COMMIT_COMPLETE, 1 << 62, FI_COMMIT_COMPLETE | FI_COMPLETION] {
            assert_eq!(check("here", unknown), Err(FI_EBADFLAGS));
        }
    }

    #[test]
    fn unknown_flags_are_refused() {
        assert_eq!(translate(FI_TRIGGER), None);
        assert_eq!(translate(FI_FENCE | FI_REMOTE_CQ_DATA), Some(OpFlags::FENCE));
    }
}
