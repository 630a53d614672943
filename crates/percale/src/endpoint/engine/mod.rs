//! The engine of one endpoint: its links, and the protocol above them.
//!
//! One thread at a time uses the engine: its owner, or the thread that holds the lock of a shared endpoint. The engine
//! does not block, except for a bounded time while an endpoint is closed or a connection is shut down. It makes no
//! connection itself: the domain's service thread makes connections and leaves notices in a mailbox.
//! [`Engine::progress`] handles the following, in this order: hot links; notices; cold links and sockets; links with
//! waiting sends, which are retried; the actions that arrived frames request. While hot links are busy, most rounds
//! only poll them and perform these actions.
//!
//! The protocol's state consists of components with private fields, and of routes between them (see [`core`]):
//!
//! | component | routes |
//! |---|---|
//! | [`peers`]: the peers, and the decision whether a frame may be sent to one of them now | [`connect`], [`closing`], `reclaim`, `senders` |
//! | [`messages`]: receives, messages that wait for receives, payloads that arrive or are fetched, sends | [`arrive`], [`receive`], [`send`] |
//! | [`remote`]: accesses in progress to the memory of peers, and bytes that peers fetch | `access`, `direct`, `in_place`, `target` |
//! | [`local`]: the local regions that peers access | `windows`, `target` |
//! | [`reporting`]: the destinations of results | [`core`], `counting` |
//! | [`groups`]: groups, their operations and messages | `collective` |
//! | [`triggered`]: operations that wait for a counter, and those that have begun | `triggering`, `staged` |
//! | `draining`: operations that wait until another process releases memory | `ending`, `windows` |
//! | [`shared`]: the endpoint's part in a shared receive context | `pooled` |
//! | [`admission`]: the peers that the endpoint accepts | [`role`], [`single`], [`listening`] |
//! | `waiting`: the threads and tasks that may be asleep, and how much progress reads make | [`sleep`], [`read`] |
//!
//! Other modules:
//! * `types`: the state of operations under way; `kinds`: messages by the kind of their frames
//! * [`poller`]: decides which links to poll, and when; `linger`, `linger_policy`: spin on rings for messages that are
//!   about to arrive, and decide when to do so
//! * `rdma`: links over verbs in the endpoint's epoll; [`ticks`]: detection of silent TCP peers; `connector`: the
//!   source of connections
//! * [`connect`]: connections that begin and end; [`closing`]: the orderly end of connections and of the endpoint;
//!   `ending`: ends the operations of a closing endpoint; `deferred_cleanup`: memory of those operations that outlives
//!   the endpoint
//! * [`role`]: endpoints that do not accept messages from arbitrary peers: [`single`], an endpoint of one connection,
//!   and [`listening`]

mod access;
pub(crate) mod admission;
mod arrive;
mod closing;
mod collective;
mod connect;
mod connector;
pub(crate) mod core;
pub(crate) mod counting;
pub(crate) mod deferred_cleanup;
mod direct;
mod draining;
mod ending;
pub(crate) mod groups;
mod in_place;
mod kinds;
mod linger;
mod linger_policy;
pub(crate) mod listening;
pub(crate) mod local;
pub(crate) mod messages;
pub(crate) mod peers;
mod poller;
mod pooled;
mod rdma;
mod read;
mod receive;
mod reclaim;
#[cfg(any(test, feature = "sim"))]
mod remains;
pub(crate) mod remote;
pub(crate) mod reporting;
pub(crate) mod role;
#[cfg(test)]
mod role_tests;
mod send;
mod senders;
pub(crate) mod shared;
pub(crate) mod single;
pub(super) mod sleep;
pub(crate) mod staged;
mod target;
#[cfg(all(test, not(loom)))]
mod tests;
mod ticks;
pub(crate) mod triggered;
mod triggering;
pub(crate) mod types;
mod waiting;
mod windows;

use std::collections::BTreeMap;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::event::epoll;
use zerocopy::IntoBytes;

use self::core::Core;
use self::linger_policy::LingerPolicy;
use self::poller::Poller;
use self::role::Role;
use self::types::{LinkAction, Notify};
use self::waiting::{OptionalWork, ReadPace, Sleepers};
use super::operations::OperationId;
use super::work::{OpFlags, PostError, ReceiveWork};
use crate::local_memory::volatile::{Segment, Segments, SegmentsExt as _, View, ViewExt as _};
use crate::system::forked::Process;
use crate::transport::any::AnyLink;
use crate::transport::doorbell_allocator::{DOORBELL, DoorbellAllocator};
use crate::transport::shm::Doorbell;
use crate::transport::{Broken, ConnectionId, Link, Refused};
use crate::types::PeerAddress;

pub(crate) use self::connect::Start;
pub(crate) use self::connector::Connector;

/// The engine of one endpoint: its links and the protocol above them.
#[derive(Debug)]
pub struct Engine {
    /// The protocol's state.
    pub(crate) core: Core,
    /// Links by connection number. An entry is `None` while the slot has no link.
    links: Vec<Option<AnyLink>>,
    poller: Poller,
    connector: Connector,
    /// Connection attempts under way, and the slot for which each is made. Few; a B-tree, which is small when it is empty.
    attempts: BTreeMap<u64, ConnectionId>,
    next_attempt: u64,
    /// The doorbell that local peers ring.
    doorbell: Arc<Doorbell>,
    /// The doorbell, and the allocation of its bits to local peers.
    doorbell_allocator: Arc<DoorbellAllocator>,
    /// The descriptor that becomes readable when there is work to do, once it is armed. It contains the doorbell's
    /// event, every socket, and the descriptors of queue pairs.
    epoll: Arc<OwnedFd>,
    /// The timer that ticks while there are sockets to peers that may have become silent. It is in the epoll set too.
    ticks: Option<OwnedFd>,
    /// The timer that makes the descriptor readable some time after the endpoint was last armed, if a sleeper needs
    /// that. It is in the epoll set too.
    looks: Option<OwnedFd>,
    /// The threads and tasks that may be asleep, and the polls before their sleeps that found nothing.
    waiting: Sleepers,
    /// The role of an endpoint that does not accept messages from arbitrary peers.
    role: Option<Box<Role>>,
    /// Work that only some endpoints have: for roles, for shared receive contexts, and for operations that wait for
    /// counters.
    optional_work: OptionalWork,
    /// The process in which the engine can be used: the process that created it, until it is closed ([`closing`]).
    process: Process,
    /// Whether the engine was closed. A closed engine does nothing.
    closed: bool,
    /// The pace at which reads of results make progress (see [`read`]).
    pace: ReadPace,
    /// Decides whether a poll that found nothing watches the rings for a while.
    linger_policy: LingerPolicy,
    /// The address at which peers reach the endpoint.
    address: SocketAddr,
    /// The number of the endpoint, unique in this process.
    id: u64,
}

impl Engine {
    /// Makes progress on everything. Returns whether there was any.
    #[inline(never)]
    pub(crate) fn progress(&mut self) -> bool {
        if !self.core.has_room() {
            return self.only_notices();
        }
        // A closed endpoint has no links.
        let any = self.poll_hot();
        if any && self.poller.may_skip_others() {
            if self.core.peers.has_actions() {
                self.act();
            }
            return true;
        }
        self.poll_others() | any
    }

    /// Makes progress while the completion queue is full. Arriving frames stay in the transports, but the notices of
    /// the service thread are handled, so the deaths of peers are detected. In a forked child this does nothing.
    #[cold]
    fn only_notices(&mut self) -> bool {
        let any = self.process.is_here() && self.connector.has_notices();
        if any {
            self.take_notices();
        }
        any
    }

    /// Polls the hot links.
    #[inline(always)]
    fn poll_hot(&mut self) -> bool {
        let mut any = false;
        let mut at = 0;
        while let Some(&slot) = self.poller.hot.get(at) {
            at += 1;
            let moved = match self.links.get_mut(slot as usize) {
                Some(Some(AnyLink::Shm(link))) => {
                    if link.is_quiet() {
                        continue;
                    }
                    // `poll_link` is not used here, because it would look the link up again.
                    match link.poll(slot, &mut self.core) {
                        Ok(any) => any,
                        Err(broken) => self.broke(slot, &broken),
                    }
                }
                _ => self.poll_link(slot),
            };
            if moved {
                self.poller.received(slot);
                any = true;
            }
        }
        any
    }

    /// Performs the parts of a round other than polling the hot links.
    #[inline(always)]
    fn poll_others(&mut self) -> bool {
        if !self.process.is_here() {
            return self.closed && self.core.triggered.submissions().any() && self.begin_due();
        }
        if self.connector.has_notices() {
            self.take_notices();
        }
        let mut any = false;
        let (sweep, sockets) = self.poller.round();
        if sweep {
            self.core.operations.note_events();
            self.core.local.free_parked();
        }
        if self.poller.has_cold() {
            any |= self.poll_rung();
            if self.poller.cold_are_due() {
                any |= self.poll_cold();
            }
        }
        if sockets && self.poller.sockets > 0 {
            any |= self.poll_sockets(sweep);
        }
        if !self.poller.busy.is_empty() {
            any |= self.poll_busy();
        }
        if self.core.peers.has_actions() {
            self.act();
        }
        if self.optional_work.any() {
            any |= self.poll_role();
        }
        if self.core.peers.any_violation() {
            self.handle_violations();
        }
        if !self.core.left.is_empty() {
            any |= self.core.end_released();
        }
        self.allow_peeks_if_calm();
        any
    }

    /// Polls one link. Returns whether there was any progress.
    #[inline(never)]
    fn poll_link(&mut self, slot: ConnectionId) -> bool {
        let Some(Some(link)) = self.links.get_mut(slot as usize) else { return false };
        match link.poll(slot, &mut self.core) {
            Ok(any) => {
                let any = any | self.core.report_sent(slot, link);
                if any && matches!(link, AnyLink::Verbs(link) if link.has_background_work()) {
                    self.poller.waits(slot);
                }
                any
            }
            Err(broken) => {
                // The last frames may have acknowledged the arrival of messages at the peer.
                self.core.report_sent(slot, link);
                self.broke(slot, &broken)
            }
        }
    }

    /// Takes down a broken link. Always returns true: this counts as progress.
    #[cold]
    fn broke(&mut self, slot: ConnectionId, broken: &Broken) -> bool {
        self.down(slot, broken);
        true
    }

    /// Polls the cold links that a peer rang, and makes them hot.
    #[inline(never)]
    fn poll_rung(&mut self) -> bool {
        let rung = self.poller.take_rung(&self.doorbell);
        let mut any = false;
        for &slot in &rung {
            if self.poller.warm(slot)
                && let Some(Some(AnyLink::Shm(link))) = self.links.get_mut(slot as usize)
            {
                link.set_hot();
            }
            any |= self.poll_link(slot);
            self.move_to_cold();
        }
        self.poller.return_rung(rung);
        any
    }

    /// Polls every cold link, whether its peer rang or not. All local peers can write the doorbell's page, and a peer
    /// that overwrites it must not suppress the wake-ups of the others.
    #[inline(never)]
    fn poll_cold(&mut self) -> bool {
        let mut any = false;
        for slot in 0..self.links.len() {
            let Some(Some(AnyLink::Shm(link))) = self.links.get_mut(slot) else { continue };
            if link.is_cold() && !link.is_quiet() {
                any |= self.poll_link(slot as ConnectionId);
            }
        }
        any
    }

    /// Makes one link cold if too many links are hot.
    fn move_to_cold(&mut self) {
        let Some(cooled) = self.poller.overflow(&self.links) else { return };
        let Some(Some(AnyLink::Shm(link))) = self.links.get_mut(cooled as usize) else { return };
        if !link.set_cold() {
            self.poller.warm(cooled); // A message is on its way, so the link stays hot.
        }
    }

    /// Polls the hot socket, or all sockets that are readable.
    #[inline(never)]
    fn poll_sockets(&mut self, sweep: bool) -> bool {
        let mut any = false;
        if !self.poller.asks_epoll_alone() {
            if let Some(slot) = self.poller.hot_socket {
                any = self.poll_link(slot);
            }
            // Epoll is also polled while the hot socket is busy, because nothing else polls the other sockets, and only
            // epoll reports the end of a dead peer.
            if !self.poller.asks_epoll(any, sweep) {
                return any;
            }
        }
        let mut events = [const { MaybeUninit::<epoll::Event>::uninit() }; 64];
        let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
        let ready = match epoll::wait(&*self.epoll, &mut events[..], Some(&now)) {
            Ok((ready, _)) => ready,
            Err(error) => {
                crate::later::later!(debug: %error, "epoll_pwait2 failed: all sockets are polled");
                return any | self.poll_all_sockets();
            }
        };
        for event in ready {
            let slot = event.data.u64();
            if slot == DOORBELL || slot == LOOKS || slot == ALARM {
                continue; // The next arming clears the event or sets the timer; the alarm ends with its deadline.
            }
            if slot == TICKS {
                self.tick();
                continue;
            }
            if slot & rdma::WATCH != 0 {
                self.handle_link_event(slot as ConnectionId);
            }
            if self.poll_link(slot as ConnectionId) {
                self.poller.hot_socket = Some(slot as ConnectionId);
                any = true;
            }
        }
        any
    }

    /// Polls every link that epoll would report. This is for systems that do not allow epoll calls.
    #[cold]
    fn poll_all_sockets(&mut self) -> bool {
        let mut any = false;
        for slot in 0..self.links.len() as ConnectionId {
            if matches!(self.links[slot as usize], Some(AnyLink::Tcp(_) | AnyLink::Verbs(_))) {
                any |= self.poll_link(slot);
            }
        }
        self.tick();
        any
    }

    /// Polls links that hold bytes to send, and retries the sends that wait for them.
    #[inline(never)]
    fn poll_busy(&mut self) -> bool {
        let mut any = false;
        let busy = self.poller.take_busy();
        for &slot in &busy {
            any |= self.poll_link(slot);
            let waited = self.core.peers.get(slot).waiting();
            if self.core.peers.get(slot).has_queued_answers() {
                self.send_queued_answers(slot);
            }
            self.drain(slot);
            // An operation that no longer waits may have completed, so a thread that is about to sleep checks the
            // results once more.
            any |= self.core.peers.get(slot).waiting() != waited;
            let waits = self.links.get(slot as usize).is_some_and(|link| link.as_ref().is_some_and(|l| !l.is_idle()));
            let owes = self.core.peers.get(slot).has_something_to_send();
            if waits || (self.links[slot as usize].is_some() && owes) {
                self.poller.waits(slot);
            }
        }
        self.poller.return_busy(busy);
        any
    }

    /// Performs the actions that arrived frames request.
    #[inline(never)]
    pub(crate) fn act(&mut self) {
        let mut advance = false;
        while let Some((slot, action)) = self.core.peers.next_action() {
            if matches!(action, LinkAction::Advance) {
                advance = true;
            } else if !self.core.peers.may_answer(slot) {
                self.core.peers.queue_answer(slot, action); // After the earlier actions that the link refused.
            } else if let Some(refused) = self.perform(slot, action) {
                self.core.peers.queue_answer(slot, refused);
                self.poller.waits(slot);
            }
        }
        if advance {
            self.advance_groups();
        }
    }

    /// Hands an action to its link. Returns the action if the link has no room.
    #[inline(always)]
    fn perform(&mut self, slot: ConnectionId, action: LinkAction) -> Option<LinkAction> {
        let Some(Some(link)) = self.links.get_mut(slot as usize) else { return None };
        let action = match action {
            LinkAction::Bytes(head, bytes) if bytes.len() > link.frame_limit() => self.core.offer(slot, &head, bytes),
            action => action,
        };
        // A byte stream may hold back the second and later frames of a call until the next call, which may never come.
        // So all frames of a sequence are sent with the last one.
        let more = link.is_stream() && self.core.peers.next_is_frame_for(slot);
        let result = match &action {
            LinkAction::Advance => return None,
            LinkAction::Frame(head) => link.send(head, &Segments::EMPTY, more),
            LinkAction::Bytes(head, bytes) => Segments::lend(bytes, |payload| link.send(head, payload, more)),
            LinkAction::Notice(head, notice) => {
                Segments::lend(notice.as_bytes(), |payload| link.send(head, payload, more))
            }
            LinkAction::Pull { id, offer, into, token } => link.pull(*id, offer, into, *token),
            LinkAction::Push { id, token, request, source } => {
                link.push(*id, *token, View::of(&request.bytes[..request.len.into()]), source)
            }
        };
        match result {
            Ok(()) => {
                self.poller.sent(slot, link);
                self.core.answered(slot, &action);
            }
            Err(Refused::Full) => return Some(action),
            Err(Refused::Broken) => {}
        }
        None
    }

    /// Hands a link the answers that it refused before, until it refuses one again.
    #[cold]
    fn send_queued_answers(&mut self, slot: ConnectionId) {
        while let Some(action) = self.core.peers.next_queued_answer(slot) {
            if let Some(refused) = self.perform(slot, action) {
                return self.core.peers.requeue_answer(slot, refused);
            }
        }
    }

    /// Closes the connections of peers that broke the protocol.
    #[cold]
    fn handle_violations(&mut self) {
        self.core.peers.begin_inspection();
        for slot in 0..self.core.peers.len() as ConnectionId {
            if let Some(why) = self.core.peers.get(slot).violation() {
                self.down(slot, &Broken::Protocol(why.into()));
            }
        }
    }

    /// Posts a receive on the fast path (see [`Core::post_plain_receive`]). Returns false, and does nothing, if the
    /// receive needs the general path.
    #[inline(always)]
    pub(crate) fn receive_in_place(
        &mut self,
        from: PeerAddress,
        segment: Segment,
        tag: Option<(u64, u64)>,
        context: u64,
        flags: OpFlags,
    ) -> bool {
        flags == OpFlags::COMPLETION
            && self.process.is_here()
            && self.core.post_plain_receive(from, segment, tag, context, Notify::Queue)
    }

    /// Like [`receive_in_place`](Self::receive_in_place), but for a safe operation.
    #[inline(always)]
    pub(crate) fn receive_for_operation(
        &mut self,
        from: PeerAddress,
        segment: Segment,
        tag: Option<(u64, u64)>,
        id: OperationId,
    ) -> bool {
        self.process.is_here() && self.core.post_plain_receive(from, segment, tag, id.to_u64(), Notify::Operation)
    }

    /// Posts a receive.
    pub(crate) fn post_receive(&mut self, work: &ReceiveWork, notify: Notify) -> Result<(), PostError> {
        if !self.process.is_here() {
            return Err(self.refusal());
        }
        self.require_progress();
        self.core.post_any_receive(work, notify)?;
        self.reconnect_for_receive(work.from);
        if self.core.peers.has_actions() {
            self.act();
        }
        Ok(())
    }

    /// Describes how each connected peer is reached.
    pub(crate) fn describe(&self) -> Vec<(SocketAddr, String)> {
        let mut all = Vec::new();
        for slot in self.core.peers.up() {
            let peer = self.core.peers.get(slot);
            let how = match self.links.get(slot as usize) {
                Some(Some(AnyLink::Loopback(_))) => "loopback: this endpoint itself".to_owned(),
                Some(Some(AnyLink::Shm(link))) => format!("shm: {}; {}", peer.reason(), link.describe()),
                Some(Some(AnyLink::Tcp(_))) => format!("tcp: {}", peer.reason()),
                Some(Some(AnyLink::Verbs(link))) => format!("verbs: {}; {}", peer.reason(), link.describe()),
                Some(Some(AnyLink::Sim(_))) => "sim".to_owned(),
                _ => continue,
            };
            all.push((peer.address(), how));
        }
        all
    }

    /// Returns the descriptor, for use in an event loop of the application.
    pub(crate) fn descriptor(&self) -> &Arc<OwnedFd> {
        &self.epoll
    }

    /// Returns the address at which peers reach the endpoint.
    pub(crate) const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the process that opened the endpoint.
    pub(crate) const fn process(&self) -> Process {
        self.process
    }

    /// Returns the number of the endpoint, unique in this process.
    pub(crate) const fn id(&self) -> u64 {
        self.id
    }
}

/// The token of the ticks in the endpoint's epoll set.
const TICKS: u64 = u64::MAX - 1;

/// The token of the deadline of a connection that is not established yet.
const ALARM: u64 = u64::MAX - 2;

/// The token of the timer of [`Engine::watch_in_time`] in the endpoint's epoll set.
const LOOKS: u64 = u64::MAX - 3;
