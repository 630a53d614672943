//! Runs the examples, and checks that the README contains them unchanged.

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
fn example_registrar_works_with_fewer_slots_than_buffers() {
    registrar::main().expect("the program runs");
}

#[test]
fn readme_contains_the_current_example() {
    assert!(
        README.contains(shown(include_str!("../examples/registrar.rs"))),
        "copy examples/registrar.rs to README.md"
    );
}
