//! A peer may write anything into the ring it shares with us: reading it must end in frames or in an error.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| percale::transport::shm::fuzz_ring(bytes));
