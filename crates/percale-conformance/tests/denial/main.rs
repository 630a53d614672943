//! What happens where the system refuses calls or resources: see `percale_conformance::denial`.

mod cache;
mod limits;
mod listed;
mod rust;

/// The other role of this program.
#[test]
fn helper() {
    percale_conformance::process::play(&[
        ("pair", rust::pair),
        ("cache", cache::cache),
        ("mesh", limits::mesh),
        ("last", limits::last),
    ]);
}
