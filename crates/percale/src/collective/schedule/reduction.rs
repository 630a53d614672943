//! What combines.
//!
//! * Reduction to one: a binomial tree.
//! * To all, short: recursive doubling; long: each combines a part (recursive halving), then the parts are collected (Rabenseifner's algorithm).
//! * To each a part: recursive halving.
//!
//! If the members are no power of two, so many of the first as are too many join with a neighbour before, and get their result from it afterwards.

use super::trees::Tree;
use super::{Place, Program, Spot, Step};

/// Up to so many bytes all members combine everything, in fewer messages.
const SHORT: usize = 8 << 10;

/// Long exchanges are cut into pieces of about so many bytes: while one travels, the one before is combined, and is still in the cache.
const PIECE: usize = 128 << 10;

impl Program {
    /// Where what this member has of the elements from `at` on is.
    const fn ours(&self, at: usize) -> Spot {
        match self.combined {
            Some(place) => (place, at),
            None => (Place::Source, at),
        }
    }

    /// Combines elements at `at` with what came, and puts them there in `into`.
    fn fold(&mut self, at: usize, theirs: usize, len: usize, theirs_first: bool, into: Place) {
        if len > 0 {
            let ours = self.ours(at);
            self.uses((into, at), len);
            self.steps.push(Step::Fold { ours, theirs, into: (into, at), len, theirs_first });
        }
    }

    pub(super) fn reduce(&mut self, members: usize, rank: usize, root: usize, bytes: usize) {
        let tree = Tree::new(members, rank, root);
        let mut distance = 1;
        while distance < tree.above() {
            if tree.place + distance < members {
                self.receive(tree.rank(tree.place + distance), (Place::Scratch, 0), bytes);
                self.settle();
                self.fold(0, 0, bytes, false, Place::Result);
                self.combined = Some(Place::Result);
            }
            distance *= 2;
        }
        if tree.place != 0 {
            self.send(tree.rank(tree.place - tree.above()), self.ours(0), bytes);
            self.settle();
        }
    }

    pub(super) fn allreduce(&mut self, members: usize, rank: usize, count: usize, size: usize) {
        let bytes = count * size;
        let parts = parts_of(members);
        let into = Sums { place: Place::Result, coming: 0, size };
        let Some(exchange) = self.join(members, rank, Cut::Evenly { count, size }, bytes, &into) else {
            self.send(rank + 1, (Place::Source, 0), bytes);
            self.receive(rank + 1, (Place::Result, 0), bytes);
            return self.settle();
        };
        if bytes <= SHORT || count < parts {
            self.doubling(&exchange, bytes);
        } else {
            self.halving(&exchange, &into);
            self.collecting(&exchange);
        }
        if exchange.paired(rank) {
            self.send(rank - 1, (Place::Result, 0), bytes);
            self.settle();
        }
    }

    pub(super) fn reduce_scatter(&mut self, members: usize, rank: usize, block: usize, size: usize) {
        let bytes = members * block;
        // The elements are only read, and the result has room for one block: all is combined in scratch, and comes there behind that.
        let into = Sums { place: Place::Scratch, coming: bytes, size };
        let Some(exchange) = self.join(members, rank, Cut::Blocks { block }, bytes, &into) else {
            self.send(rank + 1, (Place::Source, 0), bytes);
            self.receive(rank + 1, (Place::Result, 0), block);
            return self.settle();
        };
        self.halving(&exchange, &into);
        if exchange.paired(rank) {
            self.send(rank - 1, (Place::Scratch, (rank - 1) * block), block);
        }
        self.copy((Place::Scratch, rank * block), (Place::Result, 0), block);
        self.settle();
    }

    /// Makes the members a power of two; `None` for one that takes no further part.
    fn join(&mut self, members: usize, rank: usize, cut: Cut, bytes: usize, into: &Sums) -> Option<Exchange> {
        let parts = parts_of(members);
        let surplus = members - parts;
        let mut exchange = Exchange { parts, surplus, own: rank.wrapping_sub(surplus), cut };
        if rank < 2 * surplus {
            if rank.is_multiple_of(2) {
                return None;
            }
            self.receive(rank - 1, (Place::Scratch, into.coming), bytes);
            self.settle();
            self.fold(0, into.coming, bytes, true, into.place);
            self.combined = Some(into.place);
            exchange.own = rank / 2;
        }
        Some(exchange)
    }

    /// Everybody combines everything with one other after the other.
    fn doubling(&mut self, exchange: &Exchange, bytes: usize) {
        let mut mask = 1;
        while mask < exchange.parts {
            let (other, theirs_first) = exchange.partner(mask);
            // What is short is sent first: it is under way while the rest is prepared.
            self.send(other, self.ours(0), bytes);
            self.receive(other, (Place::Scratch, 0), bytes);
            self.settle();
            self.fold(0, 0, bytes, theirs_first, Place::Result);
            self.combined = Some(Place::Result);
            mask *= 2;
        }
    }

    /// Everybody combines half of what it has, and so on, until that is its own part.
    fn halving(&mut self, exchange: &Exchange, into: &Sums) {
        let (mut low, mut high) = (0, exchange.parts);
        let mut mask = exchange.parts / 2;
        while mask > 0 {
            let (other, theirs_first) = exchange.partner(mask);
            let middle = (low + high) / 2;
            let (keep, give) =
                if theirs_first { ((middle, high), (low, middle)) } else { ((low, middle), (middle, high)) };
            self.pieces(other, exchange.range(keep), exchange.range(give), theirs_first, into);
            self.combined = Some(into.place);
            (low, high) = keep;
            mask /= 2;
        }
    }

    /// What everybody has combined is collected, the same way back.
    fn collecting(&mut self, exchange: &Exchange) {
        let (mut low, mut high) = (exchange.own, exchange.own + 1);
        let mut mask = 1;
        while mask < exchange.parts {
            let (other, theirs_first) = exchange.partner(mask);
            let width = high - low;
            let theirs = if theirs_first { (low - width, low) } else { (high, high + width) };
            let ((from, len), (at, own)) = (exchange.range(theirs), exchange.range((low, high)));
            self.receive(other, (Place::Result, from), len);
            self.send(other, (Place::Result, at), own);
            self.settle();
            (low, high) = (low.min(theirs.0), high.max(theirs.1));
            mask *= 2;
        }
    }

    /// Sends `give`, and combines `keep` with what comes: in pieces, of which one travels while the one before is combined.
    fn pieces(
        &mut self,
        other: usize,
        (at, len): (usize, usize),
        (give, given): (usize, usize),
        theirs_first: bool,
        into: &Sums,
    ) {
        let piece = PIECE / into.size * into.size;
        let count = len.max(given).div_ceil(piece);
        let part = |of: usize, number: usize| (number * piece, piece.min(of.saturating_sub(number * piece)));
        for number in 0..=count {
            if number < count {
                let ((came, coming), (going, gone)) = (part(len, number), part(given, number));
                self.receive(other, (Place::Scratch, into.coming + came), coming);
                self.send(other, self.ours(give + going), gone);
            }
            if number > 0 {
                let (from, len) = part(len, number - 1);
                self.fold(at + from, into.coming + from, len, theirs_first, into.place);
            }
            self.settle();
        }
    }
}

/// Where elements are combined.
struct Sums {
    place: Place,
    /// Where in scratch those of others come.
    coming: usize,
    /// How long each is.
    size: usize,
}

/// How the elements are cut for those that take part.
enum Cut {
    /// In parts that are equal, as far as that is possible.
    Evenly { count: usize, size: usize },
    /// In blocks for each member; who stands for two has theirs.
    Blocks { block: usize },
}

/// So many of the members take part in an exchange.
const fn parts_of(members: usize) -> usize {
    (members + 1).next_power_of_two() / 2
}

/// Who exchanges what with whom: a power of two of members, numbered anew.
struct Exchange {
    parts: usize,
    /// The first of them stand for two members each.
    surplus: usize,
    own: usize,
    cut: Cut,
}

impl Exchange {
    /// Whether this member stands for the one before it, too.
    const fn paired(&self, rank: usize) -> bool {
        rank < 2 * self.surplus
    }

    /// The rank of the member across `mask`, and whether it is before this one.
    const fn partner(&self, mask: usize) -> (usize, bool) {
        let other = self.own ^ mask;
        let rank = if other < self.surplus { 2 * other + 1 } else { other + self.surplus };
        (rank, other < self.own)
    }

    /// Offset and length of the parts from `low` to `high`.
    const fn range(&self, (low, high): (usize, usize)) -> (usize, usize) {
        let (at, end) = (self.start(low), self.start(high));
        (at, end - at)
    }

    const fn start(&self, part: usize) -> usize {
        match self.cut {
            Cut::Evenly { count, size } => (count as u128 * part as u128 / self.parts as u128) as usize * size,
            Cut::Blocks { block } => {
                let first = if part < self.surplus { 2 * part } else { part + self.surplus };
                first * block
            }
        }
    }
}
