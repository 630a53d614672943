//! The messages of senders that have left, which fit receives directed at any of their names.
//!
//! A sender may have several names: aliases of an address, or the context of which it is the sending half. While it is connected, receives
//! directed at any of them are directed at one source. Once it has left, each name stands for itself, and another sender may take it.
//! The messages that the sender left get a source of their own then, a *label*, and this table tells the labels of each name.

/// Names, each with the label of a sender that had it.
#[derive(Debug)]
pub(super) struct Left {
    list: Vec<(u64, u64)>,
    /// The next label. Labels count down, sources up.
    next: u64,
}

impl Left {
    pub(super) const fn new() -> Self {
        Self { list: Vec::new(), next: u64::MAX }
    }

    /// Returns a new label, which is one of `from` and of each of `names`.
    pub(super) fn add(&mut self, from: u64, names: &[u64]) -> u64 {
        let label = self.next;
        self.next -= 1;
        self.list.extend(names.iter().chain([&from]).map(|name| (*name, label)));
        label
    }

    /// Forgets the labels for which `is_held` returns false.
    pub(super) fn retain(&mut self, is_held: impl Fn(u64) -> bool) {
        self.list.retain(|(_, label)| is_held(*label));
    }

    /// Whether this is a label of a name.
    pub(super) fn is_of(&self, label: u64, name: u64) -> bool {
        self.list.contains(&(name, label))
    }

    /// The labels of a name.
    pub(super) fn labels_of(&self, name: u64) -> impl Iterator<Item = u64> {
        self.list.iter().filter(move |(of, _)| *of == name).map(|(_, label)| *label)
    }

    /// The names that have labels.
    pub(super) fn names(&self) -> impl Iterator<Item = u64> {
        self.list.iter().map(|(name, _)| *name)
    }
}
