//! Passes arbitrary bytes of a caller that is not authenticated. The handshake must end in a connection or in a
//! rejection.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| percale_transport::connect::fuzz_handshake(bytes));
