//! The messages of senders that have left, which fit receives directed at any of their names.
//!
//! A sender may have several names: aliases of an address, or the context of which it is the sending half. While it is connected, receives
//! directed at any of them are directed at one source. Once it has left, each name stands for itself, and another sender may take it.
//! So the messages that the sender left are given a source of their own, a *label*. This table maps names to labels. Senders with the same
//! names share a label, so a sender that comes and leaves many times adds one.

/// The labels of which messages are held, each with its names, sorted.
#[derive(Debug)]
pub(super) struct Left {
    list: Vec<(u64, Vec<u64>)>,
    /// The next label. Labels count down, sources up.
    next: u64,
}

impl Left {
    pub(super) const fn new() -> Self {
        Self { list: Vec::new(), next: u64::MAX }
    }

    /// Returns the label of a sender with these names.
    pub(super) fn label(&mut self, mut names: Vec<u64>) -> u64 {
        names.sort_unstable();
        names.dedup();
        if let Some((label, _)) = self.list.iter().find(|(_, of)| *of == names) {
            return *label;
        }
        let label = self.next;
        self.next -= 1;
        self.list.push((label, names));
        label
    }

    /// Forgets the labels for which `is_held` returns false.
    pub(super) fn retain(&mut self, is_held: impl Fn(u64) -> bool) {
        self.list.retain(|(label, _)| is_held(*label));
    }

    /// The labels of a name.
    pub(super) fn labels_of(&self, name: u64) -> impl Iterator<Item = u64> {
        self.list.iter().filter(move |(_, names)| names.contains(&name)).map(|(label, _)| *label)
    }

    /// The names that have labels.
    pub(super) fn names(&self) -> impl Iterator<Item = u64> {
        self.list.iter().flat_map(|(_, names)| names.iter().copied())
    }
}
