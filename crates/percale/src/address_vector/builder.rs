//! Making an address vector.

use super::name::Family;
use super::vector::{AddressError, AddressVector, VectorOptions, VectorType};

/// The options of an address vector.
#[derive(Clone, Default)]
#[must_use = "nothing is made before `build`"]
pub struct VectorBuilder {
    options: VectorOptions,
}

crate::short_debug!(VectorBuilder, "VectorBuilder");

impl VectorBuilder {
    /// Sets what the vector's numbers mean (FI_AV_TABLE, FI_AV_MAP).
    pub const fn kind(mut self, kind: VectorType) -> Self {
        self.options.kind = kind;
        self
    }

    /// Sets the only family of addresses that the vector accepts.
    pub const fn family(mut self, family: Family) -> Self {
        self.options.family = Some(family);
        self
    }

    /// Sets how many of the top bits of the vector's numbers name receive contexts.
    pub const fn receive_context_bits(mut self, bits: u32) -> Self {
        self.options.receive_context_bits = bits;
        self
    }

    /// Sets how many addresses are expected. The vector accepts more.
    pub const fn expected(mut self, count: usize) -> Self {
        self.options.expected = count;
        self
    }

    /// Sets the name by which processes of this user share the vector, within domains of one [name](Self::domain). The first process that opens
    /// it creates it, and it exists until the last of these processes closes it.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.options.name = Some(name.into());
        self
    }

    /// Sets the name of the domain: processes share vectors of one name within domains of one name (fi_av(3)). Default: the
    /// [interface](crate::DomainBuilder::interface) of the domain, if it was opened for one.
    pub fn domain(mut self, name: impl Into<String>) -> Self {
        self.options.domain = name.into();
        self
    }

    /// Opens an existing named vector only, and only for reading.
    pub const fn read_only(mut self) -> Self {
        self.options.read_only = true;
        self
    }

    /// Sets the base of the numbers of a named map. Equal numbers mean the same peer in processes with equal bases.
    pub const fn base(mut self, base: u64) -> Self {
        self.options.base = base;
        self
    }

    /// Creates the vector, or opens it.
    ///
    /// # Errors
    /// If an option is out of range, a read-only vector has no name, or the named vector cannot be created or opened.
    pub fn build(self) -> Result<AddressVector, AddressError> {
        AddressVector::new(self.options)
    }
}
