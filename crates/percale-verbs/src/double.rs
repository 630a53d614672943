//! Tests on the double of libibverbs. Each test runs in a separate process with the devices that it chooses.

#![expect(unsafe_code, reason = "calls a function of the double, found by dlsym; the blocks state their reasons")]

use std::ffi::{CString, c_char, c_int};
use std::process::{Command, Stdio};

use super::abi;
use super::error::VerbsError;
use super::pair::QueuePair;

/// The environment variable that names the double.
const LIBRARY: &str = "PERCALE_VERBS_LIBRARY";
/// The opcode of a request that percale never makes: a message that invalidates one of its receiver's keys.
const SEND_WITH_INVALIDATE: c_int = 9;
/// The environment variable that is set in the process in which a test runs.
const WITHIN: &str = "PERCALE_VERBS_TEST";

/// The directory in which cargo puts the double for a test program that depends on it.
#[cfg(test)]
pub(crate) fn beside_this_program() -> std::path::PathBuf {
    let program = std::env::current_exe().expect("the test program has a name");
    program.with_file_name("libpercale_verbs_double.so")
}

/// Returns whether the double is used. If so, prints why tests of pinned pages are skipped (RDMA device): the double copies to the
/// memory that is mapped at an address at the time of the copy.
pub fn pins_no_pages() -> bool {
    let is_double = std::env::var(LIBRARY).is_ok_and(|name| name.contains("verbs_double"));
    if is_double {
        println!("skipped (RDMA device): the double of libibverbs pins no pages");
    }
    is_double
}

/// Runs the calling test in a separate process, on devices that these commands create. The name of the test is the name
/// of its thread. Prints that the test is skipped if there is no double.
pub fn on(devices: &str, test: impl FnOnce()) {
    if std::env::var_os(WITHIN).is_some() {
        return test();
    }
    if !std::env::var(LIBRARY).is_ok_and(|name| name.contains("verbs_double")) {
        return println!("skipped (RDMA double): {LIBRARY} names no double of libibverbs (xtask test --only verbs)");
    }
    let name = std::thread::current().name().expect("the thread of a test has a name").to_owned();
    let mut command = Command::new(std::env::current_exe().expect("the test program has a name"));
    command.args([&*name, "--exact", "--nocapture", "--test-threads=1"]).stdin(Stdio::null());
    let output = command.env(WITHIN, "1").env("PERCALE_VERBS_DOUBLE", devices).output().expect("a process");
    let (message, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{name}: {}\n{message}\n{errors}", output.status);
    assert!(message.contains("1 passed"), "{name} was not run:\n{message}\n{errors}");
}

/// Executes commands of the double during a test.
pub fn tell(commands: &str) {
    let name = std::env::var_os(LIBRARY).expect("the double");
    // SAFETY: the double is already loaded. This only increments its reference count.
    let library = unsafe { libloading::Library::new(name) }.expect("the double");
    // SAFETY: the double declares the function with this type.
    let control = unsafe { library.get::<unsafe extern "C" fn(*const c_char) -> c_int>(b"percale_verbs_double\0") };
    let text = CString::new(commands).expect("no zero byte");
    // SAFETY: the text ends with a zero byte.
    assert_eq!(unsafe { control.expect("a double")(text.as_ptr()) }, 0, "{commands}");
}

/// Posts a message that invalidates a key of its receiver. percale itself never sends such a message.
///
/// # Errors
/// The error that the device reports.
pub fn post_invalidating(pair: &QueuePair, id: u64, key: u32) -> Result<(), VerbsError> {
    let mut request = abi::SendWr::new(id, SEND_WITH_INVALIDATE);
    request.imm_data = key;
    // SAFETY: the request names no memory, only a key of the target.
    unsafe { pair.post(&mut request) }
}
