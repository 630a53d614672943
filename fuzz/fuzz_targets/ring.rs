//! Writes arbitrary bytes to the shared ring, as a peer may. Reading the ring must return frames or an error.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| percale_transport::shm::fuzz_ring(bytes));
