//! Tests on a system that denies calls or resources, see `percale_conformance::denial`.

mod cache;
mod limits;
mod listed;
mod rust;

/// Runs a helper role of this program.
#[test]
fn helper() {
    percale_conformance::process::play(&[
        ("pair", rust::pair),
        ("cache", cache::cache),
        ("mesh", limits::mesh),
        ("last", limits::last),
    ]);
}
