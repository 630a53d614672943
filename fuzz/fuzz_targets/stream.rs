//! A peer may send anything on a TCP connection: reading it must end in frames or in an error.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| percale::transport::tcp::fuzz_stream(bytes));
