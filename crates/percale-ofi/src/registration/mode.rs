//! Registration modes, which applications and domains agree on (fi_domain(3), `mr_mode`).
//!
//! A domain honors its bits even if the application passed them to fi_domain(3) and the provider did not request them
//! (`FI_PERCALE_MR_MODE`).

use std::ffi::c_int;

use crate::abi::{
    FI_LOCAL_MR, FI_MR_ALLOCATED, FI_MR_BASIC, FI_MR_COLLECTIVE, FI_MR_ENDPOINT, FI_MR_HMEM, FI_MR_LOCAL,
    FI_MR_MMU_NOTIFY, FI_MR_PROV_KEY, FI_MR_RAW, FI_MR_RMA_EVENT, FI_MR_SCALABLE, FI_MR_VIRT_ADDR,
};

/// The bits that FI_MR_BASIC stands for (MR-023).
pub(crate) const BASIC: c_int = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;

/// The bits, with their names in parameters and messages.
const BITS: [(&str, &str, c_int); 10] = [
    ("local", "FI_MR_LOCAL", FI_MR_LOCAL),
    ("raw", "FI_MR_RAW", FI_MR_RAW),
    ("virt_addr", "FI_MR_VIRT_ADDR", FI_MR_VIRT_ADDR),
    ("allocated", "FI_MR_ALLOCATED", FI_MR_ALLOCATED),
    ("prov_key", "FI_MR_PROV_KEY", FI_MR_PROV_KEY),
    ("mmu_notify", "FI_MR_MMU_NOTIFY", FI_MR_MMU_NOTIFY),
    ("rma_event", "FI_MR_RMA_EVENT", FI_MR_RMA_EVENT),
    ("endpoint", "FI_MR_ENDPOINT", FI_MR_ENDPOINT),
    ("hmem", "FI_MR_HMEM", FI_MR_HMEM),
    ("collective", "FI_MR_COLLECTIVE", FI_MR_COLLECTIVE),
];

/// Returns the names of the bits that are set.
pub(crate) fn names(bits: c_int) -> String {
    let set = BITS.iter().filter(|(.., bit)| bits & bit != 0).map(|(_, name, _)| *name);
    set.collect::<Vec<_>>().join(" | ")
}

/// Parses a list of bit names.
pub(crate) fn parse(list: &str) -> Result<c_int, String> {
    let words = list.split(',').map(str::trim).filter(|word| !word.is_empty());
    words.map(|word| word.to_lowercase()).try_fold(0, |bits, word| {
        let found = BITS.iter().find(|(name, ..)| *name == word).map(|(.., bit)| bits | bit);
        found.ok_or_else(|| {
            let known = BITS.map(|(name, ..)| name).join(", ");
            format!("unknown registration mode {word:?}; valid modes are {known}")
        })
    })
}

/// The meaning of a domain's `mr_mode` for its regions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RegionMode {
    /// Peers address bytes by their virtual address instead of their offset.
    pub(crate) virtual_addresses: bool,
    /// The memory is mapped during the whole lifetime of the registration.
    pub(crate) allocated: bool,
    /// The provider selects the keys.
    pub(crate) our_keys: bool,
    /// Peers can access a region only after it was bound to an endpoint and enabled.
    pub(crate) by_endpoint: bool,
    /// A region that counts the writes of peers is bound to a counter and then enabled.
    pub(crate) events: bool,
    /// Local memory is registered, and each operation passes its descriptor.
    pub(crate) local: bool,
    /// The memory of collectives is registered for them.
    pub(crate) collective: bool,
    /// Keys are raw (long), and peers map them.
    pub(crate) raw: bool,
    /// Local device memory is registered, and each operation passes its descriptor.
    pub(crate) devices: bool,
    /// Peers can access the memory of a region only after the client reported that its pages are present.
    pub(crate) notify: bool,
}

impl RegionMode {
    /// Reads a domain's `mr_mode`, and the `mode` of the info that the domain is opened with.
    pub(crate) const fn of(bits: c_int, mode: u64) -> Self {
        let old = bits == FI_MR_BASIC || bits == FI_MR_SCALABLE;
        let bits = match bits {
            FI_MR_BASIC => BASIC,
            FI_MR_SCALABLE => 0,
            bits => bits,
        };
        Self {
            virtual_addresses: bits & FI_MR_VIRT_ADDR != 0,
            allocated: bits & FI_MR_ALLOCATED != 0,
            our_keys: bits & FI_MR_PROV_KEY != 0,
            by_endpoint: bits & FI_MR_ENDPOINT != 0,
            events: bits & FI_MR_RMA_EVENT != 0,
            // FI_LOCAL_MR is the old name of the bit and has no effect together with the new names (MR-024, MR-025).
            local: bits & FI_MR_LOCAL != 0 || old && mode & FI_LOCAL_MR != 0,
            collective: bits & FI_MR_COLLECTIVE != 0,
            raw: bits & FI_MR_RAW != 0,
            devices: bits & FI_MR_HMEM != 0,
            notify: bits & FI_MR_MMU_NOTIFY != 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requirements: MR-023, MR-024, MR-025.
    #[test]
    fn old_mr_modes_equal_their_expansion() {
        assert_eq!(RegionMode::of(FI_MR_BASIC, 0), RegionMode::of(BASIC, 0));
        assert_eq!(RegionMode::of(FI_MR_SCALABLE, 0), RegionMode::of(0, 0));
        for old in [FI_MR_BASIC, FI_MR_SCALABLE] {
            assert!(RegionMode::of(old, FI_LOCAL_MR).local && !RegionMode::of(old, 0).local);
        }
        for mode in [0, FI_LOCAL_MR] {
            assert!(RegionMode::of(FI_MR_LOCAL, mode).local);
            assert!(!RegionMode::of(FI_MR_VIRT_ADDR, mode).local && !RegionMode::of(0, mode).local);
        }
    }

    #[test]
    fn names_are_read_and_written() {
        assert_eq!(parse("virt_addr,allocated, prov_key"), Ok(BASIC));
        assert_eq!(parse(""), Ok(0));
        assert_eq!(names(BASIC), "FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY");
        assert!(parse("basic").unwrap_err().contains("valid modes are local, raw"));
    }
}
