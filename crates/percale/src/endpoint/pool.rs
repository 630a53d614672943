//! The waiting receives of a shared receive context, and the unexpected messages of its endpoints.
//!
//! Each endpoint (a *member*) stores its unexpected messages itself and *announces* them to the pool.
//!
//! 1. Searching for a receive for a message, and announcing the message if there is none, happen under one lock. The
//!    same lock covers searching for a message for a receive, and queueing the receive if there is none. So a receive
//!    and a message that match each other never both wait, and both are taken in order, whichever member they belong
//!    to.
//! 2. If a posted receive matches a message, the pool adds a *note* for the message's member. The member fills the
//!    receive when it next makes progress, or when it closes.
//! 3. The message may have been lost by then because its sender died. The receive is then returned to the pool and
//!    matched again, unless a receive that was posted later has been matched meanwhile. In that case the receive
//!    completes with an error, as if it had been filled immediately.
//! 4. A receive that an endpoint posted for itself takes a message only if the message is not yet promised to a shared
//!    receive, and withdraws its announcement in the same step. Otherwise a shared receive that was matched with the
//!    message would be queued again behind receives that were posted later and have been matched with later messages.
//!
//! A receive is directed at an address, but a message comes from an incarnation. So each endpoint reports which
//! incarnation it reaches at which address. The messages of an incarnation have one source number at all endpoints.
//! Receives directed at any of these addresses use this source while some endpoint has a connection to the incarnation.
//! An address that a peer only claims, and at which no endpoint has reached it, is ignored.
//!
//! An endpoint that closes takes no more receives, and ends those that it has taken. If all its queues are closed with
//! it, another member reports these receives. If there is no other member, the next one that joins reports them. A
//! receive belongs to the context and ends exactly once, even if its endpoint is closed before.
//!
//! Lock order: an engine, then the pool, then the object that is notified (a doorbell, a multi-receive buffer or a
//! ticket). The pool never calls an engine.

mod many;
mod membership;
mod notes;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, MutexGuard};

pub(crate) use self::many::Many;
pub(crate) use self::membership::Membership;
use self::notes::Notes;
pub(crate) use self::notes::{EndedReceive, MemberNote, ReservedReceive};
use super::engine::peers::ContextAddress;
use super::matching::{AfterMatch, Envelope, HeldMessage, Matching, Pattern, SourceFilter};
use super::shared_receive::ReceiveReport;
use super::work::{OpFlags, PostError, ReceiveWork};
use crate::address_vector::vector::AddressVector;
use crate::device::Pieces;
use crate::local_memory::buffer::Buffer;
use crate::local_memory::volatile::Segments;
use crate::system::forked::{Process, ProcessMutex};
use crate::table::{Id, Table};
use crate::transport::ConnectionId;
use crate::transport::shm::Doorbell;
use crate::types::PeerAddress;

/// The receives of a shared receive context, and the unexpected messages announced by its endpoints.
#[derive(Debug)]
pub(crate) struct Pool {
    state: ProcessMutex<PoolState>,
}

/// The number of address sources above which unused ones are removed.
const NAMES: usize = 1024;

#[derive(Debug)]
struct PoolState {
    /// The tables for untagged and for tagged messages.
    tables: [Matching<PostedReceive, StoredMessage>; 2],
    members: Table<Member>,
    /// The sources of addresses that are not aliases.
    names: HashMap<ContextAddress, u64>,
    /// The number of sources in `names` above which unused ones are removed.
    names_limit: usize,
    /// Whether a receive was ever directed at an address. If so, sources are kept as long as receives may wait for them
    /// in any member.
    directed: bool,
    /// The incarnations to which some member has a connection.
    up: HashMap<u128, ConnectedSource>,
    /// Addresses at which an incarnation was reached that already had the source of another address.
    aliases: HashMap<ContextAddress, u128>,
    /// The sources of peers without a verified address. Each belongs to one member.
    nameless: HashMap<(Id<Member>, ConnectionId), u64>,
    /// The source that was assigned last. Sources count up from 1.
    next_source: u64,
    /// The number of the next receive.
    next_receive: u64,
    /// A number greater than that of each receive that was matched with a message, for untagged and for tagged
    /// messages.
    given: [u64; 2],
    /// The address vector of the first member that has one.
    vector: Option<AddressVector>,
    /// The number of bytes left below which a multi-receive buffer takes no more messages.
    multi_minimum: usize,
    /// Ended receives that the next endpoint that joins has to report, because there was no other member.
    unreported: Vec<MemberNote>,
}

/// An incarnation to which some member has a connection.
#[derive(Debug)]
struct ConnectedSource {
    source: u64,
    /// The members that have these connections.
    members: Vec<Id<Member>>,
}

/// The peer of a member's connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SenderPeer {
    pub(crate) slot: ConnectionId,
    /// The address at which the peer was reached, or `None` if the peer only claims its address.
    pub(crate) at: Option<ContextAddress>,
    pub(crate) incarnation: u128,
}

/// A posted receive of the context.
#[derive(Debug)]
pub(crate) struct PostedReceive {
    pub(crate) segments: Segments,
    pub(crate) context: u64,
    /// Whether the receive also reports success.
    pub(crate) reports: bool,
    pub(crate) kind: ReceiveKind,
    /// The number of the receive. Later receives have higher numbers.
    number: u64,
}

/// The kind of a receive.
#[derive(Debug)]
pub(crate) enum ReceiveKind {
    /// An ordinary receive.
    Plain,
    /// The receive owns its buffer.
    Safe(ReceiveReport, Buffer),
    /// The receive is, or is part of, a buffer for many messages.
    Many(Arc<Many>),
}

/// A message that a member stores.
#[derive(Debug)]
struct StoredMessage {
    member: Id<Member>,
    held: HeldMessage,
    len: u64,
}

#[derive(Debug)]
struct Member {
    doorbell: Arc<Doorbell>,
    notes: Arc<Notes>,
}

impl Member {
    fn add_note(&self, note: MemberNote) {
        self.notes.add(note);
        self.doorbell.wake();
    }
}

impl PoolState {
    /// Returns the source of an address that is not an alias.
    fn name(&mut self, at: ContextAddress) -> u64 {
        *self.names.entry(at).or_insert_with(|| {
            self.next_source += 1;
            self.next_source
        })
    }

    /// Returns the source of messages from an address.
    fn source_at(&mut self, at: ContextAddress) -> u64 {
        let met = self.aliases.get(&at).and_then(|incarnation| self.up.get(incarnation)).map(|up| up.source);
        met.unwrap_or_else(|| self.name(at))
    }

    /// Returns the source of a message.
    fn source_of(&mut self, member: Id<Member>, sender: SenderPeer) -> u64 {
        match (sender.at, self.up.get(&sender.incarnation)) {
            (Some(_), Some(up)) => up.source,
            (Some(at), None) => self.name(at),
            (None, _) => *self.nameless.entry((member, sender.slot)).or_insert_with(|| {
                self.next_source += 1;
                self.next_source
            }),
        }
    }

    /// Records that a member has a connection to an incarnation that it reached at this address.
    fn connected(&mut self, member: Id<Member>, at: ContextAddress, incarnation: u128) {
        self.aliases.remove(&at);
        let source = self.name(at);
        let up = self.up.entry(incarnation).or_insert_with(|| ConnectedSource { source, members: Vec::new() });
        up.members.push(member);
        if up.source != source {
            self.alias(at, incarnation);
        }
    }

    /// Records that an incarnation was reached at one more address. Receives directed at that address then take its
    /// messages.
    fn alias(&mut self, at: ContextAddress, incarnation: u128) {
        let from = self.source_at(at);
        let Some(to) = self.up.get(&incarnation).map(|up| up.source).filter(|to| *to != from) else { return };
        self.aliases.insert(at, incarnation);
        self.post_again(
            |pattern, _| pattern.source == SourceFilter::From(from),
            |source| {
                if source == SourceFilter::From(from) { SourceFilter::From(to) } else { source }
            },
        );
    }

    /// Records that a connection to an incarnation has ended. If this was the last one, returns the source that has no
    /// connection left.
    fn disconnected(&mut self, member: Id<Member>, incarnation: u128) -> Option<u64> {
        let up = self.up.get_mut(&incarnation)?;
        let position = up.members.iter().position(|other| *other == member)?;
        up.members.swap_remove(position);
        if !up.members.is_empty() {
            return None;
        }
        let source = up.source;
        self.up.remove(&incarnation);
        let aliases: Vec<ContextAddress> =
            self.aliases.extract_if(|_, other| *other == incarnation).map(|(at, _)| at).collect();
        let names: Vec<u64> = aliases.into_iter().map(|at| self.name(at)).collect();
        self.tables.iter_mut().for_each(|table| table.leave(source, &names));
        if self.names.len() >= self.names_limit && !self.directed {
            self.forget_names();
        }
        (!self.is_up(source)).then_some(source)
    }

    /// Removes the sources of addresses at which no peer is connected and from which no message is stored. Peers change
    /// over time, so the sources would otherwise accumulate.
    #[cold]
    fn forget_names(&mut self) {
        let mut used: HashSet<u64> = self.up.values().map(|up| up.source).collect();
        for table in &mut self.tables {
            let look = |envelope: Envelope, _, _: &StoredMessage| {
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

    /// Removes the receives that are directed at a source, and returns whether each is tagged, and the receive.
    fn directed(&mut self, source: u64) -> Vec<(bool, PostedReceive)> {
        let [untagged, tagged] = &mut self.tables;
        let untagged = untagged.drain_posted(SourceFilter::From(source)).map(|receive| (false, receive));
        untagged.chain(tagged.drain_posted(SourceFilter::From(source)).map(|receive| (true, receive))).collect()
    }

    /// Removes the first receive that `pick` accepts and all later receives, and posts them again in the same order
    /// with the source that `direct` returns.
    fn post_again(
        &mut self,
        pick: impl Fn(&Pattern, &PostedReceive) -> bool,
        direct: impl Fn(SourceFilter) -> SourceFilter,
    ) {
        for tagged in [false, true] {
            for (pattern, receive) in self.take_from(tagged, &pick) {
                self.post(tagged, Pattern { source: direct(pattern.source), ..pattern }, receive);
            }
        }
    }

    /// Removes the first receive that `pick` accepts and all later receives.
    fn take_from(
        &mut self,
        tagged: bool,
        pick: impl Fn(&Pattern, &PostedReceive) -> bool,
    ) -> Vec<(Pattern, PostedReceive)> {
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

    /// Removes the first receive that matches a message, and returns it. Of a multi-receive buffer, returns the part
    /// for the message; the buffer remains posted while enough of it is left.
    fn meet(&mut self, tagged: bool, envelope: Envelope, len: u64) -> Option<PostedReceive> {
        let minimum = self.multi_minimum;
        let (part, whole) =
            self.tables[usize::from(tagged)].arrive_with(envelope, |_, waiting| match &waiting.kind {
                ReceiveKind::Many(many) => {
                    let (segments, keep) = many.part(&waiting.segments, len, minimum);
                    let part = PostedReceive { segments, kind: ReceiveKind::Many(Arc::clone(many)), ..*waiting };
                    (keep, Some(part))
                }
                _ => (AfterMatch::Remove, None),
            })?;
        let receive = part.or(whole)?;
        self.gives(tagged, receive.number);
        Some(receive)
    }

    /// Records that a receive was matched with a message.
    fn gives(&mut self, tagged: bool, number: u64) {
        let given = &mut self.given[usize::from(tagged)];
        *given = (*given).max(number + 1);
    }

    /// Matches a receive with the stored messages. A receive that matches none, or what is left of a multi-receive
    /// buffer, is queued.
    fn post(&mut self, tagged: bool, pattern: Pattern, mut receive: PostedReceive) {
        let minimum = self.multi_minimum;
        loop {
            let table = &mut self.tables[usize::from(tagged)];
            let Some(message) = table.find(&pattern).and_then(|held| table.take(held)) else {
                table.post(pattern, receive);
                return;
            };
            let Some(member) = self.members.get(message.member) else { continue };
            let (part, rest) = match &receive.kind {
                ReceiveKind::Many(many) => {
                    let (segments, keep) = many.part(&receive.segments, message.len, minimum);
                    let part = PostedReceive { segments, kind: ReceiveKind::Many(Arc::clone(many)), ..receive };
                    (part, matches!(keep, AfterMatch::Stay).then_some(receive))
                }
                _ => (receive, None),
            };
            let number = part.number;
            member.add_note(MemberNote::Fill(ReservedReceive { tagged, held: message.held, receive: part, pattern }));
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
        let state = PoolState {
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

    /// Locks the state. Returns `None` in a forked child.
    fn lock(&self) -> Option<MutexGuard<'_, PoolState>> {
        self.state.lock()
    }

    /// Makes an endpoint a member until its membership is dropped.
    pub(crate) fn join(self: &Arc<Self>, vector: Option<&AddressVector>, doorbell: &Arc<Doorbell>) -> Membership {
        let notes = Arc::new(Notes::default());
        let member = Member { doorbell: Arc::clone(doorbell), notes: Arc::clone(&notes) };
        // An endpoint in a forked child is not a member of its parent's pool.
        let id = match self.lock() {
            Some(mut state) => {
                state.vector = state.vector.take().or_else(|| vector.cloned());
                state.unreported.drain(..).for_each(|note| member.add_note(note));
                state.members.insert(member)
            }
            None => Table::new().insert(member),
        };
        Membership { pool: Arc::clone(self), id, notes }
    }

    /// Returns whether this is the process that created the pool, and not a fork of it.
    pub(crate) fn is_here(&self) -> bool {
        self.state.is_here()
    }

    /// Returns the process of the context, if it can be distinguished from its forked children.
    pub(crate) const fn process(&self) -> Option<Process> {
        self.state.process()
    }

    /// Sets the number of bytes left below which multi-receive buffers are released.
    pub(crate) fn set_multi_minimum(&self, bytes: usize) {
        if let Some(mut state) = self.lock() {
            state.multi_minimum = bytes;
        }
    }

    /// Posts a receive. Takes `owned` if that succeeds.
    pub(crate) fn post(
        &self,
        work: &ReceiveWork,
        owned: &mut Option<(ReceiveReport, Buffer)>,
    ) -> Result<(), PostError> {
        if !self.is_here() {
            return Err(PostError::Forked);
        }
        let many = work.flags.contains(OpFlags::MULTI_RECEIVE);
        if work.flags.intersects(OpFlags::PEEK | OpFlags::CLAIM | OpFlags::DISCARD) {
            return Err(PostError::Flags("a shared receive context cannot peek, claim or discard"));
        }
        if many && work.segments.as_slice().len() != 1 {
            return Err(PostError::Flags("a multi-receive buffer must be one segment"));
        }
        if work.flags.contains(OpFlags::DEVICE) && !matches!(Pieces::find(&work.segments), Ok(None)) {
            return Err(PostError::Device("shared receives on a device's memory are not supported", libc::ENOSYS));
        }
        let (tag, ignore) = work.tag.unwrap_or((0, 0));
        let mut state = self.lock().ok_or(PostError::Forked)?;
        let source = match work.from {
            PeerAddress::UNSPECIFIED => SourceFilter::Any,
            from => {
                let vector = state.vector.as_ref().ok_or(PostError::NoVector)?;
                let unknown = PostError::UnknownPeer(from.0);
                let bits = vector.options().receive_context_bits;
                let context = u16::try_from(from.0.checked_shr(u64::BITS - bits).unwrap_or(0));
                let (Some(address), Ok(context)) = (vector.lookup(from), context) else { return Err(unknown) };
                state.members.iter().for_each(|(_, member)| member.add_note(MemberNote::LookFor(from)));
                state.directed = true;
                SourceFilter::From(state.source_at((address, context)))
            }
        };
        let kind = match owned.take() {
            _ if many => ReceiveKind::Many(Arc::default()),
            Some((receive_report, buffer)) => ReceiveKind::Safe(receive_report, buffer),
            None => ReceiveKind::Plain,
        };
        let reports = work.flags.contains(OpFlags::COMPLETION);
        let number = state.next_receive;
        state.next_receive += 1;
        let receive = PostedReceive { segments: work.segments, context: work.context, reports, kind, number };
        state.post(work.tag.is_some(), Pattern { tag, ignore, source }, receive);
        Ok(())
    }

    /// Cancels the first receive with this context that has no message, and returns whether there was one. A member
    /// reports the cancellation. If there is no member, the next endpoint that joins reports it.
    pub(crate) fn cancel(&self, context: u64) -> bool {
        let wanted =
            |waiting: &PostedReceive| !matches!(waiting.kind, ReceiveKind::Safe(..)) && waiting.context == context;
        let Some(mut state) = self.lock() else { return false };
        let Some((tagged, receive)) = state.take_matching(wanted) else { return false };
        if let ReceiveKind::Many(many) = &receive.kind
            && !many.close()
        {
            return true; // The buffer is released with the last message that is being received into it.
        }
        state.add_note_for_any(MemberNote::Canceled { tagged, receive });
        true
    }

    /// Makes a member report a receive that has ended. If there is no member, the next endpoint that joins reports it.
    /// The report does not contain the peer's address, which is an index in the vector of the member that received the
    /// message.
    pub(crate) fn report(&self, mut over: EndedReceive) {
        match &mut over.result {
            Ok(entry) => entry.source = PeerAddress::UNSPECIFIED,
            Err(error) => error.entry.source = PeerAddress::UNSPECIFIED,
        }
        if let Some(mut state) = self.lock() {
            state.add_note_for_any(MemberNote::Over(Box::new(over)));
        }
    }

    /// Withdraws a receive that owns its buffer, if it has no message.
    pub(crate) fn withdraw(&self, receive_report: &ReceiveReport) -> Option<(ReceiveReport, Buffer)> {
        let ours =
            |waiting: &PostedReceive| matches!(&waiting.kind, ReceiveKind::Safe(other, _) if other.is(receive_report));
        let (_, receive) = self.lock()?.take_matching(ours)?;
        match receive.kind {
            ReceiveKind::Safe(receive_report, buffer) => Some((receive_report, buffer)),
            _ => None,
        }
    }
}

impl Drop for Pool {
    /// Ends the receives that no endpoint can take any more: the context and its endpoints are gone.
    fn drop(&mut self) {
        let here = self.is_here();
        let tables = &mut self.state.get_mut().tables;
        if !here {
            // The receives belong to the parent, and a thread of the parent may have held a lock of theirs at the fork.
            return std::mem::forget(std::mem::take(tables));
        }
        for table in tables {
            for receive in table.extract_posted(|_, _| true) {
                if let ReceiveKind::Safe(receive_report, buffer) = receive.kind {
                    receive_report.close(buffer);
                }
            }
        }
    }
}

impl PoolState {
    /// Adds a note for some member or, if there is no member, for the next endpoint that joins.
    fn add_note_for_any(&mut self, note: MemberNote) {
        match self.members.iter().next() {
            Some((_, member)) => member.add_note(note),
            None => self.unreported.push(note),
        }
    }

    /// Removes the connections of this member. A peer to which no other member is connected may still exist. If a
    /// receive is directed at such a peer, the other members are notified and check whether it exists.
    fn leave(&mut self, member: Id<Member>) {
        let theirs =
            |(incarnation, up): (&u128, &ConnectedSource)| up.members.contains(&member).then_some(*incarnation);
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
                self.members.iter().for_each(|(_, member)| member.add_note(MemberNote::LookAt(at)));
            }
        }
    }

    /// Returns whether a receive is directed at a source.
    fn awaits(&mut self, source: u64) -> bool {
        self.tables.iter_mut().any(|table| {
            let mut any = false;
            let look = |pattern: Pattern, _: &PostedReceive| {
                any |= pattern.source == SourceFilter::From(source);
                false
            };
            table.extract_posted(look).for_each(drop);
            any
        })
    }

    fn take_matching(&mut self, wanted: impl Fn(&PostedReceive) -> bool) -> Option<(bool, PostedReceive)> {
        let [untagged, tagged] = &mut self.tables;
        if let Some(receive) = untagged.cancel_first(&wanted) {
            return Some((false, receive));
        }
        tagged.cancel_first(&wanted).map(|receive| (true, receive))
    }
}

#[cfg(all(test, not(loom)))]
#[path = "pool_tests.rs"]
mod tests;
