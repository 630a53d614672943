//! Tests of `percale serve` and `percale cp`, with regular use and with attacks.

mod attempts;
mod client;
#[expect(dead_code, reason = "this test does not inspect processes")]
#[path = "../common/mod.rs"]
mod common;
mod copy;
mod durable;
mod hostile_client;
mod hostile_server;
mod interrupted;
mod odd_files;
mod place;
mod stalling;
