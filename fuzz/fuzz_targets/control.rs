//! Passes arbitrary control messages of a peer, which must be parsed or rejected.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| percale_wire::control::fuzz_control(bytes));
