//! Tests of `percale doctor`. Most run it twice, in an environment with one fault and in the same environment without
//! it. The difference of the two lists of what to mend must be that fault, with a command that mends it.

#[expect(dead_code, reason = "these tests do not wait for processes")]
#[path = "../common/mod.rs"]
mod common;
mod diagnosis;
mod environments;
mod filter;
mod filters;
mod libraries;
mod output;
