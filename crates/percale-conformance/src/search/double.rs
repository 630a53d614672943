//! The test double of libibverbs: its location, and the commands sent to it.
//!
//! A program cannot make a real device fail, but it can make the test double fail. Therefore runs over verbs use only
//! the test double. At steps of a run, its devices fail, its queues overflow, its ports go down and change their
//! addresses, and its requests are delayed.

#![expect(unsafe_code, reason = "calls functions of the test double, found by dlsym; each block states its reason")]

use std::ffi::{CString, c_char, c_int};
use std::path::PathBuf;
use std::sync::OnceLock;

/// The environment variable with the path of the library that is used instead of libibverbs.
pub(super) const LIBRARY: &str = "PERCALE_VERBS_LIBRARY";

/// The file name of the test double.
const FILE: &str = "libpercale_verbs_double.so";

/// Returns the path of the test double: the value of the environment variable, or the file next to this program.
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
        let name = std::env::var_os(LIBRARY).expect("the path of the verbs double is set");
        // SAFETY: percale loads the same library, so this only increments its reference count.
        let library = unsafe { libloading::Library::new(name) }.expect("the double can be loaded");
        // SAFETY: the test double declares the function with this type.
        let control =
            *unsafe { library.get::<Control>(b"percale_verbs_double\0") }.expect("the double has its function");
        // The library stays loaded until the process ends.
        std::mem::forget(library);
        control
    })
}

/// Executes commands. Returns false if one fails, for example because it names an object that does not exist.
pub(super) fn execute_commands(commands: &str) -> bool {
    let text = CString::new(commands).expect("no zero byte");
    // SAFETY: the text ends with a zero byte.
    unsafe { control()(text.as_ptr()) == 0 }
}
