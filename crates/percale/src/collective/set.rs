//! Sets of addresses.

use std::collections::BTreeSet;

use crate::types::PeerAddress;

/// An ordered set of addresses of a vector (fi_av_set(3)). Each member of a group creates the same set from its own
/// addresses. The position of a member in the set is its rank.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct AddressSet {
    members: Vec<PeerAddress>,
    /// The same members, for fast lookups: a set may have thousands of members.
    known: BTreeSet<PeerAddress>,
}

crate::short_debug!(AddressSet, "AddressSet");

impl AddressSet {
    /// Creates an empty set.
    #[must_use]
    pub const fn new() -> Self {
        Self { members: Vec::new(), known: BTreeSet::new() }
    }

    /// Returns the members in order.
    #[must_use]
    pub fn members(&self) -> &[PeerAddress] {
        &self.members
    }

    /// Returns the number of members.
    #[must_use]
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Returns whether the set has no members.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Returns a member's rank.
    #[must_use]
    pub fn rank(&self, member: PeerAddress) -> Option<usize> {
        self.members.iter().position(|other| *other == member)
    }

    /// Returns whether an address is a member.
    #[must_use]
    pub fn contains(&self, member: PeerAddress) -> bool {
        self.known.contains(&member)
    }

    /// Appends a member (fi_av_set_insert). Returns false if it is a member already.
    pub fn insert(&mut self, member: PeerAddress) -> bool {
        let new = self.known.insert(member);
        if new {
            self.members.push(member);
        }
        new
    }

    /// Removes a member (fi_av_set_remove). The others keep their order. Returns false if it was not a member.
    pub fn remove(&mut self, member: PeerAddress) -> bool {
        let was = self.known.remove(&member);
        if was {
            self.members.retain(|other| *other != member);
        }
        was
    }

    /// Appends the members of the other set (fi_av_set_union).
    pub fn union(&mut self, other: &Self) {
        for member in &other.members {
            self.insert(*member);
        }
    }

    /// Keeps only the members that are also in the other set (fi_av_set_intersect).
    pub fn intersect(&mut self, other: &Self) {
        self.keep(|member| other.contains(member));
    }

    /// Removes the members of the other set (fi_av_set_diff).
    pub fn diff(&mut self, other: &Self) {
        self.keep(|member| !other.contains(member));
    }

    fn keep(&mut self, wanted: impl Fn(PeerAddress) -> bool) {
        self.members.retain(|member| wanted(*member));
        self.known.retain(|member| wanted(*member));
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
