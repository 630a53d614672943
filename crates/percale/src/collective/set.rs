//! Sets of addresses.

use crate::address::PeerAddress;

/// An ordered set of addresses of a vector (fi_av_set(3)). Each member of a group makes the same set of its own addresses; a member's
/// place in it is its rank.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddressSet {
    members: Vec<PeerAddress>,
}

impl AddressSet {
    /// An empty set.
    #[must_use]
    pub const fn new() -> Self {
        Self { members: Vec::new() }
    }

    /// The members, in order.
    #[must_use]
    pub fn members(&self) -> &[PeerAddress] {
        &self.members
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// A member's rank.
    #[must_use]
    pub fn rank(&self, member: PeerAddress) -> Option<usize> {
        self.members.iter().position(|other| *other == member)
    }

    /// Whether it is a member.
    #[must_use]
    pub fn contains(&self, member: PeerAddress) -> bool {
        self.members.contains(&member)
    }

    /// Adds a member behind the others; false if it is one already (fi_av_set_insert).
    pub fn insert(&mut self, member: PeerAddress) -> bool {
        let new = !self.contains(member);
        if new {
            self.members.push(member);
        }
        new
    }

    /// Removes a member; the others keep their order. False if it was none (fi_av_set_remove).
    pub fn remove(&mut self, member: PeerAddress) -> bool {
        let at = self.rank(member);
        at.map(|at| self.members.remove(at)).is_some()
    }

    /// Adds the other set's members behind these (fi_av_set_union).
    pub fn union(&mut self, other: &Self) {
        for member in &other.members {
            self.insert(*member);
        }
    }

    /// Keeps what is in the other set too (fi_av_set_intersect).
    pub fn intersect(&mut self, other: &Self) {
        self.members.retain(|member| other.contains(*member));
    }

    /// Removes the other set's members (fi_av_set_diff).
    pub fn diff(&mut self, other: &Self) {
        self.members.retain(|member| !other.contains(*member));
    }
}

impl FromIterator<PeerAddress> for AddressSet {
    fn from_iter<I: IntoIterator<Item = PeerAddress>>(members: I) -> Self {
        let mut set = Self::new();
        for member in members {
            set.insert(member);
        }
        set
    }
}
