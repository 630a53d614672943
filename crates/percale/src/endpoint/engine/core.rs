//! The state of the protocol: everything about an endpoint except its links. It consists of components, and of routes
//! between them.
//!
//! A component has private fields, lists its invariants in its module documentation, and has unit tests that construct
//! it alone. It neither sends nor reports: its functions return the frames and reports, and the routes (`impl Core` and
//! `impl Engine` in the other modules) send and report them.
//!
//! Links hand frames to the core while they are borrowed, so the core never touches a link: actions for a link go to
//! the outbox ([`Peers::push`]), which the engine empties afterwards. Invariants of all components together:
//! 1. An operation completes exactly once: it is in exactly one component, and the function that ends it removes it
//!    there.
//! 2. A number that a peer or a link returns is looked up in the component that assigned it, which checks that the
//!    number belongs to that peer. The number of an entry that no longer exists is stale: it is ignored, or the answer
//!    states that the entry no longer exists.

use super::admission::Admission;
use super::draining::DrainingOperations;
use super::groups::Groups;
use super::kinds::{is_eager, is_tagged};
use super::local::LocalRegions;
use super::messages::{Messages, SendEnd};
use super::peers::Peers;
use super::remote::RemoteAccesses;
use super::reporting::Reporting;
use super::shared::SharedReceives;
use super::triggered::TriggeredOperations;
use super::types::{Notify, PayloadPull, Receive, ReceiveDestination, Side};
use super::windows::data_flag;
use crate::completion::entry::{CompletionFlags, Entry, ErrorCode, ErrorEntry};
use crate::completion::event::Event;
use crate::completion::ring::QueueFull;
use crate::endpoint::operations::Operations;
use crate::transport::{Broken, ConnectionId};
use crate::wire::head::{Flags, FrameKind, Head};

/// The state of the protocol: all of an endpoint except its links.
#[derive(Debug)]
pub(crate) struct Core {
    /// Peers, by connection number.
    pub(crate) peers: Peers,
    /// Receives, messages that wait for receives, payloads that arrive or are fetched, and sends that wait for their
    /// peer.
    pub(crate) messages: Messages,
    /// Accesses in progress to the memory of peers, and transfers from local regions.
    pub(crate) remote: RemoteAccesses,
    /// Operations that wait until another process releases memory (see [`draining`](super::draining)).
    pub(crate) left: DrainingOperations,
    /// The local regions that peers access.
    pub(crate) local: LocalRegions,
    /// The destinations of the endpoint's reports.
    pub(crate) reporting: Reporting,
    /// The endpoint's part in a shared receive context.
    pub(crate) shared: SharedReceives,
    /// Safe operations.
    pub(crate) operations: Operations,
    /// The peers that the endpoint accepts.
    pub(crate) admission: Admission,
    /// Operations that wait for counters and variables, and those that have begun.
    pub(crate) triggered: TriggeredOperations,
    /// The groups of the endpoint.
    pub(crate) groups: Box<Groups>,
}

impl Core {
    /// Completes an operation that succeeded: counts and reports it.
    #[inline(always)]
    pub(crate) fn complete(&mut self, side: Side, notify: Notify, entry: Entry) {
        if self.reporting.is_counted(side) {
            return self.complete_counted(side, notify, entry);
        }
        self.report(side, notify, entry);
    }

    #[inline(never)]
    fn complete_counted(&mut self, side: Side, notify: Notify, entry: Entry) {
        if notify == Notify::Triggered {
            return self.triggered_over(side, Ok(entry));
        }
        if notify == Notify::Collective {
            return self.collective_over(side, &entry);
        }
        self.reporting.counters().succeeded(entry.flags, self.triggered.submissions());
        self.report(side, notify, entry);
    }

    /// Like [`complete`](Self::complete), but does not count.
    #[inline(always)]
    pub(crate) fn report(&mut self, side: Side, notify: Notify, entry: Entry) {
        match notify {
            Notify::Silent | Notify::SharedSilent | Notify::Triggered | Notify::Collective => {}
            Notify::Operation => self.operations.succeed(entry),
            Notify::Queue => self.reporting.push(side, entry),
            Notify::Shared if self.reporting.queue_of(side).is_none() => self.report_shared(notify, Ok(entry)),
            Notify::Event | Notify::Shared => self.reporting.push_event(side, entry),
        }
    }

    /// Completes an operation that failed. A failure is reported even if a success would not have been.
    #[cold]
    pub(crate) fn fail(&mut self, side: Side, notify: Notify, error: ErrorEntry) {
        if self.reporting.is_counted(side) {
            return self.fail_counted(side, notify, error);
        }
        self.report_error(side, notify, error);
    }

    #[cold]
    #[inline(never)]
    fn fail_counted(&mut self, side: Side, notify: Notify, error: ErrorEntry) {
        if notify == Notify::Triggered {
            return self.triggered_over(side, Err(error));
        }
        if notify == Notify::Collective {
            return self.collective_transfer_failed(&error);
        }
        self.reporting.counters().failed(error.entry.flags, self.triggered.submissions());
        self.report_error(side, notify, error);
    }

    /// Like [`fail`](Self::fail), but does not count.
    #[cold]
    pub(crate) fn report_error(&mut self, side: Side, notify: Notify, error: ErrorEntry) {
        match notify {
            Notify::Collective => {} // The caller has already handled it.
            Notify::Operation => self.operations.fail(error),
            Notify::Queue => self.reporting.push_error(side, error),
            Notify::Shared | Notify::SharedSilent if self.reporting.queue_of(side).is_none() => {
                self.report_shared(notify, Err(error))
            }
            Notify::Event | Notify::Silent | Notify::Triggered | Notify::Shared | Notify::SharedSilent => {
                self.reporting.push_error_event(side, error)
            }
        }
    }

    /// Reserves room for the result of an operation that is about to be posted.
    #[inline]
    pub(crate) fn reserve(&mut self, side: Side, notify: Notify) -> Result<(), QueueFull> {
        if notify == Notify::Queue { self.reporting.reserve(side) } else { Ok(()) }
    }

    /// Releases the room that was reserved for an operation that was not posted.
    #[inline]
    pub(crate) fn unreserve(&mut self, side: Side, notify: Notify) {
        if notify == Notify::Queue {
            self.reporting.unreserve(side);
        }
    }

    /// Returns whether arriving messages can be reported. If not, transports are not drained, and their senders wait.
    #[inline]
    pub(crate) fn has_room(&self) -> bool {
        self.reporting.has_room()
    }

    /// Ends the receive of a message after the payload is in its buffer: answers the sender and reports the message.
    /// `len` is the length of the message at its sender.
    #[inline]
    pub(crate) fn received(&mut self, from: ConnectionId, head: &Head, len: u64, receive: &Receive) {
        if head.flags.intersects(Flags::ACK.union(Flags::INVALIDATE)) {
            if head.flags.contains(Flags::INVALIDATE) && !self.may_report(from, head, len, receive) {
                return; // It is reported later, because the key that the message invalidated is still in use.
            }
            if head.flags.contains(Flags::ACK) {
                self.peers.reply(from, FrameKind::Ack, head.id, 0);
            }
        }
        let room = receive.place.len() as u64;
        let mut entry = self.received_entry(from, head, len.min(room), receive);
        if let Some(multi) = receive.multi {
            if let Some(many) = self.shared_part(multi) {
                let short = (len > room).then(|| ErrorEntry::truncated(entry, len - room));
                return self.shared_part_over(many, receive.notify, short.map_or(Ok(entry), Err));
            }
            entry.flags |= self.multi_done(multi);
        }
        self.messages.memory_mut().leave(receive.place);
        if len <= room {
            self.complete(Side::Receive, receive.notify, entry);
        } else {
            self.fail(Side::Receive, receive.notify, ErrorEntry::truncated(entry, len - room));
        }
    }

    /// Returns the completion of a received message.
    #[inline]
    pub(crate) fn received_entry(&mut self, from: ConnectionId, head: &Head, len: u64, receive: &Receive) -> Entry {
        let tagged = is_tagged(head.kind);
        let mut flags =
            CompletionFlags::RECEIVE | if tagged { CompletionFlags::TAGGED } else { CompletionFlags::MESSAGE };
        if head.flags.contains(Flags::DATA) {
            flags |= data_flag(head);
        }
        Entry {
            context: receive.context,
            flags,
            len,
            buffer: if receive.multi.is_some() { first_address(receive) } else { 0 },
            data: head.data,
            tag: if tagged { head.tag } else { 0 },
            source: self.peers.source(from),
        }
    }

    /// Fails a receive that was matched but gets no message, because its peer died or the payload could not be fetched.
    pub(crate) fn receive_failed(
        &mut self,
        from: ConnectionId,
        head: &Head,
        receive: &Receive,
        error: ErrorCode,
        why: &str,
    ) {
        let mut entry = self.received_entry(from, head, 0, receive);
        self.messages.memory_mut().leave(receive.place);
        if let Some(multi) = receive.multi {
            if let Some(many) = self.shared_part(multi) {
                let failure = ErrorEntry::new(entry, error).with_text(why.to_owned());
                return self.shared_part_over(many, receive.notify, Err(failure));
            }
            entry.flags |= self.multi_done(multi);
        }
        self.fail(Side::Receive, receive.notify, ErrorEntry::new(entry, error).with_text(why.to_owned()));
    }

    /// Counts the end of a send that waited for its peer, and reports it.
    pub(super) fn send_ended(&mut self, end: Option<SendEnd>) {
        let Some(SendEnd { to, notify, entry, failure }) = end else { return };
        self.send_over(to, notify);
        match failure {
            None => self.complete(Side::Transmit, notify, entry),
            Some((error, why)) => {
                let peer = self.peers.source(to);
                self.fail(Side::Transmit, notify, ErrorEntry::new(entry, error).with_text(why).with_peer(peer));
            }
        }
    }

    /// Counts the end of a send that waited for its peer.
    #[inline]
    fn send_over(&mut self, to: ConnectionId, notify: Notify) {
        self.peers.finished(to);
        if notify == Notify::Collective {
            self.peers.get_mut(to).finished_for_group();
        }
    }

    /// Fails everything that waited for a connection that has ended. Each operation ends once.
    #[cold]
    pub(crate) fn down(&mut self, from: ConnectionId, error: ErrorCode, why: &str) {
        self.peers.drop_actions_for(from);
        let peer = self.peers.source(from);
        let failure = |entry, error| ErrorEntry::new(entry, error).with_text(why.to_owned()).with_peer(peer);
        for pending in self.peers.take_pending(from) {
            let Some(entry) = pending.entry() else { continue }; // It ends below.
            self.fail(Side::Transmit, pending.notify, failure(entry, error));
        }
        self.fail_unsent(from, error, why);
        for SendEnd { to, notify, entry, .. } in self.messages.sends_mut().take_of(from) {
            self.send_over(to, notify);
            self.fail(Side::Transmit, notify, failure(entry, error));
        }
        for pull in self.messages.take_pulls_of(from, |_| true) {
            if let PayloadPull::Message { head, receive, .. } = pull {
                self.receive_failed(from, &head, &receive, error, why);
            }
        }
        self.accesses_down(from, error, why);
        self.remote.drop_serves(from);
        for arrival in self.messages.take_arrivals_of(from) {
            if arrival.heap.is_some() && is_eager(arrival.head.kind) {
                self.peers.release(from, arrival.head.len as usize);
            }
            if let Some(receive) = arrival.receive {
                self.receive_failed(from, &arrival.head, &receive, error, why);
            }
        }
        self.windows_down(from);
        self.end_held_messages(from);
        self.fail_directed(from, error, why);
        self.assign_held_messages(from);
        self.sender_down(from);
        self.collectives_down(from, error, why);
        self.peers.reset(from);
        self.peers.end_budget(from);
        for overdue in self.peers.take_overdue(from) {
            for kind in [FrameKind::Message, FrameKind::Tagged, FrameKind::Collective] {
                self.drop_held(kind, |from, _, _| from == overdue);
            }
        }
        self.windows_still_wait(from);
    }

    /// Pushes an event to the event queue, if there is one.
    pub(crate) fn event(&self, event: impl FnOnce() -> Event) {
        self.reporting.event(event);
    }
}

/// Returns the error code for a broken link.
pub(crate) fn broken_code(broken: &Broken) -> ErrorCode {
    match broken {
        Broken::Closed => ErrorCode::Closed,
        Broken::Died(_) => ErrorCode::PeerDied,
        Broken::Timeout(_) => ErrorCode::TimedOut,
        Broken::Protocol(_) => ErrorCode::Protocol,
        Broken::NoMemory(_) => ErrorCode::NoMemory,
        Broken::System(..) => ErrorCode::Io,
        _ => ErrorCode::Io, // There are no other reasons.
    }
}

/// Returns the flags of a send's completion.
#[inline]
pub(crate) fn send_flags(tagged: bool) -> CompletionFlags {
    CompletionFlags::SEND | if tagged { CompletionFlags::TAGGED } else { CompletionFlags::MESSAGE }
}

/// Returns the completion of a send.
#[inline]
pub(crate) fn sent_entry(context: u64, flags: CompletionFlags, len: usize) -> Entry {
    Entry { context, flags, len: len as u64, ..Entry::default() }
}

/// Returns the address at which a part of a multi-receive buffer starts.
fn first_address(receive: &Receive) -> u64 {
    match receive.place {
        ReceiveDestination::One(segment) => segment.as_ptr().addr() as u64,
        ReceiveDestination::Several(..) => 0,
    }
}
