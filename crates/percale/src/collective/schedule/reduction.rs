//! The programs of reductions.
//!
//! * Reduction to one member: a binomial tree.
//! * Reduction to all members: recursive doubling for short elements. For long ones, each member combines a part
//!   (recursive halving), and then the parts are collected (Rabenseifner's algorithm).
//! * Reduction with a part for each member: recursive halving.
//!
//! If the number of members is not a power of two, each surplus member is paired with a neighbour, and the pairs are
//! the first members. The surplus member sends its elements to the neighbour before the exchange, and gets its result
//! from the neighbour afterwards.

use super::trees::Tree;
use super::{MemoryPart, MemoryPosition, Program, ScheduleStep};

/// The maximum number of bytes for which every member combines all elements, which needs fewer messages.
const SHORT: usize = 8 << 10;

/// The approximate size of the pieces of a long exchange. While one piece is transferred, the previous one is combined,
/// and is still in the cache.
const PIECE: usize = 128 << 10;

impl Program {
    /// Returns the position of this member's current values of the elements from `at` on.
    const fn ours(&self, at: usize) -> MemoryPosition {
        match self.combined {
            Some(place) => (place, at),
            None => (MemoryPart::Source, at),
        }
    }

    /// Combines the elements at `at` with the received ones, and stores the result at the same offset in `into`.
    fn fold(&mut self, at: usize, theirs: usize, len: usize, theirs_first: bool, into: MemoryPart) {
        if len > 0 {
            let ours = self.ours(at);
            self.uses((into, at), len);
            self.steps.push(ScheduleStep::Fold { ours, theirs, into: (into, at), len, theirs_first });
        }
    }

    pub(super) fn reduce(&mut self, members: usize, rank: usize, root: usize, bytes: usize) {
        let tree = Tree::new(members, rank, root);
        let mut distance = 1;
        while distance < tree.above() {
            if tree.place + distance < members {
                self.receive(tree.rank(tree.place + distance), (MemoryPart::Scratch, 0), bytes);
                self.settle();
                self.fold(0, 0, bytes, false, MemoryPart::Result);
                self.combined = Some(MemoryPart::Result);
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
        let into = Sums { place: MemoryPart::Result, coming: 0, size };
        let Some(exchange) = self.join(members, rank, Partition::Evenly { count, size }, bytes, &into) else {
            self.send(rank + 1, (MemoryPart::Source, 0), bytes);
            self.receive(rank + 1, (MemoryPart::Result, 0), bytes);
            return self.settle();
        };
        if bytes <= SHORT || count < parts {
            self.doubling(&exchange, bytes);
        } else {
            self.halving(&exchange, &into);
            self.collecting(&exchange);
        }
        if exchange.paired(rank) {
            self.send(rank - 1, (MemoryPart::Result, 0), bytes);
            self.settle();
        }
    }

    pub(super) fn reduce_scatter(&mut self, members: usize, rank: usize, block: usize, size: usize) {
        let bytes = members * block;
        // The elements are only read, and the result has room for only one block. So the elements are combined at the
        // start of scratch, and the elements of other members are received behind them.
        let into = Sums { place: MemoryPart::Scratch, coming: bytes, size };
        let Some(exchange) = self.join(members, rank, Partition::Blocks { block }, bytes, &into) else {
            self.send(rank + 1, (MemoryPart::Source, 0), bytes);
            self.receive(rank + 1, (MemoryPart::Result, 0), block);
            return self.settle();
        };
        self.halving(&exchange, &into);
        if exchange.paired(rank) {
            self.send(rank - 1, (MemoryPart::Scratch, (rank - 1) * block), block);
        }
        self.copy((MemoryPart::Scratch, rank * block), (MemoryPart::Result, 0), block);
        self.settle();
    }

    /// Reduces the number of participants to a power of two. Returns `None` for a member that does not take part in the
    /// exchange.
    fn join(&mut self, members: usize, rank: usize, cut: Partition, bytes: usize, into: &Sums) -> Option<Exchange> {
        let parts = parts_of(members);
        let surplus = members - parts;
        let mut exchange = Exchange { parts, surplus, own: rank.wrapping_sub(surplus), cut };
        if rank < 2 * surplus {
            if rank.is_multiple_of(2) {
                return None;
            }
            self.receive(rank - 1, (MemoryPart::Scratch, into.coming), bytes);
            self.settle();
            self.fold(0, into.coming, bytes, true, into.place);
            self.combined = Some(into.place);
            exchange.own = rank / 2;
        }
        Some(exchange)
    }

    /// Combines all elements with those of each partner, one partner after the other.
    fn doubling(&mut self, exchange: &Exchange, bytes: usize) {
        let mut mask = 1;
        while mask < exchange.parts {
            let (other, theirs_first) = exchange.partner(mask);
            // Short messages are sent first, so that they are under way while the rest is prepared.
            self.send(other, self.ours(0), bytes);
            self.receive(other, (MemoryPart::Scratch, 0), bytes);
            self.settle();
            self.fold(0, 0, bytes, theirs_first, MemoryPart::Result);
            self.combined = Some(MemoryPart::Result);
            mask *= 2;
        }
    }

    /// Combines half of the elements, then half of these, and so on, until only the member's own part is left.
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

    /// Collects the parts that all members have combined, with the partners in reverse order.
    fn collecting(&mut self, exchange: &Exchange) {
        let (mut low, mut high) = (exchange.own, exchange.own + 1);
        let mut mask = 1;
        while mask < exchange.parts {
            let (other, theirs_first) = exchange.partner(mask);
            let width = high - low;
            let theirs = if theirs_first { (low - width, low) } else { (high, high + width) };
            let ((from, len), (at, own)) = (exchange.range(theirs), exchange.range((low, high)));
            self.receive(other, (MemoryPart::Result, from), len);
            self.send(other, (MemoryPart::Result, at), own);
            self.settle();
            (low, high) = (low.min(theirs.0), high.max(theirs.1));
            mask *= 2;
        }
    }

    /// Sends elements, and combines the remaining ones with the received ones. Works in pieces, so that one piece is
    /// transferred while the previous one is combined.
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
                self.receive(other, (MemoryPart::Scratch, into.coming + came), coming);
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

/// The memory in which elements are combined.
struct Sums {
    place: MemoryPart,
    /// The offset in scratch where other members' elements are received.
    coming: usize,
    /// The size of an element.
    size: usize,
}

/// The division of the elements among the participants.
enum Partition {
    /// Equal parts, as far as possible.
    Evenly { count: usize, size: usize },
    /// Blocks, one for each member. A participant that represents two members has the blocks of both.
    Blocks { block: usize },
}

/// Returns the number of members that take part in an exchange.
const fn parts_of(members: usize) -> usize {
    (members + 1).next_power_of_two() / 2
}

/// The partners and parts of an exchange. The number of participants is a power of two, and they are renumbered.
struct Exchange {
    parts: usize,
    /// The number of participants that represent two members each. These are the first participants.
    surplus: usize,
    own: usize,
    cut: Partition,
}

impl Exchange {
    /// Returns whether this member also represents the one before it.
    const fn paired(&self, rank: usize) -> bool {
        rank < 2 * self.surplus
    }

    /// Returns the rank of the partner whose number differs in the bit `mask`, and whether the partner is before this
    /// member.
    const fn partner(&self, mask: usize) -> (usize, bool) {
        let other = self.own ^ mask;
        let rank = if other < self.surplus { 2 * other + 1 } else { other + self.surplus };
        (rank, other < self.own)
    }

    /// Returns the offset and length of the parts from `low` to `high`.
    const fn range(&self, (low, high): (usize, usize)) -> (usize, usize) {
        let (at, end) = (self.start(low), self.start(high));
        (at, end - at)
    }

    const fn start(&self, part: usize) -> usize {
        match self.cut {
            Partition::Evenly { count, size } => (count as u128 * part as u128 / self.parts as u128) as usize * size,
            Partition::Blocks { block } => {
                let first = if part < self.surplus { 2 * part } else { part + self.surplus };
                first * block
            }
        }
    }
}
