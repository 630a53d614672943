//! Regions of plain values of a type.

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use super::{Access, CloseError, Region, RegisterError, Registration};
use crate::domain::Domain;
use crate::local_memory::typed_memory::TypedMemory;

/// A [`Region`] that owns memory of plain values, and returns it in its own type when it is closed. It is created by
/// [`Domain::register_typed`] or [`Registration::own_typed`], and has the methods of a region.
pub struct TypedRegion<M: TypedMemory> {
    region: Region,
    memory: PhantomData<M>,
}

crate::short_debug!(
    for [M: TypedMemory] TypedRegion<M>, "TypedRegion", access: |this| this.access(), len: |this| this.len()
);

impl Domain {
    /// Registers memory of plain values, which peers may access with the rights `access`. The region owns the memory
    /// until it is closed.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use percale::{Access, Info};
    /// # let domain = Info::discover()?.best()?.open()?;
    /// let region = domain.register_typed(vec![1.5_f64; 100], Access::REMOTE_WRITE)?;
    /// let name = region.remote().to_bytes(); // to be sent to peers, which write values of 8 bytes
    /// let values: Vec<f64> = region.close()?; // no peer accesses it any more
    ///
    /// let counters = domain.register_typed(domain.allocate_of::<u64>(8)?, Access::REMOTE_WRITE)?;
    /// assert_eq!(counters.get(3), 0);
    /// # drop((name, values)); Ok(()) }
    /// ```
    ///
    /// # Errors
    /// See [`RegisterError`].
    pub fn register_typed<M: TypedMemory>(&self, memory: M, access: Access) -> Result<TypedRegion<M>, RegisterError> {
        self.registration(access).own_typed(memory)
    }
}

impl Registration<'_> {
    /// Registers memory of plain values, which the region owns until it is closed.
    ///
    /// # Errors
    /// See [`RegisterError`].
    pub fn own_typed<M: TypedMemory>(self, memory: M) -> Result<TypedRegion<M>, RegisterError> {
        Ok(TypedRegion { region: self.own(memory.into_buffer())?, memory: PhantomData })
    }
}

impl<M: TypedMemory> TypedRegion<M> {
    /// Returns the number of values. [`len`](Region::len) is the number of bytes.
    #[must_use]
    pub fn count_of_values(&self) -> usize {
        self.region.len().checked_div(size_of::<M::Value>()).unwrap_or(0)
    }

    /// Returns a copy of the value with this index. [`MemoryView`](super::MemoryView) states what happens if a peer
    /// writes it at the same time.
    ///
    /// # Panics
    /// If the index is not less than the number of values, or if percale allocated the memory and this is a forked
    /// child.
    #[must_use]
    #[track_caller]
    pub fn get(&self, index: usize) -> M::Value {
        let value = self.view().read_at(self.offset(index));
        value.unwrap_or_else(|error| panic!("cannot read value {index} of the region: {error}"))
    }

    /// Replaces the value with this index. Peers may access it at the same time, as with [`get`](Self::get).
    ///
    /// # Panics
    /// As [`get`](Self::get).
    #[track_caller]
    pub fn set(&mut self, index: usize, value: M::Value) {
        let written = self.view().write_at(self.offset(index), value);
        written.unwrap_or_else(|error| panic!("cannot write value {index} of the region: {error}"));
    }

    /// Returns the offset of the value with this index.
    #[track_caller]
    fn offset(&self, index: usize) -> usize {
        let count = self.count_of_values();
        assert!(index < count, "index {index} is out of range for a region of {count} values");
        index * size_of::<M::Value>()
    }

    /// Closes the region. When this returns the memory, no peer reads or writes it, and none will. In a forked child it
    /// returns the child's copy of the memory, and the parent's region is unchanged.
    ///
    /// # Errors
    /// See [`CloseError`]. The error contains the region.
    ///
    /// # Panics
    /// If the region was exchanged for one of other memory through [`DerefMut`].
    pub fn close(self) -> Result<M, CloseError<Self>> {
        let buffer = self.region.close().map_err(|error| match error {
            CloseError::Busy(region) => CloseError::Busy(Self { region, memory: PhantomData }),
            CloseError::Windows(region) => CloseError::Windows(Self { region, memory: PhantomData }),
            CloseError::Forked(region) => CloseError::Forked(Self { region, memory: PhantomData }),
            error => unreachable!("closing failed for another reason: {error}"),
        })?;
        let memory = M::from_buffer(buffer);
        Ok(memory.unwrap_or_else(|_| panic!("the region was exchanged for a region of memory of another type")))
    }
}

impl<M: TypedMemory> Deref for TypedRegion<M> {
    type Target = Region;

    fn deref(&self) -> &Region {
        &self.region
    }
}

impl<M: TypedMemory> DerefMut for TypedRegion<M> {
    fn deref_mut(&mut self) -> &mut Region {
        &mut self.region
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::Info;

    #[test]
    fn region_returns_its_memory_in_its_type() {
        let domain = Info::discover().unwrap().best().unwrap().open().unwrap();
        let vector = vec![1_u32, 2, 3];
        let address = vector.as_ptr();
        let mut region = domain.register_typed(vector, Access::REMOTE_WRITE).unwrap();
        assert_eq!((region.len(), region.count_of_values(), region.get(2)), (12, 3, 3));
        region.set(1, 7);
        region.disable().unwrap();
        let vector = region.close().unwrap();
        assert_eq!((vector.as_slice(), vector.as_ptr()), ([1, 7, 3].as_slice(), address));
        let boxed: Box<[f64]> = domain.register_typed(Box::from([1.5]), Access::REMOTE_READ).unwrap().close().unwrap();
        assert_eq!(*boxed, [1.5]);
        let mut allocation = domain.allocate_of::<[u16; 3]>(2).unwrap();
        allocation.write(1, &[[4, 5, 6]]);
        let region = domain.registration(Access::REMOTE_READ).key(5).own_typed(allocation).unwrap();
        assert_eq!((region.key(), region.get(1)), (5, [4, 5, 6]));
        assert_eq!(region.close().unwrap().to_vec(), [[0; 3], [4, 5, 6]]);
    }

    #[test]
    #[should_panic(expected = "index 3 is out of range for a region of 3 values")]
    fn index_past_the_last_value_panics() {
        let domain = Info::discover().unwrap().best().unwrap().open().unwrap();
        let region = domain.register_typed(vec![1_u32, 2, 3], Access::REMOTE_WRITE).unwrap();
        assert_eq!(region.get(3), 0_u32);
    }
}
