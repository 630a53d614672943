//! Runs the examples, and checks that the README shows them unchanged.

#[path = "../examples/registrar.rs"]
mod registrar;

const README: &str = include_str!("../README.md");

/// Returns the text between the marks of an example.
fn shown(source: &'static str) -> &'static str {
    let (_, rest) = source.split_once("// begin\n").expect("the mark");
    rest.split_once("// end\n").expect("the mark").0
}

/// Requirements: RCACHE-023.
#[test]
fn the_registrar_of_the_example_has_room_for_fewer_than_are_used() {
    registrar::main().expect("it runs");
}

#[test]
fn the_readme_shows_the_example_as_it_is() {
    assert!(
        README.contains(shown(include_str!("../examples/registrar.rs"))),
        "copy examples/registrar.rs to README.md"
    );
}
