//! What all exchange with all.
//!
//! * All-gather: Bruck's algorithm. Who has `k` blocks from its own on gets as many that follow, until it has all. Each block lies where it belongs
//!   from the beginning, so that nothing is turned round at the end; what goes on at the first block travels in two pieces instead.
//! * All-to-all, short, of many: Bruck's algorithm: blocks are handed on with all that go as far, in as many rounds as the number of members has
//!   bits. Else: each to each directly, at any time to a few, which are others for everybody (pairwise exchange).

use super::{Place, Program, runs};

/// From so many members on short blocks are handed on.
const CROWD: usize = 8;

/// Short is up to so many bytes.
const SHORT: usize = 256;

/// Blocks that a member sends at a time.
const AT_A_TIME: usize = 16;

impl Program {
    pub(super) fn allgather(&mut self, members: usize, rank: usize, block: usize) {
        self.copy((Place::Source, 0), (Place::Result, rank * block), block);
        let mut distance = 1;
        while distance < members {
            let count = distance.min(members - distance);
            let (from, to) = ((rank + distance) % members, (rank + members - distance) % members);
            for (at, count) in runs(rank, count, members) {
                self.send(to, (Place::Result, at * block), count * block);
            }
            for (at, count) in runs(from, count, members) {
                self.receive(from, (Place::Result, at * block), count * block);
            }
            self.settle();
            distance *= 2;
        }
    }

    pub(super) fn alltoall(&mut self, members: usize, rank: usize, block: usize, in_place: bool) {
        if members >= CROWD && block <= SHORT {
            return self.hand_on(members, rank, block);
        }
        let mut given = Place::Source;
        if in_place {
            given = Place::Scratch;
            self.copy((Place::Source, 0), (given, 0), members * block);
        }
        self.copy((given, rank * block), (Place::Result, rank * block), block);
        for distance in 1..members {
            let (from, to) = ((rank + members - distance) % members, (rank + distance) % members);
            self.receive(from, (Place::Result, from * block), block);
            self.send(to, (given, to * block), block);
            if distance % AT_A_TIME == 0 || distance == members - 1 {
                self.settle();
            }
        }
    }

    /// Block `n` of what is handed on goes to the member `n` further; in each round those go on whose numbers have that round's bit.
    fn hand_on(&mut self, members: usize, rank: usize, block: usize) {
        let mut held = 0;
        for (at, count) in runs(rank, members, members) {
            self.copy((Place::Source, at * block), (Place::Scratch, held * block), count * block);
            held += count;
        }
        // Behind the blocks is room for what goes and for what comes: of every two blocks whose numbers differ in the round's bit one goes.
        let going = members * block;
        let coming = going + members / 2 * block;
        let mut distance = 1;
        while distance < members {
            let steps = (distance..members).step_by(2 * distance);
            let moved = steps.map(|first| (first, distance.min(members - first)));
            let mut packed = 0;
            for (first, count) in moved.clone() {
                self.copy((Place::Scratch, first * block), (Place::Scratch, going + packed * block), count * block);
                packed += count;
            }
            self.send((rank + distance) % members, (Place::Scratch, going), packed * block);
            self.receive((rank + members - distance) % members, (Place::Scratch, coming), packed * block);
            self.settle();
            packed = 0;
            for (first, count) in moved {
                self.copy((Place::Scratch, coming + packed * block), (Place::Scratch, first * block), count * block);
                packed += count;
            }
            distance *= 2;
        }
        // What is block `n` now comes from the member `n` before.
        for number in 0..members {
            let from = (rank + members - number) % members;
            self.copy((Place::Scratch, number * block), (Place::Result, from * block), block);
        }
    }
}
