//! The receives that wait for a message.
//!
//! All receives are in one list in posting order. Only that list is used while messages find their receives among the
//! first [`LINEAR`] entries, regardless of the number of receives that wait after these. When an arrival would have to
//! search further, all receives are also filed by class. This is undone when at most [`FEW`] receives wait. Because the
//! two limits differ, a queue whose length changes little is not filed again and again. While receives are filed, an
//! arrival looks up the first receive of every class, and the lowest sequence number wins.
//!
//! Invariants:
//! 1. An entry is in `order`, and while `filed`, it is also in exactly one of its class's bins or in `rest`.
//! 2. A class changes its masks only while it is empty.
//! 3. `order`, `rest` and every bin are in posting order. Entries are only appended to them, so an entry that is filed
//!    must be newer than all entries of that list.

use super::arena::{Arena, List, NIL, PostedHandle};
use super::bins::Bins;
use super::key::{Envelope, Masks, MatchKey, Pattern, SourceFilter};
use super::steps::step;

/// The number of receives that an arrival examines without hash tables.
pub(super) const LINEAR: usize = 8;
/// The length at which the hash tables are dropped.
const FEW: usize = 2;
/// The number of classes that have a hash table. Receives of further classes are in a list that every arrival walks.
const CLASSES: usize = 8;

/// The link slot of the list of all receives.
const ORDER: usize = 0;
/// The link slot of the list of a bin, or of `rest`.
const FILE: usize = 1;
/// The class of the receives in `rest`.
const REST: u32 = u32::MAX;

/// Whether a receive that matched is removed or stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AfterMatch {
    /// The receive takes no more messages.
    Remove,
    /// The receive takes more messages and keeps its position in the order.
    Stay,
}

/// The index of a receive that a message has just matched. It is valid until something is posted or removed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MatchedReceive(u32);

#[derive(Clone, Copy, Debug)]
struct PostedEntry {
    key: MatchKey,
    masks: Masks,
    /// The class in which it is filed, while the queue is filed.
    class: u32,
    bin: u32,
}

#[derive(Debug)]
struct PostedClass {
    masks: Masks,
    bins: Bins,
}

/// Receives in posting order.
#[derive(Debug)]
pub(super) struct PostedQueue<R> {
    arena: Arena<PostedEntry, R, 2>,
    order: List,
    len: usize,
    filed: bool,
    classes: Vec<PostedClass>,
    rest: List,
}

impl<R> PostedQueue<R> {
    pub(super) const fn new() -> Self {
        let arena = Arena::new();
        Self { arena, order: List::EMPTY, len: 0, filed: false, classes: Vec::new(), rest: List::EMPTY }
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.len
    }

    #[inline(always)]
    pub(super) fn post(&mut self, pattern: Pattern, receive: R) -> PostedHandle {
        let entry = PostedEntry { key: MatchKey::of(&pattern), masks: Masks::of(&pattern), class: REST, bin: NIL };
        const { assert!(ORDER == 0) };
        let handle = self.arena.append(&mut self.order, entry, receive);
        self.len += 1;
        if self.filed {
            self.file(handle.index);
        }
        PostedHandle(handle)
    }

    #[cfg(test)]
    pub(super) fn arrive(&mut self, envelope: Envelope) -> Option<R> {
        let index = self.first(envelope)?;
        Some(self.remove(index))
    }

    #[inline]
    pub(super) fn arrive_with<X>(
        &mut self,
        envelope: Envelope,
        decide: impl FnOnce(PostedHandle, &mut R) -> (AfterMatch, X),
    ) -> Option<(X, Option<R>)> {
        let index = self.first(envelope)?;
        let handle = PostedHandle(self.arena.handle(index));
        let (keep, found) = decide(handle, self.arena.value_mut(index));
        let removed = match keep {
            AfterMatch::Remove => Some(self.remove(index)),
            AfterMatch::Stay => None,
        };
        Some((found, removed))
    }

    /// Removes the receives that `pick` accepts, in posting order, while the iterator advances.
    pub(super) fn extract(&mut self, mut pick: impl FnMut(Pattern, &R) -> bool) -> impl Iterator<Item = R> {
        let mut next = self.order.head();
        std::iter::from_fn(move || {
            while next != NIL {
                let index = next;
                next = self.arena.next(ORDER, index);
                let entry = self.arena.key(index);
                if pick(entry.masks.pattern(entry.key), self.arena.value(index)) {
                    return Some(self.remove(index));
                }
            }
            None
        })
    }

    /// Redirects the receives from one source to another and keeps their positions. Returns their patterns in posting
    /// order.
    pub(super) fn redirect(&mut self, from: SourceFilter, to: SourceFilter) -> Vec<Pattern> {
        if self.filed {
            self.unfile_all(); // They are filed under words that change.
        }
        let mut patterns = Vec::new();
        let mut index = self.order.head();
        while index != NIL {
            let entry = self.arena.key_mut(index);
            let pattern = entry.masks.pattern(entry.key);
            if pattern.source == from {
                let pattern = Pattern { source: to, ..pattern };
                (entry.key, entry.masks) = (MatchKey::of(&pattern), Masks::of(&pattern));
                patterns.push(pattern);
            }
            index = self.arena.next(ORDER, index);
        }
        patterns
    }

    /// Returns the source of each receive, in posting order.
    pub(super) fn sources(&self) -> impl Iterator<Item = SourceFilter> {
        self.arena.walk(ORDER, self.order).map(|index| {
            let entry = self.arena.key(index);
            entry.masks.pattern(entry.key).source
        })
    }

    #[cfg(test)]
    pub(super) fn iter(&self) -> impl Iterator<Item = (PostedHandle, Pattern, &R)> {
        self.arena.walk(ORDER, self.order).map(|index| {
            let entry = self.arena.key(index);
            (PostedHandle(self.arena.handle(index)), entry.masks.pattern(entry.key), self.arena.value(index))
        })
    }

    /// Returns the first receive that fits. Usually it is the oldest of all, filed or not.
    #[inline(always)]
    fn first(&mut self, envelope: Envelope) -> Option<u32> {
        let (key, oldest) = (MatchKey::from(envelope), self.order.head());
        let entry = self.arena.get_key(oldest)?;
        step();
        if entry.masks.agree(entry.key, key) { Some(oldest) } else { self.first_of_others(key) }
    }

    // Not inlined, so that the registers it needs are not saved and restored when the oldest receive fits.
    #[inline(never)]
    fn first_of_others(&mut self, key: MatchKey) -> Option<u32> {
        if self.filed {
            return self.first_filed(key);
        }
        let mut index = self.order.head();
        for _ in 1..LINEAR {
            index = self.arena.next(ORDER, index);
            if index == NIL {
                return None;
            }
            step();
            let entry = self.arena.key(index);
            if entry.masks.agree(entry.key, key) {
                return Some(index);
            }
        }
        if self.len <= LINEAR {
            return None;
        }
        self.file_all();
        self.first_filed(key)
    }

    fn first_filed(&self, key: MatchKey) -> Option<u32> {
        let mut best = None;
        let mut best_sequence = u64::MAX;
        for class in &self.classes {
            let Some(bin) = class.bins.find(class.masks.apply(key)) else { continue };
            let index = class.bins.list(bin).head();
            let sequence = self.arena.sequence(index);
            if sequence < best_sequence {
                (best, best_sequence) = (Some(index), sequence);
            }
        }
        let mut index = self.rest.head();
        while index != NIL && self.arena.sequence(index) < best_sequence {
            step();
            let entry = self.arena.key(index);
            if entry.masks.agree(entry.key, key) {
                return Some(index);
            }
            index = self.arena.next(FILE, index);
        }
        best
    }

    #[inline(always)]
    pub(super) fn meet(&mut self, envelope: Envelope) -> Option<MatchedReceive> {
        self.first(envelope).map(MatchedReceive)
    }

    #[inline(always)]
    pub(super) fn met(&self, MatchedReceive(index): MatchedReceive) -> &R {
        self.arena.value(index)
    }

    #[inline(always)]
    pub(super) fn use_up(&mut self, MatchedReceive(index): MatchedReceive) {
        if self.filed {
            self.use_up_filed(index);
        } else {
            self.arena.discard(&mut self.order, index);
            self.len -= 1;
        }
    }

    #[inline(never)]
    fn use_up_filed(&mut self, index: u32) {
        self.remove(index);
    }

    #[inline]
    fn remove(&mut self, index: u32) -> R {
        self.unlink(index);
        self.arena.remove(index)
    }

    /// Removes an entry from every list.
    #[inline]
    fn unlink(&mut self, index: u32) {
        self.arena.unlink(ORDER, &mut self.order, index);
        self.len -= 1;
        if self.filed {
            self.unfile_removed(index);
        }
    }

    #[inline(never)]
    fn unfile_removed(&mut self, index: u32) {
        self.unfile(index);
        if self.len <= FEW {
            self.unfile_all();
        }
    }

    /// Appends an entry to its bin or to `rest`. The entry must be newer than all entries of that list.
    // Not inlined, like `first_of_others`.
    #[inline(never)]
    fn file(&mut self, index: u32) {
        let PostedEntry { key, masks, .. } = *self.arena.key(index);
        let Some(class) = self.class(masks) else {
            debug_assert!(self.arena.is_newest(&self.rest, index), "`rest` is in posting order");
            self.arena.key_mut(index).class = REST;
            self.arena.push_back(FILE, &mut self.rest, index);
            return;
        };
        let bins = &mut self.classes[class].bins;
        let bin = bins.find_or_make(masks.apply(key));
        debug_assert!(self.arena.is_newest(bins.list(bin), index), "a bin is in posting order");
        self.arena.push_back(FILE, bins.list_mut(bin), index);
        let entry = self.arena.key_mut(index);
        (entry.class, entry.bin) = (class as u32, bin);
    }

    /// Returns the class with these masks: an existing one, or an unused one, or a new one while the limit is not
    /// reached.
    fn class(&mut self, masks: Masks) -> Option<usize> {
        if let Some(same) = self.classes.iter().position(|class| class.masks == masks) {
            return Some(same);
        }
        if let Some(unused) = self.classes.iter().position(|class| class.bins.is_empty()) {
            self.classes[unused].masks = masks;
            return Some(unused);
        }
        if self.classes.len() == CLASSES {
            return None;
        }
        self.classes.push(PostedClass { masks, bins: Bins::new() });
        Some(self.classes.len() - 1)
    }

    fn unfile(&mut self, index: u32) {
        let PostedEntry { class, bin, .. } = *self.arena.key(index);
        if class == REST {
            self.arena.unlink(FILE, &mut self.rest, index);
        } else {
            let bins = &mut self.classes[class as usize].bins;
            self.arena.unlink(FILE, bins.list_mut(bin), index);
            bins.release_if_empty(bin);
        }
    }

    fn file_all(&mut self) {
        self.filed = true;
        let mut index = self.order.head();
        while index != NIL {
            self.file(index);
            index = self.arena.next(ORDER, index);
        }
    }

    #[cold]
    fn unfile_all(&mut self) {
        self.filed = false;
        let mut index = self.order.head();
        while index != NIL {
            self.unfile(index);
            index = self.arena.next(ORDER, index);
        }
    }

    /// Returns the number of entries for which this queue has memory. It must not grow unless more entries wait.
    #[cfg(test)]
    pub(super) fn places(&self) -> usize {
        self.arena.places()
    }
}
