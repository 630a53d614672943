//! Counts of what was done.

use std::ops::AddAssign;

/// What a worker, a round or a search did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Operations that were started and are no receives.
    pub started: u64,
    /// Of the started operations, those with an end.
    pub ended: u64,
    /// Operations, receives included, that failed.
    pub failed: u64,
    /// Messages that were received.
    pub received: u64,
    /// Events of lives: an object closed, an operation cancelled or dropped, a process killed, stopped or forked, a stranger.
    pub lives: u64,
}

impl Counts {
    /// As [`read`](Self::read) reads it.
    pub(super) fn write(&self) -> String {
        let Self { started, ended, failed, received, lives } = self;
        format!("{started} {ended} {failed} {received} {lives}")
    }

    /// What [`write`](Self::write) wrote.
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
    fn counts_are_read_as_they_were_written() {
        let counts = Counts { started: 5, ended: 4, failed: 3, received: 2, lives: 1 };
        let text = counts.write();
        assert_eq!(Counts::read(&text.split(' ').collect::<Vec<_>>()), Some(counts));
        assert_eq!(Counts::read(&["1"]), None);
    }
}
