//! Tests that the programs in the README are those that are run as examples.

/// Returns the programs that a document shows.
fn programs(document: &str) -> Vec<&str> {
    let blocks = document.split("```rust,no_run\n").skip(1);
    blocks.map(|block| block.split("```").next().unwrap_or_default()).collect()
}

/// Returns an example without the documentation in its first lines.
fn body(example: &str) -> &str {
    let start = example.find("\n\n").expect("a blank line after the documentation");
    &example[start + 2..]
}

#[test]
fn readme_programs_are_the_examples() {
    let server = include_str!("../examples/hello_server.rs");
    let client = include_str!("../examples/hello_client.rs");
    assert_eq!(programs(include_str!("../../../README.md")), [body(server), body(client)]);
}
