//! What must not compile: REV-009.

#![cfg(not(loom))]

#[test]
fn rev_009_what_would_be_unsound_does_not_compile() {
    let cases = trybuild::TestCases::new();
    cases.compile_fail("tests/refused/*.rs");
}
