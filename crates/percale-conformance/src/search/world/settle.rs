//! Ends all operations, and checks the final state.

use std::time::{Duration, Instant};

use percale::CompletionQueue;

use super::{World, on};
use crate::search::ledger::{Criteria, Fault, Message, Verdict};
use crate::search::step::{RunTransport, SLOTS};
use crate::search::waker;

/// The number of rounds without any change after which the simulated network is considered idle.
const ROUNDS: u32 = 400;

/// The time without any change after which the other transports are considered idle.
const QUIET: Duration = Duration::from_secs(5);

impl World {
    /// Ends the run.
    pub(super) fn settle(&mut self) -> Verdict {
        self.calm_devices();
        // Shared receives are reported by an endpoint, so at least one must be open.
        for place in 0..self.seats.len() {
            if self.seats[place].open.is_none() {
                self.open(place, false)?;
            }
        }
        self.fire_everything()?;
        // Receive all sent messages.
        self.quiet(true)?;
        if self.seats.iter().flat_map(|opened_endpoint| &opened_endpoint.open).any(|open| !open.claimed.is_empty()) {
            // Waiting receives may have used all entries of a queue, so that claimed messages could not be received.
            self.cancel_everything();
            self.quiet(true)?;
        }
        self.look_for_lost()?;
        self.look_at_groups()?;
        // Cancel the operations that still wait.
        self.cancel_everything();
        self.finish_many()?;
        self.settle_handles(true)?;
        self.quiet(false)?;
        self.settle_calls()?;
        self.excuse_starved_groups();
        self.look_for_endless()?;
        self.close_windows();
        self.close_regions()?;
        self.close_everything()?;
        self.look_at_queues()?;
        self.lender.check_all()?;
        self.returns.check_all()
    }

    /// Drives all objects once.
    fn round(&mut self) -> Verdict {
        // Long messages take many rounds if few bytes may be outstanding.
        self.tick(self.settings.delay.max(20_000));
        for place in 0..self.seats.len() {
            self.guarded(|world| {
                if let Some((_, port)) = world.port(place) {
                    on!(port, endpoint => endpoint.progress());
                }
                world.poll(place, 16)
            })?;
        }
        for queue in 0..self.queues.len() {
            self.guarded(|world| world.read(queue, 16))?;
        }
        // A claimed message that is not received blocks its sender, so receive it.
        for place in 0..self.seats.len() {
            self.guarded(|world| world.claimed(place, 0, false))?;
        }
        self.guarded(Self::complete_groups)?;
        self.guarded(Self::settle_many)?;
        self.guarded(|world| world.settle_handles(false).map(|_| ()))
    }

    /// Returns values that change when progress is made.
    ///
    /// Results are counted when they are read, including those of operations that are not pending: closed endpoints may
    /// leave hundreds of errors in a shared queue. A round reads one error, and the endpoints that report to a full
    /// queue make no progress until there is room.
    fn state(&self) -> (usize, usize, u64) {
        let held = self.held.iter().flatten().filter(|held| !held.is_finished).count() + self.in_sets();
        (self.ledger.pending().len(), held, self.ledger.arrivals() + self.groups.joined() + self.results)
    }

    /// Makes progress until nothing changes. If `receiving` is set, posts receives for all messages.
    fn quiet(&mut self, receiving: bool) -> Verdict {
        let mut before = self.state();
        let (mut rounds, mut since) = (0, Instant::now());
        loop {
            if receiving {
                for place in 0..self.seats.len() {
                    self.receive_anything(place)?;
                }
            }
            self.round()?;
            let now = self.state();
            if now != before {
                (before, rounds, since) = (now, 0, Instant::now());
                continue;
            }
            rounds += 1;
            let is_over = if receiving { !self.misses_anything() } else { now.0 + now.1 == 0 };
            let round_limit = if is_over { ROUNDS / 4 } else { ROUNDS };
            let late = match self.settings.transport {
                RunTransport::Sim | RunTransport::Loopback => rounds > round_limit,
                _ => rounds > 20 && (is_over || since.elapsed() > QUIET),
            };
            if late {
                return Ok(());
            }
            if self.settings.transport != RunTransport::Sim {
                std::thread::yield_now();
            }
        }
    }

    fn misses_anything(&self) -> bool {
        self.missed().is_some()
            || self.groups.is_forming()
            || self.ledger.pending().iter().any(|id| self.ledger.received_by(*id).is_none())
    }

    /// Returns a message that should have arrived and has not.
    fn missed(&self) -> Option<u64> {
        let waits = self.waiting_for_claims();
        let missing = self.ledger.messages().filter(|(id, message)| {
            let is_sent =
                || self.ledger.operation(*id).is_some_and(|operation| operation.is_over || !operation.is_reported);
            message.arrivals == 0 && !message.may_be_lost && is_sent() && !waits(*id, message)
        });
        missing.map(|(id, _)| id).min()
    }

    /// Returns a function that checks whether a message may still be waiting, either because it was claimed and not
    /// received, or because it follows a fence that waits for such a message. An unordered message was posted when it
    /// was triggered, possibly after all other messages.
    ///
    /// The claimed messages are collected once, because a run has thousands of messages and every round makes this
    /// check.
    pub(super) fn waiting_for_claims(&self) -> impl Fn(u64, &Message) -> bool {
        let has_claim = |(_, message): &(u64, &Message)| message.arrivals == 0 && self.is_claimed(message);
        let claimed: Vec<_> = self.ledger.messages().filter(has_claim).collect();
        let fences: Vec<_> =
            self.ledger.messages().filter(|(_, message)| message.is_fenced && !claimed.is_empty()).collect();
        move |id, message| {
            let last = if message.is_ordered { id } else { u64::MAX };
            let same = |other: &Message| other.from == message.from && other.to == message.to;
            let first = claimed.iter().filter(|(_, other)| same(other)).map(|(claim, _)| *claim).min();
            claimed.iter().any(|(claim, _)| *claim == id)
                || first.is_some_and(|first| {
                    fences.iter().any(|(fence, other)| first < *fence && *fence <= last && same(other))
                })
        }
    }

    /// Returns whether a message may have been claimed and not received. If waiting receives use all entries of a
    /// queue, no further receive can be posted.
    fn is_claimed(&self, message: &Message) -> bool {
        let open = self.seats[message.to.0 as usize].open.as_ref();
        let mut claims = open.iter().flat_map(|open| &open.claimed);
        claims.any(|claim| self.ledger.received_by(*claim).is_some_and(|receive| receive.criteria.fits(message)))
    }

    /// Keeps one receive posted for any untagged message and one for any tagged message. These receives need no room in
    /// a queue.
    fn receive_anything(&mut self, place: usize) -> Verdict {
        for (index, tag) in [None, Some((0, u64::MAX))].into_iter().enumerate() {
            let slot = SLOTS + 2 * place + index;
            if self.held[slot].as_ref().is_some_and(|held| held.is_finished) {
                self.held[slot] = None;
            }
            self.receive_safe(place, None, Criteria { from: None, tag }, 400_000, slot)?;
        }
        Ok(())
    }

    fn look_for_lost(&self) -> Verdict {
        let Some(id) = self.missed() else { return Ok(()) };
        let message = self.ledger.message(id);
        let text = format!("message {id} was sent and no event could have lost it, but it did not arrive: {message:?}");
        Err(Fault::new("message lost", text))
    }

    fn cancel_everything(&mut self) {
        let pool = self.pool.clone();
        // Operations that were still posted have been reported, because no further member was closed.
        for id in self.ledger.vanished() {
            if pool.cancel(id)
                && let Some(operation) = self.ledger.operation_mut(id)
            {
                (operation.is_cancelled, operation.may_vanish) = (true, false);
            }
        }
        for id in self.ledger.pending() {
            let Some(operation) = self.ledger.operation(id) else { continue };
            if operation.what.starts_with("safe") {
                continue;
            }
            match operation.at {
                None => self.cancel_one(id, |id| pool.cancel(id)),
                Some(life) => {
                    let port = self
                        .seats
                        .iter()
                        .filter_map(|opened_endpoint| opened_endpoint.open.as_ref())
                        .find(|open| open.life == life);
                    if let Some(port) = port.map(|open| open.port) {
                        self.cancel_one(id, |id| on!(port, endpoint => endpoint.cancel(id)));
                    }
                }
            }
        }
    }

    fn look_for_endless(&self) -> Verdict {
        let pending = self.ledger.pending();
        let Some(first) = pending.first() else { return Ok(()) };
        let operation = self.ledger.operation(*first);
        let what = operation.map_or("", |operation| operation.what);
        let kind = match what {
            "safe shared receive" | "shared receive" | "shared multi-receive" => "shared receive never ended",
            "send" | "safe send" | "inject" => "send never ended",
            "receive" | "safe receive" | "multi-receive" | "safe multi-receive" => "receive never ended",
            _ => "never ended",
        };
        let text = format!("{} operations have not ended; the first is {first}: {operation:?}", pending.len());
        Err(Fault::new(kind, text))
    }

    fn close_everything(&mut self) -> Verdict {
        for slot in 0..self.held.len() {
            drop(self.held[slot].take());
        }
        self.sets.iter_mut().for_each(|set| *set = None);
        // A thread that wakes tasks may hold a waker slightly longer.
        let since = Instant::now();
        while waker::live() > self.wakers && since.elapsed() < QUIET {
            std::thread::yield_now();
        }
        if waker::live() > self.wakers && !self.done.forgot {
            return Err(Fault::new(
                "wakers kept",
                format!("{} wakers are kept although no operation is in progress", waker::live() - self.wakers),
            ));
        }
        self.look_for_remains()?;
        for place in 0..self.seats.len() {
            self.close(place, false)?;
        }
        Ok(())
    }

    /// Checks that the open endpoints keep no records of operations: all have ended.
    fn look_for_remains(&mut self) -> Verdict {
        if self.done.forgot {
            return Ok(()); // The operations of forgotten handles are kept until the endpoint closes.
        }
        let (mut rounds, since) = (0, Instant::now());
        loop {
            self.tick(self.settings.delay.max(20_000));
            let ports: Vec<_> = (0..self.seats.len()).filter_map(|place| self.port(place)).collect();
            let remains: Vec<_> =
                ports.iter().flat_map(|(_, port)| on!(*port, endpoint => endpoint.remains())).collect();
            // A message whose loss was possible may have arrived after all, when receives were no longer posted. A group
            // whose members did not all take part waits for them.
            let waits = ["held messages", "receives of groups", "held messages of groups"];
            if remains.is_empty() || remains.iter().any(|(name, _)| waits.contains(name)) {
                return Ok(());
            }
            rounds += 1;
            let late = match self.settings.transport {
                RunTransport::Sim | RunTransport::Loopback => rounds > ROUNDS,
                _ => since.elapsed() > QUIET,
            };
            if late {
                let text = format!("no operation is in progress, but endpoints keep records: {remains:?}");
                return Err(Fault::new("records kept", text));
            }
            if self.settings.transport != RunTransport::Sim {
                std::thread::yield_now();
            }
        }
    }

    /// Checks that the full capacity of every queue is available again.
    fn look_at_queues(&mut self) -> Verdict {
        for index in 0..self.queues.len() {
            let queue: CompletionQueue = self.queues[index].clone();
            let limit = self.settings.queue_limit;
            let since = Instant::now();
            let taken = loop {
                for _ in 0..64 {
                    self.read(index, 16)?;
                }
                let taken = (0..limit).take_while(|_| queue.reserve().is_ok()).count();
                queue.update(|ring| (0..taken).for_each(|_| ring.unreserve()));
                // If a peer might still have been writing an operation's memory when its endpoint closed, the operation
                // is reported only after the peer has released the memory.
                let is_final = matches!(self.settings.transport, RunTransport::Sim | RunTransport::Loopback);
                if taken == limit || is_final || since.elapsed() > QUIET {
                    break taken;
                }
                std::thread::yield_now();
            };
            if taken < limit {
                let text = format!(
                    "queue {index} is empty and has room for {taken} of {limit} results: the others stay reserved"
                );
                return Err(Fault::new("reservations kept", text));
            }
        }
        Ok(())
    }
}
