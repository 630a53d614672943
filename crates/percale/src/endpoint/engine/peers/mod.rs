//! The peers of an endpoint: their slots, their connections, the operations that wait for them, and the memory that
//! they may make the endpoint keep.
//!
//! There is one slot for each context of each address, kept across connections, and one for each peer with an unknown
//! address. A slot's number is the [`ConnectionId`] that links and matching use. A slot is created at the first use of
//! a peer (or when the peer connects first), and stays as long as anything may refer to it: the vector, a directed
//! receive posted before the peer ever connected, or a message that has not been received yet. The slots of permanently
//! disconnected peers are reclaimed (see `to_reclaim`).
//!
//! * `sending`: decides whether a frame may leave for a peer now, and queues the operations that wait for that
//! * `outbox`: the frames that the handlers of other frames requested
//! * `changes`: changes of a peer's connection and names, and violations of the protocol
//! * `budget`: limits for the memory that one peer can make the endpoint keep
//! * `connection_address`: the addresses of peers that are not in the vector
//! * `slot_index`: maps addresses of a vector to slots; `sockets`: maps network addresses to slots; `aliases`: slots
//!   that are the same peer
//!
//! Invariants:
//! 1. A peer is identified by its incarnation. An address only states where to connect to the peer. A slot with an
//!    address ([`Peer::has_address`]) has a connection only with a peer that answered a connection attempt to this
//!    address.
//! 2. The address that a peer merely advertises leads to no slot. A peer that connected to this endpoint, and that has
//!    not answered at its address, has a slot without an address.
//! 3. A slot is an alias of another slot only while the connection of that other slot lasts, and only after the peer
//!    proved at both addresses that it is the same peer.
//! 4. Whether a frame may leave is decided by [`Peer::may_send`] alone. No operation except a message of a group
//!    overtakes an operation in the peer's queue, and nothing from the outbox overtakes an answer in the peer's
//!    backlog.
//! 5. The counts of a peer (operations, parts, notices, answers, transfers) are those of its present connection:
//!    [`Peers::reset`] sets them to 0.

mod aliases;
mod budget;
mod changes;
mod connection_address;
mod outbox;
mod sending;
mod slot_index;
mod sockets;
#[cfg(all(test, not(loom)))]
mod tests;

use std::cell::Cell;
use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;

use self::budget::PeerBudget;
pub(super) use self::budget::charge_of;
#[cfg(all(test, not(loom)))]
pub(super) use self::budget::{BACKLOG, BEYOND, HEAD};
use self::outbox::Outbox;
pub(super) use self::sending::{LONG_BYTES, OutgoingKind, PARTS_LIMIT, QueuingKind};
use self::slot_index::SlotIndex;
use self::sockets::Sockets;
use super::types::PendingOperation;
use crate::address_vector::vector::{AddressError, AddressVector};
use crate::transport::ConnectionId;
use crate::types::PeerAddress;
use crate::wire::head::Counts;

/// The state of the connection to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PeerState {
    /// There is no connection, and none was requested.
    Idle,
    /// The connection is being established by the attempt with this number.
    Connecting(u64),
    /// The connection is established.
    Up,
    /// The same peer was found at both addresses, and another slot has the connection with it.
    Alias(ConnectionId),
}

/// A value for a count of removals or changes that means that nothing was looked up yet.
const NEVER: u64 = u64::MAX;

/// A context of an address. An endpoint that does not share its address is context 0.
pub(crate) type ContextAddress = (SocketAddr, u16);

/// One peer.
#[derive(Debug)]
pub(crate) struct Peer {
    /// The address to which this endpoint connects to reach the peer. If [`named`](Self::named) is false, it is the
    /// address that the peer advertises.
    address: SocketAddr,
    /// The number of the peer's context at that address.
    context: u16,
    /// Whether the address leads to this slot.
    named: bool,
    /// The address that the peer advertises, if that is another one. Boxed, because most peers have none.
    advertised: Option<Box<ContextAddress>>,
    /// The peer's incarnation, while it is connected.
    incarnation: u128,
    /// The service thread's number of the connection, while the peer is connected.
    serial: u64,
    /// The bit of the local doorbell that the peer rings, while it is connected over shared memory.
    bit: u32,
    /// The reason why this transport was chosen.
    reason: Box<str>,
    /// The state of the connection.
    state: PeerState,
    /// Whether there was a connection that has ended.
    lost: bool,
    /// Operations that the link has not taken, in order. While there are any, later ones are queued too.
    pending: VecDeque<PendingOperation>,
    /// Operations that have begun and wait for the peer.
    outstanding: u32,
    /// The number of outstanding operations that are messages of groups.
    of_groups: u32,
    /// Accesses that the peer executes, or helps to make, and that have yet to end.
    executed: u32,
    /// Accesses to the peer's memory by RDMA that have yet to end.
    direct: u32,
    /// Consecutive accesses that the peer executed although RDMA reaches their memory.
    executed_instead: u32,
    /// The number of accesses of both kinds that are long writes, or writes by RDMA. Messages wait for them.
    long_writes: u32,
    /// Parts of accesses that the peer has not answered.
    parts: u32,
    /// Answers to accesses of the peer that its link has not taken.
    replies: u32,
    /// The number of notices of writes to the peer's regions that its link has not taken, plus 1 while answers to the
    /// peer precede everything else (see `budget`).
    notices: u32,
    /// The peer's budget of memory in this endpoint.
    budget: PeerBudget,
    /// Transfers that the peer began from and to local regions, and bytes that are kept for them.
    serving: u32,
    staged: u64,
    /// The kinds of accesses that the peer counts although it may not see them.
    counts: Counts,
    /// Whether the peer asked for offers only.
    offers_only: bool,
    /// The peer's place in the vector, or UNSPECIFIED, when the vector's count of changes was `source_changes`. A later
    /// look-up of the slot by a vector address sets it to that address, unless the slot was found by an alias.
    source: PeerAddress,
    source_changes: u64,
    /// The connection address of the peer, or UNSPECIFIED if none was assigned.
    connection_address: PeerAddress,
    /// The protocol violation of the peer, if there was one. The engine closes the link at its next progress.
    violation: Option<&'static str>,
    /// The number of control frames from the peer that the engine has not handled.
    control_frames: u32,
    /// Whether other slots are aliases of this one.
    aliased: bool,
    /// The slot of the peer's sending half, while that is connected. Receives directed at this peer take the messages
    /// of that slot (`senders`).
    sender: Option<ConnectionId>,
    /// Whether a receive was directed at the peer since it was [lost](Self::lost). A peer that is not lost may have
    /// directed receives even if this is false.
    directed: bool,
    /// Whether a message of the peer may have been held here when its connection ended.
    left: bool,
    /// Whether the slot is in the queue of slots that may be given up.
    to_reclaim: bool,
}

impl Peer {
    pub(super) fn new((address, context): ContextAddress) -> Self {
        Self {
            address,
            context,
            named: true,
            advertised: None,
            incarnation: 0,
            serial: 0,
            bit: 0,
            reason: Box::default(),
            state: PeerState::Idle,
            lost: false,
            pending: VecDeque::new(),
            outstanding: 0,
            of_groups: 0,
            executed: 0,
            direct: 0,
            executed_instead: 0,
            long_writes: 0,
            parts: 0,
            replies: 0,
            notices: 0,
            budget: PeerBudget::default(),
            serving: 0,
            staged: 0,
            counts: Counts::empty(),
            offers_only: false,
            source: PeerAddress::UNSPECIFIED,
            source_changes: NEVER,
            connection_address: PeerAddress::UNSPECIFIED,
            violation: None,
            control_frames: 0,
            aliased: false,
            sender: None,
            directed: false,
            left: false,
            to_reclaim: false,
        }
    }

    /// Returns whether the slot may be given up as far as this peer is concerned: it has no connection and none was
    /// requested, nothing waits for it, and no other slot is an alias of it.
    pub(super) fn is_free(&self) -> bool {
        self.state == PeerState::Idle
            && self.pending.is_empty()
            && self.outstanding == 0
            && !self.aliased
            && !self.budget.has_backlog()
    }

    /// Returns the state of the connection.
    #[inline]
    pub(super) const fn state(&self) -> PeerState {
        self.state
    }

    /// Returns whether the connection is established.
    #[inline]
    pub(super) const fn is_up(&self) -> bool {
        matches!(self.state, PeerState::Up)
    }

    /// Returns the counts of the peer (see `remains`).
    #[cfg(any(test, feature = "sim"))]
    fn remains(&self) -> [(&'static str, usize); 14] {
        [
            ("operations that the link has not taken", self.pending.len()),
            ("outstanding operations", self.outstanding as usize),
            ("outstanding messages of groups", self.of_groups as usize),
            ("accesses that the peer executes", self.executed as usize),
            ("accesses by RDMA", self.direct as usize),
            ("long writes", self.long_writes as usize),
            ("parts without an answer", self.parts as usize),
            ("answers that the link has not taken", self.replies as usize),
            ("notices that the link has not taken", self.notices as usize),
            ("transfers for the peer", self.serving as usize),
            ("bytes kept for transfers", self.staged as usize),
            ("bytes of unexpected messages", self.budget.held()),
            ("weight of the backlog", self.budget.weight()),
            ("control frames", self.control_frames as usize),
        ]
    }

    /// Returns whether there is no connection, and none was requested.
    #[inline]
    pub(super) const fn is_idle(&self) -> bool {
        matches!(self.state, PeerState::Idle)
    }

    /// Returns whether posting a receive that is directed at the peer takes more steps than looking up its slot.
    #[inline]
    pub(super) const fn needs_slow_path(&self) -> bool {
        self.lost | self.sender.is_some()
    }

    /// Returns whether the peer's address leads to this slot.
    pub(super) const fn has_address(&self) -> bool {
        self.named
    }

    /// Returns the address to which this endpoint connects to reach the peer. If [`has_address`](Self::has_address)
    /// returns false, it is the address that the peer advertises.
    pub(super) const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the peer's address and context.
    pub(super) const fn at(&self) -> ContextAddress {
        (self.address, self.context)
    }

    /// Returns the peer's incarnation, while it is connected.
    #[inline]
    pub(super) const fn incarnation(&self) -> u128 {
        self.incarnation
    }

    /// Returns the service thread's number of the connection, while the peer is connected.
    pub(super) const fn serial(&self) -> u64 {
        self.serial
    }

    /// Returns the bit of the local doorbell that the peer rings, while it is connected over shared memory.
    pub(super) const fn bit(&self) -> u32 {
        self.bit
    }

    /// Returns why this transport was chosen.
    pub(super) fn reason(&self) -> &str {
        &self.reason
    }

    /// Returns whether there was a connection that has ended.
    pub(super) const fn is_lost(&self) -> bool {
        self.lost
    }

    /// Returns the protocol violation of the peer, if there was one.
    pub(super) const fn violation(&self) -> Option<&'static str> {
        self.violation
    }

    /// Returns the number of control frames from the peer that the engine has not handled.
    pub(super) const fn control_frames(&self) -> u32 {
        self.control_frames
    }

    /// Returns the kinds of accesses that the peer counts although it may not see them.
    #[inline]
    pub(super) const fn counts(&self) -> Counts {
        self.counts
    }

    /// Returns the slot of the peer's sending half, while that is connected.
    pub(super) const fn sender(&self) -> Option<ConnectionId> {
        self.sender
    }

    /// Returns whether a receive was directed at the peer since it was [lost](Self::is_lost). A peer that is not lost
    /// may have directed receives even if this is false.
    pub(super) const fn is_directed(&self) -> bool {
        self.directed
    }

    /// Returns whether a message of the peer may have been held here when its connection ended.
    pub(super) const fn may_have_held_messages(&self) -> bool {
        self.left
    }
}

/// All peers of one endpoint.
#[derive(Debug)]
pub(crate) struct Peers {
    list: Vec<Peer>,
    /// Maps addresses and their contexts to slots.
    by_socket: Sockets,
    /// Maps the addresses of the vector that were used to slots.
    slot_index: SlotIndex,
    /// The address that was used last, and its slot. It is valid whenever `slot_index` is.
    last: Cell<(PeerAddress, ConnectionId)>,
    vector: Option<AddressVector>,
    /// The count of the vector's removals for which `slot_index` is valid, or NEVER.
    removals: u64,
    /// Whether some peer broke the protocol and its link has yet to be closed.
    any_violation: bool,
    /// The number of peers that are not read, and of peers for which answers wait (see `budget`).
    stopped: u32,
    owing: u32,
    /// Whether the endpoint has only one peer, which is the only one in its vector once there is a connection to it.
    single: bool,
    /// Whether peers that are not in the vector have connection addresses.
    has_connection_addresses: bool,
    /// The next actions for links.
    outbox: Outbox,
    /// The limit for the bytes of unexpected messages that are held for one peer. Above it the peer is asked to offer
    /// messages instead of sending them.
    unexpected_cap: usize,
    /// Disconnected peers that left messages, in the order in which they disconnected.
    left_messages: VecDeque<ConnectionId>,
    /// Slots that were given up.
    free: Vec<ConnectionId>,
    /// Slots that lost their connection, or could not be connected, the oldest first.
    to_reclaim: VecDeque<ConnectionId>,
}

impl Peers {
    /// Returns the sums of the counts of all peers (see `remains`).
    #[cfg(any(test, feature = "sim"))]
    pub(super) fn remains(&self) -> Vec<(&'static str, usize)> {
        let mut sums: Vec<(&'static str, usize)> = Vec::new();
        for peer in &self.list {
            let its = peer.remains();
            if sums.is_empty() {
                sums.extend(its.map(|(name, _)| (name, 0)));
            }
            sums.iter_mut().zip(its).for_each(|((_, sum), (_, count))| *sum += count);
        }
        sums.push(("peers that are not read", self.stopped as usize));
        sums.push(("peers for which answers wait", self.owing as usize));
        sums.push(("actions for links", self.outbox.len()));
        sums
    }

    /// Creates a table without peers. `single` states whether the endpoint has only one peer. `unexpected_cap` is the
    /// number of bytes of unexpected messages above which a peer is asked to offer messages instead of sending them.
    pub(crate) fn new(vector: Option<AddressVector>, single: bool, unexpected_cap: usize) -> Self {
        let options = vector.as_ref().map(AddressVector::options);
        let slot_index =
            options.map_or(SlotIndex::new(0, 0), |options| SlotIndex::new(options.receive_context_bits, options.base));
        Self {
            list: Vec::new(),
            by_socket: Sockets::default(),
            slot_index,
            last: Cell::new((PeerAddress::UNSPECIFIED, 0)),
            vector,
            removals: NEVER,
            any_violation: false,
            stopped: 0,
            owing: 0,
            single,
            has_connection_addresses: !single,
            outbox: Outbox::default(),
            unexpected_cap,
            left_messages: VecDeque::new(),
            free: Vec::new(),
            to_reclaim: VecDeque::new(),
        }
    }

    /// Returns the vector with the peers' addresses.
    pub(crate) const fn vector(&self) -> Option<&AddressVector> {
        self.vector.as_ref()
    }

    /// Returns the slot of a vector's address, following aliases.
    #[inline]
    pub(crate) fn resolve(&mut self, peer: PeerAddress) -> Result<ConnectionId, Unresolved> {
        if let Some(slot) = self.resolved(peer) {
            return Ok(slot);
        }
        self.resolve_slow(peer)
    }

    /// Like [`resolve`](Self::resolve), but returns a slot only if the address was looked up since the vector's last
    /// removal.
    #[inline]
    pub(crate) fn resolved(&self, peer: PeerAddress) -> Option<ConnectionId> {
        if self.vector.as_ref()?.removals_here() != self.removals {
            return None;
        }
        let (last, slot) = self.last.get();
        if last == peer { Some(slot) } else { self.known_slot(peer) }
    }

    #[inline(never)]
    fn known_slot(&self, peer: PeerAddress) -> Option<ConnectionId> {
        let slot = self.slot_index.get(peer)?;
        self.last.set((peer, slot));
        Some(slot)
    }

    #[cold]
    fn resolve_slow(&mut self, peer: PeerAddress) -> Result<ConnectionId, Unresolved> {
        if self.is_connection_address(peer) {
            return self.resolve_connection(peer);
        }
        let vector = self.vector.as_ref().ok_or(Unresolved::NoVector)?;
        if self.single && vector.is_empty() {
            return Err(Unresolved::NotConnected);
        }
        let removals = vector.removals_here();
        if removals != self.removals {
            self.slot_index.clear();
            self.removals = NEVER;
        }
        let address = vector.lookup(peer).ok_or(Unresolved::Unknown)?;
        let bits = vector.options().receive_context_bits;
        // A peer address without a context number means the first context.
        let context = peer.0.checked_shr(u64::BITS - bits).unwrap_or(0);
        let context = u16::try_from(context).map_err(|_| Unresolved::Unknown)?;
        let slot = self.real_slot((address, context));
        if removals.is_multiple_of(2) {
            self.slot_index.insert(peer, slot);
            self.last.set((peer, slot));
            self.removals = removals;
            // A hint, which `find_source` verifies whenever the vector has changed. The number of an alias is not
            // stored: the messages of a peer are reported with the number of its own address, even if the alias was
            // used last.
            let found = &mut self.list[slot as usize];
            if found.address == address {
                found.source = PeerAddress(peer.0 << bits >> bits);
            }
        } // Otherwise a removal is under way, and the slot is valid for this call only.
        Ok(slot)
    }

    /// Returns the slot of a network address. Creates the slot if there is none.
    pub(crate) fn slot(&mut self, at: ContextAddress) -> ConnectionId {
        if let Some(slot) = self.by_socket.get(at, &self.list) {
            return slot;
        }
        let slot = self.fresh(Peer::new(at));
        self.by_socket.insert(slot, &self.list);
        slot
    }

    /// Creates a slot for a peer that connected to this endpoint and advertises this address, but has not answered
    /// there. No address leads to this slot.
    pub(crate) fn nameless_slot(&mut self, advertised: ContextAddress) -> ConnectionId {
        self.fresh(Peer { named: false, ..Peer::new(advertised) })
    }

    fn fresh(&mut self, peer: Peer) -> ConnectionId {
        match self.free.pop() {
            Some(slot) => {
                self.list[slot as usize] = peer;
                slot
            }
            None => {
                self.list.push(peer);
                self.list.len() as ConnectionId - 1
            }
        }
    }

    /// Makes a slot without a connection available to another peer. Nothing may refer to the slot by its number.
    pub(crate) fn give_up(&mut self, slot: ConnectionId) {
        if self.list[slot as usize].named {
            self.by_socket.forget(slot, &self.list);
        }
        self.list[slot as usize].named = false;
        self.free.push(slot);
    }

    /// Adds a slot to the queue of those that may be given up, after its connection ended or could not be established.
    pub(crate) fn part(&mut self, slot: ConnectionId) {
        if !std::mem::replace(&mut self.list[slot as usize].to_reclaim, true) {
            self.to_reclaim.push_back(slot);
        }
    }

    /// Takes the slot that was added to that queue first.
    pub(crate) fn next_to_reclaim(&mut self) -> Option<ConnectionId> {
        let slot = self.to_reclaim.pop_front()?;
        self.list[slot as usize].to_reclaim = false;
        Some(slot)
    }

    /// Inserts the address of the only peer of an endpoint of one connection into its vector.
    ///
    /// # Errors
    /// If no peer can have this address.
    pub(crate) fn name_single(&mut self, address: SocketAddr) -> Result<(), AddressError> {
        self.vector.as_ref().map_or(Ok(()), |vector| vector.insert(address).map(drop))
    }

    /// Returns the slot of the connection with this serial number of the service thread.
    pub(crate) fn with_serial(&self, serial: u64) -> Option<ConnectionId> {
        let found = |peer: &Peer| peer.state == PeerState::Up && peer.serial == serial;
        self.list.iter().position(found).map(|slot| slot as ConnectionId)
    }

    /// Records the address that a peer advertises. Returns whether it differs both from the address to which this
    /// endpoint connected and from the address that was recorded before.
    pub(crate) fn advertise(&mut self, slot: ConnectionId, at: ContextAddress) -> bool {
        let peer = &mut self.list[slot as usize];
        let other = (peer.at() != at).then_some(at);
        let before = std::mem::replace(&mut peer.advertised, other.map(Box::new));
        other.is_some() && before.as_deref() != other.as_ref()
    }

    /// Returns the advertised addresses of the peers that were reached at another address.
    pub(crate) fn advertised(&self) -> HashMap<ConnectionId, ContextAddress> {
        let others = self.list.iter().zip(0..).filter_map(|(peer, slot)| Some((slot, **peer.advertised.as_ref()?)));
        others.collect()
    }

    /// Returns the peer of a slot.
    #[inline]
    pub(crate) fn get(&self, slot: ConnectionId) -> &Peer {
        &self.list[slot as usize]
    }

    /// Like [`get`](Self::get), but mutable.
    #[inline]
    pub(crate) fn get_mut(&mut self, slot: ConnectionId) -> &mut Peer {
        &mut self.list[slot as usize]
    }

    /// Returns the number of bytes of the tables that map vector addresses and network addresses to slots.
    pub(crate) fn naming_bytes(&self) -> usize {
        size_of_val(&self.slot_index) + self.slot_index.bytes() + size_of_val(&self.by_socket) + self.by_socket.bytes()
    }

    /// Returns the number of slots.
    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    /// Returns the connected slot with this incarnation, if there is one.
    pub(crate) fn with_incarnation(&self, incarnation: u128) -> Option<ConnectionId> {
        let found = |peer: &Peer| peer.state == PeerState::Up && peer.incarnation == incarnation;
        self.list.iter().position(found).map(|slot| slot as ConnectionId)
    }

    /// Returns every connected slot.
    pub(crate) fn up(&self) -> impl Iterator<Item = ConnectionId> + '_ {
        self.list
            .iter()
            .enumerate()
            .filter(|(_, peer)| peer.state == PeerState::Up)
            .map(|(slot, _)| slot as ConnectionId)
    }

    /// Returns whether the endpoint has only one peer.
    #[inline]
    pub(super) const fn is_single(&self) -> bool {
        self.single
    }
}

/// The reason why an address has no slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unresolved {
    /// The endpoint has no vector.
    NoVector,
    /// The vector has no such address.
    Unknown,
    /// The endpoint has no connection yet.
    NotConnected,
    /// The address is that of a connection that has ended, or of another endpoint's connection.
    Ended,
}
