//! Tests of matching. [`model`] compares with plain vectors. [`rules`] tests single rules. [`scale`] and [`classes`]
//! count the entries that searches examine.

mod classes;
mod model;
mod rules;
mod scale;
