//! A peer may write any bytes into the shared ring: reading it must return frames or an error.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| percale_transport::shm::fuzz_ring(bytes));
