//! The groups of an endpoint, and what they are doing.

use std::collections::{HashMap, HashSet, VecDeque};
use std::net::SocketAddr;

use slab::Slab;

use super::{Collective, CollectiveWork, GroupId, Place, Program, Spot, Step};
use crate::completion::entry::ErrorCode;
use crate::endpoint::engine::types::{Notify, Receive, Unexpected};
use crate::endpoint::matching::Matching;
use crate::memory::atomic::{AtomicOp, Datatype, fold as combine};
use crate::memory::buffer::Buffer;
use crate::memory::sealed;
use crate::memory::volatile::{Segment, Segments, View};
use crate::transport::Connection;

/// Broken groups that are remembered when they are gone, or were not joined yet.
const REMEMBERED: usize = 1024;
/// How many groups that are not here yet one peer may have given up.
const HEARD: usize = 64;

/// Memory of an operation's own is, from this size on, such that peers can map it.
const SEALED: usize = 16 << 10;

/// An operation of a group.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) program: Box<Program>,
    /// The next step.
    pub(crate) at: usize,
    /// Transfers that have yet to end.
    pub(crate) outstanding: u32,
    /// It can go on when they have.
    pub(crate) waiting: bool,
    /// This member's elements.
    pub(crate) source: Segment,
    /// Where the result is made.
    pub(crate) result: Segment,
    /// The memory of that, if it is the operation's own.
    pub(crate) own: Option<Buffer>,
    pub(crate) op: AtomicOp,
    pub(crate) datatype: Datatype,
    /// Its number in the group.
    pub(crate) sequence: u32,
    /// What its messages carry: number and digest of what it is.
    pub(crate) data: u64,
    pub(crate) bytes: usize,
    pub(crate) context: u64,
    pub(crate) notify: Notify,
    /// It is the group's making.
    pub(crate) joins: bool,
}

/// A group.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) id: GroupId,
    /// The tag of its messages.
    pub(crate) tag: u64,
    /// Its members' slots, by rank.
    pub(crate) members: Box<[Connection]>,
    pub(crate) rank: usize,
    /// Operations so far.
    pub(crate) sequence: u32,
    pub(crate) running: Option<Running>,
    /// What was posted behind it.
    pub(crate) queue: VecDeque<Running>,
    /// Why nothing of it will succeed any more.
    pub(crate) broken: Option<(ErrorCode, String)>,
    /// The members were told so.
    pub(crate) told: bool,
    /// Members that have closed their endpoints.
    pub(crate) gone: Vec<Connection>,
    /// The application has left it: it goes when its operations have ended.
    pub(crate) left: bool,
    pub(crate) scratch: Scratch,
    /// The program of the operation that ended last: the next one mostly does the same.
    pub(crate) spare: Option<Box<Program>>,
}

impl Group {
    /// A digest of what an operation does, in the upper half, so that members that disagree find out.
    pub(crate) fn shape(work: &CollectiveWork) -> u64 {
        let (kind, root): (u64, usize) = match work.what {
            Collective::Barrier => (0, 0),
            Collective::Broadcast { root } => (1, root),
            Collective::Alltoall => (2, 0),
            Collective::Allreduce => (3, 0),
            Collective::Allgather => (4, 0),
            Collective::ReduceScatter => (5, 0),
            Collective::Reduce { root } => (6, root),
            Collective::Scatter { root } => (7, root),
            Collective::Gather { root } => (8, root),
        };
        let op = if work.what.combines() { work.op.to_u8() } else { 0 };
        let what = kind << 60 | (root as u64) << 16 | u64::from(op) << 8 | u64::from(work.datatype.to_u8());
        let digest = mixed(mixed(what) ^ work.count as u64);
        // Never all ones, which are an abort's.
        (digest >> 33) << 32
    }

    /// Nothing will succeed any more.
    pub(crate) fn breaks(&mut self, code: ErrorCode, why: &str) {
        self.broken.get_or_insert_with(|| (code, why.to_owned()));
    }
}

impl Running {
    /// A part of its memory.
    #[inline]
    pub(crate) fn memory(&self, scratch: &mut Scratch, (place, at): Spot, len: usize) -> Segment {
        let whole = match place {
            Place::Source => self.source,
            Place::Result => self.result,
            Place::Scratch => scratch.room(self.program.scratch),
        };
        whole.slice(at, len)
    }

    /// Does a step that is about this endpoint's memory alone: combines what came with what was there, copies.
    #[inline]
    pub(crate) fn step_here(&self, scratch: &mut Scratch, step: Step, chunks: &mut Option<Box<Chunks>>) {
        match step {
            Step::Copy { from, into, len } => {
                let (from, into) = (self.memory(scratch, from, len), self.memory(scratch, into, len));
                if from.as_ptr() != into.as_ptr() {
                    Segments::one(into).copy_from(&Segments::one(from));
                }
            }
            Step::Fold { ours, theirs, into, len, theirs_first } => {
                let mut of = |spot| self.memory(scratch, spot, len);
                let (ours, theirs, result) = (of(ours), of((Place::Scratch, theirs)), of(into));
                fold(result, ours, theirs, theirs_first, (self.op, self.datatype), chunks);
            }
            Step::Send { .. } | Step::Receive { .. } | Step::Settle => {}
        }
    }
}

/// Where what came waits for being combined: of a group, for whatever runs.
#[derive(Debug)]
pub(crate) struct Scratch {
    buffer: Buffer,
    /// All of it.
    all: Segment,
}

impl Default for Scratch {
    fn default() -> Self {
        Self { buffer: Buffer::from(Vec::new()), all: Segment::EMPTY }
    }
}

impl Scratch {
    /// All of it, which has room for so many bytes from now on.
    #[inline]
    fn room(&mut self, wanted: usize) -> Segment {
        if self.all.len() < wanted {
            self.grow(wanted);
        }
        self.all
    }

    #[cold]
    fn grow(&mut self, wanted: usize) {
        self.buffer = own_memory(wanted);
        self.all = self.buffer.segment_for_receive().unwrap_or(Segment::EMPTY);
    }
}

/// Memory of an operation's own.
pub(crate) fn own_memory(len: usize) -> Buffer {
    if len >= SEALED
        && let Ok(allocation) = sealed::allocate(len)
    {
        return Buffer::from(allocation);
    }
    Buffer::zeroed(len)
}

/// A 64-bit digest (FNV-1a, with its bits mixed): the same in every process.
#[derive(Debug)]
pub(crate) struct Digest(u64);

impl Default for Digest {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Digest {
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
    }

    pub(crate) const fn end(self) -> u64 {
        mixed(self.0)
    }
}

/// Every bit of the result depends on every bit of the word.
const fn mixed(mut bits: u64) -> u64 {
    bits = (bits ^ bits >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    bits = (bits ^ bits >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    bits ^ bits >> 33
}

/// Bytes that are combined at a time.
pub(crate) const CHUNK: usize = 4096;

/// So few are combined on the stack.
const FEW: usize = 64;
/// As many bytes as one element has at most.
const WORD: usize = 8;

/// What is combined, two at a time.
#[derive(Debug)]
pub(crate) struct Chunks([[u8; CHUNK]; 2]);

impl Default for Chunks {
    fn default() -> Self {
        Self([[0; CHUNK]; 2])
    }
}

/// All groups of an endpoint.
#[derive(Debug)]
pub(crate) struct Collectives {
    pub(crate) groups: Slab<Group>,
    pub(crate) by_tag: HashMap<u64, usize>,
    /// Receives and messages of groups.
    pub(crate) messages: Matching<Receive, Unexpected>,
    /// Groups that can go on.
    pub(crate) ready: VecDeque<usize>,
    /// Somebody further up makes them go on.
    pub(crate) running: bool,
    /// What is being combined; made when something first is.
    pub(crate) chunks: Option<Box<Chunks>>,
    /// How often lists of members were joined.
    joined: HashMap<u64, u64>,
    /// Tags of groups that are broken.
    broken: HashSet<u64>,
    /// The same, the oldest first.
    remembered: VecDeque<u64>,
    /// Groups that are not here yet, and who gave them up, the oldest first. Anybody may say so; it counts if he is a member.
    heard: VecDeque<(u64, Connection)>,
    stamp: u32,
}

impl Default for Collectives {
    fn default() -> Self {
        Self {
            groups: Slab::new(),
            by_tag: HashMap::new(),
            messages: Matching::new(),
            ready: VecDeque::new(),
            running: false,
            chunks: None,
            joined: HashMap::new(),
            broken: HashSet::new(),
            remembered: VecDeque::new(),
            heard: VecDeque::new(),
            stamp: 0,
        }
    }
}

impl Collectives {
    /// The group with this name.
    pub(crate) fn get(&self, id: GroupId) -> Option<&Group> {
        self.groups.get(id.index as usize).filter(|group| group.id == id && !group.left)
    }

    /// A new group of these members.
    pub(crate) fn open(&mut self, addresses: &[SocketAddr], members: Box<[Connection]>, rank: usize) -> usize {
        let mut digest = Digest::default();
        for address in addresses {
            digest.add(address.to_string().as_bytes());
            digest.add(b" ");
        }
        let list = digest.end();
        let times = self.joined.entry(list).or_default();
        *times += 1;
        let mut digest = Digest::default();
        [list, *times].into_iter().for_each(|word| digest.add(&word.to_le_bytes()));
        let tag = digest.end();
        self.stamp = self.stamp.wrapping_add(1);
        let entry = self.groups.vacant_entry();
        let index = entry.key();
        let gave_up = |(of, who): &(u64, Connection)| *of == tag && members.contains(who);
        let broken = self.broken.contains(&tag) || self.heard.iter().any(gave_up);
        self.heard.retain(|(of, _)| *of != tag);
        let broken = broken.then(|| (ErrorCode::PeerDied, "a member had given the group up already".to_owned()));
        entry.insert(Group {
            id: GroupId { index: index as u32, stamp: self.stamp },
            tag,
            members,
            rank,
            sequence: 0,
            running: None,
            queue: VecDeque::new(),
            broken,
            told: false,
            gone: Vec::new(),
            left: false,
            scratch: Scratch::default(),
            spare: None,
        });
        self.by_tag.insert(tag, index);
        index
    }

    /// A group is over.
    pub(crate) fn close(&mut self, index: usize) {
        let group = self.groups.remove(index);
        self.by_tag.remove(&group.tag);
    }

    /// Messages with this tag are for nobody any more.
    pub(crate) fn remember_broken(&mut self, tag: u64) {
        if self.broken.insert(tag) {
            self.remembered.push_back(tag);
        }
        if self.remembered.len() > REMEMBERED
            && let Some(oldest) = self.remembered.pop_front()
        {
            self.broken.remove(&oldest);
        }
    }

    /// Somebody gives up a group that is not here yet. He makes us forget nothing but what he said himself.
    pub(crate) fn hear(&mut self, tag: u64, from: Connection) {
        let said = |(_, who): &&(u64, Connection)| *who == from;
        if self.heard.contains(&(tag, from)) {
            return;
        }
        if self.heard.iter().filter(said).count() >= HEARD
            && let Some(oldest) = self.heard.iter().position(|(_, who)| *who == from)
        {
            self.heard.remove(oldest);
        }
        self.heard.push_back((tag, from));
    }

    /// Whether no group is open, and nothing is remembered of any that is yet to be.
    pub(crate) fn is_idle(&self) -> bool {
        self.groups.is_empty() && self.heard.is_empty()
    }

    /// A connection is over, and its number may be another's next.
    pub(crate) fn forget_heard(&mut self, from: Connection) {
        self.heard.retain(|(_, who)| *who != from);
    }

    /// Whether they are.
    pub(crate) fn is_broken(&self, tag: u64) -> bool {
        self.broken.contains(&tag)
    }
}

/// Combines `ours` with `theirs`, in pieces that fit the fastest cache.
#[inline]
fn fold(
    result: Segment,
    ours: Segment,
    theirs: Segment,
    theirs_first: bool,
    (op, datatype): (AtomicOp, Datatype),
    chunks: &mut Option<Box<Chunks>>,
) {
    let (first, second) = if theirs_first { (theirs, ours) } else { (ours, theirs) };
    if ours.len() <= WORD {
        let (mut left, mut right) = ([0; WORD], [0; WORD]);
        return fold_piece((first, second, result), (op, datatype), (&mut left, &mut right));
    }
    if ours.len() <= FEW {
        let (mut left, mut right) = ([0; FEW], [0; FEW]);
        return fold_piece((first, second, result), (op, datatype), (&mut left, &mut right));
    }
    let Chunks([left, right]) = &mut **chunks.get_or_insert_default();
    let mut at = 0;
    while at < ours.len() {
        let len = CHUNK.min(ours.len() - at);
        let of = |segment: Segment| segment.slice(at, len);
        fold_piece((of(first), of(second), of(result)), (op, datatype), (left, right));
        at += len;
    }
}

/// Combines what fits `left` and `right`.
#[inline]
fn fold_piece(
    (first, second, result): (Segment, Segment, Segment),
    (op, datatype): (AtomicOp, Datatype),
    (left, right): (&mut [u8], &mut [u8]),
) {
    let len = first.len().min(second.len());
    let (left, right) = (&mut left[..len], &mut right[..len]);
    first.copy_to(left);
    second.copy_to(right);
    combine(op, datatype, left, right);
    View::of(left).copy_to_one(result);
}
