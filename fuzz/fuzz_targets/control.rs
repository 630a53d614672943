//! Control messages of a peer may have any content: they must be parsed or rejected.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| percale_wire::control::fuzz_control(bytes));
