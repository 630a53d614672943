//! Tests of device memory on every transport. See [`percale_conformance::device`].

mod driver;

include!(concat!(env!("OUT_DIR"), "/device.rs"));

/// Runs a helper role of this program.
#[test]
fn helper() {
    percale_conformance::process::play(&[("opener", driver::opener)]);
}
