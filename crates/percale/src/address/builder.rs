//! Making an address vector.

use super::name::Family;
use super::vector::{AddressError, AddressVector, VectorOptions, VectorType};

/// Collects what a vector is to be like.
#[derive(Clone, Default)]
#[must_use = "nothing is made before `build`"]
pub struct VectorBuilder {
    options: VectorOptions,
}

crate::short_debug!(VectorBuilder, "VectorBuilder");

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

    /// How many addresses are expected; more are taken.
    pub const fn expected(mut self, count: usize) -> Self {
        self.options.expected = count;
        self
    }

    /// The name by which processes of this user share it, within domains of one [name](Self::domain): who opens it first makes it, and it lasts as long as any of them.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.options.name = Some(name.into());
        self
    }

    /// The name of the domain: processes share vectors of one name within domains of one name (fi_av(3)). Default: the
    /// [interface](crate::DomainBuilder::interface) of the domain, if it was opened for one.
    pub fn domain(mut self, name: impl Into<String>) -> Self {
        self.options.domain = name.into();
        self
    }

    /// Only a named vector that is there already, and only to look at.
    pub const fn read_only(mut self) -> Self {
        self.options.read_only = true;
        self
    }

    /// What the numbers of a named map count from; equal numbers mean the same peer where this is equal.
    pub const fn base(mut self, base: u64) -> Self {
        self.options.base = base;
        self
    }

    /// Makes the vector, or opens it.
    ///
    /// # Errors
    /// If an option is out of range.
    pub fn build(self) -> Result<AddressVector, AddressError> {
        AddressVector::new(self.options)
    }
}
