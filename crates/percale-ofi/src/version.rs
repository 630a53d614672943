//! The versions of the provider and of the interface that it implements.

use crate::abi::fi_version;

/// The newest API that this provider implements.
pub const API: u32 = fi_version(2, 6);

/// Returns the version of this crate.
pub(crate) const fn crate_version() -> u32 {
    fi_version(number(env!("CARGO_PKG_VERSION_MAJOR")), number(env!("CARGO_PKG_VERSION_MINOR")))
}

const fn number(text: &str) -> u32 {
    match u32::from_str_radix(text, 10) {
        Ok(number) => number,
        Err(_) => 0,
    }
}
