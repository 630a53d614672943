//! Making an address vector.

use super::name::Family;
use super::vector::{AddressError, AddressVector, VectorOptions, VectorType};

/// Collects what a vector is to be like.
#[derive(Clone, Debug, Default)]
#[must_use = "nothing is made before `build`"]
pub struct VectorBuilder {
    options: VectorOptions,
}

impl VectorBuilder {
    /// What its numbers mean (FI_AV_TABLE, FI_AV_MAP).
    pub const fn kind(mut self, kind: VectorType) -> Self {
        self.options.kind = kind;
        self
    }

    /// The only family of addresses that it takes.
    pub const fn family(mut self, family: Family) -> Self {
        self.options.family = Some(family);
        self
    }

    /// How many of the top bits of its numbers name receive contexts.
    pub const fn receive_context_bits(mut self, bits: u32) -> Self {
        self.options.receive_context_bits = bits;
        self
    }

    /// Makes the vector.
    ///
    /// # Errors
    /// If an option is out of range.
    pub fn build(self) -> Result<AddressVector, AddressError> {
        AddressVector::new(self.options)
    }
}
