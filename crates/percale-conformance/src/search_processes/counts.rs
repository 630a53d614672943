//! Counts of operations and events.

use std::ops::AddAssign;

/// The counts of a worker, a round or a search.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// The number of started operations, not including receives.
    pub started: u64,
    /// The number of started operations that have ended.
    pub ended: u64,
    /// The number of failed operations, including receives.
    pub failed: u64,
    /// The number of received messages.
    pub received: u64,
    /// The number of lifecycle events. An event is the closing of an object, a cancelled or dropped operation, a
    /// killed, stopped or forked process, or a stranger's connection.
    pub lives: u64,
}

impl Counts {
    /// Formats the counts for [`read`](Self::read).
    pub(super) fn write(&self) -> String {
        let Self { started, ended, failed, received, lives } = self;
        format!("{started} {ended} {failed} {received} {lives}")
    }

    /// Parses the counts that [`write`](Self::write) has formatted.
    pub(super) fn read(words: &[&str]) -> Option<Self> {
        let [started, ended, failed, received, lives] = words else { return None };
        let [started, ended, failed, received, lives] =
            [started, ended, failed, received, lives].map(|word| word.parse().ok());
        Some(Self { started: started?, ended: ended?, failed: failed?, received: received?, lives: lives? })
    }
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.started += other.started;
        self.ended += other.ended;
        self.failed += other.failed;
        self.received += other.received;
        self.lives += other.lives;
    }
}

#[cfg(test)]
mod tests {
    use super::Counts;

    #[test]
    fn counts_round_trip_through_text() {
        let counts = Counts { started: 5, ended: 4, failed: 3, received: 2, lives: 1 };
        let text = counts.write();
        assert_eq!(Counts::read(&text.split(' ').collect::<Vec<_>>()), Some(counts));
        assert_eq!(Counts::read(&["1"]), None);
    }
}
