//! A target may say anything about its regions: what an initiator knows of them is what was answered to its questions.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| percale::transport::verbs::fuzz_grants(bytes));
