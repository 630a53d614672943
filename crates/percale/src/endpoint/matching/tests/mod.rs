//! [`model`] compares with plain vectors, [`rules`] states single rules; [`scale`] and [`classes`] count what searches
//! look at.

mod classes;
mod model;
mod rules;
mod scale;
