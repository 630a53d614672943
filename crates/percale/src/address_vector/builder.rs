//! Builds address vectors.

use super::name::Family;
use super::vector::{AddressError, AddressVector, VectorOptions, VectorType};

/// The options of an address vector.
#[derive(Clone, Default)]
#[must_use = "no vector is created until `build` is called"]
pub struct VectorBuilder {
    options: VectorOptions,
}

crate::short_debug!(VectorBuilder, "VectorBuilder");

impl VectorBuilder {
    /// Sets the meaning of the vector's numbers (FI_AV_TABLE, FI_AV_MAP).
    pub const fn kind(mut self, kind: VectorType) -> Self {
        self.options.kind = kind;
        self
    }

    /// Sets the only address family that the vector accepts.
    pub const fn family(mut self, family: Family) -> Self {
        self.options.family = Some(family);
        self
    }

    /// Sets the number of top bits of the vector's numbers that select receive contexts.
    pub const fn receive_context_bits(mut self, bits: u32) -> Self {
        self.options.receive_context_bits = bits;
        self
    }

    /// Sets the expected number of addresses. The vector accepts more.
    pub const fn expected(mut self, count: usize) -> Self {
        self.options.expected = count;
        self
    }

    /// Sets the name under which processes of the same user share the vector, within domains of the same
    /// [name](Self::domain). The first process that opens it creates it, and it exists until the last of these
    /// processes closes it.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.options.name = Some(name.into());
        self
    }

    /// Sets the name of the domain. Processes share vectors of the same name within domains of the same name
    /// (fi_av(3)). Default: the [interface](crate::DomainBuilder::interface) of the domain, if it was opened for one.
    pub fn domain(mut self, name: impl Into<String>) -> Self {
        self.options.domain = name.into();
        self
    }

    /// Opens the named vector only if it exists, and only for reading.
    pub const fn read_only(mut self) -> Self {
        self.options.read_only = true;
        self
    }

    /// Sets the base of the numbers of a named map. In processes with equal bases, equal numbers denote the same peer.
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
