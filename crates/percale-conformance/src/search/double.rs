//! The double of libibverbs: its location, and the commands that it is given.
//!
//! A device cannot be taken away from libibverbs by a program; from its double it can. So runs over verbs are made on the double alone: its
//! devices fail, their queues overflow, their ports go down and get other addresses, and what they do comes late, all at steps of a run.

#![expect(unsafe_code, reason = "calls a function of the double, found by dlsym; the blocks state their reasons")]

use std::ffi::{CString, c_char, c_int};
use std::path::PathBuf;
use std::sync::OnceLock;

/// The variable that names the library in the place of libibverbs.
pub(super) const LIBRARY: &str = "PERCALE_VERBS_LIBRARY";

/// What the double's file is named.
const FILE: &str = "libpercale_verbs_double.so";

/// The double: the one that the variable names, or the one beside this program.
pub(super) fn path() -> Option<PathBuf> {
    if let Some(named) = std::env::var_os(LIBRARY) {
        let named = PathBuf::from(named);
        let is_double = named.file_name().is_some_and(|name| name.to_string_lossy().contains("verbs_double"));
        return is_double.then_some(named);
    }
    let beside = std::env::current_exe().ok()?.parent()?.join(FILE);
    beside.exists().then_some(beside)
}

type Control = unsafe extern "C" fn(*const c_char) -> c_int;

fn control() -> Control {
    static FOUND: OnceLock<Control> = OnceLock::new();
    *FOUND.get_or_init(|| {
        let name = std::env::var_os(LIBRARY).expect("a program that runs over verbs was given the double");
        // SAFETY: percale loads the same library: this counts one more user of it.
        let library = unsafe { libloading::Library::new(name) }.expect("the double can be loaded");
        // SAFETY: the double declares it so.
        let control =
            *unsafe { library.get::<Control>(b"percale_verbs_double\0") }.expect("the double has its function");
        // It stays for as long as the process lives.
        std::mem::forget(library);
        control
    })
}

/// Carries out commands. Returns whether the double could (an event may name an object that does not exist).
pub(super) fn tell(commands: &str) -> bool {
    let text = CString::new(commands).expect("no zero");
    // SAFETY: the text ends with a zero.
    unsafe { control()(text.as_ptr()) == 0 }
}
