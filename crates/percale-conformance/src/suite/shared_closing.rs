//! Endpoints of a shared receive context that are closed while receiving.

use std::collections::BTreeMap;

use percale::{
    AddressVector, CompletionFlags, CompletionQueue, Domain, Endpoint, Entry, ErrorCode, OpFlags, PeerAddress,
    ReceiveWork, Segments, SharedReceive,
};

use crate::fabric::{Fabric, Peers};
use crate::memory::{Memory, content, post_shared};
use crate::watchdog::Watchdog;

/// The number of receives for one message each in a round.
const RECEIVES: u64 = 4;
/// The context of the multi-receive.
const MANY: u64 = 100;

/// The results of an operation: successes, failures, and whether the last of them released a buffer.
#[derive(Debug, Default)]
struct Ends {
    good: usize,
    failed: Vec<ErrorCode>,
    released: usize,
    last_released: bool,
}

/// A member that is closed, a member that stays open, their queues, and the reported results.
struct Members {
    closes: Option<Endpoint>,
    stays: Endpoint,
    queues: Vec<CompletionQueue>,
    ends: BTreeMap<u64, Ends>,
}

impl Members {
    fn end(&mut self, entry: &Entry, error: Option<ErrorCode>) {
        let ends = self.ends.entry(entry.context).or_default();
        match error {
            None => ends.good += 1,
            Some(error) => ends.failed.push(error),
        }
        ends.last_released = entry.flags.contains(CompletionFlags::MULTI_RECEIVE);
        ends.released += usize::from(ends.last_released);
    }

    /// Collects results from the queues and from the endpoints.
    fn read(&mut self) {
        let mut found = Vec::new();
        let mut entry = [Entry::default()];
        for queue in &self.queues {
            while let Some(end) = match queue.read(&mut entry) {
                Ok(0) => None,
                Ok(_) => Some((entry[0], None)),
                Err(_) => queue.read_error().map(|error| (error.entry, Some(error.error))),
            } {
                found.push(end);
            }
        }
        for endpoint in self.closes.iter().chain([&self.stays]) {
            while let Some(end) = match endpoint.poll(&mut entry) {
                Ok(0) => None,
                Ok(_) => Some((entry[0], None)),
                Err(_) => endpoint.read_error().map(|error| (error.entry, Some(error.error))),
            } {
                found.push(end);
            }
        }
        found.iter().for_each(|(entry, error)| self.end(entry, *error));
    }
}

fn post(shared: &SharedReceive, context: u64, len: usize, flags: OpFlags) {
    let segments = Segments::one(Memory::blank(len).segment());
    let flags = flags | OpFlags::COMPLETION;
    let work = ReceiveWork { from: PeerAddress::UNSPECIFIED, segments, tag: None, context, flags };
    post_shared(shared, &work).expect("a receive");
}

/// Opens two members of a shared receive context, with separate queues or without queues.
fn open_members<F: Fabric>(
    fabric: &F,
    domain: &Domain,
    vector: &AddressVector,
    shared: &SharedReceive,
    queued: bool,
) -> Members {
    let queues: Vec<_> = (0..if queued { 2 } else { 0 }).map(|_| CompletionQueue::default()).collect();
    let open = |number: usize| {
        let builder = domain.endpoint().vector(vector).shared_receive(shared);
        let builder = match queues.get(number) {
            Some(queue) => builder.receive_queue(queue),
            None => builder,
        };
        builder.bind(fabric.address()).expect("an endpoint")
    };
    let (closes, stays) = (open(0), open(1));
    Members { closes: Some(closes), stays, queues, ends: BTreeMap::new() }
}

/// Returns whether all receives of a round have ended.
fn is_over(ends: &BTreeMap<u64, Ends>) -> bool {
    (0..RECEIVES).all(|context| ends.contains_key(&context)) && ends.get(&MANY).is_some_and(|ends| ends.released > 0)
}

/// Checks that each receive of a round ended once. Returns the number of reported failures.
fn check_ends(ends: &BTreeMap<u64, Ends>, round: u64) -> usize {
    let mut failed = 0;
    for (context, ends) in ends {
        failed += ends.failed.len();
        assert!(ends.failed.iter().all(|error| *error == ErrorCode::Canceled), "round {round}: {context}: {ends:?}");
        if *context == MANY {
            assert!(ends.released == 1 && ends.last_released, "round {round}: {ends:?}");
        } else {
            assert_eq!(ends.good + ends.failed.len(), 1, "round {round}: {context}: {ends:?}");
        }
    }
    failed
}

/// When a member is closed at any time, each receive of the context ends once: it gets a message, it fails because the
/// closed member was receiving into it, or it remains available to the other members.
///
/// Requirements: CTX-008.
pub fn receives_end_once_when_a_member_closes<F: Peers>() {
    let _watchdog = Watchdog::new("receives end once when a member closes");
    let (mut cut_off, mut left) = (0, 0);
    for round in 0..30_u64 {
        let fabric = F::new(round);
        let domain = fabric.domain(|domain| domain);
        let vector = domain.address_vector().build().expect("a vector");
        let shared = domain.shared_receive();
        let mut members = open_members(&fabric, &domain, &vector, &shared, round % 2 == 0);
        let sender = domain.endpoint().vector(&vector).bind(fabric.address()).expect("an endpoint");
        let to = vector.insert(members.closes.as_ref().expect("the endpoint is open").address()).expect("an address");
        let turn = |members: &Members| {
            members.closes.iter().chain([&members.stays, &sender]).for_each(|endpoint| _ = endpoint.progress());
            fabric.tick();
            std::thread::yield_now();
        };
        let hello =
            members.closes.as_ref().map(|member| member.tagged_recv(1, 0, vec![0; 8]).start().expect("a receive"));
        while sender.tagged_inject(to, 1, b"hello").is_err() {
            turn(&members);
        }
        while hello.iter().any(|hello| !hello.is_ready()) {
            turn(&members);
        }
        drop(hello);
        (0..RECEIVES).for_each(|context| post(&shared, context, F::BULK, OpFlags::empty()));
        post(&shared, MANY, 4 * F::BULK, OpFlags::MULTI_RECEIVE);
        let safe = shared.tagged_recv(9, 0, vec![0; F::BULK]).expect("a receive");
        let mut sends: Vec<_> = (0..RECEIVES + 2)
            .map(|number| sender.send(to, content(number, F::BULK)).start().expect("a send"))
            .collect();
        sends.push(sender.tagged_send(to, 9, content(9, F::BULK)).start().expect("a send"));
        (0..2 * round).for_each(|_| turn(&members));
        members.read();
        members.closes = None;
        // Receives that the member had not used remain available to the others until they are cancelled.
        (0..50).for_each(|_| turn(&members));
        members.read();
        for context in (0..RECEIVES).chain([MANY]) {
            if shared.cancel(context) {
                left += 1;
            }
        }
        // An endpoint's own queues are closed with it, and their unread results are lost. Results of receives that
        // ended while it was being closed are not lost.
        while !is_over(&members.ends) {
            turn(&members);
            members.read();
        }
        (0..50).for_each(|_| turn(&members));
        members.read();
        cut_off += check_ends(&members.ends, round);
        if !safe.is_ready() {
            assert!(safe.cancel(), "round {round}: no endpoint is using the receive");
        }
        drop(safe.take().expect("the result"));
        sends.into_iter().for_each(drop);
    }
    println!("{cut_off} receives failed, {left} remained for the other members");
}
