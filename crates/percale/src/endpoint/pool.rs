//! Where the receives of a shared receive context wait, and what its endpoints have that is still without one.
//!
//! Each endpoint (a *member*) keeps its unexpected messages itself and *announces* them here. A message looks for a receive, and is
//! announced if there is none, under one lock; so does a receive look for a message before it waits. So of a message and a receive
//! that fit, one finds the other, and both are taken in order, whatever member they belong to. Who posts a receive that finds a
//! message leaves a *note* for its member, which fills the receive at its progress. A member's message may be gone by then (its
//! sender died, or a receive of the endpoint's own took it): the receive comes back and looks again.
//!
//! Locks: an engine, then the pool, then what notifies (a bell, a multi-receive buffer, a ticket). The pool calls no engine.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use slab::Slab;

use super::engine::peers::At;
use super::matching::{Envelope, Held, Keep, Matching, Pattern, Source};
use super::shared_receive::Owed;
use super::work::{OpFlags, PostError, ReceiveWork};
use crate::address::PeerAddress;
use crate::address::vector::AddressVector;
use crate::device::Pieces;
use crate::memory::buffer::Buffer;
use crate::memory::volatile::{Segment, Segments};
use crate::transport::shm::Bell;

/// See the module.
#[derive(Debug)]
pub(crate) struct Pool {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Untagged and tagged.
    tables: [Matching<Waiting, Announced>; 2],
    members: Slab<Member>,
    /// What stands for whom in patterns.
    sources: HashMap<At, u64>,
    /// That of the first member that has one.
    vector: Option<AddressVector>,
    /// A multi-receive buffer with less than this left takes no more messages.
    multi_minimum: usize,
    /// Ends that are to be reported by the next endpoint that joins: there was none.
    unreported: Vec<Note>,
}

/// A receive of the context.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) segments: Segments,
    pub(crate) context: u64,
    /// Its success is reported too.
    pub(crate) reports: bool,
    pub(crate) kind: Kind,
}

/// What is special about a receive.
#[derive(Debug)]
pub(crate) enum Kind {
    /// Nothing.
    Plain,
    /// It owns its buffer.
    Safe(Owed, Buffer),
    /// It is, or is part of, a buffer for many messages.
    Many(Arc<Many>),
}

/// A buffer for many messages.
#[derive(Debug, Default)]
pub(crate) struct Many {
    state: Mutex<ManyState>,
}

#[derive(Debug, Default)]
struct ManyState {
    used: usize,
    in_flight: usize,
    closed: bool,
}

impl Many {
    fn lock(&self) -> MutexGuard<'_, ManyState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next part, for a message of `len` bytes; and whether there is room for more.
    fn part(&self, whole: &Segments, len: u64, minimum: usize) -> (Segments, Keep) {
        let mut state = self.lock();
        // One segment, as was checked; a message of no bytes has a place in it too.
        let segment = whole.as_slice().first().copied().unwrap_or(Segment::EMPTY);
        let part = segment.slice(state.used, usize::try_from(len).unwrap_or(usize::MAX));
        state.used += part.len();
        state.in_flight += 1;
        state.closed = whole.len() - state.used < minimum.max(1);
        (Segments::one(part), if state.closed { Keep::Remove } else { Keep::Stay })
    }

    /// A message is complete: whether that released the buffer.
    pub(crate) fn done(&self) -> bool {
        let mut state = self.lock();
        state.in_flight -= 1;
        state.closed && state.in_flight == 0
    }

    /// As [`done`](Self::done), and reports that before any other part can end.
    pub(crate) fn end_part(&self, report: impl FnOnce(bool)) {
        let mut state = self.lock();
        state.in_flight -= 1;
        report(state.closed && state.in_flight == 0);
    }

    /// It takes no more messages: whether it is released by that, as no part of it is in use.
    pub(crate) fn close(&self) -> bool {
        let mut state = self.lock();
        state.closed = true;
        state.in_flight == 0
    }
}

/// A message that a member keeps.
#[derive(Debug)]
struct Announced {
    member: usize,
    held: Held,
    len: u64,
}

#[derive(Debug)]
struct Member {
    bell: Arc<Bell>,
    notes: Arc<Notes>,
}

/// What members are told.
#[derive(Debug)]
pub(crate) enum Note {
    /// This message of yours has this receive, which was posted with this pattern.
    Fill { tagged: bool, held: Held, receive: Waiting, pattern: Pattern },
    /// A receive waits for this peer.
    LookFor(PeerAddress),
    /// This receive was cancelled.
    Canceled { tagged: bool, receive: Waiting },
}

/// The notes for one member.
#[derive(Debug, Default)]
struct Notes {
    any: AtomicBool,
    list: Mutex<Vec<Note>>,
}

impl Notes {
    fn take(&self) -> Vec<Note> {
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        self.any.store(false, Ordering::Relaxed);
        std::mem::take(&mut *list)
    }
}

impl Member {
    fn tell(&self, note: Note) {
        self.notes.list.lock().unwrap_or_else(PoisonError::into_inner).push(note);
        self.notes.any.store(true, Ordering::Release);
        self.bell.wake();
    }
}

impl State {
    /// What stands for a peer.
    fn source(&mut self, at: At) -> u64 {
        let next = self.sources.len() as u64;
        *self.sources.entry(at).or_insert(next)
    }

    /// Takes what a message is to be put in.
    fn meet(&mut self, tagged: bool, envelope: Envelope, len: u64) -> Option<Waiting> {
        let minimum = self.multi_minimum;
        let (part, whole) =
            self.tables[usize::from(tagged)].arrive_with(envelope, |_, waiting| match &waiting.kind {
                Kind::Many(many) => {
                    let (segments, keep) = many.part(&waiting.segments, len, minimum);
                    let part = Waiting { segments, kind: Kind::Many(Arc::clone(many)), ..*waiting };
                    (keep, Some(part))
                }
                _ => (Keep::Remove, None),
            })?;
        part.or(whole)
    }

    /// Gives a receive to the messages that are here for it; what is left of it waits.
    fn post(&mut self, tagged: bool, pattern: Pattern, mut receive: Waiting) {
        let minimum = self.multi_minimum;
        loop {
            let table = &mut self.tables[usize::from(tagged)];
            let Some(message) = table.find(&pattern).and_then(|held| table.take(held)) else {
                table.post(pattern, receive);
                return;
            };
            let Some(member) = self.members.get(message.member) else { continue };
            let (part, rest) = match &receive.kind {
                Kind::Many(many) => {
                    let (segments, keep) = many.part(&receive.segments, message.len, minimum);
                    let part = Waiting { segments, kind: Kind::Many(Arc::clone(many)), ..receive };
                    (part, matches!(keep, Keep::Stay).then_some(receive))
                }
                _ => (receive, None),
            };
            member.tell(Note::Fill { tagged, held: message.held, receive: part, pattern });
            match rest {
                Some(rest) => receive = rest,
                None => return,
            }
        }
    }
}

impl Pool {
    pub(crate) fn new(multi_minimum: usize) -> Arc<Self> {
        let (members, sources) = (Slab::new(), HashMap::new());
        let tables = [Matching::new(), Matching::new()];
        Arc::new(Self {
            state: Mutex::new(State { tables, members, sources, vector: None, multi_minimum, unreported: Vec::new() }),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An endpoint takes part, until its membership is dropped.
    pub(crate) fn join(self: &Arc<Self>, vector: Option<&AddressVector>, bell: &Arc<Bell>) -> Membership {
        let notes = Arc::new(Notes::default());
        let mut state = self.lock();
        state.vector = state.vector.take().or_else(|| vector.cloned());
        let member = Member { bell: Arc::clone(bell), notes: Arc::clone(&notes) };
        state.unreported.drain(..).for_each(|note| member.tell(note));
        let id = state.members.insert(member);
        drop(state);
        Membership { pool: Arc::clone(self), id, notes }
    }

    /// Releases multi-receive buffers once less than this many bytes are left.
    pub(crate) fn set_multi_minimum(&self, bytes: usize) {
        self.lock().multi_minimum = bytes;
    }

    /// Posts a receive; what it owns is taken if that succeeds.
    pub(crate) fn post(&self, work: &ReceiveWork, owned: &mut Option<(Owed, Buffer)>) -> Result<(), PostError> {
        let many = work.flags.contains(OpFlags::MULTI_RECEIVE);
        if work.flags.intersects(OpFlags::PEEK | OpFlags::CLAIM | OpFlags::DISCARD) {
            return Err(PostError::Flags("a shared receive context cannot peek, claim or discard"));
        }
        if many && work.segments.as_slice().len() != 1 {
            return Err(PostError::Flags("a multi-receive buffer is one segment"));
        }
        if work.flags.contains(OpFlags::DEVICE) && !matches!(Pieces::find(&work.segments), Ok(None)) {
            return Err(PostError::Device("shared receives on a device's memory are not supported", libc::ENOSYS));
        }
        let (tag, ignore) = work.tag.unwrap_or((0, 0));
        let mut state = self.lock();
        let source = match work.from {
            PeerAddress::UNSPECIFIED => Source::Any,
            from => {
                let vector = state.vector.as_ref().ok_or(PostError::NoVector)?;
                let unknown = PostError::UnknownPeer(from.0);
                let bits = vector.options().receive_context_bits;
                let context = u16::try_from(from.0.checked_shr(u64::BITS - bits).unwrap_or(0));
                let (Some(address), Ok(context)) = (vector.lookup(from), context) else { return Err(unknown) };
                state.members.iter().for_each(|(_, member)| member.tell(Note::LookFor(from)));
                Source::From(state.source((address, context)))
            }
        };
        let kind = match owned.take() {
            _ if many => Kind::Many(Arc::default()),
            Some((owed, buffer)) => Kind::Safe(owed, buffer),
            None => Kind::Plain,
        };
        let reports = work.flags.contains(OpFlags::COMPLETION);
        let receive = Waiting { segments: work.segments, context: work.context, reports, kind };
        state.post(work.tag.is_some(), Pattern { tag, ignore, source }, receive);
        Ok(())
    }

    /// Cancels the first receive with this context that has no message; says whether there was one. Some member reports it: the next one
    /// that joins, if there is none.
    pub(crate) fn cancel(&self, context: u64) -> bool {
        let wanted = |waiting: &Waiting| !matches!(waiting.kind, Kind::Safe(..)) && waiting.context == context;
        let mut state = self.lock();
        let Some((tagged, receive)) = state.take_where(wanted) else { return false };
        if let Kind::Many(many) = &receive.kind
            && !many.close()
        {
            return true; // Released by the last message that is on its way into it.
        }
        state.tell_any(Note::Canceled { tagged, receive });
        true
    }

    /// Takes back a receive that owns its buffer, if it has no message.
    pub(crate) fn withdraw(&self, owed: &Owed) -> Option<(Owed, Buffer)> {
        let ours = |waiting: &Waiting| matches!(&waiting.kind, Kind::Safe(other, _) if other.is(owed));
        let (_, receive) = self.lock().take_where(ours)?;
        match receive.kind {
            Kind::Safe(owed, buffer) => Some((owed, buffer)),
            _ => None,
        }
    }
}

impl State {
    /// Has some member report something: the next one, if there is none.
    fn tell_any(&mut self, note: Note) {
        match self.members.iter().next() {
            Some((_, member)) => member.tell(note),
            None => self.unreported.push(note),
        }
    }

    fn take_where(&mut self, wanted: impl Fn(&Waiting) -> bool) -> Option<(bool, Waiting)> {
        let [untagged, tagged] = &mut self.tables;
        if let Some(receive) = untagged.cancel_where(&wanted) {
            return Some((false, receive));
        }
        tagged.cancel_where(&wanted).map(|receive| (true, receive))
    }
}

/// An endpoint's part in a pool.
#[derive(Debug)]
pub(crate) struct Membership {
    pool: Arc<Pool>,
    id: usize,
    notes: Arc<Notes>,
}

impl Membership {
    /// The receive for a message that has arrived.
    pub(crate) fn meet(&self, at: At, tagged: bool, tag: u64, len: u64) -> Option<Waiting> {
        let mut state = self.pool.lock();
        let source = state.source(at);
        state.meet(tagged, Envelope { tag, source }, len)
    }

    /// As [`meet`](Self::meet), for a message that is kept here: without a receive it is announced.
    pub(crate) fn announce(&self, at: At, tagged: bool, tag: u64, len: u64, held: Held) -> Option<Waiting> {
        let mut state = self.pool.lock();
        let envelope = Envelope { tag, source: state.source(at) };
        let receive = state.meet(tagged, envelope, len);
        if receive.is_none() {
            state.tables[usize::from(tagged)].hold(envelope, Announced { member: self.id, held, len });
        }
        receive
    }

    /// A receive whose message is gone looks for another.
    pub(crate) fn give_back(&self, tagged: bool, pattern: Pattern, receive: Waiting) {
        let mut state = self.pool.lock();
        let many = match &receive.kind {
            Kind::Many(many) => many,
            // Nobody waits for it any more: it takes no other message.
            Kind::Safe(owed, _) if owed.is_abandoned() => {
                drop(state);
                return drop(receive);
            }
            Kind::Plain | Kind::Safe(..) => return state.post(tagged, pattern, receive),
        };
        // Its part stays unused; the whole is released if that was the last.
        if many.done() {
            state.tell_any(Note::Canceled { tagged, receive });
        }
    }

    /// The receives that only this peer could have satisfied.
    pub(crate) fn directed(&self, at: At) -> Vec<(bool, Waiting)> {
        let mut state = self.pool.lock();
        let source = Source::From(state.source(at));
        let [untagged, tagged] = &mut state.tables;
        let untagged = untagged.drain_posted(source).map(|receive| (false, receive));
        untagged.chain(tagged.drain_posted(source).map(|receive| (true, receive))).collect()
    }

    /// Whether there are notes. One relaxed load.
    #[inline]
    pub(crate) fn has_notes(&self) -> bool {
        self.notes.any.load(Ordering::Relaxed)
    }

    /// The notes, oldest first.
    pub(crate) fn take_notes(&self) -> Vec<Note> {
        self.notes.take()
    }
}

impl Drop for Membership {
    /// Its messages go with it; receives that it was to fill look for others.
    fn drop(&mut self) {
        let mut state = self.pool.lock();
        state.members.try_remove(self.id);
        for table in &mut state.tables {
            table.extract_held(|_, _, message| message.member == self.id).for_each(drop);
        }
        drop(state);
        for note in self.notes.take() {
            match note {
                Note::Fill { tagged, receive, pattern, .. } => self.give_back(tagged, pattern, receive),
                Note::LookFor(_) => {}
                canceled @ Note::Canceled { .. } => self.pool.lock().tell_any(canceled),
            }
        }
    }
}
