//! A table of values that are identified by numbers. The numbers may be passed to other code.
//!
//! A number that is passed to a peer, a queue, a handle, another thread or the kernel may be returned after its value
//! was removed and its slot was filled again. An [`Id`] contains the slot and a generation, so a late id does not find
//! the new value.
//!
//! Invariants:
//! 1. The only way to a value is an [`Id`] that [`Table::insert`] returned for it, or a number that [`Id::to_wire`] or
//!    [`Id::to_u64`] returned for that id.
//! 2. No two values that a table ever contained have the same [`Id`], until 2³² values have been inserted.
//! 3. A table that is used with wire numbers contains at most [`WIRE_SLOTS`] values ([`Table::is_full`]). A wire number
//!    contains the low 10 bits of the generation. So a late wire number is mistaken for a new one only if a multiple of
//!    1,024 values was inserted into the whole table in the meantime *and* it has the same slot. The owner of a table
//!    with wire numbers therefore also keeps a value until its answer has arrived or its connection has ended. The
//!    generation protects against peers that break this rule.
//! 4. The two highest bits of a wire number are 0. If numbers of several tables are sent in one field, these bits
//!    identify the table.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::marker::PhantomData;
use std::num::{NonZeroU32, NonZeroU64};

use slab::Slab;

/// The number of bits of a wire number that contain the slot.
const SLOT_BITS: u32 = 20;

/// The number of bits of a wire number that contain the generation.
const GENERATION_BITS: u32 = 10;

/// The maximum number of values in a table with wire numbers, which have 32 bits.
pub const WIRE_SLOTS: usize = 1 << SLOT_BITS;

/// The number of a value in a [`Table`]: its slot and its generation. It is one word, so that it and results that contain
/// it are passed in registers.
pub struct Id<T> {
    /// The generation, in the upper half, and the slot. The generation is never 0, so that an `Option` of an id is as
    /// small as the id.
    word: NonZeroU64,
    of: PhantomData<fn() -> T>,
}

/// The first generation.
const FIRST: NonZeroU32 = NonZeroU32::MIN;

/// A generation that no value has.
const NONE: NonZeroU32 = NonZeroU32::MAX;

impl<T> Id<T> {
    #[inline]
    const fn new(slot: u32, generation: NonZeroU32) -> Self {
        Self::from_u64((generation.get() as u64) << 32 | slot as u64)
    }

    #[inline]
    const fn slot(self) -> u32 {
        self.word.get() as u32
    }

    #[inline]
    const fn generation(self) -> u32 {
        (self.word.get() >> 32) as u32
    }

    /// Returns the id in 64 bits, for fields that may contain numbers of several kinds, such as an application context
    /// of the library's own operations.
    #[inline]
    pub const fn to_u64(self) -> u64 {
        self.word.get()
    }

    /// The reverse of [`to_u64`](Self::to_u64). Accepts any number. An id that no table returned finds nothing.
    #[inline]
    pub const fn from_u64(word: u64) -> Self {
        const NO_GENERATION: NonZeroU64 = match NonZeroU64::new((NONE.get() as u64) << 32) {
            Some(word) => word,
            None => NonZeroU64::MAX,
        };
        let word = match NonZeroU64::new(word) {
            Some(word) if word.get() >> 32 != 0 => word,
            _ => NO_GENERATION,
        };
        Self { word, of: PhantomData }
    }

    /// Returns the id in the 32 bits that frames have for it. [`Table::find_wire`] is the reverse.
    #[inline]
    pub const fn to_wire(self) -> u32 {
        (self.generation() & ((1 << GENERATION_BITS) - 1)) << SLOT_BITS | self.slot()
    }
}

// Derived implementations would require the same traits of `T`.
impl<T> Clone for Id<T> {
    #[inline]
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Id<T> {}
impl<T> PartialEq for Id<T> {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        self.word == other.word
    }
}
impl<T> Eq for Id<T> {}
impl<T> Hash for Id<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.word.hash(state);
    }
}
impl<T> fmt::Debug for Id<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.slot(), self.generation())
    }
}

/// Values identified by number. Insertion and removal take constant time. Slots are reused, but numbers are not.
pub struct Table<T> {
    slots: Slab<(NonZeroU32, T)>,
    /// The generation of the next value.
    next: NonZeroU32,
}

impl<T> Default for Table<T> {
    #[inline]
    fn default() -> Self {
        Self::new()
    }
}

impl<T: fmt::Debug> fmt::Debug for Table<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl<T> Table<T> {
    /// Creates an empty table.
    #[inline]
    pub const fn new() -> Self {
        Self { slots: Slab::new(), next: FIRST }
    }

    /// Creates an empty table that allocates nothing until it contains more than `capacity` values.
    pub fn with_capacity(capacity: usize) -> Self {
        Self { slots: Slab::with_capacity(capacity), next: FIRST }
    }

    /// Adds a value, and returns its number.
    #[inline]
    pub fn insert(&mut self, value: T) -> Id<T> {
        let generation = self.next;
        self.next = match NonZeroU32::new(generation.get().wrapping_add(1)) {
            Some(next) if next != NONE => next,
            _ => FIRST,
        };
        Id::new(self.slots.insert((generation, value)) as u32, generation)
    }

    /// Returns the number that the next [`insert`](Self::insert) returns.
    #[inline]
    pub fn next_id(&self) -> Id<T> {
        Id::new(self.slots.vacant_key() as u32, self.next)
    }

    /// Returns the value, unless it was removed.
    #[inline]
    pub fn get(&self, id: Id<T>) -> Option<&T> {
        match self.slots.get(id.slot() as usize) {
            Some((generation, value)) if generation.get() == id.generation() => Some(value),
            _ => None,
        }
    }

    /// Like [`get`](Self::get), but mutable.
    #[inline]
    pub fn get_mut(&mut self, id: Id<T>) -> Option<&mut T> {
        match self.slots.get_mut(id.slot() as usize) {
            Some((generation, value)) if generation.get() == id.generation() => Some(value),
            _ => None,
        }
    }

    /// Removes a value and returns it, unless it was removed before.
    #[inline]
    pub fn remove(&mut self, id: Id<T>) -> Option<T> {
        self.get(id)?;
        Some(self.slots.remove(id.slot() as usize).1)
    }

    /// Returns the id of the value with this wire number, if it is in the table.
    #[inline]
    pub fn find_wire(&self, wire: u32) -> Option<Id<T>> {
        // The remaining high bits are compared together with the generation.
        let slot = wire & (WIRE_SLOTS as u32 - 1);
        let (generation, _) = self.slots.get(slot as usize)?;
        let id = Id::new(slot, *generation);
        (id.to_wire() == wire).then_some(id)
    }

    /// Returns whether the numbers of further values would not fit into 32 bits.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.slots.len() >= WIRE_SLOTS
    }

    /// Removes the values for which `keep` returns false.
    #[inline]
    pub fn retain(&mut self, mut keep: impl FnMut(Id<T>, &mut T) -> bool) {
        self.slots.retain(|slot, (generation, value)| keep(Id::new(slot as u32, *generation), value));
    }

    /// Returns the number of values.
    #[inline]
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Returns whether there are no values.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Returns the values with their numbers, in the order of slots.
    #[inline]
    pub fn iter(&self) -> impl Iterator<Item = (Id<T>, &T)> {
        self.slots.iter().map(|(slot, (generation, value))| (Id::new(slot as u32, *generation), value))
    }

    /// Like [`iter`](Self::iter), but mutable.
    #[inline]
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (Id<T>, &mut T)> {
        self.slots.iter_mut().map(|(slot, (generation, value))| (Id::new(slot as u32, *generation), value))
    }

    /// Frees the memory of removed values if no other value is stored behind it.
    #[inline]
    pub fn shrink(&mut self) {
        self.slots.shrink_to_fit();
    }
}

/// Values identified by number, like a [`Table`], for values that are added and removed at every operation of a fast
/// path. A removed value stays in its slot, and the next user of the slot changes only the fields that it needs. So
/// nothing is moved in or out as a whole.
pub struct Recycler<T> {
    slots: Vec<Recycled<T>>,
    /// The slot that is used next, and `slots.len()` if there is no free one.
    free: usize,
    /// The generation of the next value.
    next: NonZeroU32,
}

struct Recycled<T> {
    /// The generation of the value. [`NONE`] if the slot is free.
    generation: NonZeroU32,
    /// The next free slot, while this one is free.
    next: usize,
    value: T,
}

/// A value of a [`Recycler`] that is in use.
pub struct Occupied<'r, T> {
    recycled: &'r mut Recycled<T>,
    free: &'r mut usize,
    slot: usize,
}

impl<T> fmt::Debug for Occupied<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Occupied").field("slot", &self.slot).finish_non_exhaustive()
    }
}

impl<T> Occupied<'_, T> {
    /// Returns the value.
    #[inline(always)]
    pub fn value(&mut self) -> &mut T {
        &mut self.recycled.value
    }

    /// Ends the use of the value. The caller has left it as the next user expects it.
    #[inline(always)]
    pub fn retire(self) {
        (self.recycled.generation, self.recycled.next) = (NONE, *self.free);
        *self.free = self.slot;
    }
}

impl<T> Default for Recycler<T> {
    #[inline]
    fn default() -> Self {
        Self { slots: Vec::new(), free: 0, next: FIRST }
    }
}

impl<T: fmt::Debug> fmt::Debug for Recycler<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl<T: Default> Recycler<T> {
    /// Returns the number of a value that nothing uses, and the value, as its last user left it.
    #[inline(always)]
    pub fn reuse(&mut self) -> (Id<T>, &mut T) {
        let generation = self.next;
        self.next = match NonZeroU32::new(generation.get().wrapping_add(1)) {
            Some(next) if next != NONE => next,
            _ => FIRST,
        };
        let slot = self.free;
        if slot >= self.slots.len() {
            self.grow();
        }
        let recycled = &mut self.slots[slot];
        recycled.generation = generation;
        self.free = recycled.next;
        (Id::new(slot as u32, generation), &mut recycled.value)
    }

    #[cold]
    fn grow(&mut self) {
        let next = self.slots.len() + 1;
        self.slots.push(Recycled { generation: NONE, next, value: T::default() });
    }
}

impl<T> Recycler<T> {
    /// Returns the value, unless it was retired.
    #[inline(always)]
    pub fn get(&self, id: Id<T>) -> Option<&T> {
        match self.slots.get(id.slot() as usize) {
            Some(recycled) if recycled.generation.get() == id.generation() && id.generation() != NONE.get() => {
                Some(&recycled.value)
            }
            _ => None,
        }
    }

    /// Like [`get`](Self::get), but mutable.
    #[inline(always)]
    pub fn get_mut(&mut self, id: Id<T>) -> Option<&mut T> {
        match self.slots.get_mut(id.slot() as usize) {
            Some(recycled) if recycled.generation.get() == id.generation() && id.generation() != NONE.get() => {
                Some(&mut recycled.value)
            }
            _ => None,
        }
    }

    /// Like [`get_mut`](Self::get_mut), for a caller that may retire the value.
    #[inline(always)]
    pub fn occupied(&mut self, id: Id<T>) -> Option<Occupied<'_, T>> {
        match self.slots.get_mut(id.slot() as usize) {
            Some(recycled) if recycled.generation.get() == id.generation() && id.generation() != NONE.get() => {
                Some(Occupied { recycled, free: &mut self.free, slot: id.slot() as usize })
            }
            _ => None,
        }
    }

    /// Ends the use of a value. The caller has left it as the next user expects it.
    #[inline(always)]
    pub fn retire(&mut self, id: Id<T>) {
        if let Some(occupied) = self.occupied(id) {
            occupied.retire();
        }
    }

    /// Returns the values in use, with their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (Id<T>, &T)> {
        self.slots
            .iter()
            .enumerate()
            .filter(|(_, recycled)| recycled.generation != NONE)
            .map(|(slot, recycled)| (Id::new(slot as u32, recycled.generation), &recycled.value))
    }
}

/// Like [`Table::get`], for numbers of values that are known to be in the table.
///
/// # Panics
/// If the value was removed, which is a bug in the code that owns the table. This is never used for a number that a
/// peer or an application sent.
impl<T> std::ops::Index<Id<T>> for Table<T> {
    type Output = T;

    #[inline]
    fn index(&self, id: Id<T>) -> &T {
        self.get(id).expect("the id refers to an entry of the table")
    }
}

/// Like [`Index`](std::ops::Index), but mutable.
impl<T> std::ops::IndexMut<Id<T>> for Table<T> {
    #[inline]
    fn index_mut(&mut self, id: Id<T>) -> &mut T {
        self.get_mut(id).expect("the id refers to an entry of the table")
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{Id, Recycler, Table, WIRE_SLOTS};
    use proptest::prelude::*;
    use std::collections::HashMap;

    #[test]
    fn stale_ids_find_nothing() {
        let mut table = Table::new();
        let first = table.insert('a');
        assert_eq!(table.remove(first), Some('a'));
        let second = table.insert('b');
        assert_eq!((first.slot(), second.slot()), (0, 0), "the slot is used again");
        assert_eq!(table.get(first), None);
        assert_eq!(table.remove(first), None);
        assert_eq!(table.find_wire(first.to_wire()), None);
        assert_eq!(table.find_wire(second.to_wire()), Some(second));
        assert_eq!(Id::<char>::from_u64(second.to_u64()), second);
        assert_eq!(table[second], 'b');
    }

    #[test]
    fn table_is_full_when_every_wire_number_is_used() {
        let mut table = Table::new();
        (1..WIRE_SLOTS).for_each(|value| _ = table.insert(value));
        assert!(!table.is_full());
        let last = table.insert(WIRE_SLOTS);
        assert!(table.is_full());
        assert_eq!(table.find_wire(last.to_wire()), Some(last));
        table.remove(last);
        assert!(!table.is_full());
    }

    proptest! {
        /// Every number of a value finds it, in all three forms. No number of a removed value finds anything (within
        /// 1,024 values).
        #[test]
        fn table_matches_map_model(steps in proptest::collection::vec((any::<bool>(), any::<usize>()), 1..800)) {
            let (mut table, mut model, mut gone) = (Table::new(), HashMap::<Id<usize>, usize>::new(), Vec::new());
            for (value, (insert, which)) in steps.into_iter().enumerate() {
                if insert || model.is_empty() {
                    let next = table.next_id();
                    let id = table.insert(value);
                    prop_assert_eq!(id, next);
                    prop_assert!((id.slot() as usize) < WIRE_SLOTS);
                    prop_assert!(id.to_wire() < 1 << 30);
                    prop_assert!(model.insert(id, value).is_none());
                } else {
                    let nth = which % model.len();
                    let id = *model.keys().nth(nth).unwrap();
                    prop_assert_eq!(table.remove(id), model.remove(&id));
                    gone.push(id);
                }
                prop_assert_eq!(table.len(), model.len());
            }
            for (id, value) in &model {
                prop_assert_eq!(table.get(*id), Some(value));
                prop_assert_eq!(table.find_wire(id.to_wire()), Some(*id));
                prop_assert_eq!(table.get(Id::from_u64(id.to_u64())), Some(value));
            }
            for id in gone {
                prop_assert_eq!(table.get(id), None);
                prop_assert_eq!(table.find_wire(id.to_wire()), None);
            }
        }

        /// Every number of a value finds it, and no number of a retired value finds anything. A slot is used again with
        /// the value that its last user left.
        #[test]
        fn recycler_matches_map_model(steps in proptest::collection::vec((any::<bool>(), any::<usize>()), 1..800)) {
            let (mut values, mut model) = (Recycler::<usize>::default(), HashMap::<Id<usize>, usize>::new());
            let (mut left, mut gone) = (HashMap::<u32, usize>::new(), Vec::new());
            for (number, (insert, which)) in steps.into_iter().enumerate() {
                if insert || model.is_empty() {
                    let (id, value) = values.reuse();
                    prop_assert_eq!(*value, left.remove(&id.slot()).unwrap_or_default());
                    *value = number;
                    prop_assert!(model.insert(id, number).is_none());
                } else {
                    let id = *model.keys().nth(which % model.len()).unwrap();
                    left.insert(id.slot(), model.remove(&id).unwrap());
                    values.retire(id);
                    values.retire(id); // No effect.
                    gone.push(id);
                }
            }
            prop_assert_eq!(values.iter().map(|(id, value)| (id, *value)).collect::<HashMap<_, _>>(), model.clone());
            for (id, value) in &model {
                prop_assert_eq!(values.get(*id), Some(value));
                prop_assert_eq!(values.get_mut(Id::from_u64(id.to_u64())).copied(), Some(*value));
            }
            for id in gone {
                prop_assert!(values.get(id).is_none() && values.get_mut(id).is_none());
            }
            prop_assert!(values.get(Id::from_u64(0)).is_none() && values.get(Id::from_u64(u64::MAX)).is_none());
        }
    }
}
