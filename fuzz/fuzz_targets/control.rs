//! A peer may say anything about connections: it must parse as what it says, or be refused.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| percale::wire::control::fuzz_control(bytes));
