//! A stranger may send anything before it is known: the handshake must end in a connection or in a refusal.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| percale::transport::connect::fuzz_handshake(bytes));
