//! Passes arbitrary bytes of a peer on a TCP connection. Reading them must return frames or an error.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| percale_transport::tcp::fuzz_stream(bytes));
