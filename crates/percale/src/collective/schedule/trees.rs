//! Operations along trees, from a root or to it.
//!
//! * Barrier: dissemination (Hensgen, Finkel and Manber). After `k` rounds a member has been notified that `2^k`
//!   members have begun.
//! * Broadcast: a binomial tree.
//! * Scatter and gather: for short blocks the same tree, along which each subtree receives or sends all of its blocks
//!   at once. Long blocks are sent directly between the root and each member, so that no block is transferred twice.

use super::{MemoryPart, Program, ScheduleStep, runs};

/// The maximum total number of bytes of blocks that are sent along the tree.
const SHORT: usize = 64 << 10;

/// A binomial tree. Its members have *places*, counted from the root. The lowest set bit of a place is the distance to
/// the place above it. The places below it differ from it in one lower bit.
pub(super) struct Tree {
    members: usize,
    root: usize,
    pub(super) place: usize,
}

impl Tree {
    pub(super) const fn new(members: usize, rank: usize, root: usize) -> Self {
        Self { members, root, place: (rank + members - root) % members }
    }

    pub(super) const fn rank(&self, place: usize) -> usize {
        (place + self.root) % self.members
    }

    /// Returns the distance to the place above. For the root, returns the distance at which that place would be.
    pub(super) const fn above(&self) -> usize {
        self.above_of(self.place)
    }

    const fn above_of(&self, place: usize) -> usize {
        if place == 0 { self.members.next_power_of_two() } else { 1 << place.trailing_zeros() }
    }

    /// Returns the places below this one, the furthest first.
    pub(super) fn below(&self) -> impl Iterator<Item = usize> {
        let (place, members) = (self.place, self.members);
        let distances = std::iter::successors(Some(self.above() / 2), |distance| Some(distance / 2));
        distances
            .take_while(|distance| *distance > 0)
            .map(move |distance| place + distance)
            .filter(move |below| *below < members)
    }

    /// Returns the number of places in a subtree, including its top. They are consecutive.
    const fn width(&self, place: usize) -> usize {
        let (above, rest) = (self.above_of(place), self.members - place);
        if above < rest { above } else { rest }
    }

    /// Returns the pieces in which the blocks of a subtree are sent: the number of each piece's first block, counted
    /// from the top of the subtree, and its length. The root has all blocks in the order of ranks, so a run that wraps
    /// around to the first block is two pieces for it.
    fn pieces(&self, place: usize, with_root: bool) -> impl Iterator<Item = (usize, usize)> {
        let width = self.width(place);
        let first = if with_root { width.min(self.members - self.rank(place)) } else { width };
        [(0, first), (first, width - first)].into_iter().filter(|(_, count)| *count > 0)
    }
}

impl Program {
    pub(super) fn barrier(&mut self, members: usize, rank: usize) {
        let mut distance = 1;
        while distance < members {
            let from = (rank + members - distance) % members;
            self.steps.push(ScheduleStep::Receive { from, into: (MemoryPart::Scratch, 0), len: 0 });
            self.steps.push(ScheduleStep::Send {
                to: (rank + distance) % members,
                from: (MemoryPart::Result, 0),
                len: 0,
            });
            self.settle();
            distance *= 2;
        }
    }

    pub(super) fn broadcast(&mut self, members: usize, rank: usize, root: usize, bytes: usize) {
        let tree = Tree::new(members, rank, root);
        if tree.place != 0 {
            self.receive(tree.rank(tree.place - tree.above()), (MemoryPart::Result, 0), bytes);
            self.settle();
        }
        tree.below().for_each(|place| self.send(tree.rank(place), (MemoryPart::Result, 0), bytes));
        self.settle();
    }

    pub(super) fn scatter(&mut self, members: usize, rank: usize, root: usize, block: usize) {
        let (own, result) = ((MemoryPart::Source, rank * block), (MemoryPart::Result, 0));
        let tree = Tree::new(members, rank, root);
        if members * block > SHORT {
            if rank == root {
                for other in (1..members).map(|place| tree.rank(place)) {
                    self.send(other, (MemoryPart::Source, other * block), block);
                }
            } else {
                self.receive(root, result, block);
            }
            self.settle();
        } else if rank == root {
            for place in tree.below() {
                for (at, count) in runs(tree.rank(place), tree.width(place), members) {
                    self.send(tree.rank(place), (MemoryPart::Source, at * block), count * block);
                }
            }
            self.settle();
        } else {
            let (width, above) = (tree.width(tree.place), tree.place - tree.above());
            let into = if width > 1 { MemoryPart::Scratch } else { MemoryPart::Result };
            for (at, count) in tree.pieces(tree.place, above == 0) {
                self.receive(tree.rank(above), (into, at * block), count * block);
            }
            self.settle();
            if width > 1 {
                for place in tree.below() {
                    let at = (MemoryPart::Scratch, (place - tree.place) * block);
                    self.send(tree.rank(place), at, tree.width(place) * block);
                }
                self.copy((MemoryPart::Scratch, 0), result, block);
                self.settle();
            }
        }
        if rank == root {
            // This copy follows all sends, because the result may overlap the source.
            self.copy(own, result, block);
        }
    }

    pub(super) fn gather(&mut self, members: usize, rank: usize, root: usize, block: usize) {
        let (own, result) = ((MemoryPart::Source, 0), (MemoryPart::Result, rank * block));
        let tree = Tree::new(members, rank, root);
        if members * block > SHORT {
            if rank == root {
                for other in (1..members).map(|place| tree.rank(place)) {
                    self.receive(other, (MemoryPart::Result, other * block), block);
                }
            } else {
                self.send(root, own, block);
            }
        } else if rank == root {
            for place in tree.below() {
                for (at, count) in runs(tree.rank(place), tree.width(place), members) {
                    self.receive(tree.rank(place), (MemoryPart::Result, at * block), count * block);
                }
            }
        } else {
            let (width, above) = (tree.width(tree.place), tree.place - tree.above());
            let mut from = MemoryPart::Source;
            if width > 1 {
                for place in tree.below() {
                    let at = (MemoryPart::Scratch, (place - tree.place) * block);
                    self.receive(tree.rank(place), at, tree.width(place) * block);
                }
                self.copy(own, (MemoryPart::Scratch, 0), block);
                self.settle();
                from = MemoryPart::Scratch;
            }
            for (at, count) in tree.pieces(tree.place, above == 0) {
                self.send(tree.rank(above), (from, at * block), count * block);
            }
        }
        if rank == root {
            self.copy(own, result, block);
        }
        self.settle();
    }
}
