//! The compiled programs: loads and attaches the object for this processor, or returns the reason why there is none.
//!
//! The objects are checked in beside their sources (`bpf/`). They are the same for every kernel: the loader adapts them
//! to the types of the running kernel. `cargo xtask bpf` compiles them.

#[cfg(feature = "bpf")]
pub(super) use super::attach::load_object;
use super::btf::Hooks;
use super::load::{Loaded, check};
use super::publish::Maps;
use super::refusal::BpfUnavailable;
use super::requirement::Requirement;

#[cfg(all(feature = "bpf", target_arch = "x86_64"))]
static OBJECT: Option<&[u8]> = Some(aya::include_bytes_aligned!("../../../bpf/pindown-x86_64.bpf.o"));
#[cfg(all(feature = "bpf", target_arch = "aarch64", target_endian = "little"))]
static OBJECT: Option<&[u8]> = Some(aya::include_bytes_aligned!("../../../bpf/pindown-aarch64.bpf.o"));
#[cfg(not(all(feature = "bpf", any(target_arch = "x86_64", all(target_arch = "aarch64", target_endian = "little")))))]
static OBJECT: Option<&[u8]> = None;

/// Returns the object of this build.
pub(super) fn find() -> Result<&'static [u8], BpfUnavailable> {
    let missing = if cfg!(feature = "bpf") { Requirement::Processor } else { Requirement::Feature };
    OBJECT.ok_or(BpfUnavailable::NotBuilt(missing))
}

/// Loads the programs that this kernel needs and attaches them.
pub(super) fn load() -> Result<(Loaded, Maps), BpfUnavailable> {
    load_object(find()?, check()?)
}

/// Like [`load`], but without the programs that report when calls begin. Returns `None` if the kernel does not need
/// them.
pub(super) fn load_records_alone() -> Result<Option<(Loaded, Maps)>, BpfUnavailable> {
    let (object, hooks) = (find()?, check()?);
    hooks.starts.then(|| load_object(object, Hooks { starts: false, ..hooks })).transpose()
}

/// The variant without the feature `bpf`, in which there is no object.
#[cfg(not(feature = "bpf"))]
fn load_object(_object: &[u8], _hooks: Hooks) -> Result<(Loaded, Maps), BpfUnavailable> {
    Err(BpfUnavailable::NotBuilt(Requirement::Feature))
}

#[cfg(test)]
mod tests {
    use super::super::client::NOBODYS;
    use super::*;

    #[test]
    fn builds_with_the_feature_contain_the_programs() {
        let is_known = cfg!(any(target_arch = "x86_64", target_arch = "aarch64"));
        match find() {
            Ok(object) => assert!(object.starts_with(b"\x7fELF") && cfg!(feature = "bpf")),
            Err(error) => assert!(!(is_known && cfg!(feature = "bpf")), "{error}"),
        }
    }

    #[test]
    fn challenges_use_the_addresses_that_the_programs_report() {
        let header = match std::env::consts::ARCH {
            "aarch64" => include_str!("../../../bpf/aarch64.h"),
            _ => include_str!("../../../bpf/x86_64.h"),
        };
        let bits = header.lines().find_map(|line| line.strip_prefix("#define ADDRESS_BITS ")).expect("the constant");
        let bits: u32 = bits.parse().expect("a number");
        assert_eq!(NOBODYS, 1 << (bits - 1)..1 << bits);
    }
}
