//! The switch to loom's atomics, as in the rest of the crate.

pub(super) use crate::sync::*;
