//! What a member does in a collective: a program of steps, from the group's size, the member's rank and the operation alone.
//!
//! Sends and receives go on side by side; [`Step::Settle`] waits for those before it. Between two members the sends of one and the receives
//! of the other are in the same order, in all programs.
//!
//! * Barrier: dissemination. After `k` rounds a member knows of `2^k`.
//! * Broadcast and reduction: a binomial tree.
//! * Reduction for all, short: recursive doubling; long: each combines a part (recursive halving), then the parts are collected
//!   (Rabenseifner's algorithm). If the members are no power of two, so many of the first as are too many join with a neighbour before, and
//!   get the result from it afterwards.

use super::Collective;
use crate::memory::atomic::{AtomicOp, Datatype};

/// Up to so many bytes all members combine everything, in fewer messages.
const SHORT: usize = 8 << 10;

/// Long exchanges are cut into pieces of about so many bytes: while one travels, the one before is combined, and is still in the cache.
const PIECE: usize = 128 << 10;

/// Which memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// This member's elements, which are only read.
    Source,
    /// The result. What is broadcast is there to begin with.
    Result,
    /// Memory of the operation's own.
    Scratch,
}

/// A step. Members are named by rank; offsets and lengths are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Sends.
    Send { to: usize, place: Place, at: usize, len: usize },
    /// Receives.
    Receive { from: usize, place: Place, at: usize, len: usize },
    /// Waits until everything that was begun before has ended.
    Settle,
    /// Combines what is at `at` of `place` with what is in scratch at `from`, which makes the result at `at`. The operand of the member
    /// with the lower rank is the first.
    Fold { place: Place, at: usize, from: usize, len: usize, theirs_first: bool },
    /// Makes this member's elements the result.
    Copy { len: usize },
}

/// The steps, and what they need.
#[derive(Debug, Default)]
pub(crate) struct Program {
    pub(crate) steps: Vec<Step>,
    /// Bytes of scratch.
    pub(crate) scratch: usize,
    /// What has been combined so far is in the result; until then there are this member's elements alone.
    combined: bool,
    /// What it was made for, and a digest of that; for whoever keeps it.
    pub(crate) made_for: Option<(Kind, u64)>,
}

/// What is done to how many of what.
pub(crate) type Kind = (Collective, usize, Datatype, AtomicOp);

impl Program {
    /// Makes it the program of this operation, of `count` elements, for one of `members`.
    pub(crate) fn write(&mut self, what: Collective, members: usize, rank: usize, count: usize, datatype: Datatype) {
        self.steps.clear();
        (self.scratch, self.combined) = (0, !what.combines());
        let size = datatype.size();
        let bytes = count * size;
        match what {
            Collective::Barrier => self.barrier(members, rank),
            _ if bytes == 0 => {}
            Collective::Broadcast { root } => self.broadcast(members, rank, root, bytes),
            _ if members == 1 => self.steps.push(Step::Copy { len: bytes }),
            Collective::Reduce { root } => self.reduce(members, rank, root, bytes),
            Collective::Allreduce => self.allreduce(members, rank, count, size),
        }
    }

    fn send(&mut self, to: usize, at: usize, len: usize) {
        if len > 0 {
            let place = self.ours();
            self.steps.push(Step::Send { to, place, at, len });
        }
    }

    /// Where what this member has is.
    const fn ours(&self) -> Place {
        if self.combined { Place::Result } else { Place::Source }
    }

    fn receive(&mut self, from: usize, place: Place, at: usize, len: usize) {
        if len > 0 {
            self.steps.push(Step::Receive { from, place, at, len });
        }
        if place == Place::Scratch {
            self.scratch = self.scratch.max(at + len);
        }
    }

    fn settle(&mut self) {
        self.steps.push(Step::Settle);
    }

    fn fold(&mut self, at: usize, from: usize, len: usize, theirs_first: bool) {
        if len > 0 {
            let place = self.ours();
            self.steps.push(Step::Fold { place, at, from, len, theirs_first });
        }
    }

    fn barrier(&mut self, members: usize, rank: usize) {
        let mut distance = 1;
        while distance < members {
            self.steps.push(Step::Receive {
                from: (rank + members - distance) % members,
                place: Place::Scratch,
                at: 0,
                len: 0,
            });
            let place = Place::Result;
            self.steps.push(Step::Send { to: (rank + distance) % members, place, at: 0, len: 0 });
            self.settle();
            distance *= 2;
        }
    }

    fn broadcast(&mut self, members: usize, rank: usize, root: usize, bytes: usize) {
        let place = (rank + members - root) % members;
        let real = |place: usize| (place + root) % members;
        // The lowest bit says who is above; below are those that differ in one bit lower than that.
        let above = if place == 0 { members.next_power_of_two() } else { 1 << place.trailing_zeros() };
        if place != 0 {
            self.receive(real(place - above), Place::Result, 0, bytes);
            self.settle();
        }
        let mut distance = above / 2;
        while distance > 0 {
            if place + distance < members {
                self.send(real(place + distance), 0, bytes);
            }
            distance /= 2;
        }
        self.settle();
    }

    fn reduce(&mut self, members: usize, rank: usize, root: usize, bytes: usize) {
        let place = (rank + members - root) % members;
        let real = |place: usize| (place + root) % members;
        let above = if place == 0 { members.next_power_of_two() } else { 1 << place.trailing_zeros() };
        let mut distance = 1;
        while distance < above {
            if place + distance < members {
                self.receive(real(place + distance), Place::Scratch, 0, bytes);
                self.settle();
                self.fold(0, 0, bytes, false);
                self.combined = true;
            }
            distance *= 2;
        }
        if place != 0 {
            self.send(real(place - above), 0, bytes);
            self.settle();
        }
    }

    fn allreduce(&mut self, members: usize, rank: usize, count: usize, size: usize) {
        let bytes = count * size;
        // So many take part in the exchange.
        let parts = (members + 1).next_power_of_two() / 2;
        let surplus = members - parts;
        let paired = rank < 2 * surplus;
        if paired && rank.is_multiple_of(2) {
            self.send(rank + 1, 0, bytes);
            self.receive(rank + 1, Place::Result, 0, bytes);
            self.settle();
            return;
        }
        if paired {
            self.receive(rank - 1, Place::Scratch, 0, bytes);
            self.settle();
            self.fold(0, 0, bytes, true);
            self.combined = true;
        }
        let exchange = Exchange { parts, surplus, own: if paired { rank / 2 } else { rank - surplus }, count, size };
        if bytes <= SHORT || count < parts {
            self.doubling(&exchange);
        } else {
            self.halving(&exchange);
        }
        if paired {
            self.send(rank - 1, 0, bytes);
            self.settle();
        }
    }

    /// Everybody combines everything with one other after the other.
    fn doubling(&mut self, exchange: &Exchange) {
        let bytes = exchange.count * exchange.size;
        let mut mask = 1;
        while mask < exchange.parts {
            let (other, theirs_first) = exchange.partner(mask);
            // What is short is sent first: it is under way while the rest is prepared.
            self.send(other, 0, bytes);
            self.receive(other, Place::Scratch, 0, bytes);
            self.settle();
            self.fold(0, 0, bytes, theirs_first);
            self.combined = true;
            mask *= 2;
        }
    }

    /// Everybody combines half of what it has, and so on; then what was combined is collected in the same way back.
    fn halving(&mut self, exchange: &Exchange) {
        let (mut low, mut high) = (0, exchange.parts);
        let mut mask = exchange.parts / 2;
        while mask > 0 {
            let (other, theirs_first) = exchange.partner(mask);
            let middle = (low + high) / 2;
            let (keep, give) =
                if theirs_first { ((middle, high), (low, middle)) } else { ((low, middle), (middle, high)) };
            self.pieces(other, exchange.range(keep), exchange.range(give), exchange.size, theirs_first);
            self.combined = true;
            (low, high) = keep;
            mask /= 2;
        }
        mask = 1;
        while mask < exchange.parts {
            let (other, theirs_first) = exchange.partner(mask);
            let width = high - low;
            let theirs = if theirs_first { (low - width, low) } else { (high, high + width) };
            let ((from, len), (at, own)) = (exchange.range(theirs), exchange.range((low, high)));
            self.receive(other, Place::Result, from, len);
            self.send(other, at, own);
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
        size: usize,
        theirs_first: bool,
    ) {
        let piece = PIECE / size * size;
        let count = len.max(given).div_ceil(piece);
        let part = |of: usize, number: usize| (number * piece, piece.min(of.saturating_sub(number * piece)));
        for number in 0..=count {
            if number < count {
                let ((came, coming), (going, gone)) = (part(len, number), part(given, number));
                self.receive(other, Place::Scratch, came, coming);
                self.send(other, give + going, gone);
            }
            if number > 0 {
                let (from, len) = part(len, number - 1);
                self.fold(at + from, from, len, theirs_first);
            }
            self.settle();
        }
    }
}

/// Who exchanges what with whom: a power of two of members, numbered anew.
struct Exchange {
    parts: usize,
    /// The first of them stand for two members each.
    surplus: usize,
    own: usize,
    count: usize,
    size: usize,
}

impl Exchange {
    /// The rank of the member across `mask`, and whether it is before this one.
    const fn partner(&self, mask: usize) -> (usize, bool) {
        let other = self.own ^ mask;
        let rank = if other < self.surplus { 2 * other + 1 } else { other + self.surplus };
        (rank, other < self.own)
    }

    /// Offset and length of these of so many equal parts of the elements as there are members.
    fn range(&self, (low, high): (usize, usize)) -> (usize, usize) {
        let at = |part: usize| (self.count as u128 * part as u128 / self.parts as u128) as usize * self.size;
        (at(low), at(high) - at(low))
    }
}
