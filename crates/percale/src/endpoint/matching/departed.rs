//! The messages of senders that have disconnected, which fit receives directed at any of the sender's names.
//!
//! A sender may have several names: aliases of an address, or a context if the sender is the sending half of that
//! context. While it is connected, receives directed at any of them are directed at one source. After it has
//! disconnected, its names are independent of each other, and another sender may use one of them. So the messages that
//! remain from the sender get a separate source, a *label*. This table maps names to labels. Senders with the same
//! names share a label, so a sender that connects and disconnects many times adds only one.

/// The labels for which messages are held, each with its sorted names.
#[derive(Debug)]
pub(super) struct DepartedSenders {
    list: Vec<(u64, Vec<u64>)>,
    /// The next label. Labels are assigned downwards, sources upwards.
    next: u64,
}

impl DepartedSenders {
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

    /// Removes the labels for which `is_held` returns false.
    pub(super) fn retain(&mut self, is_held: impl Fn(u64) -> bool) {
        self.list.retain(|(label, _)| is_held(*label));
    }

    /// Returns the labels of a name.
    pub(super) fn labels_of(&self, name: u64) -> impl Iterator<Item = u64> {
        self.list.iter().filter(move |(_, names)| names.contains(&name)).map(|(label, _)| *label)
    }

    /// Returns the names that have labels.
    pub(super) fn names(&self) -> impl Iterator<Item = u64> {
        self.list.iter().flat_map(|(_, names)| names.iter().copied())
    }
}
