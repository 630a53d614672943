//! A peer may send any bytes on a TCP connection: reading it must return frames or an error.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| percale_transport::tcp::fuzz_stream(bytes));
