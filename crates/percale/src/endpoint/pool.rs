//! The waiting receives of a shared receive context, and the messages of its endpoints that have no receive yet.
//!
//! Each endpoint (a *member*) keeps its unexpected messages itself and *announces* them here. A message looks for a receive, and is
//! announced if there is none, under one lock; so does a receive look for a message before it waits. So of a message and a receive
//! that fit, one finds the other, and both are taken in order, whatever member they belong to. If a posted receive finds a message,
//! posting it leaves a *note* for the message's member, which fills the receive at its progress, or when it closes. The message may
//! be gone by then (its sender died): the receive comes back and looks again, unless a younger one was given a message meanwhile;
//! then it ends in error, as if it had been filled at once. A receive of the endpoint's own takes a message that is not yet
//! promised to a shared receive, and withdraws its announcement in the same step: a shared receive that was given it would
//! otherwise look again behind younger ones, which had been given later messages.
//!
//! A receive is directed at a peer by an address, and a message comes from an incarnation. So endpoints report which incarnation
//! they reach at which address: the source of its messages is one number for all endpoints, which stands for each of these
//! addresses while any endpoint has a connection to it. An address that a peer claims, and at which it was not met, does not count.
//!
//! An endpoint that closes takes no more receives, and ends those that it has taken. If it has no queue that outlives it, another
//! member reports their ends, or the next one that joins: a receive belongs to the context, and ends once whatever its endpoint
//! does.
//!
//! Locks: an engine, then the pool, then what notifies (a bell, a multi-receive buffer, a ticket). The pool calls no engine.

mod many;
mod membership;
mod notes;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, MutexGuard};

pub(crate) use self::many::Many;
pub(crate) use self::membership::Membership;
use self::notes::Notes;
pub(crate) use self::notes::{Note, Over, Promise};
use super::engine::peers::At;
use super::matching::{Envelope, Held, Keep, Matching, Pattern, Source};
use super::shared_receive::Owed;
use super::work::{OpFlags, PostError, ReceiveWork};
use crate::address_vector::vector::AddressVector;
use crate::device::Pieces;
use crate::local_memory::buffer::Buffer;
use crate::local_memory::volatile::Segments;
use crate::system::forked::ProcessMutex;
use crate::table::{Id, Table};
use crate::transport::Connection;
use crate::transport::shm::Bell;
use crate::types::PeerAddress;

/// The receives of a shared receive context, and the unexpected messages announced by its endpoints.
#[derive(Debug)]
pub(crate) struct Pool {
    state: ProcessMutex<State>,
}

/// The number of sources of addresses that are kept before unused ones are looked for.
const NAMES: usize = 1024;

#[derive(Debug)]
struct State {
    /// Untagged and tagged.
    tables: [Matching<Waiting, Announced>; 2],
    members: Table<Member>,
    /// The sources that stand for addresses at which no other incarnation was met.
    names: HashMap<At, u64>,
    /// The number of addresses at which unused ones are looked for.
    names_limit: usize,
    /// Whether a receive was ever directed at an address: then sources are kept for the receives that wait, wherever they wait.
    directed: bool,
    /// The incarnations to which some member has a connection.
    up: HashMap<u128, Up>,
    /// Addresses at which an incarnation was met that has the source of another address.
    aliases: HashMap<At, u128>,
    /// The sources of peers without an address, each of one member.
    nameless: HashMap<(Id<Member>, Connection), u64>,
    /// No source has this number or a higher one.
    next_source: u64,
    /// The number of the next receive.
    next_receive: u64,
    /// Untagged and tagged: no receive that was given a message has this number or a higher one.
    given: [u64; 2],
    /// The address vector of the first member that has one.
    vector: Option<AddressVector>,
    /// A multi-receive buffer with less than this left takes no more messages.
    multi_minimum: usize,
    /// Ends that the next endpoint that joins has to report, because there was no other member.
    unreported: Vec<Note>,
}

/// An incarnation to which there are connections.
#[derive(Debug)]
struct Up {
    source: u64,
    /// The members that have these connections.
    members: Vec<Id<Member>>,
}

/// The peer of a member's connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sender {
    pub(crate) slot: Connection,
    /// The address at which the peer was met; `None` if its address is only its own claim.
    pub(crate) at: Option<At>,
    pub(crate) incarnation: u128,
}

/// A receive of the context.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) segments: Segments,
    pub(crate) context: u64,
    /// Whether its success is reported too.
    pub(crate) reports: bool,
    pub(crate) kind: Kind,
    /// Younger ones have higher numbers.
    number: u64,
}

/// The kind of a receive.
#[derive(Debug)]
pub(crate) enum Kind {
    /// An ordinary receive.
    Plain,
    /// The receive owns its buffer.
    Safe(Owed, Buffer),
    /// The receive is, or is part of, a buffer for many messages.
    Many(Arc<Many>),
}

/// A message that a member keeps.
#[derive(Debug)]
struct Announced {
    member: Id<Member>,
    held: Held,
    len: u64,
}

#[derive(Debug)]
struct Member {
    bell: Arc<Bell>,
    notes: Arc<Notes>,
}

impl Member {
    fn tell(&self, note: Note) {
        self.notes.add(note);
        self.bell.wake();
    }
}

impl State {
    /// The source of an address at which no other incarnation was met.
    fn name(&mut self, at: At) -> u64 {
        *self.names.entry(at).or_insert_with(|| {
            self.next_source += 1;
            self.next_source
        })
    }

    /// The source of messages from an address.
    fn source_at(&mut self, at: At) -> u64 {
        let met = self.aliases.get(&at).and_then(|incarnation| self.up.get(incarnation)).map(|up| up.source);
        met.unwrap_or_else(|| self.name(at))
    }

    /// The source of a message.
    fn source_of(&mut self, member: Id<Member>, sender: Sender) -> u64 {
        match (sender.at, self.up.get(&sender.incarnation)) {
            (Some(_), Some(up)) => up.source,
            (Some(at), None) => self.name(at),
            (None, _) => *self.nameless.entry((member, sender.slot)).or_insert_with(|| {
                self.next_source += 1;
                self.next_source
            }),
        }
    }

    /// Notes that a member has a connection to an incarnation that it met at this address.
    fn connected(&mut self, member: Id<Member>, at: At, incarnation: u128) {
        self.aliases.remove(&at);
        let source = self.name(at);
        let up = self.up.entry(incarnation).or_insert_with(|| Up { source, members: Vec::new() });
        up.members.push(member);
        if up.source != source {
            self.alias(at, incarnation);
        }
    }

    /// Notes that an incarnation was met at one more address: receives directed at that address take its messages.
    fn alias(&mut self, at: At, incarnation: u128) {
        let from = self.source_at(at);
        let Some(to) = self.up.get(&incarnation).map(|up| up.source).filter(|to| *to != from) else { return };
        self.aliases.insert(at, incarnation);
        self.post_again(
            |pattern, _| pattern.source == Source::From(from),
            |source| {
                if source == Source::From(from) { Source::From(to) } else { source }
            },
        );
    }

    /// Notes that a connection to an incarnation has ended. Returns the source that has no connection left, if this was the last.
    fn disconnected(&mut self, member: Id<Member>, incarnation: u128) -> Option<u64> {
        let up = self.up.get_mut(&incarnation)?;
        let position = up.members.iter().position(|other| *other == member)?;
        up.members.swap_remove(position);
        if !up.members.is_empty() {
            return None;
        }
        let source = up.source;
        self.up.remove(&incarnation);
        let aliases: Vec<At> = self.aliases.extract_if(|_, other| *other == incarnation).map(|(at, _)| at).collect();
        let names: Vec<u64> = aliases.into_iter().map(|at| self.name(at)).collect();
        self.tables.iter_mut().for_each(|table| table.leave(source, &names));
        if self.names.len() >= self.names_limit && !self.directed {
            self.forget_names();
        }
        (!self.is_up(source)).then_some(source)
    }

    /// Forgets the sources of addresses at which no peer is met and from which no message is held. Peers change over time, so
    /// sources would otherwise accumulate.
    #[cold]
    fn forget_names(&mut self) {
        let mut used: HashSet<u64> = self.up.values().map(|up| up.source).collect();
        for table in &mut self.tables {
            let look = |envelope: Envelope, _, _: &Announced| {
                used.insert(envelope.source);
                false
            };
            table.extract_held(look).for_each(drop);
            used.extend(table.left());
        }
        self.names.retain(|_, source| used.contains(source));
        self.names_limit = self.names.len().saturating_mul(2).max(NAMES);
    }

    fn is_up(&self, source: u64) -> bool {
        self.up.values().any(|up| up.source == source)
    }

    /// Takes the receives directed at a source.
    fn directed(&mut self, source: u64) -> Vec<(bool, Waiting)> {
        let [untagged, tagged] = &mut self.tables;
        let untagged = untagged.drain_posted(Source::From(source)).map(|receive| (false, receive));
        untagged.chain(tagged.drain_posted(Source::From(source)).map(|receive| (true, receive))).collect()
    }

    /// Takes out the first receive that `pick` accepts, and all behind it, and posts them again in order, with the source that
    /// `direct` returns.
    fn post_again(&mut self, pick: impl Fn(&Pattern, &Waiting) -> bool, direct: impl Fn(Source) -> Source) {
        for tagged in [false, true] {
            for (pattern, receive) in self.take_from(tagged, &pick) {
                self.post(tagged, Pattern { source: direct(pattern.source), ..pattern }, receive);
            }
        }
    }

    /// Takes the first receive that `pick` accepts, and all behind it.
    fn take_from(&mut self, tagged: bool, pick: impl Fn(&Pattern, &Waiting) -> bool) -> Vec<(Pattern, Waiting)> {
        let (mut patterns, mut found) = (Vec::new(), false);
        let taken: Vec<_> = self.tables[usize::from(tagged)]
            .extract_posted(|pattern, receive| {
                found = found || pick(&pattern, receive);
                if found {
                    patterns.push(pattern);
                }
                found
            })
            .collect();
        patterns.into_iter().zip(taken).collect()
    }

    /// Takes the receive for a message.
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
        let receive = part.or(whole)?;
        self.gives(tagged, receive.number);
        Some(receive)
    }

    /// Notes that a receive is given a message.
    fn gives(&mut self, tagged: bool, number: u64) {
        let given = &mut self.given[usize::from(tagged)];
        *given = (*given).max(number + 1);
    }

    /// Matches a receive with the messages that are held for it; what is left of the receive waits.
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
            let number = part.number;
            member.tell(Note::Fill(Promise { tagged, held: message.held, receive: part, pattern }));
            self.gives(tagged, number);
            match rest {
                Some(rest) => receive = rest,
                None => return,
            }
        }
    }
}

impl Pool {
    pub(crate) fn new(multi_minimum: usize) -> Arc<Self> {
        let state = State {
            tables: [Matching::new(), Matching::new()],
            members: Table::new(),
            names: HashMap::new(),
            names_limit: NAMES,
            directed: false,
            up: HashMap::new(),
            aliases: HashMap::new(),
            nameless: HashMap::new(),
            next_source: 0,
            next_receive: 0,
            given: [0; 2],
            vector: None,
            multi_minimum,
            unreported: Vec::new(),
        };
        Arc::new(Self { state: ProcessMutex::new(state) })
    }

    /// The state; none in a forked child.
    fn lock(&self) -> Option<MutexGuard<'_, State>> {
        self.state.lock()
    }

    /// Makes an endpoint a member, until its membership is dropped.
    pub(crate) fn join(self: &Arc<Self>, vector: Option<&AddressVector>, bell: &Arc<Bell>) -> Membership {
        let notes = Arc::new(Notes::default());
        let member = Member { bell: Arc::clone(bell), notes: Arc::clone(&notes) };
        // A forked child's endpoint is not a member of its parent's pool.
        let id = match self.lock() {
            Some(mut state) => {
                state.vector = state.vector.take().or_else(|| vector.cloned());
                state.unreported.drain(..).for_each(|note| member.tell(note));
                state.members.insert(member)
            }
            None => Table::new().insert(member),
        };
        Membership { pool: Arc::clone(self), id, notes }
    }

    /// Whether this is the process that created it, and not a fork of it.
    pub(crate) fn is_here(&self) -> bool {
        self.state.is_here()
    }

    /// Releases multi-receive buffers once less than this many bytes are left.
    pub(crate) fn set_multi_minimum(&self, bytes: usize) {
        if let Some(mut state) = self.lock() {
            state.multi_minimum = bytes;
        }
    }

    /// Posts a receive; what it owns is taken if that succeeds.
    pub(crate) fn post(&self, work: &ReceiveWork, owned: &mut Option<(Owed, Buffer)>) -> Result<(), PostError> {
        if !self.is_here() {
            return Err(PostError::Forked);
        }
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
        let mut state = self.lock().ok_or(PostError::Forked)?;
        let source = match work.from {
            PeerAddress::UNSPECIFIED => Source::Any,
            from => {
                let vector = state.vector.as_ref().ok_or(PostError::NoVector)?;
                let unknown = PostError::UnknownPeer(from.0);
                let bits = vector.options().receive_context_bits;
                let context = u16::try_from(from.0.checked_shr(u64::BITS - bits).unwrap_or(0));
                let (Some(address), Ok(context)) = (vector.lookup(from), context) else { return Err(unknown) };
                state.members.iter().for_each(|(_, member)| member.tell(Note::LookFor(from)));
                state.directed = true;
                Source::From(state.source_at((address, context)))
            }
        };
        let kind = match owned.take() {
            _ if many => Kind::Many(Arc::default()),
            Some((owed, buffer)) => Kind::Safe(owed, buffer),
            None => Kind::Plain,
        };
        let reports = work.flags.contains(OpFlags::COMPLETION);
        let number = state.next_receive;
        state.next_receive += 1;
        let receive = Waiting { segments: work.segments, context: work.context, reports, kind, number };
        state.post(work.tag.is_some(), Pattern { tag, ignore, source }, receive);
        Ok(())
    }

    /// Cancels the first receive with this context that has no message; returns whether there was one. A member reports it: the
    /// next one that joins, if there is none.
    pub(crate) fn cancel(&self, context: u64) -> bool {
        let wanted = |waiting: &Waiting| !matches!(waiting.kind, Kind::Safe(..)) && waiting.context == context;
        let Some(mut state) = self.lock() else { return false };
        let Some((tagged, receive)) = state.take_where(wanted) else { return false };
        if let Kind::Many(many) = &receive.kind
            && !many.close()
        {
            return true; // The last message that is on its way into it releases it.
        }
        state.tell_any(Note::Canceled { tagged, receive });
        true
    }

    /// Makes a member report the end of a receive, or the next one that joins. The peer's number is left out: it is an index in the
    /// vector of the member that received.
    pub(crate) fn report(&self, mut over: Over) {
        match &mut over.result {
            Ok(entry) => entry.source = PeerAddress::UNSPECIFIED,
            Err(error) => error.entry.source = PeerAddress::UNSPECIFIED,
        }
        if let Some(mut state) = self.lock() {
            state.tell_any(Note::Over(Box::new(over)));
        }
    }

    /// Withdraws a receive that owns its buffer, if it has no message.
    pub(crate) fn withdraw(&self, owed: &Owed) -> Option<(Owed, Buffer)> {
        let ours = |waiting: &Waiting| matches!(&waiting.kind, Kind::Safe(other, _) if other.is(owed));
        let (_, receive) = self.lock()?.take_where(ours)?;
        match receive.kind {
            Kind::Safe(owed, buffer) => Some((owed, buffer)),
            _ => None,
        }
    }
}

impl State {
    /// Leaves a note for some member, or for the next one that joins if there is none.
    fn tell_any(&mut self, note: Note) {
        match self.members.iter().next() {
            Some((_, member)) => member.tell(note),
            None => self.unreported.push(note),
        }
    }

    /// Ends the connections of this member. A peer to which no other member is connected may still exist: if a receive is directed
    /// at it, the members that were connected to it before are made to find out.
    fn leave(&mut self, member: Id<Member>) {
        let theirs = |(incarnation, up): (&u128, &Up)| up.members.contains(&member).then_some(*incarnation);
        let connected: Vec<_> = self.up.iter().filter_map(theirs).collect();
        for incarnation in connected {
            let mut left = None;
            while let Some(source) = self.disconnected(member, incarnation) {
                left = Some(source);
            }
            let Some(source) = left.filter(|source| self.awaits(*source)) else { continue };
            let at = self.names.iter().filter(|(_, named)| **named == source).map(|(at, _)| *at);
            let at: Vec<_> = at.collect();
            for at in at {
                self.members.iter().for_each(|(_, member)| member.tell(Note::LookAt(at)));
            }
        }
    }

    /// Whether a receive is directed at a source.
    fn awaits(&mut self, source: u64) -> bool {
        self.tables.iter_mut().any(|table| {
            let mut any = false;
            let look = |pattern: Pattern, _: &Waiting| {
                any |= pattern.source == Source::From(source);
                false
            };
            table.extract_posted(look).for_each(drop);
            any
        })
    }

    fn take_where(&mut self, wanted: impl Fn(&Waiting) -> bool) -> Option<(bool, Waiting)> {
        let [untagged, tagged] = &mut self.tables;
        if let Some(receive) = untagged.cancel_where(&wanted) {
            return Some((false, receive));
        }
        tagged.cancel_where(&wanted).map(|receive| (true, receive))
    }
}

#[cfg(all(test, not(loom)))]
#[path = "pool_tests.rs"]
mod tests;
