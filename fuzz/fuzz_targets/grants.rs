//! Passes arbitrary messages of a target about its regions. The initiator's table of them must match the answers to its
//! requests.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| percale_transport::verbs::fuzz_grants(bytes));
