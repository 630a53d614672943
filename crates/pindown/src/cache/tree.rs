//! An ordered set of ranges, searched for those that overlap or contain a range. Ranges may overlap each other in any
//! way.
//!
//! A treap over the starts of the ranges. Each node stores the greatest end in its subtree. Nodes have the numbers of
//! the entries that they stand for. Priorities are a hash of the number, so the shape of the tree does not depend on
//! the order of insertion.

use crate::range::Range;

const NIL: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Node {
    range: Range,
    /// The greatest end of this node and those below it.
    greatest: u64,
    left: u32,
    right: u32,
}

/// The tree.
#[derive(Debug)]
pub(super) struct Tree {
    root: u32,
    nodes: Vec<Node>,
}

/// Returns the priority of a node. Nodes with higher priorities are nearer to the root.
fn priority(node: u32) -> u32 {
    node.wrapping_add(1).wrapping_mul(0x9e37_79b1).rotate_left(15).wrapping_mul(0x85eb_ca77)
}

impl Tree {
    pub(super) fn new() -> Self {
        Self { root: NIL, nodes: Vec::new() }
    }

    /// Reserves room for nodes below `count`, so that no insertion allocates.
    pub(super) fn reserve(&mut self, count: usize) {
        if self.nodes.len() < count {
            let empty = Node { range: Range::ALL, greatest: 0, left: NIL, right: NIL };
            self.nodes.resize(count.next_power_of_two(), empty);
        }
    }

    fn node(&self, node: u32) -> &Node {
        &self.nodes[node as usize]
    }

    fn greatest(&self, node: u32) -> u64 {
        if node == NIL { 0 } else { self.node(node).greatest }
    }

    fn update(&mut self, node: u32) {
        let Node { range, left, right, .. } = *self.node(node);
        self.nodes[node as usize].greatest = range.end().max(self.greatest(left)).max(self.greatest(right));
    }

    fn key(&self, node: u32) -> (u64, u32) {
        (self.node(node).range.start(), node)
    }

    /// Adds node `number`, which is not in the tree. Descends once and reads only nodes on its path, because a miss
    /// waits for each load.
    pub(super) fn insert(&mut self, number: u32, range: Range) {
        self.reserve(number as usize + 1);
        let key = (range.start(), number);
        let (mut above, mut at) = (None, self.root);
        while at != NIL && priority(at) >= priority(number) {
            let goes_left = key < self.key(at);
            let node = &mut self.nodes[at as usize];
            node.greatest = node.greatest.max(range.end());
            above = Some((at, goes_left));
            at = if goes_left { node.left } else { node.right };
        }
        let (left, right) = self.split(at, key);
        self.nodes[number as usize] = Node { range, greatest: range.end(), left, right };
        if at != NIL {
            self.update(number);
        }
        match above.map(|(above, goes_left)| (&mut self.nodes[above as usize], goes_left)) {
            None => self.root = number,
            Some((above, true)) => above.left = number,
            Some((above, false)) => above.right = number,
        }
    }

    /// Splits a subtree into the nodes before the key and those after it.
    fn split(&mut self, at: u32, key: (u64, u32)) -> (u32, u32) {
        if at == NIL {
            return (NIL, NIL);
        }
        if self.key(at) < key {
            let (left, right) = self.split(self.node(at).right, key);
            self.nodes[at as usize].right = left;
            self.update(at);
            (at, right)
        } else {
            let (left, right) = self.split(self.node(at).left, key);
            self.nodes[at as usize].left = right;
            self.update(at);
            (left, at)
        }
    }

    /// Removes node `number`, which is in the tree.
    pub(super) fn remove(&mut self, number: u32) {
        self.root = self.remove_below(self.root, number);
    }

    fn remove_below(&mut self, at: u32, number: u32) -> u32 {
        if at == NIL {
            return NIL;
        }
        if at == number {
            let Node { left, right, .. } = *self.node(at);
            return self.merge(left, right);
        }
        if self.key(number) < self.key(at) {
            let below = self.remove_below(self.node(at).left, number);
            self.nodes[at as usize].left = below;
        } else {
            let below = self.remove_below(self.node(at).right, number);
            self.nodes[at as usize].right = below;
        }
        self.update(at);
        at
    }

    fn merge(&mut self, left: u32, right: u32) -> u32 {
        if left == NIL || right == NIL {
            return if left == NIL { right } else { left };
        }
        if priority(left) > priority(right) {
            let below = self.merge(self.node(left).right, right);
            self.nodes[left as usize].right = below;
            self.update(left);
            left
        } else {
            let below = self.merge(left, self.node(right).left);
            self.nodes[right as usize].left = below;
            self.update(right);
            right
        }
    }

    /// Calls `with` for every node that overlaps `range`, in order, until it returns false.
    pub(super) fn overlapping(&self, range: Range, with: &mut impl FnMut(u32) -> bool) {
        self.overlapping_below(self.root, range, with);
    }

    /// Recurses only into subtrees that may overlap the range: a miss mostly searches for ranges that are not in the
    /// tree.
    fn overlapping_below(&self, mut at: u32, range: Range, with: &mut impl FnMut(u32) -> bool) -> bool {
        while at != NIL && self.greatest(at) > range.start() {
            let Node { range: here, left, right, .. } = *self.node(at);
            if here.start() >= range.end() {
                at = left;
                continue;
            }
            if self.greatest(left) > range.start() && !self.overlapping_below(left, range, with) {
                return false;
            }
            if here.overlaps(range) && !with(at) {
                return false;
            }
            at = right;
        }
        true
    }

    /// Returns the first node that contains `range` and for which `fits` returns true.
    pub(super) fn containing(&self, range: Range, fits: impl Fn(u32) -> bool) -> Option<u32> {
        let mut found = None;
        self.overlapping(range, &mut |node| {
            if self.node(node).range.contains(range) && fits(node) {
                found = Some(node);
            }
            found.is_none()
        });
        found
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn range(start: u64, len: u64) -> Range {
        Range::new(start, len).expect("a range")
    }

    fn overlapping(tree: &Tree, with: Range) -> Vec<u32> {
        let mut found = Vec::new();
        tree.overlapping(with, &mut |node| {
            found.push(node);
            true
        });
        found
    }

    proptest! {
        #[test]
        fn tree_matches_list_model(
            steps in prop::collection::vec((0..40_u32, 0..500_u64, 1..80_u64, 0..500_u64, 1..60_u64), 1..300)
        ) {
            let mut tree = Tree::new();
            let mut list = BTreeMap::new();
            for (number, start, len, requested, asked_len) in steps {
                if list.remove(&number).is_some() {
                    tree.remove(number);
                } else {
                    tree.insert(number, range(start, len));
                    list.insert(number, range(start, len));
                }
                let requested = range(requested, asked_len);
                let mut found = overlapping(&tree, requested);
                let starts: Vec<_> = found.iter().map(|number| list[number].start()).collect();
                prop_assert!(starts.is_sorted());
                found.sort_unstable();
                let expected: Vec<_> = list.iter().filter(|(_, r)| r.overlaps(requested)).map(|(n, _)| *n).collect();
                prop_assert_eq!(found, expected);
                let containing = tree.containing(requested, |_| true).is_some();
                prop_assert_eq!(containing, list.values().any(|r| r.contains(requested)));
            }
        }
    }

    #[test]
    fn tree_stays_shallow() {
        let mut tree = Tree::new();
        for n in 0..100_000 {
            tree.insert(n, range(u64::from(n) * 10, 10));
        }
        fn depth(tree: &Tree, at: u32) -> u32 {
            if at == NIL { 0 } else { 1 + depth(tree, tree.node(at).left).max(depth(tree, tree.node(at).right)) }
        }
        let depth = depth(&tree, tree.root);
        assert!(depth < 60, "{depth} levels for 100,000 ranges in order");
    }
}
