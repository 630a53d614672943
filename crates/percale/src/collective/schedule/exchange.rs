//! Exchanges between all members.
//!
//! * All-gather: Bruck's algorithm. In each round, a member that has `k` consecutive blocks, starting with its own,
//!   receives the next `k` blocks, until it has all of them. Each block is received at its final position, so no
//!   rotation is needed at the end. A run that wraps around to the first block is sent in two pieces.
//! * All-to-all of short blocks, with many members: Bruck's algorithm. In each round a member forwards, in one message,
//!   all blocks that move by that round's distance. The number of rounds is the binary logarithm of the number of
//!   members, rounded up. Otherwise every member sends directly to every other member, to a few of them at a time. The
//!   order of the destinations differs between members (pairwise exchange).

use super::{MemoryPart, Program, runs};

/// The minimum number of members for which short blocks are forwarded.
const CROWD: usize = 8;

/// The maximum length of a short block.
const SHORT: usize = 256;

/// The number of blocks that a member sends at a time.
const AT_A_TIME: usize = 16;

impl Program {
    pub(super) fn allgather(&mut self, members: usize, rank: usize, block: usize) {
        self.copy((MemoryPart::Source, 0), (MemoryPart::Result, rank * block), block);
        let mut distance = 1;
        while distance < members {
            let count = distance.min(members - distance);
            let (from, to) = ((rank + distance) % members, (rank + members - distance) % members);
            for (at, count) in runs(rank, count, members) {
                self.send(to, (MemoryPart::Result, at * block), count * block);
            }
            for (at, count) in runs(from, count, members) {
                self.receive(from, (MemoryPart::Result, at * block), count * block);
            }
            self.settle();
            distance *= 2;
        }
    }

    pub(super) fn alltoall(&mut self, members: usize, rank: usize, block: usize, in_place: bool) {
        if members >= CROWD && block <= SHORT {
            return self.forward(members, rank, block);
        }
        let mut given = MemoryPart::Source;
        if in_place {
            given = MemoryPart::Scratch;
            self.copy((MemoryPart::Source, 0), (given, 0), members * block);
        }
        self.copy((given, rank * block), (MemoryPart::Result, rank * block), block);
        for distance in 1..members {
            let (from, to) = ((rank + members - distance) % members, (rank + distance) % members);
            self.receive(from, (MemoryPart::Result, from * block), block);
            self.send(to, (given, to * block), block);
            if distance % AT_A_TIME == 0 || distance == members - 1 {
                self.settle();
            }
        }
    }

    /// Forwards blocks. Block `n` is for the member `n` ranks after this one. Each round sends the blocks whose numbers
    /// have that round's bit set.
    fn forward(&mut self, members: usize, rank: usize, block: usize) {
        let mut held = 0;
        for (at, count) in runs(rank, members, members) {
            self.copy((MemoryPart::Source, at * block), (MemoryPart::Scratch, held * block), count * block);
            held += count;
        }
        // The blocks are followed by room for the blocks that are sent and received in a round. Of every two blocks
        // whose numbers differ only in the round's bit, one is sent.
        let going = members * block;
        let coming = going + members / 2 * block;
        let mut distance = 1;
        while distance < members {
            let steps = (distance..members).step_by(2 * distance);
            let moved = steps.map(|first| (first, distance.min(members - first)));
            let mut packed = 0;
            for (first, count) in moved.clone() {
                self.copy(
                    (MemoryPart::Scratch, first * block),
                    (MemoryPart::Scratch, going + packed * block),
                    count * block,
                );
                packed += count;
            }
            self.send((rank + distance) % members, (MemoryPart::Scratch, going), packed * block);
            self.receive((rank + members - distance) % members, (MemoryPart::Scratch, coming), packed * block);
            self.settle();
            packed = 0;
            for (first, count) in moved {
                self.copy(
                    (MemoryPart::Scratch, coming + packed * block),
                    (MemoryPart::Scratch, first * block),
                    count * block,
                );
                packed += count;
            }
            distance *= 2;
        }
        // Block `n` came from the member `n` ranks before this one.
        for number in 0..members {
            let from = (rank + members - number) % members;
            self.copy((MemoryPart::Scratch, number * block), (MemoryPart::Result, from * block), block);
        }
    }
}
