//! A target may send any messages about its regions: the initiator's view of them must match the answers to its requests.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| percale_transport::verbs::fuzz_grants(bytes));
