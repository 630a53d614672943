//! The compiled programs: loads and attaches the object, or returns the reason why this fails.

#[cfg(feature = "bpf")]
pub(super) use super::attach::load_object;
use super::btf::Hooks;
use super::load::{Loaded, check};
use super::publish::Maps;
use super::refusal::BpfUnavailable;

#[cfg(pindown_bpf)]
static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/pindown.bpf.o"));
#[cfg(not(pindown_bpf))]
static OBJECT: &[u8] = &[];

/// A variant of the object that reports changes only when they begin.
#[cfg(all(test, pindown_bpf))]
pub(super) static ENTRY_ONLY: &[u8] =
    aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/pindown-entry-only.bpf.o"));

/// Loads the programs that this kernel needs and attaches them.
pub(super) fn load() -> Result<(Loaded, Maps), BpfUnavailable> {
    load_object(OBJECT, check()?)
}

/// Like [`load`], but without the programs that report when calls begin. Returns `None` if the kernel does not need
/// them.
pub(super) fn load_records_alone() -> Result<Option<(Loaded, Maps)>, BpfUnavailable> {
    let hooks = check()?;
    hooks.starts.then(|| load_object(OBJECT, Hooks { starts: false, ..hooks })).transpose()
}

/// The variant without the feature `bpf`, with which [`check`] fails.
#[cfg(not(feature = "bpf"))]
fn load_object(_object: &[u8], _hooks: Hooks) -> Result<(Loaded, Maps), BpfUnavailable> {
    Err(BpfUnavailable::NotBuilt(env!("PINDOWN_BPF_ABSENT")))
}
