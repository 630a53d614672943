//! [`model`] compares with plain vectors, [`scale`] counts what searches look at, [`rules`] states single rules.

mod model;
mod rules;
mod scale;
