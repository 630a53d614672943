//! The messages that wait for a receive.
//!
//! All messages that are not claimed are in one list in arrival order. A message has no masks: only a receive that
//! searches determines which bits are compared. So classes are created by searches. A search that had to walk more than
//! [`LINEAR`] messages files them all under its own masks. This costs a small multiple of the cost of the walk, and
//! later searches of that class are one look-up. While a class is in use, every message of the list is filed in it. All
//! classes are dropped when [`FEW`] messages are left, and a class that was not used recently is replaced by another
//! one when needed.
//!
//! Invariants:
//! 1. An entry is either in `order` and in a bin of every class in use, or in `claimed` and in no bin.
//! 2. A class that is not in use has no bins.
//! 3. `order` and every bin are in arrival order, so that the first entry of a bin is the oldest. Entries are only
//!    appended to a bin, so an entry that is filed must be newer than all entries of its bin.

use super::arena::{Arena, HeldMessage, List, NIL};
use super::bins::Bins;
use super::key::{Envelope, Masks, MatchKey, Pattern};
use super::steps::step;

/// The longest walk after which no class is created.
pub(super) const LINEAR: u64 = 16;
/// The length at which all classes are dropped.
const FEW: usize = 2;
/// The number of classes that can be in use. Searches of further classes walk the list.
const CLASSES: usize = 4;
/// A class that was used within this many searches is not replaced by another one.
const LATELY: u64 = 64;

/// The link slot of the list of all messages, and of the list of claimed messages.
const ORDER: usize = 0;
/// The link slot of the first class's bins. The slots of the other classes follow.
const FILE: usize = 1;

#[derive(Clone, Copy, Debug)]
struct UnexpectedEntry {
    key: MatchKey,
    claimed: bool,
    /// The bin in which the message is filed, for each class in use.
    bins: [u32; CLASSES],
}

#[derive(Debug)]
struct UnexpectedClass {
    masks: Masks,
    in_use: bool,
    /// The number of the last search that used the class.
    last_search: u64,
    bins: Bins,
}

/// Messages in arrival order.
#[derive(Debug)]
pub(super) struct UnexpectedQueue<U> {
    arena: Arena<UnexpectedEntry, U, { FILE + CLASSES }>,
    order: List,
    claimed: List,
    len: usize,
    classes: Vec<UnexpectedClass>,
    in_use: usize,
    searches: u64,
}

impl<U> UnexpectedQueue<U> {
    pub(super) const fn new() -> Self {
        let (order, claimed) = (List::EMPTY, List::EMPTY);
        Self { arena: Arena::new(), order, claimed, len: 0, classes: Vec::new(), in_use: 0, searches: 0 }
    }

    #[cfg(any(test, feature = "sim"))]
    pub(super) fn len(&self) -> usize {
        self.len
    }

    #[inline]
    pub(super) fn hold(&mut self, envelope: Envelope, message: U) -> HeldMessage {
        let entry = UnexpectedEntry { key: envelope.into(), claimed: false, bins: [NIL; CLASSES] };
        const { assert!(ORDER == 0) };
        let handle = self.arena.append(&mut self.order, entry, message);
        self.len += 1;
        if self.in_use > 0 {
            for class in 0..self.classes.len() {
                if self.classes[class].in_use {
                    self.file(class, handle.index);
                }
            }
        }
        HeldMessage(handle)
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    #[inline]
    pub(super) fn find(&mut self, pattern: &Pattern) -> Option<HeldMessage> {
        if self.is_empty() {
            return None;
        }
        let (key, masks) = (MatchKey::of(pattern), Masks::of(pattern));
        let index = if self.in_use > 0 { self.find_filed(key, masks) } else { self.find_walking(key, masks) };
        index.map(|index| HeldMessage(self.arena.handle(index)))
    }

    fn find_filed(&mut self, key: MatchKey, masks: Masks) -> Option<u32> {
        self.searches += 1;
        let Some(class) = self.classes.iter_mut().find(|class| class.in_use && class.masks == masks) else {
            return self.find_walking(key, masks);
        };
        class.last_search = self.searches;
        let bin = class.bins.find(masks.apply(key))?;
        Some(class.bins.list(bin).head())
    }

    #[inline]
    fn find_walking(&mut self, key: MatchKey, masks: Masks) -> Option<u32> {
        let mut index = self.order.head();
        let mut walked = 0;
        while index != NIL && !masks.agree(self.arena.key(index).key, key) {
            step();
            walked += 1;
            index = self.arena.next(ORDER, index);
        }
        if walked > LINEAR {
            self.learn(masks);
        }
        (index != NIL).then_some(index)
    }

    #[inline]
    pub(super) fn get(&self, handle: HeldMessage) -> Option<&U> {
        let index = self.arena.resolve(handle.0)?;
        Some(self.arena.value(index))
    }

    #[inline]
    pub(super) fn get_mut(&mut self, handle: HeldMessage) -> Option<&mut U> {
        let index = self.arena.resolve(handle.0)?;
        Some(self.arena.value_mut(index))
    }

    pub(super) fn claim(&mut self, handle: HeldMessage) -> bool {
        let Some(index) = self.arena.resolve(handle.0).filter(|&index| !self.arena.key(index).claimed) else {
            return false;
        };
        self.withdraw(index);
        self.arena.key_mut(index).claimed = true;
        self.arena.push_back(ORDER, &mut self.claimed, index);
        true
    }

    #[inline]
    pub(super) fn take(&mut self, handle: HeldMessage) -> Option<U> {
        let index = self.arena.resolve(handle.0)?;
        Some(self.remove(index))
    }

    /// Removes the messages that `pick` accepts, the claimed ones last, while the iterator advances.
    pub(super) fn extract(
        &mut self,
        mut pick: impl FnMut(Envelope, bool, &U) -> bool,
    ) -> impl Iterator<Item = (Envelope, U)> {
        let mut next = self.order.head();
        let mut among_claimed = false;
        std::iter::from_fn(move || {
            loop {
                if next == NIL && !among_claimed {
                    among_claimed = true;
                    next = self.claimed.head();
                }
                if next == NIL {
                    return None;
                }
                let index = next;
                next = self.arena.next(ORDER, index);
                let envelope = self.arena.key(index).key.into();
                if pick(envelope, among_claimed, self.arena.value(index)) {
                    return Some((envelope, self.remove(index)));
                }
            }
        })
    }

    /// Calls `change` with each message, the claimed ones last.
    pub(super) fn change(&mut self, mut change: impl FnMut(&mut U)) {
        for mut next in [self.order.head(), self.claimed.head()] {
            while next != NIL {
                change(self.arena.value_mut(next));
                next = self.arena.next(ORDER, next);
            }
        }
    }

    /// Returns the source of each message, the claimed ones last.
    pub(super) fn sources(&self) -> impl Iterator<Item = u64> {
        let all = self.arena.walk(ORDER, self.order).chain(self.arena.walk(ORDER, self.claimed));
        all.map(|index| self.arena.key(index).key.source)
    }

    /// Changes the source of the messages of one source, claimed or not. Messages that already have the new source may
    /// be older or newer than these.
    #[cold]
    pub(super) fn rename(&mut self, from: u64, to: u64) {
        let mut index = self.claimed.head();
        while index != NIL {
            step();
            let key = &mut self.arena.key_mut(index).key;
            if key.source == from {
                key.source = to;
            }
            index = self.arena.next(ORDER, index);
        }
        // In a class that compares the source, bins of both sources become one. Its arrival order is a mix of both, so
        // the entries of both are filed again.
        let affected: Vec<usize> = (0..self.classes.len()).filter(|&class| self.compares_source(class)).collect();
        let mut index = self.order.head();
        while index != NIL {
            step();
            let source = self.arena.key(index).key.source;
            if source == from || source == to {
                affected.iter().for_each(|&class| self.unfile(class, index));
                self.arena.key_mut(index).key.source = to;
            }
            index = self.arena.next(ORDER, index);
        }
        let mut index = if affected.is_empty() { NIL } else { self.order.head() };
        while index != NIL {
            step();
            if self.arena.key(index).key.source == to {
                affected.iter().for_each(|&class| self.file(class, index));
            }
            index = self.arena.next(ORDER, index);
        }
    }

    /// Returns whether the class is in use and compares the source of messages.
    fn compares_source(&self, class: usize) -> bool {
        let UnexpectedClass { masks, in_use, .. } = &self.classes[class];
        *in_use && masks.compares_source()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (HeldMessage, Envelope, &U)> {
        self.arena.walk(ORDER, self.order).map(|index| {
            (HeldMessage(self.arena.handle(index)), self.arena.key(index).key.into(), self.arena.value(index))
        })
    }

    #[inline]
    fn remove(&mut self, index: u32) -> U {
        if self.arena.key(index).claimed {
            self.arena.unlink(ORDER, &mut self.claimed, index);
        } else {
            self.withdraw(index);
        }
        self.arena.remove(index)
    }

    /// Removes an entry from the order and from every class.
    #[inline]
    fn withdraw(&mut self, index: u32) {
        self.arena.unlink(ORDER, &mut self.order, index);
        self.len -= 1;
        if self.in_use > 0 {
            for class in 0..self.classes.len() {
                if self.classes[class].in_use {
                    self.unfile(class, index);
                }
            }
            if self.len <= FEW {
                (0..self.classes.len()).for_each(|class| self.forget(class));
            }
        }
    }

    /// Appends an entry to its bin of a class. The entry must be newer than all entries of that bin.
    fn file(&mut self, class: usize, index: u32) {
        let UnexpectedClass { masks, bins, .. } = &mut self.classes[class];
        let bin = bins.find_or_make(masks.apply(self.arena.key(index).key));
        debug_assert!(self.arena.is_newest(bins.list(bin), index), "a bin is in arrival order");
        self.arena.push_back(FILE + class, bins.list_mut(bin), index);
        self.arena.key_mut(index).bins[class] = bin;
    }

    fn unfile(&mut self, class: usize, index: u32) {
        let bins = &mut self.classes[class].bins;
        let bin = self.arena.key(index).bins[class];
        self.arena.unlink(FILE + class, bins.list_mut(bin), index);
        bins.release_if_empty(bin);
    }

    /// Files all messages under these masks, if a class is available.
    #[cold]
    fn learn(&mut self, masks: Masks) {
        let Some(class) = self.vacant_class() else { return };
        let taken = &mut self.classes[class];
        (taken.masks, taken.in_use, taken.last_search) = (masks, true, self.searches);
        self.in_use += 1;
        let mut index = self.order.head();
        while index != NIL {
            self.file(class, index);
            index = self.arena.next(ORDER, index);
        }
    }

    /// Returns a class for new masks: an unused one, or a new one, or the one that was not used for the longest time,
    /// unless that was used [lately](LATELY).
    fn vacant_class(&mut self) -> Option<usize> {
        if let Some(unused) = self.classes.iter().position(|class| !class.in_use) {
            return Some(unused);
        }
        if self.classes.len() < CLASSES {
            self.classes.push(UnexpectedClass {
                masks: Masks::default(),
                in_use: false,
                last_search: 0,
                bins: Bins::new(),
            });
            return Some(self.classes.len() - 1);
        }
        let (oldest, class) = self.classes.iter().enumerate().min_by_key(|(_, class)| class.last_search)?;
        if self.searches - class.last_search < LATELY {
            return None;
        }
        self.forget(oldest);
        Some(oldest)
    }

    #[cold]
    fn forget(&mut self, class: usize) {
        if !self.classes[class].in_use {
            return;
        }
        self.classes[class].in_use = false;
        self.in_use -= 1;
        let mut index = self.order.head();
        while index != NIL {
            self.unfile(class, index);
            index = self.arena.next(ORDER, index);
        }
    }

    /// Returns the number of entries for which this queue has memory. It must not grow unless more entries wait.
    #[cfg(test)]
    pub(super) fn places(&self) -> usize {
        self.arena.places()
    }
}
