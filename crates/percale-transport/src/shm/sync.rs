//! The switch to loom's atomics, which the whole crate shares.

pub(super) use crate::sync::*;
