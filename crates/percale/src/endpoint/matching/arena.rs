//! The slab that stores entries, and the doubly linked lists of these entries.
//!
//! An entry has an index (reused last in, first out, so that it is in the cache) and a sequence number (never reused).
//! Both form its handle, so an old handle never refers to a newer entry. Sequence numbers increase in the order of
//! insertion, so they also determine which entry is older when lists are compared.
//!
//! An entry can be in `L` lists at once, one for each link slot. The arena does not own lists: the owner of a list
//! passes it to each call, always with the same slot. An entry must be unlinked from all lists before it is removed.

/// The index that stands for no entry.
pub(super) const NIL: u32 = u32::MAX;

/// The handle of a posted receive. It is valid until the receive is matched or canceled, and is never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PostedHandle(pub(super) EntryHandle);

/// The handle of a held message. It is valid until the message is taken, and is never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct HeldMessage(pub(super) EntryHandle);

impl HeldMessage {
    /// Returns a number that is lower for messages that arrived earlier at the same queue.
    pub(super) const fn sequence(&self) -> u64 {
        self.0.sequence
    }
}

/// The index of an entry and its sequence number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct EntryHandle {
    pub(super) index: u32,
    sequence: u64,
}

/// The two ends of a list.
#[derive(Clone, Copy, Debug)]
pub(super) struct List {
    head: u32,
    tail: u32,
}

impl List {
    pub(super) const EMPTY: Self = Self { head: NIL, tail: NIL };

    /// Returns the first entry's index, or [`NIL`].
    #[inline]
    pub(super) fn head(&self) -> u32 {
        self.head
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.head == NIL
    }
}

#[derive(Clone, Copy, Debug)]
struct Links {
    prev: u32,
    next: u32,
}

#[derive(Debug)]
struct Node<K, T, const L: usize> {
    /// 0 if the slot is free. Then `links[0].next` is the next free slot.
    sequence: u64,
    links: [Links; L],
    /// The part of the entry that searches read. In a free slot it has no meaning.
    key: K,
    value: Option<T>,
}

/// Entries with a key, a value and links for up to `L` lists.
#[derive(Debug)]
pub(super) struct Arena<K, T, const L: usize> {
    nodes: Vec<Node<K, T, L>>,
    free: u32,
    last: u64,
}

impl<K, T, const L: usize> Arena<K, T, L> {
    pub(super) const fn new() -> Self {
        Self { nodes: Vec::new(), free: NIL, last: 0 }
    }

    /// Stores an entry, and appends it to a list of slot 0. Its links of other slots are not initialized.
    #[inline(always)]
    pub(super) fn append(&mut self, list: &mut List, key: K, value: T) -> EntryHandle {
        self.last += 1;
        let first = Links { prev: list.tail, next: NIL };
        let index = self.free;
        if let Some(node) = self.nodes.get_mut(index as usize) {
            self.free = node.links[0].next;
            // The fields are set one by one, because a whole node would be built on the stack first and then copied.
            node.sequence = self.last;
            node.links[0] = first;
            node.key = key;
            node.value = Some(value);
            self.join(list, index)
        } else {
            self.grow(list, Node { sequence: self.last, links: [first; L], key, value: Some(value) })
        }
    }

    /// Appends the entry that was just stored to the list.
    #[inline(always)]
    fn join(&mut self, list: &mut List, index: u32) -> EntryHandle {
        match list.tail {
            NIL => list.head = index,
            tail => self.node_mut(tail).links[0].next = index,
        }
        list.tail = index;
        EntryHandle { index, sequence: self.last }
    }

    #[cold]
    fn grow(&mut self, list: &mut List, node: Node<K, T, L>) -> EntryHandle {
        let index = u32::try_from(self.nodes.len()).ok().filter(|&index| index != NIL);
        let index = index.expect("an endpoint has fewer than 2^32 - 1 receives or messages waiting");
        self.nodes.push(node);
        self.join(list, index)
    }

    /// Removes an entry, which must have been unlinked from every list.
    #[inline]
    pub(super) fn remove(&mut self, index: u32) -> T {
        let free = self.free;
        self.free = index;
        let node = self.node_mut(index);
        node.sequence = 0;
        node.links[0].next = free;
        node.value.take().expect("an index found in a list is occupied")
    }

    /// Drops an entry that is in at most one list, in slot 0.
    #[inline(always)]
    pub(super) fn discard(&mut self, list: &mut List, index: u32) {
        let node = &mut self.nodes[index as usize];
        let Links { prev, next } = node.links[0];
        node.sequence = 0;
        node.links[0].next = self.free;
        node.value = None;
        self.free = index;
        self.bridge(0, list, prev, next);
    }

    /// Returns the index of a handle's entry, if the entry still exists.
    #[inline]
    pub(super) fn resolve(&self, handle: EntryHandle) -> Option<u32> {
        let node = self.nodes.get(handle.index as usize)?;
        (node.sequence == handle.sequence).then_some(handle.index)
    }

    #[inline]
    pub(super) fn handle(&self, index: u32) -> EntryHandle {
        EntryHandle { index, sequence: self.sequence(index) }
    }

    /// Returns the sequence number. Lower numbers are older.
    #[inline]
    pub(super) fn sequence(&self, index: u32) -> u64 {
        self.node(index).sequence
    }

    /// Returns whether the entry is newer than the last entry of a list, so that appending it keeps the list in order.
    #[inline]
    pub(super) fn is_newest(&self, list: &List, index: u32) -> bool {
        list.is_empty() || self.sequence(list.tail) < self.sequence(index)
    }

    #[inline]
    pub(super) fn key(&self, index: u32) -> &K {
        &self.node(index).key
    }

    /// Returns the key of an entry, if there is an entry at the index.
    #[inline]
    pub(super) fn get_key(&self, index: u32) -> Option<&K> {
        self.nodes.get(index as usize).map(|node| &node.key)
    }

    #[inline]
    pub(super) fn key_mut(&mut self, index: u32) -> &mut K {
        &mut self.node_mut(index).key
    }

    #[inline(always)]
    pub(super) fn value(&self, index: u32) -> &T {
        self.node(index).value.as_ref().expect("an index found in a list is occupied")
    }

    #[inline]
    pub(super) fn value_mut(&mut self, index: u32) -> &mut T {
        self.node_mut(index).value.as_mut().expect("an index found in a list is occupied")
    }

    /// Returns the entry after this one in the list of that slot, or [`NIL`].
    #[inline]
    pub(super) fn next(&self, slot: usize, index: u32) -> u32 {
        self.node(index).links[slot].next
    }

    /// Returns the entries of a list, in order.
    pub(super) fn walk(&self, slot: usize, list: List) -> impl Iterator<Item = u32> {
        let entry = |index| (index != NIL).then_some(index);
        std::iter::successors(entry(list.head), move |&index| entry(self.next(slot, index)))
    }

    #[inline]
    pub(super) fn push_back(&mut self, slot: usize, list: &mut List, index: u32) {
        self.node_mut(index).links[slot] = Links { prev: list.tail, next: NIL };
        match list.tail {
            NIL => list.head = index,
            tail => self.node_mut(tail).links[slot].next = index,
        }
        list.tail = index;
    }

    #[inline]
    pub(super) fn unlink(&mut self, slot: usize, list: &mut List, index: u32) {
        let Links { prev, next } = self.node(index).links[slot];
        self.bridge(slot, list, prev, next);
    }

    /// Links two entries as neighbours, or makes them the ends of the list where there is no neighbour.
    #[inline(always)]
    fn bridge(&mut self, slot: usize, list: &mut List, prev: u32, next: u32) {
        match prev {
            NIL => list.head = next,
            prev => self.node_mut(prev).links[slot].next = next,
        }
        match next {
            NIL => list.tail = prev,
            next => self.node_mut(next).links[slot].prev = prev,
        }
    }

    /// Returns the number of slots that were ever created, for tests of reuse.
    #[cfg(test)]
    pub(super) fn places(&self) -> usize {
        self.nodes.len()
    }

    #[inline]
    fn node(&self, index: u32) -> &Node<K, T, L> {
        &self.nodes[index as usize]
    }

    #[inline]
    fn node_mut(&mut self, index: u32) -> &mut Node<K, T, L> {
        &mut self.nodes[index as usize]
    }
}
